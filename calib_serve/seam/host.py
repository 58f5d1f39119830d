"""A handler asked outside a server: made-up requests, TorchServe's own context, and the replies."""

from __future__ import annotations

import base64
import copy
import json
import struct
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from calib_serve.errors import InputError, MissingDependency

__all__ = ["Answer", "Request", "ask", "context_of", "made_up", "of_row", "told"]

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


@dataclass(frozen=True)
class Answer:
    """What came of a batch: its replies, or ``error``; headers and status of each request."""

    replies: Any = None
    error: str = ""
    headers: tuple[dict[str, str], ...] = ()
    statuses: tuple[int | None, ...] = ()

    @property
    def failure(self) -> str:
        """Why not every request has a reply of its own; empty where all have."""
        if self.error:
            return self.error
        if not isinstance(self.replies, list):
            return f"it replied with {type(self.replies).__name__}, where TorchServe wants a list"
        if len(self.replies) != len(self.statuses):
            return f"it gave {len(self.replies)} replies to {len(self.statuses)} requests"
        failed = [status for status in self.statuses if status not in (None, 200)]
        return f"it answered {failed[0]}: {str(self.replies[0])[:200]}" if failed else ""


def context_of(folder: Path, *, batch_size: int = 1) -> Any:
    """The context that a worker would give the handler of the archive unpacked in ``folder``."""
    try:
        from ts.context import Context  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency("torchserve", "torchserve") from error
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))
    model: dict[str, str] = manifest["model"]
    config: Any = {}
    if name := model.get("configFile"):
        config = yaml.safe_load((folder / name).read_text("utf-8")) or {}
    name = model.get("modelName", "model")
    return Context(name, str(folder), manifest, batch_size, None, "0.12.0", True, _NoMetrics(), config)


def ask(
    handle: Callable[[Any, Any], Any], ctx: Any, batch: Sequence[Request], *, bare: bool = False
) -> Answer:
    """What ``handle`` answers to a batch; ``bare``: payloads alone, as the ``body`` envelope passes them on.

    ``ctx`` itself is not changed, and no metric is counted.
    """
    from ts.context import RequestProcessor  # noqa: PLC0415

    ctx = copy.copy(ctx)
    ctx.metrics = _NoMetrics()
    ctx.request_ids = {i: f"trial-{i}" for i in range(len(batch))}
    ctx.request_processor = [RequestProcessor({"content-type": r.content_type}) for r in batch]
    rows = [r.payload if bare else {r.name: r.payload} for r in batch]
    try:
        replies = handle(rows, ctx)
    except (Exception, SystemExit) as error:  # a handler may raise anything
        return Answer(error=told(error), statuses=(500,) * len(batch))
    processors = ctx.request_processor
    return Answer(
        replies,
        headers=tuple(dict(one.get_response_headers()) for one in processors),
        statuses=tuple(one.get_response_status_code() for one in processors),
    )


class _NoMetrics:
    """Takes every call of TorchServe's metrics, of any metric, and counts nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self


def told(error: BaseException) -> str:
    """What was raised, and where, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error)[:300].split())
    return f"{type(error).__name__}: {words} ({Path(place.filename).name}, line {place.lineno})"
