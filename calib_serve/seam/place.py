"""The seam: the one place in a handler through which its class scores pass.

``inference`` is the handler's method of this name. Any other place is a dotted path from the handler, such as
``model`` or ``pipeline.model``; for a handler that is a function, from its module: a torch module, an ONNX
Runtime session, or a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calib_serve.errors import ModelError
from calib_serve.seam.handler import Around, Handler

__all__ = ["INFERENCE", "places", "put_around"]

INFERENCE = "inference"


def places(handler: Handler) -> list[str]:
    """Where the scores of an initialised handler may pass, the most likely first."""
    found = [
        name
        for name, value in vars(handler.subject).items()
        if not name.startswith("__") and (_is_network(value) or _is_session(value))
    ]
    found.sort(key=lambda name: name != "model")
    # Last, for a handler that calls forward itself, which a hook does not see.
    found += [f"{name}.forward" for name in found if _is_plain(getattr(handler.subject, name))]
    return found if handler.is_function or not hasattr(handler.subject, INFERENCE) else [INFERENCE, *found]


def put_around(handler: Handler, place: str, around: Around) -> None:
    """Send all that passes ``place`` of an initialised handler through ``around``.

    ``inference`` has its change from ``load_handler``. Raises ModelError where there is nothing to call.
    """
    if place == INFERENCE:
        if handler.is_function or not hasattr(handler.subject, INFERENCE):
            raise ModelError("this handler has no inference; name another place with --seam, such as model")
        own = vars(handler.subject).get(INFERENCE)
        if own is not None:  # set on the instance, over the class's
            handler.subject.inference = _wrapped(own, around)
        return
    owner, name, value = _resolve(handler, place)
    if _is_network(value):
        from torch import nn  # noqa: PLC0415 - a network is here, so torch is too

        # A hook, not another object: the network keeps its type and all its attributes. TorchScript's own
        # method of this name refuses, though its modules call hooks as all do.
        nn.Module.register_forward_hook(
            value, lambda module, args, returned: around(lambda *_, **__: returned, args, {})
        )
    elif _is_session(value):
        setattr(owner, name, _Session(value, around))
    elif callable(value):
        setattr(owner, name, _wrapped(value, around))
    else:
        raise ModelError(f"{place} is {type(value).__name__}: no network, session or function to calibrate")


class _Session:
    """An ONNX Runtime session whose ``run`` goes through ``around``."""

    def __init__(self, session: Any, around: Around) -> None:
        self._session, self._around = session, around

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._session.run, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _resolve(handler: Handler, place: str) -> tuple[Any, str, Any]:
    owner, name, value = None, "", handler.subject
    for name in place.split("."):
        owner = value
        try:
            value = getattr(owner, name)
        except AttributeError:
            known = ", ".join(places(handler)) or "none"
            raise ModelError(
                f"the handler has no {place!r} ({type(owner).__name__} has no {name!r}); found: {known}"
            ) from None
    return owner, name, value


def _wrapped(call: Callable[..., Any], around: Around) -> Callable[..., Any]:
    return lambda *args, **kwargs: around(call, args, kwargs)


def _is_network(value: Any) -> bool:
    return hasattr(value, "register_forward_hook") and callable(value)


def _is_plain(value: Any) -> bool:
    """Whether the network's forward may be replaced: not of TorchScript or of torch.compile."""
    return _is_network(value) and not hasattr(value, "_c") and not hasattr(value, "_orig_mod")


def _is_session(value: Any) -> bool:
    return hasattr(value, "run") and hasattr(value, "get_inputs") and not callable(value)
