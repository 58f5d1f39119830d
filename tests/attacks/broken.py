"""Readers that do what none may: so that the cage is known to notice."""

from __future__ import annotations

import os
import time
from pathlib import Path


def sleeps(_path: Path) -> None:
    time.sleep(1000)


def swells(_path: Path) -> None:
    _kept = [bytes(64 << 20) for _ in range(1000)]


def raises(_path: Path) -> None:
    raise KeyError("not of our tree")


def dies(_path: Path) -> None:
    os.abort()
