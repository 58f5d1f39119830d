"""Cores that this process may use, and threads of linear algebra."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from calib_serve.fit.measured import MEASURED

_CGROUPS = Path("/sys/fs/cgroup")


def cores() -> int:
    """Count the cores that this process may use: by the system, its affinity and its container's quota."""
    count = getattr(os, "process_cpu_count", os.cpu_count)() or 1  # Python 3.13 heeds PYTHON_CPU_COUNT
    if hasattr(os, "sched_getaffinity"):
        count = min(count, len(os.sched_getaffinity(0)))
    quota = _quota(_CGROUPS)
    return count if quota is None else max(1, min(count, int(quota)))


@cache
def _quota(root: Path) -> float | None:
    """The cores that a container's control group (version 2, else 1) grants, None without a limit.

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


def one_thread(values: int) -> AbstractContextManager[Any]:
    """Run linear algebra on one thread for problems of so few ``values`` that more threads only wait.

    On two cores, matrices of 77 classes and 5,000 samples take less than half the time. By threadpoolctl,
    where scikit-learn brought it along; else the environment decides (OMP_NUM_THREADS).
    """
    blas = _blas() if values < MEASURED.values_worth_threads else None
    return blas.limit(limits=1, user_api="blas") if blas else nullcontext()


@cache
def _blas() -> Any:
    """Find the libraries of linear algebra once, which takes a millisecond; None without threadpoolctl."""
    try:
        return import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None
