"""Put a head and logit maps into the last linear layer, else behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.artifact import Head, LogitMap, SourceMaps
from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._graph import Editor, attribute, constant, describe, dtype_of, is_private
from calib_serve.fuse.onnx._probabilities import at_least, cast, is_flat
from calib_serve.fuse.onnx._tail import Tail

_THROUGH = {"Identity", "Dropout"}


@dataclass(frozen=True, eq=False)
class Linear:
    """features (n, d) -> output (n, K) = features weight.T + bias.

    ``weight`` (K, d) and ``bias`` (K,) or None are float64; ``product`` is the Gemm or MatMul and
    ``addition`` the Add behind a MatMul, if any.
    """

    output: ir.Value
    features: ir.Value
    weight: NDArray[np.float64]
    bias: NDArray[np.float64] | None
    product: ir.Node
    addition: ir.Node | None

    def rewrite(self, editor: Editor, weight: NDArray[np.float64], bias: NDArray[np.float64] | None) -> bool:
        """Write another weight (K, d) and bias into the same nodes; old constants stay for other readers.

        Returns False and changes nothing where a bias cannot be added: a MatMul alone whose features are not
        known to be a matrix.
        """
        product, addition = self.product, self.addition
        if bias is not None and product.op_type == "MatMul" and addition is None:
            if not is_flat(self.features):
                return False
            product.op_type = "Gemm"
        editor.put(product, 1, weight if attribute(product, "transB", 0) else weight.T, "weight")
        for scale in ("alpha", "beta"):
            product.attributes.pop(scale, None)  # both are in the numbers now
        if bias is None:
            return True
        if addition is None:
            editor.put(product, 2, bias, "bias")
        else:
            editor.put(addition, 1 if constant(addition.inputs[1]) is not None else 0, bias, "bias")
        return True


def find_linear(value: ir.Value) -> Linear | str:
    """Find the linear layer that makes ``value``, through Identity and idle Dropout, else say why not."""
    node = value.producer()
    while node is not None and _is_through(node):
        below = node.inputs[0]
        assert below is not None
        if not is_private(below):
            return f"the input of {describe(node)} is used elsewhere too"
        value, node = below, below.producer()
    if node is None:
        return f"{value.name!r} is an input or a constant of the graph"
    op = node.op_type if node.domain == "" else ""
    if op == "Gemm":
        return _gemm(node)
    if op == "MatMul":
        return _matmul(node, None, None)
    if op == "Add":
        return _addition(node)
    return f"the logits come from {describe(node)}, not from a Gemm or MatMul"


def _is_through(node: ir.Node) -> bool:
    """Whether a node returns its input, as Dropout does outside of training."""
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    training = constant(mode)
    trains = mode is not None and (training is None or bool(training.any()))
    return node.domain == "" and node.op_type in _THROUGH and not trains


def _gemm(node: ir.Node) -> Linear | str:
    stored, features = constant(node.inputs[1]), node.inputs[0]
    assert features is not None
    if stored is None:
        return f"the weight of {describe(node)} is not a constant"
    if attribute(node, "transA", 0):
        return f"{describe(node)} transposes its features"
    weight = stored.astype(np.float64) * attribute(node, "alpha", 1.0)
    weight = weight if attribute(node, "transB", 0) else weight.T
    added = node.inputs[2] if len(node.inputs) > 2 else None
    bias = None
    if added is not None:
        bias = _row(added, len(weight))
        if bias is None:
            return f"the bias of {describe(node)} is not a constant row"
        bias = bias * attribute(node, "beta", 1.0)
    return Linear(node.outputs[0], features, weight, bias, node, None)


def _matmul(node: ir.Node, addition: ir.Node | None, bias: ir.Value | None) -> Linear | str:
    stored, features = constant(node.inputs[1]), node.inputs[0]
    assert features is not None
    if stored is None or stored.ndim != 2:
        return f"the weight of {describe(node)} is not a constant matrix on the right"
    weight = stored.astype(np.float64).T
    if addition is None:
        return Linear(node.outputs[0], features, weight, None, node, None)
    row = _row(bias, len(weight))
    if row is None:
        return f"what {describe(addition)} adds is not a constant row of {len(weight)}"
    # Other readers of the product would see the changed weights.
    if not is_private(node.outputs[0]):
        return f"the product of {describe(node)} is used elsewhere too"
    return Linear(addition.outputs[0], features, weight, row, node, addition)


def _addition(node: ir.Node) -> Linear | str:
    for value, other in (node.inputs, reversed(node.inputs)):
        product = None if value is None else value.producer()
        if product is None or product.domain != "" or product.op_type != "MatMul":
            continue
        if constant(other) is not None:
            return _matmul(product, node, other)
    return f"{describe(node)} does not add a constant to a MatMul"


def _row(value: ir.Value | None, width: int) -> NDArray[np.float64] | None:
    """A constant that broadcasts to (K,) for every sample as (K,), else None."""
    numbers = constant(value)
    if numbers is None or numbers.ndim > 2 or (numbers.ndim == 2 and numbers.shape[0] != 1):
        return None
    flat = numbers.astype(np.float64).reshape(-1)
    return np.broadcast_to(flat, (width,)).copy() if flat.size in (1, width) else None


def find_features(tail: Tail, head: Head) -> ir.Value:
    """Find the tensor (n, d) the head reads: the last linear layer's input."""
    linear = find_linear(tail.logits)
    if not isinstance(linear, Linear):
        raise FuseError(f"the last linear layer was not found, whose place a new head takes: {linear}")
    value = linear.features
    width, shape = head.weights[0].shape[1], value.shape
    fits = shape is not None and len(shape) == 2 and (not isinstance(shape[1], int) or shape[1] == width)
    if not fits:
        raise FuseError(
            f"the head reads features (n, {width}), but {value.name!r} is {value.dtype} "
            f"{value.shape}; the artifact is of another model"
        )
    return value


