"""What a node of a syntax tree may become: one small mistake each."""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["CODED", "changes_of", "is_logging", "short"]

CODED = {"Refused"}
"""Errors whose first argument is a code, the next a sentence."""

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_TWINS = {
    **{"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "zeros": "ones"},
    **{"max": "min", "all": "any", "maximum": "minimum", "argmax": "argmin", "ones": "zeros"},
    **{"floor": "ceil", "ceil": "floor", "union": "intersection", "startswith": "endswith"},
    "logical_and": "logical_or",
}
_COMMUTING = {
    "max", "min", "maximum", "minimum", "array_equal", "isclose", "logaddexp", "compare_digest", "and_",
}  # fmt: skip
_COMMUTING_OPERATORS = {"Add", "And", "Equal", "Max", "Min", "Mul", "Or"}
_LOGS = {"log", "logger", "logging", "_log", "_LOG", "warnings"}
_UNTOUCHED_KEYWORDS = {"strict", "stacklevel", "slots", "repr"}

Change = Iterator[Any]


def changes_of(node: Any, parent: Any) -> Change:
    """Each node that may stand in its place."""
    for kind, change in _CHANGES.items():
        if isinstance(node, kind):
            yield from change(node, parent)


def short(node: Any) -> str:
    """As source, of at most some 90 characters."""
    text = " ".join(ast.unparse(node).split())
    if len(text) <= 90:
        return text
    # Long ones differ anywhere: told by both ends and a sum of all.
    return f"{text[:50]}…{text[-30:]} [{hashlib.sha256(text.encode()).hexdigest()[:6]}]"


def _compare(node: ast.Compare, _: Any) -> Change:
    for i, op in enumerate(node.ops):
        for other in _COMPARED.get(type(op), ()):
            yield ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)


def _compute(node: ast.BinOp, _: Any) -> Change:
    if type(node.op) in _COMPUTED:
        yield ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)


def _assign_more(node: ast.AugAssign, _: Any) -> Change:
    if type(node.op) in _COMPUTED:
        yield ast.AugAssign(node.target, _COMPUTED[type(node.op)](), node.value)
    yield ast.Pass()


def _join(node: ast.BoolOp, _: Any) -> Change:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for i in range(len(node.values)):
        rest = node.values[:i] + node.values[i + 1 :]
        yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _sign(node: ast.UnaryOp, _: Any) -> Change:
    if isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield node.operand


def _choose(node: ast.IfExp, _: Any) -> Change:
    yield ast.IfExp(node.test, node.orelse, node.body)


def _constant(node: ast.Constant, parent: Any) -> Change:
    value = node.value
    if isinstance(parent, ast.JoinedStr):
        return
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(0 if value == 1 else value + 1)
    elif isinstance(value, float):
        yield ast.Constant(value * 2 if value else 1.0)
    elif isinstance(value, str) and value and " " not in value:
        yield ast.Constant(f"XX{value}")


def _fill_in(_: ast.FormattedValue, __: Any) -> Change:
    yield ast.Constant("0")


def _return(node: ast.Return, _: Any) -> Change:
    # No and nothing are alike to who asks whether; that False becomes True is a change of its own.
    if node.value is not None and short(node.value) not in ("None", "False"):
        yield ast.Return(ast.Constant(None))


def _list(node: ast.Tuple | ast.List, parent: Any) -> Change:
    # Of what something is in, or is caught, the order says nothing.
    unordered = isinstance(parent, (ast.Compare, ast.ExceptHandler)) or _makes_commuting(parent)
    if isinstance(node.ctx, ast.Load) and not unordered:
        for swapped in _swapped(node.elts):
            yield type(node)(swapped, node.ctx)


def _makes_commuting(node: Any) -> bool:
    """Whether a call makes a node of an ONNX operator whose two inputs may be exchanged."""
    makes = isinstance(node, ast.Call) and _name(node.func) == "node" and bool(node.args)
    return makes and getattr(node.args[0], "value", None) in _COMMUTING_OPERATORS


def _call(node: ast.Call, _: Any) -> Change:
    name = _name(node.func)
    for swapped in () if name in _COMMUTING | CODED else _swapped(node.args):
        yield ast.Call(node.func, swapped, node.keywords)
    for i, one in enumerate(node.keywords):
        if one.arg is not None and one.arg not in _UNTOUCHED_KEYWORDS:
            yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])
    if name in _TWINS:
        other = ast.Name(_TWINS[name], ast.Load())
        if isinstance(node.func, ast.Attribute):
            other = ast.Attribute(node.func.value, _TWINS[name], ast.Load())  # type: ignore[assignment]
        yield ast.Call(ast.copy_location(other, node.func), node.args, node.keywords)


def _statement(node: ast.stmt, _: Any) -> Change:
    """What can go without a name missing after it."""
    effect = isinstance(node, (ast.Raise, ast.Delete))
    if isinstance(node, ast.Expr):
        effect = isinstance(node.value, (ast.Call, ast.Await))
    elif isinstance(node, ast.Assign):
        effect = isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    if effect:
        yield ast.Pass()


def _jump(node: ast.Continue | ast.Break, _: Any) -> Change:
    yield ast.Break() if isinstance(node, ast.Continue) else ast.Continue()


_CHANGES: dict[Any, Callable[[Any, Any], Change]] = {
    ast.Compare: _compare,
    ast.BinOp: _compute,
    ast.AugAssign: _assign_more,
    ast.BoolOp: _join,
    ast.UnaryOp: _sign,
    ast.IfExp: _choose,
    ast.Constant: _constant,
    ast.FormattedValue: _fill_in,
    ast.Return: _return,
    (ast.Tuple, ast.List): _list,
    ast.Call: _call,
    (ast.Raise, ast.Delete, ast.Expr, ast.Assign): _statement,
    (ast.Continue, ast.Break): _jump,
}


def _swapped(values: list[Any]) -> Iterator[list[Any]]:
    """The values with each two neighbours exchanged."""
    for i, (one, other) in enumerate(itertools.pairwise(values)):
        starred = isinstance(one, ast.Starred) or isinstance(other, ast.Starred)
        if not starred and short(one) != short(other):
            yield [*values[:i], other, one, *values[i + 2 :]]


def is_logging(node: Any) -> bool:
    """Whether a call is one that only logs or warns."""
    root = getattr(node, "func", None)
    while isinstance(root, ast.Attribute):
        root = root.value
    return _name(root) in _LOGS


def _name(node: Any) -> str:
    return str(getattr(node, "id", "") or getattr(node, "attr", ""))
