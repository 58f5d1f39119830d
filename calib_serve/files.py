"""What is done to files: hashes, writes that are whole or not at all, code by its name."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["named"]


def named(spec: str) -> Any:
    """What ``package.module:name`` or ``path/to/file.py:name`` stands for; runs the module's code.

    >>> named("math:tau") > 6
    True
    """
    where, _, name = spec.rpartition(":")
    return getattr(_module(where), name)


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    found = importlib.util.spec_from_file_location(Path(where).stem, where)
    if found is None or found.loader is None:
        raise ImportError(f"cannot import {where}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