def replace_head(editor: Editor, tail: Tail, *, head: Head, features: ir.Value) -> tuple[Tail, str]:
    """Make the logits ``head(features)``: in the last layer's own node, else in new nodes.

    The old layer is removed where nothing else reads it; replacing it by one layer adds no node.
    """
    linear, value = find_linear(tail.logits), features
    # Written into the old layer, the head would reach other readers of its logits.
    alone = len(head.weights) == 1 and not tail.strangers(tail.logits)
    if isinstance(linear, Linear) and alone and linear.features is value:
        weight, bias = head.weights[0].astype(np.float64), head.biases[0].astype(np.float64)
        if linear.rewrite(editor, weight, bias):
            return tail, f"head put into {describe(linear.product)}"
    dtype = dtype_of(tail.logits)
    value = cast(editor, value, dtype)
    for i, (w, b) in enumerate(zip(head.weights, head.biases, strict=True)):
        if i:
            value = editor.node("Relu", [value])
        numbers = [editor.number(w, dtype, "head.weight"), editor.number(b, dtype, "head.bias")]
        value = editor.node("Gemm", [value, *numbers], {"transB": 1})
    old = tail.logits
    tail = tail.replace_logits(editor, value)
    editor.remove_unused(old)
    return tail, f"head of {len(head.weights)} layers reads {features.name!r}"


def map_logits(editor: Editor, tail: Tail, *, step: LogitMap) -> tuple[Tail, str]:
    """Make the readers of the logits z read W z + b.

    No node is added where the last linear layer has constant weights and nothing else reads the
    logits; else one (two on log-probabilities).
    """
    if step.is_nothing:
        return tail, "the logit map changes nothing: nothing to do"
    if step.weight.ndim == 0 and step.least is None and tail.normalised:
        step = LogitMap(step.weight, step.bias)  # 1 / T may act before or after the log
    why = "it acts on log-probabilities"
    if step.on == "logits":
        # Once folded, other readers of the logits would see calibrated ones.
        others, linear = tail.strangers(tail.logits), find_linear(tail.logits)
        if isinstance(linear, Linear) and not others:
            bias = np.zeros(len(linear.weight)) if linear.bias is None else linear.bias
            weight, folded = step.fold_into(linear.weight, bias)
            unbiased = linear.bias is None and step.bias is None
            if linear.rewrite(editor, weight, None if unbiased else folded):
                return tail, f"logit map folded into {describe(linear.product)}"
        why = linear if isinstance(linear, str) else "its bias has no place in a MatMul"
        why = f"{', '.join(others)} also reads the logits" if others else why
    new = _insert_map(editor, tail.logits, step)
    maker = new.producer()
    assert maker is not None
    first = "LogSoftmax and " if step.on == "log_probs" else ""
    return tail.replace_logits(editor, new), f"logit map put in as {first}one {maker.op_type} ({why})"


