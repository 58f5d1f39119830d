"""Content codings of bodies that have to be read: gzip and deflate, within bounds."""

from __future__ import annotations

import gzip
import zlib

from calib_serve.errors import InputError

__all__ = ["CODINGS", "decoded", "encoded"]

CODINGS = ("", "identity", "gzip", "deflate")
"""Those that can be read; "" for a body as it is."""

_AUTO = zlib.MAX_WBITS | 32  # gzip, or deflate as zlib writes it


def decoded(body: bytes, coding: str, *, most: int) -> bytes:
    """The body without its coding; InputError where it is damaged or would be larger than ``most`` bytes.

    >>> decoded(encoded(b"abc", "gzip"), "gzip", most=10)
    b'abc'
    """
    if coding in ("", "identity"):
        return body
    if coding not in CODINGS:
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


def encoded(body: bytes, coding: str) -> bytes:
    """The body in a coding of ``CODINGS``."""
    if coding == "gzip":
        return gzip.compress(body, 1, mtime=0)
    return zlib.compress(body, 1) if coding == "deflate" else body
