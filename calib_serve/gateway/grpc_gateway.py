"""The gateway over gRPC: ModelInfer of calibrated models is read, the protocol's other calls pass.

Streams, and methods of other protocols, could be inferences, and are not served.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole
from calib_serve.core.oip import Tensor, of_list, of_raw, raw_of
from calib_serve.gateway.calibration import ADDED, CalibratedOutput, Calibrations
from calib_serve.gateway.exporter import UncalibratedReplies
from calib_serve.gateway.http import TOKEN, Headers, check_one_address
from calib_serve.gateway.inference import found, why_not
from calib_serve.gateway.rest import UNCALIBRATED, Ask, Wishes, check_parameters
from calib_serve.gateway.tags import TagReader
from calib_serve.web import Full, Waiting

_SERVICE = "GRPCInferenceService"
_KNOWN = frozenset(service_pb2.DESCRIPTOR.services_by_name[_SERVICE].methods_by_name)
_CHECK = "/grpc.health.v1.Health/Check"
_HEALTH = ("ServerLive", "ServerReady", "Check")
_DETAILS = "grpc-status-details-bin"  # more about an error
_TYPED = {
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
}


def _trusting() -> grpc.ChannelCredentials:
    """Trust the authorities of ``SSL_CERT_FILE``, as other clients here do, unless gRPC has its own."""
    path = os.environ.get("SSL_CERT_FILE")
    if not path or "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in os.environ:
        return grpc.ssl_channel_credentials()
    try:
        return grpc.ssl_channel_credentials(read_whole(Path(path)))
    except OSError as error:
        raise InputError(f"cannot read {path}, which SSL_CERT_FILE names: {error}") from error


class GrpcGateway:
    """Listens on ``listen`` and calls ``upstream``, HOST:PORT each, or grpcs://HOST:PORT for TLS there.

    ``timeout``: seconds that a call may take, or less where the client says so. ``tls``: the certificate and
    its key, PEM, to listen with.
    """

    def __init__(
        self,
        calibrations: Calibrations,
        *,
        upstream: str,
        listen: str,
        tags: TagReader,
        waiting: Waiting,
        counts: UncalibratedReplies,
        timeout: float,
        tls: tuple[bytes, bytes] | None,
    ) -> None:
        self._calibrations, self._waiting, self._counts = calibrations, waiting, counts
        self._upstream, self._listen, self._timeout, self._tls = upstream, listen, timeout, tls
        self._tags = tags
        self._server: Any = None
        self._channel: Any = None
        self._unary: Callable[[str], Any] = lambda _: None

    async def open(self) -> None:
        """Listen; InputError where the address cannot be used."""
        sizes = [
            ("grpc.max_receive_message_length", self._waiting.most),
            ("grpc.max_send_message_length", -1),
        ]
        address = self._upstream.removeprefix("grpcs://")
        large = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if address != self._upstream:
            self._channel = grpc.aio.secure_channel(address, _trusting(), options=large)
        else:
            self._channel = grpc.aio.insecure_channel(address, options=large)
        # Kept, as making a method's callable takes as long as a call.
        self._unary = functools.lru_cache(64)(self._channel.unary_unary)
        # Without so_reuseport a second gateway says that the port is taken; with it, both get calls.
        self._server = grpc.aio.server(options=[*sizes, ("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((_Handler(self),))
        try:
            if self._tls is None:
                self._server.add_insecure_port(self._listen)
            else:
                cert, key = self._tls
                self._server.add_secure_port(self._listen, grpc.ssl_server_credentials([(key, cert)]))
        except RuntimeError as error:
            raise InputError(f"cannot listen on {self._listen}: {error}") from error
        await self._server.start()

    async def close(self) -> None:
        """Answer the calls in hand, and end."""
        if self._server is not None:
            await self._server.stop(10.0)
        if self._channel is not None:
            await self._channel.close()

    async def unary(self, method: str, raw: bytes, context: Any) -> bytes:
        """Answer a call of one message by one message."""
        if method.rpartition("/")[2] in _HEALTH:
            return await self._call(method, raw, context, _forwarded(context))
        try:
            with self._waiting.one(), self._waiting.body() as body:
                body.hold(len(raw))
                if method.rpartition("/")[2] == "ModelInfer":
                    return await self._infer(method, raw, context)
                return await self._call(method, raw, context, _forwarded(context))
        except Full as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        raise AssertionError("abort raises")

    async def _call(self, method: str, raw: bytes, context: Any, metadata: tuple[Any, ...]) -> bytes:
        """Call the server; hand its metadata and its errors on to ``context``."""
        left = context.time_remaining()
        call = self._unary(method)(
            raw,
            metadata=metadata,
            timeout=self._timeout if left is None else min(left, self._timeout),
        )
        try:
            reply: bytes = await call
        except grpc.aio.AioRpcError as error:
            await _abort(context, error)
        first = _plain_metadata(await call.initial_metadata())
        if first:
            await context.send_initial_metadata(first)
        context.set_trailing_metadata(_plain_metadata(await call.trailing_metadata()))
        return reply

    async def _infer(self, method: str, raw: bytes, context: Any) -> bytes:
        metadata, headers = _forwarded(context), _headers(context)
        try:
            request = _read_infer(raw, headers)
            model, version = request.model_name, request.model_version
            if (calibrated := self._calibrations.output_of(model)) is None:
                return await self._call(method, raw, context, metadata)
            output = calibrated
            said, kept = self._tags.read(headers, model)
            ask = _asked(raw, request, output, self._calibrations.added_to(model))
        except InputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        names = {name.decode() for name, _ in kept}
        metadata = tuple(one for one in metadata if one[0] in names)
        answer = await self._call(method, ask.body, context, metadata)

        def made() -> bytes:
            try:
                reply = service_pb2.ModelInferResponse.FromString(answer)
            except DecodeError as error:
                raise InputError("the reply is no ModelInferResponse") from error
            named = reply.model_version or version
            calibration, scores = found(self._calibrations, model, named, _scores_of(reply, output))
            return _calibrated_reply(ask, reply, output, calibration(scores.values, said))

        try:
            return made() if len(answer) < 1 << 16 else await asyncio.to_thread(made)
        except Exception as error:  # fails open, and is counted
            self._counts.passed(model, version)
            told = (UNCALIBRATED, why_not(error, model, version))
            context.set_trailing_metadata((*(context.trailing_metadata() or ()), told))
            return answer


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Takes the protocol's calls of one message, with messages as bytes."""

    def __init__(self, gateway: GrpcGateway) -> None:
        self._gateway = gateway

    def service(self, details: Any) -> Any:
        """The handler of a call; None, so UNIMPLEMENTED, for a method that is not known."""
        method: str = details.method
        service, _, name = method.rpartition("/")
        known = service.endswith(_SERVICE) and name in _KNOWN and name != "ModelStreamInfer"
        if method != _CHECK and not known:
            return None
        return grpc.unary_unary_rpc_method_handler(functools.partial(self._gateway.unary, method))


