"""The mutants of one file: every small change of its syntax tree that some test should see.

Left alone, as no test is asked to see them: docstrings, annotations, decorators, ``__all__``, logging, the
words of sentences and of errors (which error is raised is mutated), and ``zip``'s ``strict``.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Mutant", "applied", "mutants_of"]

Function = (ast.FunctionDef, ast.AsyncFunctionDef)

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_TWINS = {
    **{"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "zeros": "ones"},
    **{"floor": "ceil", "union": "intersection", "startswith": "endswith", "ceil": "floor", "ones": "zeros"},
    **{"max": "min", "all": "any", "maximum": "minimum", "argmax": "argmin", "logical_and": "logical_or"},
}
_LOGS = {"log", "logger", "logging", "_log", "_LOG", "warnings"}
_CODED = {"Refused"}  # its first argument is a code, the next a sentence
_COMMUTING = {"max", "min", "maximum", "minimum", "array_equal", "isclose", "logaddexp", "compare_digest"}
_NAMING = {"as_floats", "tensor", "read_floats"}  # their texts are words of errors


@dataclass(frozen=True)
class Mutant:
    """One change: ``key`` names it whatever the line; ``function`` is the outermost one around it, by its name
    and first line, or None for what acts when the module is imported."""

    file: str
    key: str
    line: int
    function: tuple[str, int] | None
    edit: tuple[Any, str, int | None, Any]

    @property
    def id(self) -> str:
        """Of the file and the key: short, for results."""
        return hashlib.sha256(f"{self.file} {self.key}".encode()).hexdigest()[:12]


class applied:  # noqa: N801 - read as "with applied(mutant)"
    """The tree as the mutant has it, inside of a ``with``."""

    def __init__(self, mutant: Mutant) -> None:
        self._parent, self._field, self._at, self._new = mutant.edit

    def __enter__(self) -> None:
        self._old = getattr(self._parent, self._field)
        if self._at is None:
            setattr(self._parent, self._field, self._new)
        else:
            changed = list(self._old)
            changed[self._at : self._at + 1] = [] if self._new is None else [self._new]
            setattr(self._parent, self._field, changed)

    def __exit__(self, *_: object) -> None:
        setattr(self._parent, self._field, self._old)


def mutants_of(tree: ast.Module, file: str) -> list[Mutant]:
    """All of one file's, in the order of its lines."""
    found, seen = [], Counter[str]()
    for node, parent, field, at, scope, function in _walk(tree, tree, "", None, (), None):
        for told, edit in _edits(node, parent, field, at):
            key = f"{'.'.join(scope) or 'module'}: {told}"
            seen[key] += 1
            numbered = key if seen[key] == 1 else f"{key} #{seen[key]}"
            found.append(Mutant(file, numbered, getattr(node, "lineno", 0), function, edit))
    return found


def _walk(
    node: Any, parent: Any, field: str, at: int | None, scope: tuple[str, ...], function: Any
) -> Iterator[tuple[Any, Any, str, int | None, tuple[str, ...], Any]]:
    if _is_left_alone(node, parent, field):
        return
    yield node, parent, field, at, scope, function
    inner, body = scope, function
    if isinstance(node, (*Function, ast.ClassDef)):
        inner = (*scope, node.name)
    if isinstance(node, Function) and function is None:
        lines = [node.lineno, *(one.lineno for one in node.decorator_list)]
        body = (node.name, min(lines))
    for name, value in ast.iter_fields(node):
        # What a default is, is settled when the function is made.
        within = body if name == "body" or not isinstance(node, Function) else function
        if isinstance(value, list):
            for i, one in enumerate(value):
                if isinstance(one, ast.AST):
                    yield from _walk(one, node, name, i, inner, within)
        elif isinstance(value, ast.AST):
            yield from _walk(value, node, name, None, inner, within)


def _is_left_alone(node: Any, parent: Any, field: str) -> bool:
    if field in ("annotation", "returns", "decorator_list", "type_params", "bases"):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert)):
        return True
    if isinstance(node, ast.Assign) and _named(node.targets[0]) in ("__all__", "__slots__", "__hash__"):
        return True
    if isinstance(node, ast.If) and _named(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Subscript) and _named(node.value) in (
        "Literal",
        "Annotated",
        "Union",
        "Callable",
    ):
        return True
    if isinstance(node, ast.Call) and _named(node.func) in ("TypeVar", "cast", "NewType"):
        return True
    if isinstance(node, ast.Constant) and isinstance(parent, ast.Call) and _named(parent.func) in _NAMING:
        return isinstance(node.value, str)
    if isinstance(node, ast.keyword) and node.arg in ("strict", "stacklevel", "slots", "repr"):
        return True
    # Words of errors; but for which they are, as ``Refused`` says by a code.
    if isinstance(parent, ast.Raise):
        return not (isinstance(node, ast.Call) and _named(node.func) in _CODED)
    return isinstance(parent, ast.Call) and _named(parent.func) in _CODED and node is not parent.args[0]


