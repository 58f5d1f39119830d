"""Requests and replies of the protocol over gRPC: ModelInfer's messages, in raw or in typed contents."""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from calib_serve.errors import InputError, MissingDependency
from calib_serve.gateway.calibration import ADDED, Calibrated
from calib_serve.gateway.rest import check_parameters
from calib_serve.gateway.tensors import Tensor, of_list, of_raw, raw_of

try:
    from tritonclient.grpc import service_pb2
except ImportError as error:
    raise MissingDependency("tritonclient", "gateway") from error

__all__ = ["GrpcAsk", "asked", "calibrated_reply", "read_infer", "read_reply", "scores_of"]

_TYPED = {
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
}


class GrpcAsk(NamedTuple):
    """As ``rest.Ask``; ``message`` to send on."""

    message: bytes
    model: str
    returned: bool = True
    added: frozenset[str] | None = None


def read_infer(raw: bytes) -> Any:
    """The request; None for what is no message of this kind, and then the server says so."""
    try:
        return service_pb2.ModelInferRequest.FromString(raw)
    except DecodeError:
        return None


def asked(raw: bytes, request: Any, output: str, may_add: frozenset[str] = ADDED) -> GrpcAsk:
    """What is asked of a model of which ``output`` is calibrated; Unsupported as ``rest.read_request``."""
    names = [one.name for one in request.outputs]
    if not names:
        return GrpcAsk(raw, request.model_name)
    for one in request.outputs:
        if one.name == output:
            check_parameters(output, one.parameters)
    ours = frozenset(name for name in names if name in may_add)
    if output in names and not ours:
        return GrpcAsk(raw, request.model_name)
    kept = [one for one in request.outputs if one.name not in ours]
    del request.outputs[:]
    request.outputs.extend(kept)
    if output not in names:
        request.outputs.add(name=output)
    return GrpcAsk(request.SerializeToString(), request.model_name, output in names, ours or None)


def read_reply(raw: bytes) -> Any:
    """The reply; InputError for what is none."""
    try:
        return service_pb2.ModelInferResponse.FromString(raw)
    except DecodeError as error:
        raise InputError("the reply is no ModelInferResponse") from error


def scores_of(reply: Any, output: str) -> Tensor | None:
    """The output of this name, None if there is none."""
    for place, one in enumerate(reply.outputs):
        if one.name == output:
            shape = list(one.shape)
            if place < len(reply.raw_output_contents):
                return Tensor(
                    output, one.datatype, of_raw(one.datatype, shape, reply.raw_output_contents[place])
                )
            if one.datatype not in ("FP32", "FP64"):
                raise InputError(f"{one.datatype} of {output} is not in raw contents")
            return Tensor(
                output,
                one.datatype,
                of_list(one.datatype, shape, getattr(one.contents, _TYPED[one.datatype])),
            )
    return None


def own_of(reply: Any) -> frozenset[str]:
    """The names of the model's outputs."""
    return frozenset(one.name for one in reply.outputs)


def calibrated_reply(ask: GrpcAsk, reply: Any, output: str, calibrated: Calibrated) -> bytes:
    """The message to the client."""
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
    own = own_of(reply)
    for tensor in calibrated.added:
        if (ask.added is not None and tensor.name not in ask.added) or tensor.name in own:
            continue
        made = reply.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if raw:
            reply.raw_output_contents.append(raw_of(tensor))
        else:
            getattr(made.contents, _TYPED[tensor.datatype]).extend(tensor.values.ravel().tolist())
    return bytes(reply.SerializeToString())
