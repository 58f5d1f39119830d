"""A handler outside a server: it is asked batches of requests, as a worker of TorchServe would ask it."""

from __future__ import annotations

import copy
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from calib_serve.core.errors import MissingDependency, ModelError
from calib_serve.torchserve.seam._requests import Request


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
        return Answer(error=in_one_line(error), statuses=(500,) * len(batch))
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


def in_one_line(error: BaseException) -> str:
    """An error and its place, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error)[:300].split())
    return f"{type(error).__name__}: {words} ({Path(place.filename).name}, line {place.lineno})"


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
