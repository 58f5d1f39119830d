"""Cores that this process may use, and threads of linear algebra."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any

from calib_serve.fit.measured import MEASURED


def cores() -> int:
    """Count the cores that this process may use, by its affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
