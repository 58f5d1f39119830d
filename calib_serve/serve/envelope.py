"""TorchServe's request envelopes, whose place a handler takes that speaks their protocols itself.

An envelope (``service_envelope`` in config.properties) is set for every model of a server, whatever its
archive says. It fails on requests of another form, and KServe's read the first request of a batch alone. So a
handler that tells one protocol from another (:mod:`calib_serve.serve.protocols`) does better without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from calib_serve.errors import ModelError

__all__ = ["check_requests", "surround", "take_place"]

_OURS = ("body", "json", "kserve", "kservev2")
"""The envelopes whose requests :mod:`calib_serve.serve.protocols` reads."""


def take_place(ctx: Any, handle: Callable[..., Any]) -> Any:
    """Have the server's requests go to ``handle`` as they came; call it from ``initialize``.

    Returns the envelope that was between them, None where there was none. Raises ModelError for an envelope
    of somebody's own, whose requests ``handle`` could not read.
    """
    service, envelope = _being_loaded(ctx, sys._getframe(1))
    if envelope is not None:
        name = type(envelope).__module__.rpartition(".")[2]
        if name not in _OURS:
            raise ModelError(
                f"calibrated models read the requests of the envelopes {', '.join(_OURS)}, not of {name}; "
                "remove service_envelope from config.properties"
            )
        service._entry_point = handle
    return envelope


def surround(ctx: Any, handle: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    """Have the server's requests go to ``handle`` as they came; call it from ``initialize``.

    Returns what ``handle`` asks for the replies: the envelope that was between them, with ``inner`` inside
    it; ``inner`` itself where there is none.
    """
    service, envelope = _being_loaded(ctx, sys._getframe(1))
    if envelope is None:
        return inner
    service._entry_point = handle
    envelope._handle_fn = inner
    asked: Callable[..., Any] = envelope.handle
    return asked


def check_requests(data: Sequence[Any], ctx: Any) -> None:
    """Fail the whole batch, with a sentence, where ``data`` are not the server's requests, one dict each.

    They are not where an envelope is still in place, as another TorchServe loads handlers in another way.
    """
    if not data or (len(data) == len(ctx.request_processor) and all(isinstance(row, dict) for row in data)):
        return
    from ts.utils.util import PredictionException  # noqa: PLC0415 - only there in a worker

    raise PredictionException(
        "this TorchServe's service_envelope hides requests from the calibrated model; remove it from "
        "config.properties: the model reads all protocols without it",
        501,
    )


def _being_loaded(ctx: Any, frame: FrameType | None) -> tuple[Any, Any]:
    """The service whose context is ``ctx`` and its envelope, from TorchServe's loader up the stack."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "ts.model_loader":
            service = frame.f_locals.get("service")
            if getattr(service, "context", None) is ctx and hasattr(service, "_entry_point"):
                return service, frame.f_locals.get("envelope_instance")
        frame = frame.f_back
    return None, None