def _edits(node: Any, parent: Any, field: str, at: int | None) -> Iterator[tuple[str, Any]]:
    """What is told of each change of the node, and the change."""

    def into(new: Any) -> tuple[str, Any]:
        ast.fix_missing_locations(ast.copy_location(new, node))
        return f"{_text(node)} -> {_text(new)}", (parent, field, at, new)

    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in _COMPARED.get(type(op), ()):
                ops = [*node.ops[:i], other(), *node.ops[i + 1 :]]
                yield into(ast.Compare(node.left, ops, node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        yield into(ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right))
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in _COMPUTED:
            yield into(ast.AugAssign(node.target, _COMPUTED[type(node.op)](), node.value))
        yield into(ast.Pass())
    elif isinstance(node, ast.BoolOp):
        yield into(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1 :]
            yield into(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield into(node.operand)
    elif isinstance(node, ast.IfExp):
        yield into(ast.IfExp(node.test, node.orelse, node.body))
    elif isinstance(node, ast.Constant) and not isinstance(parent, ast.JoinedStr):
        yield from (into(ast.Constant(value)) for value in _constants(node.value))
    elif isinstance(node, ast.FormattedValue):
        yield into(ast.Constant("0"))
    elif isinstance(node, ast.Return) and node.value is not None and _text(node.value) != "None":
        yield into(ast.Return(ast.Constant(None)))
    elif isinstance(node, (ast.Tuple, ast.List)) and isinstance(node.ctx, ast.Load):
        if isinstance(parent, (ast.Compare, ast.ExceptHandler)):  # of what is in it, the order says nothing
            return
        yield from (into(type(node)(swapped, node.ctx)) for swapped in _swapped(node.elts))
    elif isinstance(node, ast.Call) and not _is_logging(node):
        if _named(node.func) not in _COMMUTING:
            yield from (into(ast.Call(node.func, swapped, node.keywords)) for swapped in _swapped(node.args))
        for i, one in enumerate(node.keywords):
            if one.arg is not None and not _is_left_alone(one, node, "keywords"):
                rest = node.keywords[:i] + node.keywords[i + 1 :]
                yield into(ast.Call(node.func, node.args, rest))
        if _named(node.func) in _TWINS:
            twin = _TWINS[_named(node.func)]
            func = node.func
            other = ast.Name(twin, ast.Load()) if isinstance(func, ast.Name) else _of(func.value, twin)
            yield into(ast.Call(ast.copy_location(other, func), node.args, node.keywords))
    elif isinstance(node, (ast.Raise, ast.Delete)) or _is_an_effect(node):
        yield into(ast.Pass())
    elif isinstance(node, (ast.Continue, ast.Break)):
        yield into(ast.Break() if isinstance(node, ast.Continue) else ast.Continue())
    elif isinstance(node, ast.comprehension):
        for i, test in enumerate(node.ifs):
            yield f"if {_text(test)} -> no condition", (node, "ifs", i, None)
    elif isinstance(node, (ast.If, ast.While)) and isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
        test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        yield f"if {_text(node.test)} -> if {_text(test)}", (node, "test", None, test)


def _constants(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (0 if value == 1 else value + 1,)
    if isinstance(value, float):
        return (value * 2 if value else 1.0,)
    if isinstance(value, str) and value and " " not in value:
        return (f"XX{value}",)
    return ()


def _swapped(values: list[Any]) -> Iterator[list[Any]]:
    """The values with each two neighbours exchanged."""
    for i, (one, other) in enumerate(itertools.pairwise(values)):
        same = _text(one) == _text(other)
        if not same and not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
            yield [*values[:i], other, one, *values[i + 2 :]]


def _is_an_effect(node: Any) -> bool:
    """A statement that can go without a name missing after it."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await)) and not _is_logging(node.value)
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript))


def _is_logging(node: Any) -> bool:
    root = getattr(node, "func", None)
    while isinstance(root, ast.Attribute):
        root = root.value
    return _named(root) in _LOGS


def _of(value: Any, name: str) -> ast.Attribute:
    return ast.Attribute(value, name, ast.Load())


def _named(node: Any) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: Any) -> str:
    text = " ".join(ast.unparse(node).split())
    if len(text) <= 90:
        return text
    # Long ones differ anywhere: told by both ends and a sum of all.
    return f"{text[:50]}…{text[-30:]} [{hashlib.sha256(text.encode()).hexdigest()[:6]}]"
