"""REST of the Open Inference Protocol: addresses, requests and replies, in JSON or with bytes after it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

from calib_serve.core.errors import InputError
from calib_serve.core.oip import Tensor, as_entry, raw_of, read_tensor
from calib_serve.gateway.calibration import ADDED, CalibratedOutput
from calib_serve.gateway.http import NoAnswer

JSON_LENGTH = b"inference-header-content-length"
"""How long the JSON before binary tensors is."""

UNCALIBRATED = "x-calib-uncalibrated"
"""The header, or gRPC's trailing metadata, of a reply that went on without a calibration: why."""

_NOT_OURS = ("classification", "shared_memory_region")
_CODINGS = ("gzip", "deflate")
_AUTO = zlib.MAX_WBITS | 32  # gzip, or deflate as zlib writes it

Kind = Literal["infer", "inference", "completion", "health", "other", "unknown"]


class Route(NamedTuple):
    """The kind of a request, and its model.

    ``infer`` is the protocol's inference, ``completion`` a language model's, which the body names,
    ``inference`` whatever else may ask a model for its scores,
    ``other`` what asks none, and ``unknown`` an address of which none of this is known.
    """

    kind: Kind
    model: str = ""
    version: str = ""


def read_route(method: str, target: bytes) -> Route:
    """Read a request's path, still percent-encoded and without its query, as strictly as a proxy must.

    InputError for a path that is not of this server, or that servers read in different ways: whoever could
    write the address of a calibrated model in a second way would get its scores as they are.

    >>> read_route("POST", b"/v2/models/d%69gits/versions/3/infer")
    Route(kind='infer', model='digits', version='3')
    >>> read_route("POST", b"/v1/models/digits:predict")
    Route(kind='inference', model='digits', version='')
    >>> read_route("POST", b"/invocations").kind
    'unknown'
    """
    if not target.startswith(b"/") or b"#" in target:
        raise InputError("the address must be a path of this server, such as /v2/models/NAME/infer")
    parts = [_part(one) for one in target.split(b"/")[1:]]
    ends = parts[:-1] if parts[-1:] == [""] else parts
    if "" in ends:
        raise InputError("an address has no empty part between two slashes")
    return _route(ends, looks=method in ("GET", "HEAD"))


def _route(parts: list[str], *, looks: bool) -> Route:
    """The route of a path; TorchServe infers by every method, so that none alone makes it harmless."""
    route = Route("unknown")
    match parts:
        case ["ping"] | ["v2"] | ["v2", "health", "live" | "ready"]:
            route = Route("health")
        case ["v2", "models", model, "versions", version, *rest]:
            route = Route(_of_model(rest, looks=looks), model, version)
        case ["v2", "models", model, *rest]:
            route = Route(_of_model(rest, looks=looks), model)
        case ["v1", "chat", "completions"] | ["v1", "completions"]:
            route = Route("completion")
        case ["v1", "models", model, *rest]:  # a verb follows the last colon
            asks = not looks or ":" in "".join((model, *rest))
            route = Route("inference" if asks else "other", model.rpartition(":")[0] or model)
        case ["predictions" | "explanations", model, *rest]:  # TorchServe's own
            route = Route("inference", model, "".join(rest[:1]))
        case ["models", model, "invoke"]:  # SageMaker's
            route = Route("inference", model)
        case ["v2", "repository" | "systemsharedmemory" | "cudasharedmemory" | "trace" | "logging", *_]:
            route = Route("other")
        case [] | ["metrics"] | ["v1" | "v2", "models"] | ["models"] | ["models", _] if looks:
            route = Route("other")
        case ["docs" | "openapi.json"] | ["v2", "docs", *_] | ["v1", "config"] if looks:
            route = Route("other")
    return route


def _of_model(rest: list[str], *, looks: bool) -> Kind:
    """The kind of an address below a model's own."""
    if rest == ["infer"]:
        return "infer"
    about = looks and rest in ([], ["ready"], ["stats"], ["config"])
    return "other" if about or rest == ["trace", "setting"] else "inference"


