"""The results that passed a place in a handler, and the sigmoids before it."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NAMES = ("sigmoid", "sigmoid_", "logsigmoid", "special_expit")
_CLOCK = itertools.count(1)
_MOST = 1 << 16  # numbers of one result that are kept


Made = NDArray[np.float64]


class Called(NamedTuple):
    """A call of ``name``: when it began and ended, in the order of all calls."""

    began: int = 0
    ended: int = 0
    name: str = ""

    def is_beside(self, other: Called) -> bool:
        """Whether neither was made inside of the other."""
        return self.ended < other.began or other.ended < self.began


_NEVER = Called()


@contextmanager
def networks_called() -> Iterator[list[Called]]:
    """Yield a list that grows by each torch network with weights that is called, and by no part of one."""
    called: list[Called] = []
    if importlib.util.find_spec("torch") is None:
        yield called
        return
    hooks = importlib.import_module("torch.nn.modules.module")
    inside: list[int] = []

    def after(module: Any, *_: Any) -> None:
        began = inside.pop()
        if not inside and next(iter(module.parameters()), None) is not None:
            called.append(Called(began, next(_CLOCK), type(module).__name__))

    handles = [
        hooks.register_module_forward_pre_hook(lambda *_: inside.append(next(_CLOCK))),
        hooks.register_module_forward_hook(after, always_call=True),
    ]
    try:
        yield called
    finally:
        for one in handles:
            one.remove()


@contextmanager
def sigmoids() -> Iterator[list[Made]]:
    """Yield a list that grows by each small result of a sigmoid on this thread; outside TorchScript."""
    seen: list[Made] = []
    if importlib.util.find_spec("torch") is None:
        yield seen
        return
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") in _NAMES and (made := _values(found)) is not None:
                seen.append(made)
            return found

    with Watching():
        yield seen


def _values(tensor: Any) -> NDArray[np.float64] | None:
    with suppress(Exception):  # such as a tensor without storage, while a program is traced
        if tensor.numel() <= _MOST:
            return np.array(tensor.detach().double().cpu().numpy()).ravel()  # what is later changed in place
    return None


def _kept(value: Any) -> Any:
    """Copy a result, as handlers change results in place."""
    if hasattr(value, "detach"):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(_kept, value))
    return {key: _kept(one) for key, one in value.items()} if type(value) is dict else value


@dataclass
class PlaceRecorder:
    """The results that passed one place since ``clear``, and the sigmoids before.

    ``owners``: the argument ``rows`` of each call, by which a handler declares its rows. ``elsewhere``:
    whether some of it passed on another thread than the one that asks, so in any order. ``call``: the last
    one. ``put``: what goes on in place of each result, made from it; None: the result itself.
    """

    returned: list[Any] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list)
    elsewhere: bool = False
    seen: list[Made] = field(default_factory=list)
    before: int = 0
    put: Callable[[Any], Any] | None = None
    call: Called = _NEVER

    def clear(self, seen: list[Made] | None = None) -> None:
        """Begin again; ``seen`` grows with each sigmoid."""
        self.returned.clear()
        self.owners.clear()
        self.elsewhere = False
        self.seen, self.before = [] if seen is None else seen, 0

    def is_of_sigmoid(self, values: Made) -> bool:
        """Whether the values (n, K) came from a sigmoid."""
        return any(
            made.size == values.size and bool(np.allclose(made, values.ravel(), 0, 1e-6))
            for made in self.seen[: self.before]
        )

    def __call__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call, and record the result; return it, or the value that is put in its place."""
        began = next(_CLOCK)
        result = call(*args, **kwargs)
        self.call = Called(began, next(_CLOCK))
        self.returned.append(_kept(result))
        self.owners.append(kwargs.get("rows"))
        self.elsewhere |= threading.current_thread() is not threading.main_thread()
        self.before = len(self.seen)
        return result if self.put is None else self.put(result)
