"""An archive's own handler, loaded as TorchServe loads it, with its inference open to a change.

TorchServe takes a function ``handle`` (or the one that the manifest names), else the one class that the
handler's file defines.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from calib_serve.errors import ModelError

__all__ = ["Around", "Handler", "load_handler"]

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called in place of an inference, with it and its arguments; what it returns is the inference's result."""


class Handler:
    """A handler: ``subject`` is the instance of its class, or the module of its function."""

    def __init__(self, subject: Any, handle: Callable[[Any, Any], Any] | None, module: ModuleType) -> None:
        self.subject, self.module = subject, module
        self._function = handle

    @property
    def is_function(self) -> bool:
        """Whether it is a function, which has no inference."""
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
    """The handler ``name``: a file of the archive, ``file.py:function``, or one of TorchServe's by name.

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
    """A subclass whose ``inference`` goes through ``around``, once where it calls itself."""
    if not hasattr(cls, "inference"):
        return cls
    inside = threading.local()

    def inference(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = getattr(super(made, self), "inference")  # noqa: B009 - nothing is known of the class
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
    """Imported as TorchServe does: an importable file, else one of TorchServe's own."""
    for place in (name, f"ts.torch_handler.{name}"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place:
                raise ModelError(
                    f"the handler {name!r} needs the package {error.name!r}, which is not installed here"
                ) from error
    raise ModelError(f"there is no handler {name!r}, in the archive or in TorchServe")
