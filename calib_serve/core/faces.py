"""The face of a room: its names, each imported from its inner module when it is first used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def modules_of(stub: Path) -> dict[str, str]:
    """The module of each name that a room's ``__init__.pyi``, ``stub``, imports.

    The list stands once, where type checkers read it (Scientific Python's SPEC 1).
    """
    tree = ast.parse(stub.read_text("utf-8"))
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in froms for alias in node.names}


def face(
    room: str, file: str, *, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a room, from its ``__name__`` and ``__file__``.

    A name whose module needs an extra that is not installed raises MissingDependency, of ``extra``, by
    default that of ``EXTRA_OF``.
    """
    modules = modules_of(Path(file).with_name("__init__.pyi"))

    def __getattr__(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except ImportError as error:
            from calib_serve.core.errors import EXTRA_OF, MissingDependency  # noqa: PLC0415 - seldom

            missing = error.name or ""
            found = isinstance(error, ModuleNotFoundError) or extra is not None
            if not found or missing.partition(".")[0] not in EXTRA_OF:
                raise
            raise MissingDependency(missing, extra) from error
        setattr(sys.modules[room], name, value)
        return value

    return __getattr__, lambda: sorted([*vars(sys.modules[room]), *modules]), sorted(modules)
