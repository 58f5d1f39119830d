"""A function over many chunks, on all cores where there is enough to do; numpy works outside the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["each"]

In = TypeVar("In")
Out = TypeVar("Out")

_WORTH_THREADS = 1 << 21  # values; below, starting threads costs more than they save


def each(function: Callable[[In], Out], items: Iterable[In], *, values: int) -> list[Out]:
    """``function`` of every item, in order; ``values`` is how many numbers all of them hold.

    >>> each(lambda x: x * x, [1, 2, 3], values=3)
    [1, 4, 9]
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if values < _WORTH_THREADS or cores == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(function, items))
