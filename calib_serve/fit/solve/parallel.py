"""A function over many samples, on all cores if that pays, and linear algebra on one where it does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["cores", "one_thread", "over_cores"]

Out = TypeVar("Out")

_WORTH_THREADS = 1 << 20  # values; below, starting threads costs more than they save
_SPANS_PER_CORE = 4  # to balance the load
_CGROUPS = Path("/sys/fs/cgroup")


def over_cores(function: Callable[[slice], Out], n: int, *, values: int) -> list[Out]:
    """``function`` of runs of samples that cover 0..n, in order; ``values`` is how many numbers they hold.

    >>> over_cores(lambda run: run.stop - run.start, 10, values=10)
    [10]
    >>> sum(over_cores(lambda run: run.stop - run.start, 10, values=1 << 30))
    10
    """
    if values < _WORTH_THREADS or cores() == 1:
        return [function(slice(0, n))]
    step = -(-n // (cores() * _SPANS_PER_CORE))
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(function, (slice(i, min(i + step, n)) for i in range(0, n, step))))


def cores() -> int:
    """How many cores this process may use: by the system's count, its affinity and its container's quota."""
    count = getattr(os, "process_cpu_count", os.cpu_count)() or 1  # Python 3.13 heeds PYTHON_CPU_COUNT
    if hasattr(os, "sched_getaffinity"):
        count = min(count, len(os.sched_getaffinity(0)))
    quota = _quota(_CGROUPS)
    return count if quota is None else max(1, min(count, int(quota)))


@cache
def _quota(root: Path) -> float | None:
    """The cores that a container's control group grants, or None without a limit: of version 2, else of 1.

    A container sees its own group as the root. A host's process is not limited by the root.
    """
    try:
        granted, period = (root / "cpu.max").read_text().split()
        return None if granted == "max" else int(granted) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        granted, period = ((root / "cpu" / f"cpu.cfs_{of}_us").read_text() for of in ("quota", "period"))
        return int(granted) / int(period) if int(granted) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


@contextmanager
def one_thread(values: int) -> Iterator[None]:
    """Linear algebra on one thread for problems of so few ``values`` that more threads only wait.

    By threadpoolctl, where scikit-learn brought it along; else the environment decides (OMP_NUM_THREADS).
    """
    if values >= _WORTH_THREADS:
        yield
        return
    try:
        limits: Any = import_module("threadpoolctl").threadpool_limits
    except ImportError:
        yield
        return
    with limits(1, "blas"):
        yield
