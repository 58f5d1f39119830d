"""What a request's address asks for, read as strictly as a proxy must.

An address that servers read in different ways is refused: whoever could write the address of a calibrated
model in a second way would get its scores as they are.
"""

from __future__ import annotations

from typing import Literal, NamedTuple
from urllib.parse import unquote_to_bytes

from calib_serve.errors import InputError

__all__ = ["Route", "read_route"]

Kind = Literal["infer", "inference", "health", "other"]

_HEALTH = (["v2"], ["v2", "health", "live"], ["v2", "health", "ready"])
_NO_INFERENCE = ("load", "unload", "ready", "stats", "config", "trace")


class Route(NamedTuple):
    """What is asked for, and of which model; ``inference`` is one that is not the protocol's ``infer``."""

    kind: Kind
    model: str = ""
    version: str = ""


def read_route(method: str, target: bytes) -> Route:
    """The route of a request's path, still percent-encoded and without its query.

    InputError for a path that is not of this server, or that may be read in several ways.

    >>> read_route("POST", b"/v2/models/d%69gits/versions/3/infer")
    Route(kind='infer', model='digits', version='3')
    >>> read_route("POST", b"/v1/models/digits:predict")
    Route(kind='inference', model='digits', version='')
    """
    if not target.startswith(b"/") or b"#" in target:
        raise InputError("the address must be a path of this server, such as /v2/models/NAME/infer")
    parts = [_part(one) for one in target.split(b"/")[1:]]
    ends = parts[:-1] if parts[-1:] == [""] else parts
    if "" in ends:
        raise InputError("an address has no empty part between two slashes")
    if ends in _HEALTH:
        return Route("health")
    if ends[:1] == ["predictions"] and len(ends) > 1:  # TorchServe's own
        return Route("inference" if method in ("POST", "PUT") else "other", ends[1], "".join(ends[2:3]))
    if ends[1:2] != ["models"] or len(ends) < 3:
        return Route("other")
    model, _, verb = ends[2].partition(":") if ends[0] == "v1" else (ends[2], "", "")
    version = ends[4] if len(ends) > 4 and ends[3] == "versions" else ""
    rest = ends[5:] if version else ends[3:]
    if ends[0] == "v2" and rest == ["infer"]:
        return Route("infer", model, version)
    asks = method == "POST" and (verb or (rest and rest[-1] not in _NO_INFERENCE))
    return Route("inference" if asks else "other", model, version)


def _part(raw: bytes) -> str:
    """One part of a path, decoded once."""
    try:
        part = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise InputError("an address must be UTF-8") from error
    if part in (".", "..") or any(sign in part for sign in "/\\;%") or not part.isprintable():
        raise InputError("an address has neither dots as a part, nor encoded slashes or percent signs in one")
    return part
