"""How much tests do: little in ``make test``, much in ``make nightly`` and, for some, ``make faults``."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

T = TypeVar("T")

NIGHTLY = os.environ.get("CALIB_SERVE_TEST_SIZE", "ci") == "nightly"

nightly = pytest.mark.nightly


def sized(ci: T, nightly: T) -> T:
    """The one number or the other: repetitions, seconds, examples."""
    return nightly if NIGHTLY else ci