def map_by_source(editor: Editor, tail: Tail, *, step: SourceMaps) -> tuple[Tail, str]:
    """Make the readers of the logits read them mapped by their source, which a new input of texts names."""
    graph, logits, dtype = editor.graph, tail.logits, dtype_of(tail.logits)
    if any(step.by == value.name for value in graph.inputs):
        raise FuseError(f"the graph has an input {step.by!r}, as that of the sources is called: rename it")
    batch = None if logits.shape is None else logits.shape[0]
    sources = ir.Value(name=step.by, type=ir.TensorType(ir.DataType.STRING), shape=ir.Shape([batch]))
    graph.inputs.append(sources)
    # The common map comes last: the first LabelEncoder gives unknown texts -1, which Gather reads as that.
    version = graph.opset_imports.setdefault("ai.onnx.ml", 2)
    keys: dict[str, Any] = {"keys_strings" if version > 1 else "classes_strings": list(step.sources)}
    keys |= {"values_int64s": list(range(len(step.sources)))} if version > 1 else {}
    keys["default_int64"] = -1
    name, kind = editor.name("calib_serve.source"), ir.TensorType(ir.DataType.INT64)
    row = ir.Value(name=name, type=kind, shape=sources.shape)
    editor.place(ir.node("LabelEncoder", [sources], keys, domain="ai.onnx.ml", outputs=[row]))
    order = [*range(1, len(step.weight)), 0]
    scales = editor.number(step.weight[order, None], dtype, "scales")
    new = editor.node("Mul", [logits, editor.node("Gather", [scales, row], {"axis": 0})])
    if step.bias is not None:
        biases = editor.number(step.bias[order], dtype, "biases")
        new = editor.node("Add", [new, editor.node("Gather", [biases, row], {"axis": 0})])
    return tail.replace_logits(editor, new), f"maps by source put in, chosen by the new input {step.by!r}"


def _insert_map(editor: Editor, logits: ir.Value, step: LogitMap) -> ir.Value:
    dtype, z = dtype_of(logits), logits
    if step.on == "log_probs":
        z = editor.node("LogSoftmax", [z], {"axis": -1})
    if step.least is not None:
        z = at_least(editor, z, editor.number(np.log(step.least), dtype, "least"))
    w, b = step.weight, step.bias
    if w.ndim == 2:
        inputs = [z, editor.number(w, dtype, "weight")]
        inputs += [] if b is None else [editor.number(b, dtype, "bias")]
        return editor.node("Gemm", inputs, {"transB": 1})
    # Before opset 14, onnx's reference normalises by the batch itself.
    in_parts = b is None or editor.opset < 14
    if in_parts and not (b is not None and np.all(w == 1)):
        z = editor.node("Mul", [z, editor.number(w, dtype, "scale")])
    if b is None:
        return z
    if in_parts or bool(np.all(w == 1)):
        return editor.node("Add", [z, editor.number(b, dtype, "bias")])
    # A batch normalisation of mean 0 and variance 1 is scale and bias in one node.
    per_class = (np.broadcast_to(w, b.shape), b, np.zeros_like(b), np.ones_like(b))
    numbers = [editor.number(n, dtype, "normalization") for n in per_class]
    return editor.node("BatchNormalization", [z, *numbers], {"epsilon": 0.0})
