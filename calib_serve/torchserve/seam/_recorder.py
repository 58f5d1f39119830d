"""The results that passed a place in a handler, and the sigmoids before and after."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NAMES = ("sigmoid", "sigmoid_", "logsigmoid", "special_expit")
_CLOCK = itertools.count(1)
_MOST = 1 << 16  # numbers of one result that are kept


class Sigmoid(NamedTuple):
    """A call of a sigmoid: the shape of its input, and its result as float64 where that is small."""

    shape: tuple[int, ...]
    made: NDArray[np.float64] | None

    def is_source_of(self, values: NDArray[np.float64]) -> bool:
        """Whether ``values`` are the result of this sigmoid."""
        made = self.made
        return (
            made is not None and made.size == values.size and bool(np.allclose(made, values.ravel(), 0, 1e-6))
        )


@contextmanager
def sigmoids() -> Iterator[list[Sigmoid]]:
    """Yield a list that grows by each sigmoid on this thread; outside TorchScript."""
    seen: list[Sigmoid] = []
    if importlib.util.find_spec("torch") is None:
        yield seen
        return
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") in _NAMES and args and hasattr(args[0], "shape"):
                seen.append(Sigmoid(tuple(args[0].shape), _values(found)))
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
    """The results that passed one place since ``clear``, and the sigmoids before and after it.

    ``elsewhere``: whether some of it passed on another thread than the one that asks, so in any order.
    ``began``, ``ended``: when the last call did, in the order of all recorders' calls. ``put``: what goes on
    in place of each result, made from it; None: the result itself.
    """

    returned: list[Any] = field(default_factory=list)
    elsewhere: bool = False
    seen: list[Sigmoid] = field(default_factory=list)
    before: int = 0
    put: Callable[[Any], Any] | None = None
    began: int = 0
    ended: int = 0

    def clear(self, seen: list[Sigmoid] | None = None) -> None:
        """Begin again; ``seen`` grows with each sigmoid."""
        self.returned.clear()
        self.elsewhere = False
        self.seen, self.before = [] if seen is None else seen, 0

    def sigmoid(self, values: NDArray[np.float64]) -> Literal["before", "after"] | None:
        """Tell whether the values (n, K) came from a sigmoid, or go into one."""
        if any(one.is_source_of(values) for one in self.seen[: self.before]):
            return "before"
        columns = values.shape[1]
        meets = (
            one.shape[-1:] == (columns,) or (columns == 1 and len(one.shape) <= 1)
            for one in self.seen[self.before :]
        )
        return "after" if any(meets) else None

    def __call__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call, and record the result; return it, or the value that is put in its place."""
        self.began = next(_CLOCK)
        result = call(*args, **kwargs)
        self.ended = next(_CLOCK)
        self.returned.append(_kept(result))
        self.elsewhere |= threading.current_thread() is not threading.main_thread()
        self.before = len(self.seen)
        return result if self.put is None else self.put(result)