def check_reads(route: Route, method: str, *, calibrated: bool, answers: bool) -> None:
    """Raise NoAnswer for a request that could get the scores of a calibrated model without calibration.

    ``answers``: whether a model is known whose outputs are answers.
    """
    if route.kind == "unknown" or (route.kind == "completion" and not (answers and method == "POST")):
        raise NoAnswer(404, "the gateway knows no such address; if the server does, ask it there")
    if calibrated and (route.kind == "inference" or (route.kind == "infer" and method != "POST")):
        told = f"{route.model} is calibrated: it is asked by POST /v2/models/{route.model}/infer alone"
        raise NoAnswer(405 if route.kind == "infer" else 501, told)


def _part(raw: bytes) -> str:
    """Decode one part of a path, once."""
    try:
        part = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise InputError("an address must be UTF-8") from error
    if part in (".", "..") or any(sign in part for sign in "/\\;%") or not part.isprintable():
        raise InputError("an address has neither dots as a part, nor encoded slashes or percent signs in one")
    return part


def decompress(body: bytes, coding: str, *, most: int) -> bytes:
    """Undo the coding of a body; InputError where it is damaged or would be larger than ``most`` bytes.

    >>> decompress(compress(b"abc", "gzip"), "gzip", most=10)
    b'abc'
    """
    if coding in ("", "identity"):
        return body
    if coding not in _CODINGS:
        raise InputError(f"a body is sent as gzip, deflate or as it is, got {coding[:20]!r}")
    made, rest = b"", body
    try:
        while rest:  # gzip may have several members
            reader = zlib.decompressobj(_AUTO)
            made += reader.decompress(rest, most + 1 - len(made))
            if len(made) > most:
                raise InputError(f"a body has at most {most} bytes once it is decompressed")
            if not reader.eof:
                raise InputError(f"the body is no whole {coding}")
            rest = reader.unused_data
    except zlib.error as error:
        raise InputError(f"the body is no {coding}") from error
    return made


def compress(body: bytes, coding: str) -> bytes:
    """Encode a body again, as it came."""
    if coding == "gzip":
        return gzip.compress(body, 1, mtime=0)
    return zlib.compress(body, 1) if coding == "deflate" else body


class Unsupported(InputError):
    """A request that cannot be answered with a calibrated output."""


class Ask(NamedTuple):
    """A client's wishes: ``body`` to send on, and its JSON's length if bytes follow it.

    ``returned``: whether the calibrated output goes to the client; ``added``: which of the outputs that are
    added, None for all.
    """

    body: bytes
    json_length: int | None = None
    returned: bool = True
    added: frozenset[str] | None = None

    def picked(self, added: list[Tensor], own: frozenset[str]) -> list[Tensor]:
        """Pick the wanted outputs to add, unless the model has an output of the name."""
        wanted = {one.name for one in added} if self.added is None else self.added
        return [one for one in added if one.name in wanted - own]


class Wishes(NamedTuple):
    """Which of the outputs that a client names are ``ours``, and whether the calibrated one is returned."""

    ours: frozenset[str]
    returned: bool

    @classmethod
    def read(cls, names: Sequence[Any], output: str, may_add: frozenset[str]) -> Wishes | None:
        """Read the names; None where the server is asked for just these."""
        found = cls(frozenset(name for name in names if name in may_add), output in names)
        return None if not names or (found.returned and not found.ours) else found


