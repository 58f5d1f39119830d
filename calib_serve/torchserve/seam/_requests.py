"""Requests for trials of a handler: made up, or varied from a given one."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole

_WORDS = "a few good or bad words that say nothing of love and war"

_LARGEST = 256 << 20  # bytes of a request
_TYPES = {".json": "application/json", ".txt": "text/plain", ".csv": "text/csv"}


@dataclass(frozen=True)
class Request:
    """One request: its body, its content type, and the name TorchServe gives the body ("body" or "data")."""

    body: bytes
    content_type: str = "application/octet-stream"
    name: str = "body"

    @classmethod
    def of_file(cls, path: Path) -> Request:
        """Read a file's bytes as a client would post them: JSON and text by the file's ending."""
        try:
            body = read_whole(path, limit=_LARGEST)
            return cls(body, _TYPES.get(path.suffix.lower(), "application/octet-stream"))
        except OSError as error:
            raise InputError(f"cannot read the request {path}: {error}") from error

    @property
    def as_bytes(self) -> Request:
        """The request with the same body and no type, as ``curl -T`` sends it."""
        return replace(self, content_type="application/octet-stream")

    @classmethod
    def from_dict(cls, held: dict[str, str]) -> Request:
        """Read what ``as_dict`` wrote."""
        return cls(base64.b64decode(held["body"]), held["content_type"], held["name"])

    def as_dict(self) -> dict[str, str]:
        """As plain values, for JSON."""
        body = base64.b64encode(self.body).decode()
        return {"body": body, "content_type": self.content_type, "name": self.name}

    @property
    def payload(self) -> Any:
        """Decode the body as the worker does (ts/protocol/otf_message_handler.py)."""
        if self.content_type == "application/json":
            try:
                return json.loads(self.body)
            except ValueError:
                return bytearray(self.body)
        if self.content_type.startswith("text"):
            return self.body.decode("utf-8", "replace")
        return bytearray(self.body)


def of_row(row: NDArray[Any]) -> tuple[Request, ...]:
    """Write one input as JSON in the forms that handlers take: array, {"data": ...}, {"instances": [...]}.

    >>> [request.body for request in of_row(np.array([1.5, 2.0]))]
    [b'[1.5, 2.0]', b'{"data": [1.5, 2.0]}', b'{"instances": [[1.5, 2.0]]}']
    """
    array = row.tolist()
    bodies = (array, {"data": array}, {"instances": [array]})
    return tuple(Request(json.dumps(body).encode(), "application/json") for body in bodies)


def alternatives(sample: Path | NDArray[Any]) -> tuple[Request, ...]:
    """One sample in every form that handlers take, in the same order for samples of one kind.

    A file is sent as its ending says, and text also as bytes; the body is called "body", or "data".
    """
    if isinstance(sample, Path):
        one = Request.of_file(sample)
        forms: tuple[Request, ...] = (one,) if one == one.as_bytes else (one, one.as_bytes)
    else:
        forms = of_row(sample)
    return tuple(replace(form, name=name) for name in ("body", "data") for form in forms)


def random_requests(shape: Sequence[int | None] | None, seed: int = 0) -> Iterator[Request]:
    """Make requests that common handlers answer; ``shape`` of one input if known.

    Another ``seed`` gives others, in the same order.
    """
    rng = np.random.default_rng(seed)
    sizes = [1 if size is None or size < 0 else int(size) for size in shape or ()]
    if sizes:
        yield from of_row(rng.random(sizes).round(3))
    pictures = [tuple(sizes)] if len(sizes) == 3 and sizes[0] in (1, 3) else []
    for channels, height, width in [*pictures, (3, 224, 224), (1, 28, 28), (3, 32, 32)]:
        yield Request(_png(channels, height, width, rng), "image/png")
    # Real words: a tokenizer may refuse a text of which it knows none.
    words = _shuffled(_WORDS, rng)
    yield Request(words.encode(), "text/plain")
    yield Request(words.encode())
    yield Request(json.dumps({"text": words}).encode(), "application/json")


def varied(request: Request, seed: int) -> Request | None:
    """Vary a request: other numbers, words in another order, the picture changed.

    None where it is not known how, as for bytes that are no picture.
    """
    rng = np.random.default_rng(seed)
    text = None
    with suppress(UnicodeDecodeError):
        text = request.body.decode()
    if text is None:
        body = _other_picture(request.body, rng)
        return None if body is None else replace(request, body=body)
    with suppress(ValueError, RecursionError):
        return replace(request, body=json.dumps(_other(json.loads(text), rng)).encode())
    return replace(request, body=_shuffled(text, rng).encode())


def _other(value: Any, rng: np.random.Generator) -> Any:
    """Vary JSON of the same form: lists of whole numbers in another order, other numbers moved."""
    if isinstance(value, dict):
        return {key: _other(one, rng) for key, one in value.items()}
    if isinstance(value, list):
        if value and all(type(one) is int for one in value):
            return rng.permutation(value).tolist()
        return [_other(one, rng) for one in value]
    if isinstance(value, float):
        return value + float(rng.normal()) * (abs(value) or 1.0) / 2
    return _other_text(value, rng) if isinstance(value, str) else value


def _other_text(text: str, rng: np.random.Generator) -> str:
    """Other words, or the text of another picture."""
    with suppress(ValueError):
        body = _other_picture(base64.b64decode(text, validate=True), rng)
        if body is not None:
            return base64.b64encode(body).decode()
    return _shuffled(text, rng)


def _shuffled(text: str, rng: np.random.Generator) -> str:
    """Some of the words, in another order; a single word as it is."""
    words = text.split()
    if len(words) < 2:
        return text
    return " ".join(rng.permutation(words)[: int(rng.integers(len(words) // 2, len(words) + 1))])


def _other_picture(body: bytes, rng: np.random.Generator) -> bytes | None:
    """Move a picture's pixels and brightness, in its own format; None for other bytes."""
    try:
        from PIL import Image  # noqa: PLC0415 - where it is missing, few handlers read pictures
    except ImportError:
        return None
    try:
        with Image.open(io.BytesIO(body)) as picture:
            kind, pixels = picture.format, np.asarray(picture.convert("RGB" if picture.mode == "P" else None))
        moved = np.roll(pixels, rng.integers(1, pixels.shape[:2]), (0, 1))[:, :: rng.choice([-1, 1])]
        out = io.BytesIO()
        Image.fromarray((moved * rng.uniform(0.3, 1)).astype(pixels.dtype)).save(out, kind)
        return out.getvalue()
    except Exception:  # no picture, or one that PIL cannot write
        return None


def _png(channels: int, height: int, width: int, rng: np.random.Generator) -> bytes:
    """Write noise as a PNG, grey or RGB."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = rng.integers(0, int(rng.integers(64, 257)), (height, width * channels), np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )
