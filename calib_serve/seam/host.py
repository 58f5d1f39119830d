"""A handler asked outside a server: TorchServe's own context, made-up batches, and the replies."""

from __future__ import annotations

import copy
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from calib_serve.errors import MissingDependency
from calib_serve.seam.request import Request

__all__ = ["Answer", "ask", "context_of", "told"]


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
