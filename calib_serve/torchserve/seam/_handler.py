"""An archive's handler, loaded as TorchServe loads it, and the places where class scores may pass.

TorchServe takes a function ``handle`` (or the one that the manifest names), else the one class that the
handler's file defines. The place ``inference`` is the method of this name. Any other is a dotted path from
the handler, such as ``model`` or ``pipeline.model``, or for a function from its module: a torch module, an
ONNX Runtime session, or a function, such as a method of the handler's own. A ``PlaceRecorder`` around a place
keeps what passes, and puts other scores there.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from calib_serve.core.errors import ModelError
from calib_serve.torchserve.declared import DECLARED, Around, calibrate_with

INFERENCE = "inference"
PREDICT = "predict_proba"


def places(handler: Handler) -> list[str]:
    """List where the scores of an initialised handler may pass, the likeliest first."""
    if not handler.is_function:
        return _places_of(handler.subject)
    # Of a function, its module, and a service object there that does the work.
    services = _services(handler.module).items()
    inside = [f"{name}.{place}" for name, one in services for place in _places_of(one)]
    return list(dict.fromkeys([*_networks(handler.module), *inside]))


def _places_of(subject: Any) -> list[str]:
    return [*([INFERENCE] if hasattr(subject, INFERENCE) else []), *_networks(subject)]


def _services(module: ModuleType) -> dict[str, Any]:
    classes = [one for one in vars(module).values() if isinstance(one, type)]
    own = [one for one in classes if one.__module__ == module.__name__]
    return {name: value for name, value in vars(module).items() if type(value) in own}


def _networks(subject: Any) -> list[str]:
    found = [name for name, value in vars(subject).items() if _is_network(value) or _is_session(value)]
    # TorchServe's own handlers call it so.
    found.sort(key=lambda name: name != "model")
    # Of scikit-learn's kind; networks inside of an object, such as a pipeline; and forward, for a handler
    # that calls it itself, which a hook does not see.
    held = [(name, one) for name, one in vars(subject).items() if not isinstance(one, (type, ModuleType))]
    estimators = [f"{name}.{PREDICT}" for name, one in held if hasattr(one, PREDICT)]
    inside = [
        f"{name}.{place}"
        for name, one in held
        if not _is_network(one) and type(one).__module__ != "builtins"
        for place, value in getattr(one, "__dict__", {}).items()
        if _is_network(value) or _is_session(value)
    ]
    forwards = [f"{name}.forward" for name in found if _is_plain(getattr(subject, name))]
    return [*estimators, *found, *inside, *forwards]


def put_around(handler: Handler, place: str, around: Around) -> None:
    """Wrap ``place`` of an initialised handler with ``around``.

    ``inference`` has its change from ``load_handler``. Raises ModelError where there is nothing to call.
    """
    if place == DECLARED:
        calibrate_with(around)
        return
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
    """Whether a value is a torch module, and no class."""
    # By its type: a stand-in for metrics has every attribute.
    return hasattr(type(value), "register_forward_hook") and not isinstance(value, type)


def _is_plain(value: Any) -> bool:
    """Whether the network's forward may be replaced: not of TorchScript or of torch.compile."""
    return _is_network(value) and not hasattr(value, "_c") and not hasattr(value, "_orig_mod")


def _is_session(value: Any) -> bool:
    """Whether a value is a session of ONNX Runtime, or works as one."""
    is_object = not callable(value) and not isinstance(value, type)
    return is_object and hasattr(type(value), "run") and hasattr(type(value), "get_inputs")


class Handler:
    """A loaded handler: ``subject`` is the instance of its class, or the module of its function."""

    def __init__(self, subject: Any, handle: Callable[[Any, Any], Any] | None, module: ModuleType) -> None:
        self.subject, self.module = subject, module
        self._function = handle

    @property
    def name(self) -> str:
        """The name of its class, or of its function's module."""
        return self.module.__name__ if self.is_function else type(self.subject).__name__

    @property
    def is_function(self) -> bool:
        """Whether the handler is a function, which has no inference."""
        return self._function is not None

    def initialize(self, ctx: Any) -> None:
        """Load the model; a function is called with no data, as TorchServe does."""
        if self._function is not None:
            self._function(None, ctx)
        else:
            self.subject.initialize(ctx)

    def handle(self, data: Any, ctx: Any) -> Any:
        """The reply to a batch."""
        # Looked up at each call: TorchServe's micro-batching sets it on the instance.
        return self._function(data, ctx) if self._function is not None else self.subject.handle(data, ctx)


def load_handler(name: str, *, inference: Around | None = None) -> Handler:
    """Load the handler ``name``: a file of the archive, ``file.py:function``, or one of TorchServe's.

    ``inference``: what is called around the class's ``inference``, from whatever thread; it is there before
    the instance is made, so that one who keeps ``self.inference`` in ``__init__`` keeps this.
    """
    where, _, function = name.partition(":")
    module = _module(Path(where).name.removesuffix(".py"))
    if function or hasattr(module, "handle"):
        try:
            return Handler(module, getattr(module, function or "handle"), module)
        except AttributeError as error:
            raise ModelError(f"the handler {name!r}: {error}") from error
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "initialize")
    ]
    if len(classes) != 1 or not hasattr(classes[0], "handle"):
        found = ", ".join(c.__name__ for c in classes) or "none"
        raise ModelError(
            f"the handler {name!r} must define a function handle, or one class with initialize and "
            f"handle; it defines {found}"
        )
    made = classes[0] if inference is None else _with_inference(classes[0], inference)
    return Handler(made(), None, module)


def _with_inference(cls: Any, around: Around) -> Any:
    """Derive a class whose ``inference`` goes through ``around``, once per call."""
    if not hasattr(cls, "inference"):
        return cls
    inside = threading.local()

    def inference(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = getattr(super(made, self), "inference")  # noqa: B009 - nothing is known of the class
        # A handler that calls super().inference passes here twice, and would be calibrated twice.
        if getattr(inside, "now", False):
            return call(*args, **kwargs)
        inside.now = True
        try:
            return around(call, args, kwargs)
        finally:
            inside.now = False

    made: Any = type(cls.__name__, (cls,), {"inference": inference, "__module__": cls.__module__})
    return made


def _module(name: str) -> ModuleType:
    """Import a handler as TorchServe does: an importable file, else one of TorchServe's own."""
    # The archive's own file comes first, as on a worker's path.
    for place in (name, f"ts.torch_handler.{name}"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place:
                raise ModelError(
                    f"the handler {name!r} needs the package {error.name!r}, which is not installed here"
                ) from error
    raise ModelError(f"there is no handler {name!r}, in the archive or in TorchServe")
