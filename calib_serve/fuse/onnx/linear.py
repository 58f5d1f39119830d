"""The last linear layer: a Gemm, or a MatMul with an Add, over constant weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.fuse.onnx._probabilities import is_flat
from calib_serve.fuse.onnx.edit import Editor, attribute, constant, describe, is_private

__all__ = ["Linear", "NotLinear", "find_linear"]

_THROUGH = {"Identity", "Dropout"}


@dataclass(frozen=True)
class NotLinear:
    """Why a value is not made by a linear layer whose weights we may change."""

    why: str


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
        """Put another weight (K, d) and bias into the same nodes; the old constants stay for other readers.

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


def find_linear(value: ir.Value) -> Union[Linear, NotLinear]:
    """The linear layer that makes ``value``, seen through Identity and inference-time Dropout."""
    node = value.producer()
    while node is not None and _is_through(node):
        below = node.inputs[0]
        assert below is not None
        if not is_private(below):
            return NotLinear(f"the input of {describe(node)} is used elsewhere too")
        value, node = below, below.producer()
    if node is None:
        return NotLinear(f"{value.name!r} is an input or a constant of the graph")
    if node.domain == "" and node.op_type == "Gemm":
        return _gemm(node)
    if node.domain == "" and node.op_type == "MatMul":
        return _matmul(node, None, None)
    if node.domain == "" and node.op_type == "Add":
        return _addition(node)
    return NotLinear(f"the logits come from {describe(node)}, not from a Gemm or MatMul")


def _is_through(node: ir.Node) -> bool:
    """Whether a node returns its input, as Dropout does outside of training."""
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    training = constant(mode)
    trains = mode is not None and (training is None or bool(training.any()))
    return node.domain == "" and node.op_type in _THROUGH and not trains


def _gemm(node: ir.Node) -> Union[Linear, NotLinear]:
    stored, features = constant(node.inputs[1]), node.inputs[0]
    assert features is not None
    if stored is None:
        return NotLinear(f"the weight of {describe(node)} is not a constant")
    if attribute(node, "transA", 0):
        return NotLinear(f"{describe(node)} transposes its features")
    weight = stored.astype(np.float64) * attribute(node, "alpha", 1.0)
    weight = weight if attribute(node, "transB", 0) else weight.T
    added = node.inputs[2] if len(node.inputs) > 2 else None
    bias = None
    if added is not None:
        bias = _row(added, len(weight))
        if bias is None:
            return NotLinear(f"the bias of {describe(node)} is not a constant row")
        bias = bias * attribute(node, "beta", 1.0)
    return Linear(node.outputs[0], features, weight, bias, node, None)


def _matmul(node: ir.Node, addition: ir.Node | None, bias: ir.Value | None) -> Union[Linear, NotLinear]:
    stored, features = constant(node.inputs[1]), node.inputs[0]
    assert features is not None
    if stored is None or stored.ndim != 2:
        return NotLinear(f"the weight of {describe(node)} is not a constant matrix on the right")
    weight = stored.astype(np.float64).T
    if addition is None:
        return Linear(node.outputs[0], features, weight, None, node, None)
    row = _row(bias, len(weight))
    if row is None:
        return NotLinear(f"what {describe(addition)} adds is not a constant row of {len(weight)}")
    if not is_private(node.outputs[0]):
        return NotLinear(f"the product of {describe(node)} is used elsewhere too")
    return Linear(addition.outputs[0], features, weight, row, node, addition)


def _addition(node: ir.Node) -> Union[Linear, NotLinear]:
    for value, other in (node.inputs, reversed(node.inputs)):
        product = None if value is None else value.producer()
        if product is None or product.domain != "" or product.op_type != "MatMul":
            continue
        if constant(other) is not None:
            return _matmul(product, node, other)
    return NotLinear(f"{describe(node)} does not add a constant to a MatMul")


def _row(value: ir.Value | None, width: int) -> NDArray[np.float64] | None:
    """A constant that broadcasts to (K,) for every sample, as (K,)."""
    numbers = constant(value)
    if numbers is None or numbers.ndim > 2 or (numbers.ndim == 2 and numbers.shape[0] != 1):
        return None
    flat = numbers.astype(np.float64).reshape(-1)
    return np.broadcast_to(flat, (width,)).copy() if flat.size in (1, width) else None