def _forwarded(context: Any) -> tuple[tuple[str, Any], ...]:
    """The client's metadata, without gRPC's own."""
    return tuple(
        (name, value)
        for name, value in context.invocation_metadata() or ()
        if name not in ("user-agent", TOKEN.decode()) and not name.startswith((":", "grpc-"))
    )


def _headers(context: Any) -> Headers:
    """The client's metadata as headers of HTTP."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
    ]


def _plain_metadata(metadata: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, value) for name, value in metadata or () if name == _DETAILS or not name.startswith("grpc-")
    )


async def _abort(context: Any, error: Any) -> None:
    """End the call with the server's error, unchanged."""
    await context.abort(error.code(), error.details() or "", _plain_metadata(error.trailing_metadata()))


def _read_infer(raw: bytes, headers: Headers) -> Any:
    """Parse the request; InputError for another message, and for metadata that names another model."""
    try:
        request = service_pb2.ModelInferRequest.FromString(raw)
    except DecodeError as error:
        raise InputError("this is no ModelInferRequest") from error
    check_one_address(headers, request.model_name)
    return request


def _asked(raw: bytes, request: Any, output: str, may_add: frozenset[str] = ADDED) -> Ask:
    """Read the wishes of a request to a calibrated ``output``; Unsupported as ``rest.read_infer_request``."""
    for one in request.outputs:
        if one.name == output:
            check_parameters(output, one.parameters)
    wishes = Wishes.read([one.name for one in request.outputs], output, may_add)
    if wishes is None:
        return Ask(raw)
    kept = [one for one in request.outputs if one.name not in wishes.ours]
    del request.outputs[:]
    request.outputs.extend(kept)
    if not wishes.returned:
        request.outputs.add(name=output)
    return Ask(request.SerializeToString(), None, wishes.returned, wishes.ours or None)


def _scores_of(reply: Any, output: str) -> Tensor | None:
    """The output of this name, None if there is none."""
    for place, one in enumerate(reply.outputs):
        if one.name == output:
            shape = list(one.shape)
            if place < len(reply.raw_output_contents):
                raw = reply.raw_output_contents[place]
                return Tensor(output, one.datatype, of_raw(one.datatype, shape, raw))
            if one.datatype not in ("FP32", "FP64"):
                raise InputError(f"{one.datatype} of {output} is not in raw contents")
            typed = getattr(one.contents, _TYPED[one.datatype])
            return Tensor(output, one.datatype, of_list(one.datatype, shape, typed))
    return None


def _calibrated_reply(ask: Ask, reply: Any, output: str, calibrated: CalibratedOutput) -> bytes:
    """Write the calibrated reply to the client."""
    raw = bool(reply.raw_output_contents)
    for place, one in enumerate(reply.outputs):
        if one.name != output:
            continue
        if not ask.returned:
            del reply.outputs[place]
            if raw:
                del reply.raw_output_contents[place]
        elif raw:
            reply.raw_output_contents[place] = raw_of(Tensor(output, one.datatype, calibrated.values))
        else:
            contents = getattr(one.contents, _TYPED[one.datatype])
            contents[:] = calibrated.values.ravel().tolist()
        break
    for tensor in ask.picked(calibrated.added, frozenset(one.name for one in reply.outputs)):
        made = reply.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if raw:
            reply.raw_output_contents.append(raw_of(tensor))
        else:
            getattr(made.contents, _TYPED[tensor.datatype]).extend(tensor.values.ravel().tolist())
    return bytes(reply.SerializeToString())
