"""A mutant put in place: into functions that live already, or into a module before it is imported."""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from mutants.operators import Mutant, applied

__all__ = ["Swapped", "swap"]


def swap(tree: ast.Module, path: Path, mutant: Mutant) -> bool:
    """Give the live functions of the mutant's file its code; False where none is found that can take it.

    Every reference to a function sees it, whoever imported it and however it is wrapped.
    """
    if mutant.function is None:
        return False
    with applied(mutant):
        module = compile(tree, str(path), "exec")
    gc.unfreeze()  # tests/conftest.py froze what it collected, and the collector does not list what is frozen
    wanted = [code for code in _codes(module) if (code.co_name, code.co_firstlineno) == mutant.function]
    live = [
        one
        for one in gc.get_objects()
        if type(one) is types.FunctionType  # of a lazy proxy, isinstance would ask the module behind it
        and (one.__code__.co_name, one.__code__.co_firstlineno) == mutant.function
        and one.__code__.co_filename == str(path)
    ]
    if len(wanted) != 1 or not live or any(one.__code__.co_freevars != wanted[0].co_freevars for one in live):
        return False
    for one in live:
        one.__code__ = wanted[0]
    return True


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield one
            yield from _codes(one)


class Swapped(importlib.abc.MetaPathFinder):
    """Imports the mutant's module from its mutated tree; ``module`` is its dotted name."""

    def __init__(self, tree: ast.Module, path: Path, module: str, mutant: Mutant) -> None:
        self._path, self._module = path, module
        with applied(mutant):
            self._code = compile(tree, str(path), "exec")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As Python's own finder has it, with another loader."""
        if fullname != self._module:
            return None
        loader = _Loader(fullname, str(self._path), self._code)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)

    def install(self) -> None:
        """Ask it first."""
        sys.meta_path[:] = [self, *(one for one in sys.meta_path if one is not self)]


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: types.CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, _: str) -> types.CodeType:
        return self._code
