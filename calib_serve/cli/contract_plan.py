"""``calib-serve contract plan``: how many labels a day it takes to notice a breach in time."""

from __future__ import annotations


def plan() -> None:
    """Not yet."""
