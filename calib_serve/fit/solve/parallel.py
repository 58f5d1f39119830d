"""A function over many samples, on all cores if that pays; numpy releases the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["over_cores"]

Out = TypeVar("Out")

_WORTH_THREADS = 1 << 20  # values; below, starting threads costs more than they save
_SPANS_PER_CORE = 4  # to balance the load


def over_cores(function: Callable[[slice], Out], n: int, *, values: int) -> list[Out]:
    """``function`` of runs of samples that cover 0..n, in order; ``values`` is how many numbers they hold.

    >>> over_cores(lambda run: run.stop - run.start, 10, values=10)
    [10]
    >>> sum(over_cores(lambda run: run.stop - run.start, 10, values=1 << 30))
    10
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if values < _WORTH_THREADS or cores == 1:
        return [function(slice(0, n))]
    step = -(-n // (cores * _SPANS_PER_CORE))
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(function, (slice(i, min(i + step, n)) for i in range(0, n, step))))
