"""Masks inside a graph: what puts classes at -1e9 or -inf between the logits and the softmax.

The logits before are calibrated, and the graph's own nodes mask them then: a masked class stays at 0, and the
others share its probability.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from calib_serve.fuse.onnx._graph import FLOATS, attribute, constant, is_layer
from calib_serve.scores import MASKED

FAR = 1e3
"""A logit that much lower has no probability in any type: e^-1000 is 0."""

_SHAPES = {"Identity", "Cast", "Expand", "Tile", "Reshape", "Squeeze", "Unsqueeze"}
_SCATTERS = {"ScatterND", "ScatterElements"}


def find_mask(value: ir.Value) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """Find the logits before any mask of them, and the nodes from there to ``value``."""
    nodes, found = list[ir.Node](), 0
    best: tuple[ir.Value, tuple[ir.Node, ...]] = (value, ())
    while (node := value.producer()) is not None and node.domain == "":
        before = _before(node, masked=bool(nodes))
        if before is None:
            break
        value, is_mask = before
        nodes.insert(0, node)
        found += is_mask
        if is_mask:
            best = (value, tuple(nodes))
    return best


def _before(node: ir.Node, *, masked: bool) -> tuple[ir.Value, bool] | None:
    """The value that a node masks and True, or passes on and False; None where it does neither."""
    inputs = [v for v in node.inputs if v is not None]
    if not inputs:
        return None
    op, first = node.op_type, inputs[0]
    if op == "Where":
        low = [_is_low(v) for v in inputs[1:]]
        return (inputs[1 + low.index(False)], True) if sum(low) == 1 else None
    if op in _SCATTERS and _is_low(inputs[2]):
        return first, True
    if op in ("Add", "Sub"):
        terms = [_is_term(v) for v in inputs]
        if sum(terms) == 1 and (op == "Add" or terms[1]):
            logits = inputs[terms.index(False)]
            # Priors of the classes beside computed scores, as of naive Bayes, are not what is masked.
            return None if _constants(logits) is not None else (logits, True)
    if op == "Mul" and masked:  # z m + (1 - m) (-1e9): the mask is the factor that no layer makes
        plain = [not _computed(v) for v in inputs]
        if sum(plain) == 1 and constant(inputs[plain.index(True)]) is None:
            return inputs[plain.index(False)], True
    bounds = op in ("Max", "Clip") and len(inputs) == 2 and _is_low(inputs[1])
    passes = op == "Identity" or (op == "Cast" and first.dtype in FLOATS)
    return (first, False) if bounds or passes else None


def _constants(value: ir.Value) -> np.ndarray | None:
    """The numbers of a constant, perhaps in another shape, or of its logarithm."""
    node = value.producer()
    if node is not None and node.op_type == "ConstantOfShape":
        filled = attribute(node, "value", None)
        return np.zeros(1) if filled is None else np.asarray(filled.numpy(), np.float64)
    numbers = constant(value)
    if numbers is not None:
        return numbers.astype(np.float64) if numbers.dtype.kind in "fiu" else None
    if node is None or node.op_type not in {*_SHAPES, "Log"} or node.inputs[0] is None:
        return None
    numbers = _constants(node.inputs[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(numbers) if numbers is not None and node.op_type == "Log" else numbers


def _is_low(value: ir.Value) -> bool:
    """Whether all numbers of a constant put a class out of reach."""
    numbers = _constants(value)
    return numbers is not None and bool(numbers.size and (numbers <= -FAR).all())


def _is_term(value: ir.Value) -> bool:
    """Whether a value may be 0 or out of reach: a large number or a logarithm makes it, and no layer."""
    numbers = _constants(value)
    if numbers is not None:
        return bool(((numbers == 0) | (numbers <= -FAR)).all() and (numbers <= -FAR).any())
    nodes = list(_makers(value))
    if any(is_layer(node) for node in nodes):
        return False
    large = (c for node in nodes for v in node.inputs if v is not None and (c := _constants(v)) is not None)
    return any(n.op_type == "Log" for n in nodes) or any((np.abs(c) >= FAR).any() for c in large)


def _computed(value: ir.Value) -> bool:
    """Whether a layer makes a value."""
    return any(is_layer(node) for node in _makers(value))


def _makers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that a value is made by, but for constants."""
    seen, todo = set[ir.Node](), [value]
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in seen and node.op_type not in ("Constant", "ConstantOfShape"):
            seen.add(node)
            yield node
            todo += [v for v in node.inputs if v is not None]


def inputs_of(value: ir.Value) -> set[str]:
    """The names of the graph's inputs that a value is made of."""
    read = {v for node in _makers(value) for v in node.inputs if v is not None} | {value}
    return {str(v.name) for v in read if v.is_graph_input()}


def masked_probabilities(value: ir.Value) -> ir.Value | None:
    """The probabilities that are multiplied by a mask, or chosen by one, on their way to ``value``."""
    for node in _makers(value):
        held = [v for v in node.inputs if v is not None]
        computed = [_computed(v) for v in held]
        # A condition of the numbers themselves, such as a least share, is no mask.
        chosen = node.op_type == "Where" and not computed[0]
        if node.op_type == "Mul" and sum(computed) == 1 and constant(held[computed.index(False)]) is None:
            return held[computed.index(True)]
        if chosen and sum(computed[1:]) == 1:
            return held[1 + computed[1:].index(True)]
        if is_layer(node):
            return None
    return None


def hides_mask(value: ir.Value) -> bool:
    """Whether numbers that put classes out of reach come in behind the last layer, where they stay."""
    seen, todo = set[ir.Node](), [value]
    while todo:
        node = todo.pop().producer()
        if node is None or node in seen or node.domain != "":
            continue
        seen.add(node)
        held = [v for v in node.inputs if v is not None]
        # Of a layer itself, which may have its mask in the bias, weights may be as large as that.
        far = -FAR if not is_layer(node) else MASKED
        if any((c := _constants(v)) is not None and (c <= far).any() for v in held):
            return True
        todo += [] if is_layer(node) else held
    return False
