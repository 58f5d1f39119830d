"""Which headers of HTTP go on, and which are of one connection alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calib_serve.errors import InputError
from calib_serve.gateway.calibration import About
from calib_serve.watch.slices import LONGEST_SEGMENT, is_segment

__all__ = ["JSON_LENGTH", "Headers", "about", "at_most_one", "forwarded", "json_length_of", "without"]

Headers = list[tuple[bytes, bytes]]
"""Names, of requests in lower case, and values."""

JSON_LENGTH = b"inference-header-content-length"
"""How long the JSON before binary tensors is."""

_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade expect".split()
)
_LONGEST = 200  # bytes of a group or an id


def forwarded(headers: Iterable[tuple[bytes, bytes]], *more: bytes) -> Headers:
    """Without those of one connection, those that its Connection header names, and ``more``."""
    given = list(headers)
    named = b",".join(value for name, value in given if name.lower() == b"connection").lower()
    dropped = _HOP.union((part.strip() for part in named.split(b",")), more)
    return [(name, value) for name, value in given if name.lower() not in dropped]


def without(headers: Headers, *names: bytes) -> Headers:
    """Without the headers of these names, in lower case."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def at_most_one(headers: Headers, name: bytes) -> str:
    """The value of a header, "" where it is missing; InputError where it is there twice."""
    found = [value for key, value in headers if key.lower() == name]
    if len(found) > 1:
        raise InputError(f"the header {name.decode()} is there {len(found)} times")
    return found[0].decode("latin-1").strip() if found else ""


def json_length_of(headers: Headers, size: int) -> int | None:
    """The length of the JSON in a body of so many bytes, None where all of it is JSON; or InputError."""
    told = at_most_one(headers, JSON_LENGTH)
    if not told:
        return None
    if not (told.isascii() and told.isdecimal() and len(told) < 12 and int(told) <= size):
        raise InputError(f"{JSON_LENGTH.decode()} must be at most the body's {size}, got {told[:20]!r}")
    return int(told)


def about(headers: Headers) -> About:
    """What the request says of itself; InputError where that cannot be."""
    found = {name: _text(at_most_one(headers, b"x-calib-" + name.encode()), name) for name in About._fields}
    if not is_segment(found["segment"]):
        raise InputError(f"x-calib-segment has at most {LONGEST_SEGMENT} characters")
    return About(**found)


def _text(latin: str, name: str) -> str:
    """Headers are bytes; here they hold UTF-8."""
    try:
        text = latin.encode("latin-1").decode()
    except UnicodeError as error:
        raise InputError(f"x-calib-{name} must be UTF-8") from error
    if len(latin) > _LONGEST or not text.isprintable():
        raise InputError(f"x-calib-{name} has at most {_LONGEST} bytes of printable text")
    return text


def as_metadata(metadata: Any) -> Headers:
    """Metadata of gRPC as headers."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in metadata
    ]