def read_infer_request(
    body: bytes, json_length: int | None, output: str, may_add: frozenset[str] = ADDED
) -> Ask:
    """Read the wishes of a request to a calibrated ``output``; its reply may get the outputs ``may_add``.

    Unsupported where the output is asked for in a form that cannot be calibrated. A body that is not of the
    protocol goes on as it is: the server says what is wrong with it.
    """
    head = body if json_length is None else body[:json_length]
    if b'"outputs"' not in head and b"\\u" not in head:
        return Ask(body, json_length)  # all outputs; most requests end here, without being parsed
    try:
        document = json.loads(head)
    except (ValueError, RecursionError):
        return Ask(body, json_length)
    outputs = document.get("outputs") if isinstance(document, dict) else None
    if not isinstance(outputs, list) or not outputs or not all(isinstance(one, dict) for one in outputs):
        return Ask(body, json_length)
    for one in outputs:
        if one.get("name") == output:
            check_parameters(output, one.get("parameters"))
    wishes = Wishes.read([one.get("name") for one in outputs], output, may_add)
    if wishes is None:
        return Ask(body, json_length)
    kept = [one for one in outputs if one.get("name") not in wishes.ours]
    if not wishes.returned:
        # In the binary form, where the client asks for another output in it.
        asked = [one.get("parameters") for one in outputs]
        binary = any(isinstance(one, dict) and one.get("binary_data") for one in asked)
        kept.append({"name": output, **({"parameters": {"binary_data": True}} if binary else {})})
    document["outputs"] = kept
    made, length = json.dumps(document).encode(), None
    if json_length is not None:
        made, length = made + body[json_length:], len(made)
    return Ask(made, length, wishes.returned, wishes.ours or None)


def check_parameters(output: str, parameters: Any) -> None:
    """Raise Unsupported for a form of the output that hides its scores."""
    for name in _NOT_OURS:
        if isinstance(parameters, Mapping) and name in parameters:
            raise Unsupported(
                f"{output} is calibrated by the gateway, which cannot do so with {name}; ask for it without"
            )


@dataclass
class Reply:
    """A parsed reply: its JSON, and the bytes of outputs by their place."""

    document: dict[str, Any]
    blobs: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, body: bytes, json_length: int | None) -> Reply:
        """Read a reply; InputError for one outside the protocol."""
        head = body if json_length is None else body[:json_length]
        try:
            document = json.loads(head)
            outputs = document["outputs"]
            reply, at = cls(document), len(head)
            for place, one in enumerate(outputs):
                size = (one.get("parameters") or {}).get("binary_data_size")
                if size is not None:
                    reply.blobs[place] = body[at : at + size]
                    at += size
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the reply is not of the protocol: {type(error).__name__}") from error
        if at != len(body):
            raise InputError(f"the reply has {len(body)} bytes, and speaks of {at}")
        return reply

    @property
    def version(self) -> str:
        """The version of the model; "" where the reply has none."""
        return str(self.document.get("model_version") or "")

    def scores(self, output: str) -> Tensor | None:
        """The output of this name, None if there is none."""
        for place, one in enumerate(self.document["outputs"]):
            if one.get("name") == output:
                return read_tensor(one, self.blobs.get(place))
        return None

    def write(
        self, ask: Ask, output: str, datatype: str, calibrated: CalibratedOutput
    ) -> tuple[bytes, int | None]:
        """Write the client's reply; return the length of its JSON as well, if bytes follow it."""
        entries, blobs, binary = [], list[bytes](), False
        for place, one in enumerate(self.document["outputs"]):
            blob = self.blobs.get(place)
            if one.get("name") == output:
                binary = blob is not None
                if not ask.returned:
                    continue
                tensor = Tensor(output, datatype, calibrated.values)
                if blob is not None:
                    blob = raw_of(tensor)
                else:
                    nested = bool(one["data"]) and isinstance(one["data"][0], list)
                    one["data"] = (tensor.values if nested else tensor.values.ravel()).tolist()
            entries.append(one)
            blobs += [] if blob is None else [blob]
        own = frozenset(one.get("name") for one in self.document["outputs"])
        for tensor in ask.picked(calibrated.added, own):
            entry = as_entry(tensor)
            if binary:
                del entry["data"]
                blobs.append(raw_of(tensor))
                entry["parameters"] = {"binary_data_size": len(blobs[-1])}
            entries.append(entry)
        head = json.dumps({**self.document, "outputs": entries}, separators=(",", ":")).encode()
        return b"".join([head, *blobs]), len(head) if blobs else None
