"""Libraries that a test needs and that not every machine has."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest


def library(name: str) -> ModuleType:
    """The module; skips where it is not installed, never in CI."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(name)
    return pytest.importorskip(name)
