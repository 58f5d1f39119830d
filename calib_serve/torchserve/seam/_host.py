"""Trials of a handler outside a server: made-up or varied requests, here or in a process of its own.

That process runs as a worker of TorchServe would run; what it does is in ``_trial_worker``.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

import calib_serve
from calib_serve.core.errors import InputError, MissingDependency, ModelError
from calib_serve.core.files import read_whole
from calib_serve.core.options.data import TrialOptions

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


class Ticks:
    """Reports in a file how many requests of a trial are done, and of how many if that is known."""

    def __init__(self, path: str) -> None:
        self._path, self._done = Path(path), 0

    def __call__(self, done: int | None = None, of: int = 0) -> None:
        """Report the number done, by default one more."""
        self._done = self._done + 1 if done is None else done
        self._path.write_text(f"{self._done} {of}", "utf-8")


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


_WORDS = "a few good or bad words that say nothing of love and war"


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


@dataclass(frozen=True)
class Answer:
    """The result of a batch: its replies, or ``error``; headers and status of each request."""

    replies: Any = None
    error: str = ""
    headers: tuple[dict[str, str], ...] = ()
    statuses: tuple[int | None, ...] = ()

    @property
    def failure(self) -> str:
        """The reason why not every request has a reply of its own; empty where all have."""
        if self.error:
            return self.error
        if not isinstance(self.replies, list):
            return f"it replied with {type(self.replies).__name__}, where TorchServe wants a list"
        if len(self.replies) != len(self.statuses):
            return f"it gave {len(self.replies)} replies to {len(self.statuses)} requests"
        failed = [status for status in self.statuses if status not in (None, 200)]
        return f"it answered {failed[0]}: {str(self.replies[0])[:200]}" if failed else ""


def context_of(folder: Path, *, batch_size: int = 1) -> Any:
    """Make the context that a worker would give the handler of the archive unpacked in ``folder``."""
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
    ctx = Context(name, str(folder), manifest, batch_size, None, "0.12.0", True, _NoMetrics(), config)
    ctx.cl_socket = _NoStream()
    return ctx


def ask(
    handle: Callable[[Any, Any], Any], ctx: Any, batch: Sequence[Request], *, bare: bool = False
) -> Answer:
    """Ask ``handle`` a batch; ``bare``: payloads alone, as the ``body`` envelope passes them on.

    ``ctx`` itself is not changed, and no metric is counted.
    """
    from ts.context import RequestProcessor  # noqa: PLC0415

    # Requests, headers and metrics are set anew for each batch, as the server does.
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


class _NoStream:
    """Stands for the socket on which a handler sends parts of a reply; refuses."""

    def sendall(self, *_: Any) -> None:
        """Raise ModelError, which says why."""
        raise ModelError(
            "it streams parts of its replies (send_intermediate_predict_response), which go to the client "
            "before the reply that is calibrated; only replies that are whole can be"
        )


class _NoMetrics:
    """Stands in for TorchServe's metrics: takes every call, of any metric, and counts nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self


def told(error: BaseException) -> str:
    """An error and its place, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error)[:300].split())
    return f"{type(error).__name__}: {words} ({Path(place.filename).name}, line {place.lineno})"


# --- A process of its own ---------------------------------------------------------------------------


SECONDS = TrialOptions.probe_timeout
"""How long a handler may take to answer a trial's batch."""

_TAIL = 12  # lines of a failed trial's output that are shown
_LOOKS = 0.2  # seconds between two looks at the progress
_LOADS = 600.0  # seconds that a handler may take to load its model


def run_trial(
    folder: Path,
    what: str,
    job: Mapping[str, Any],
    *,
    seconds: float = SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Run the trial ``what`` of ``_trial_worker`` on the archive unpacked in ``folder``.

    ``job`` holds its parameters, as JSON does; ``progress`` is called with (done, of) where that is
    known. Raises ModelError, with the handler's last words, where it does not load, does not answer a batch
    within ``seconds``, or where the trial itself says why not. No process is left, however this one ends.
    """
    root = Path(calib_serve.__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="calib-trial-") as scratch:
        order, result, done, words = (
            Path(scratch) / name for name in ("job.json", "result.json", "done", "words")
        )
        told_by = {"what": what, "folder": str(folder), "progress": str(done)}
        order.write_text(json.dumps({**told_by, **job}), "utf-8")
        # As WorkerLifeCycle.java: the archive's folder is the working folder, and first on the path.
        paths = [str(folder), str(root), os.environ.get("PYTHONPATH", "")]
        # Without a host's settings: no receipt is signed and no sample kept.
        env = {name: value for name, value in os.environ.items() if not name.startswith("CALIB_SERVE_")}
        # Into a file: a handler may say much, and what it starts may hold a pipe open.
        with words.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "calib_serve.torchserve.seam._trial_worker", str(order), str(result)],
                cwd=folder,
                env={**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdin=subprocess.PIPE,  # closed when this process ends, which the worker sees
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            came = _watch(process, done, seconds, progress)
        try:
            told: dict[str, Any] = json.loads(result.read_text("utf-8"))
        except (OSError, ValueError):
            tail = words.read_bytes().decode("utf-8", "replace").splitlines()[-_TAIL:]
            ended = f"the handler ended (code {process.returncode}){came}; its last words:"
            raise ModelError("\n  ".join([ended, *tail])) from None
    if "error" in told:
        raise ModelError(told["error"])
    return told["result"]


def _watch(
    process: subprocess.Popen[bytes],
    file: Path,
    seconds: float,
    progress: Callable[[int, int], None] | None,
) -> str:
    """Wait for the process to end; return its progress, in words."""
    seen, last, came, limit = "", time.monotonic(), "", max(seconds, _LOADS)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOKS)
            with suppress(OSError, ValueError):
                if (now := file.read_text("utf-8")) != seen:
                    done, of = map(int, now.split())
                    seen, last, limit = now, time.monotonic(), seconds
                    came = f" after {done} of {of} samples" if of else ""
                    if progress is not None and of:
                        progress(done, of)
            if process.returncode is not None:
                return came
            if time.monotonic() - last > limit:
                did = "answer" if seen else "load"
                raise ModelError(
                    f"the handler did not {did} within {limit:.0f} s{came}; it may take longer "
                    "with --probe-timeout SECONDS"
                )
    finally:
        with suppress(ProcessLookupError):  # it and what it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
