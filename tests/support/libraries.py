"""Libraries that a test needs and that not every machine has."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest


def library(name: str) -> ModuleType:
    """The module; skips where it is not installed, never in CI."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(name)
    return pytest.importorskip(name)


def torchvision_here() -> ModuleType:
    """torchvision; its compiled operators, which no transform needs, are declared where they do not load."""
    if "torchvision" not in sys.modules:
        # The same as for the processes that have its folder on PYTHONPATH.
        runpy.run_path(str(Path(__file__).parent / "torchvision_ops" / "sitecustomize.py"))
    return library("torchvision")
