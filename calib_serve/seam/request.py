"""Requests as a TorchServe worker receives them, made up or read from files."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError

__all__ = ["Request", "made_up", "of_row"]

_TYPES = {".json": "application/json", ".txt": "text/plain", ".csv": "text/csv"}


@dataclass(frozen=True)
class Request:
    """One request: its body, its content type, and the name TorchServe gives the body ("body" or "data")."""

    body: bytes
    content_type: str = "application/octet-stream"
    name: str = "body"

    @classmethod
    def of_file(cls, path: Path) -> Request:
        """A file's bytes as a client would post them: JSON and text by the file's ending, else bytes."""
        try:
            return cls(path.read_bytes(), _TYPES.get(path.suffix.lower(), "application/octet-stream"))
        except OSError as error:
            raise InputError(f"cannot read the request {path}: {error}") from error

    @classmethod
    def from_dict(cls, held: dict[str, str]) -> Request:
        """As ``as_dict`` wrote it."""
        return cls(base64.b64decode(held["body"]), held["content_type"], held["name"])

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        body = base64.b64encode(self.body).decode()
        return {"body": body, "content_type": self.content_type, "name": self.name}

    @property
    def payload(self) -> Any:
        """The body as the worker decodes it (ts/protocol/otf_message_handler.py)."""
        if self.content_type == "application/json":
            try:
                return json.loads(self.body)
            except ValueError:
                return bytearray(self.body)
        if self.content_type.startswith("text"):
            return self.body.decode("utf-8", "replace")
        return bytearray(self.body)


def of_row(row: NDArray[Any]) -> tuple[Request, ...]:
    """One input as JSON, in the forms that handlers take: an array, {"data": ...}, {"instances": [...]}.

    >>> [request.body for request in of_row(np.array([1.5, 2.0]))]
    [b'[1.5, 2.0]', b'{"data": [1.5, 2.0]}', b'{"instances": [[1.5, 2.0]]}']
    """
    array = row.tolist()
    bodies = (array, {"data": array}, {"instances": [array]})
    return tuple(Request(json.dumps(body).encode(), "application/json") for body in bodies)


def made_up(shape: Sequence[int | None] | None) -> Iterator[Request]:
    """Requests that common handlers answer: pictures, JSON arrays, text; ``shape`` of one input if known."""
    sizes = [1 if size is None or size < 0 else int(size) for size in shape or ()]
    if sizes:
        yield from of_row(np.random.default_rng(0).random(sizes).round(3))
    pictures = [tuple(sizes)] if len(sizes) == 3 and sizes[0] in (1, 3) else []
    for channels, height, width in [*pictures, (3, 224, 224), (1, 28, 28), (3, 32, 32)]:
        yield Request(_png(channels, height, width), "image/png")
    yield Request(b"a few words that say nothing", "text/plain")
    yield Request(json.dumps({"text": "a few words that say nothing"}).encode(), "application/json")


def _png(channels: int, height: int, width: int) -> bytes:
    """Noise as a PNG, grey or RGB."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = np.random.default_rng(0).integers(0, 256, (height, width * channels), np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )
