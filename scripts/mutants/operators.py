"""The mutants of one file: every small change of its syntax tree that some test should see.

Left alone, as no test is asked to see them: docstrings, annotations, decorators, ``__all__``, logging, the
words of sentences and of errors (which error is raised is mutated), and ``zip``'s ``strict``.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mutants.changes import CODED, changes_of, is_logging, short

__all__ = ["Mutant", "applied", "mutants_of"]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_UNTOUCHED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "bases"}
_UNTOUCHED_NAMES = {"__all__", "__slots__", "__hash__"}
_TYPES = {"Literal", "Annotated", "Union", "Callable", "TypeVar", "cast", "NewType"}
_NAMING = {"as_floats", "tensor", "number", "names", "put"}
"""Functions whose texts name what errors are about, or a constant inside of a graph."""

_UNTOUCHED_KEYWORDS = {"strict", "stacklevel", "slots", "repr"}


@dataclass(frozen=True)
class Edit:
    """A field of a node, or an element of a list in it, becomes ``new``; None leaves the element out."""

    parent: Any
    field: str
    at: int | None
    new: Any


@dataclass(frozen=True)
class Mutant:
    """One change of a file: ``key`` names it whatever its line is.

    ``function``: the name and first line of the outermost function around it; None for what acts when the
    module is imported.
    """

    file: str
    key: str
    line: int
    function: tuple[str, int] | None
    edit: Edit

    @property
    def id(self) -> str:
        """Of the file and the key: short, for results."""
        return hashlib.sha256(f"{self.file} {self.key}".encode()).hexdigest()[:12]


class applied:
    """The tree as the mutant has it, inside of ``with applied(mutant):``."""

    def __init__(self, mutant: Mutant) -> None:
        self._edit = mutant.edit

    def __enter__(self) -> None:
        edit = self._edit
        self._old = new = getattr(edit.parent, edit.field)
        if edit.at is None:
            new = edit.new
        else:
            new = [*new[: edit.at], *([] if edit.new is None else [edit.new]), *new[edit.at + 1 :]]
        setattr(edit.parent, edit.field, new)

    def __exit__(self, *_: object) -> None:
        setattr(self._edit.parent, self._edit.field, self._old)


@dataclass(frozen=True)
class _Place:
    """A node where it stands: in which field of its parent, in which functions and classes."""

    node: Any
    parent: Any
    field: str
    at: int | None
    scope: tuple[str, ...]
    function: tuple[str, int] | None


def mutants_of(tree: ast.Module, file: str) -> list[Mutant]:
    """All of one file's, in the order of its lines."""
    found, seen = [], Counter[str]()
    for place in _walk(_Place(tree, tree, "", None, (), None)):
        for told, edit in _edits(place):
            key = f"{'.'.join(place.scope) or 'module'}: {told}"
            seen[key] += 1
            numbered = key if seen[key] == 1 else f"{key} #{seen[key]}"
            found.append(Mutant(file, numbered, _line(place.node), place.function, edit))
    return found


def _walk(place: _Place) -> Iterator[_Place]:
    node, scope, body = place.node, place.scope, place.function
    if _is_left_alone(node, place.parent, place.field):
        return
    yield place
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        scope = (*scope, node.name)
    if isinstance(node, _FUNCTIONS) and body is None:
        body = (node.name, min([node.lineno, *(one.lineno for one in node.decorator_list)]))
    for name, value in ast.iter_fields(node):
        # What a default is, is settled when the function is made.
        function = body if name == "body" or not isinstance(node, _FUNCTIONS) else place.function
        inner = _Place(None, node, name, None, scope, function)
        if isinstance(value, ast.AST):
            yield from _walk(replace(inner, node=value))
        for i, one in enumerate(value if isinstance(value, list) else ()):
            if isinstance(one, ast.AST):
                yield from _walk(replace(inner, node=one, at=i))


def _edits(place: _Place) -> Iterator[tuple[str, Edit]]:
    """What is told of each change of the node, and the change."""
    node = place.node
    if isinstance(node, ast.comprehension):
        for i, test in enumerate(node.ifs):
            yield f"if {short(test)} -> no condition", Edit(node, "ifs", i, None)
    elif isinstance(node, (ast.If, ast.While)):
        if isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
            test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            yield f"if {short(node.test)} -> if {short(test)}", Edit(node, "test", None, test)
    else:
        for new in changes_of(node, place.parent):
            ast.fix_missing_locations(ast.copy_location(new, node))
            yield f"{short(node)} -> {short(new)}", Edit(place.parent, place.field, place.at, new)


def _is_left_alone(node: Any, parent: Any, field: str) -> bool:
    if field in _UNTOUCHED_FIELDS or isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert)):
        return True
    within = _name(parent.func) if isinstance(parent, ast.Call) else ""
    # Words of errors; but for which they are, as ``Refused`` says by a code.
    coded = isinstance(node, ast.Call) and _name(node.func) in CODED
    if isinstance(parent, ast.Raise) or within in CODED:
        return not coded if isinstance(parent, ast.Raise) else node is not parent.args[0]
    said = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return (
        (isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or is_logging(node.value)))
        or (isinstance(node, ast.Assign) and _name(node.targets[0]) in _UNTOUCHED_NAMES)
        or (isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING")
        or (isinstance(node, ast.Subscript) and _name(node.value) in _TYPES)
        or (isinstance(node, ast.Call) and _name(node.func) in _TYPES)
        or (isinstance(node, ast.keyword) and node.arg in _UNTOUCHED_KEYWORDS)
        or (said and within in _NAMING)
    )


def _line(node: Any) -> int:
    return int(getattr(node.target if isinstance(node, ast.comprehension) else node, "lineno", 0))


def _name(node: Any) -> str:
    return str(getattr(node, "id", "") or getattr(node, "attr", ""))
