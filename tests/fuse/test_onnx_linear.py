"""The last linear layer of a graph: where it is found, and how other numbers come into it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_graphs import run
from fuse_texts import LAYER, TWO, W, X, fused, graph, operators
from onnx import numpy_helper

from calib_serve import LogitMap
from calib_serve.fuse.onnx.linear import Linear, NotLinear, find_linear

B = np.array([1, -2, 0.5], "f4")
BIAS = "b = Constant <value = float[3] {1.0, -2.0, 0.5}> () "
GEMM = LAYER + BIAS + "z = Gemm(x, w, b) "
SUM = LAYER + BIAS + "p = MatMul(x, w) "
RATIO = "r = Constant <value = float {0.5}> () "
SHIFTED = LogitMap(np.array(0.5), np.array([0.25, 0.0, -1.0]))


def numbers(model: onnx.ModelProto, name: str) -> np.ndarray:
    """A constant of the graph, by its name."""
    made = {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
    made |= {one.name: one for one in model.graph.initializer}
    return numpy_helper.to_array(made[name])


def layer_of(body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, 3] y") -> Linear | NotLinear:
    return find_linear(ir.from_proto(graph(body, inputs, outputs)).graph.outputs[0])


# --- where it is found ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (GEMM + "n = Neg(z) y = Identity(z)", "the input of Identity 'y' is used elsewhere too"),
        (GEMM + "s = Identity(z) y = Dropout(z)", "the input of Dropout 'y' is used elsewhere too"),
        ("y = Identity(x)", "'x' is an input or a constant of the graph"),
        ("y = Neg(x)", "the logits come from Neg 'y', not from a Gemm or MatMul"),
        (GEMM + "y = Relu(z)", "the logits come from Relu 'y', not from a Gemm or MatMul"),
        (GEMM + "y = of.ours.Identity(z)", "the logits come from Identity 'y', not from a Gemm or MatMul"),
        (LAYER + "y = of.ours.Gemm(x, w)", "the logits come from Gemm 'y', not from a Gemm or MatMul"),
        (LAYER + "y = of.ours.MatMul(x, w)", "the logits come from MatMul 'y', not from a Gemm or MatMul"),
        (SUM + "y = of.ours.Add(p, b)", "the logits come from Add 'y', not from a Gemm or MatMul"),
        (
            GEMM + RATIO + "y = Dropout(z, r, trains)",
            "the logits come from Dropout 'y', not from a Gemm or MatMul",
        ),
        (
            GEMM + RATIO + "yes = Constant <value = bool {1}> () y = Dropout(z, r, yes)",
            "the logits come from Dropout 'y', not from a Gemm or MatMul",
        ),
        ("y = Gemm(x, v)", "the weight of Gemm 'y' is not a constant"),
        (LAYER + "y = Gemm <transA: int = 1> (x, w)", "Gemm 'y' transposes its features"),
        ("y = MatMul(x, v)", "the weight of MatMul 'y' is not a constant matrix on the right"),
        (LAYER + "y = MatMul(w, x)", "the weight of MatMul 'y' is not a constant matrix on the right"),
        (BIAS + "y = MatMul(x, b)", "the weight of MatMul 'y' is not a constant matrix on the right"),
        (SUM + "n = Neg(p) y = Add(p, b)", "the product of MatMul 'p' is used elsewhere too"),
        (BIAS + "n = Neg(x) y = Add(n, b)", "Add 'y' does not add a constant to a MatMul"),
        (SUM + "n = Neg(x) y = Add(p, n)", "Add 'y' does not add a constant to a MatMul"),
        (
            LAYER + "b = Constant <value = float[1, 1, 3] {1, 2, 3}> () p = MatMul(x, w) y = Add(p, b)",
            "what Add 'y' adds is not a constant row of 3",
        ),
        (
            LAYER + "b = Constant <value = float[2, 3] {1, 2, 3, 4, 5, 6}> () y = Gemm(x, w, b)",
            "the bias of Gemm 'y' is not a constant row",
        ),
        (
            LAYER + "b = Constant <value = float[2] {1, 2}> () p = MatMul(x, w) y = Add(p, b)",
            "what Add 'y' adds is not a constant row of 3",
        ),
    ],
)
def test_what_is_no_linear_layer_is_said_in_a_sentence(body: str, why: str) -> None:
    found = layer_of(body, "float[n, 3] x, float[3, 3] v, bool trains")
    assert isinstance(found, NotLinear)
    assert found.why == why


@pytest.mark.parametrize(
    ("body", "shown", "why"),
    [
        (GEMM + "y = Dropout(z)", "z", "the input of Dropout 'y' is used elsewhere too"),
        (SUM + "y = Add(p, b)", "p", "the product of MatMul 'p' is used elsewhere too"),
    ],
)
def test_what_a_user_sees_of_a_layer_is_not_changed(body: str, shown: str, why: str, tmp_path: Path) -> None:
    model = graph(body, outputs=f"float[n, 3] y, float[n, 3] {shown}")
    report, made = fused(model, tmp_path, TWO, output_name="y")
    (said,) = report.done
    assert said == f"logit map put in as one Mul ({why})"
    before, after = run(model, {"x": X}), run(made, {"x": X})
    np.testing.assert_array_equal(after[shown], before[shown])
    np.testing.assert_allclose(after["y"], before["y"] / 2, rtol=1e-6)


# --- how other numbers come into it -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "weight", "bias"),
    [
        ("", W, B),
        ("transB: int = 1", W.T, B),
        ("alpha: float = 4.0", 4 * W, B),
        ("beta: float = 8.0", W, 8 * B),
        ("alpha: float = 4.0, beta: float = 8.0, transB: int = 1", 4 * W.T, 8 * B),
    ],
)
def test_a_gemm_keeps_its_layout_and_its_factors_go_into_its_numbers(
    more: str, weight: np.ndarray, bias: np.ndarray, tmp_path: Path
) -> None:
    model = graph(f"{LAYER} {BIAS} y = Gemm {f'<{more}>' if more else ''} (x, w, b)")
    report, made = fused(model, tmp_path, TWO)
    assert report.done == ("logit map folded into Gemm 'y'",)
    (node,) = made.graph.node
    assert [one.name for one in node.attribute] == (["transB"] if "transB" in more else [])
    stored = numbers(made, node.input[1])
    assert stored.tolist() == ((4 if "alpha" in more else 1) * W / 2).tolist()
    assert numbers(made, node.input[2]).tolist() == (bias / 2).tolist()
    np.testing.assert_allclose(run(made, {"x": X})["y"], (X @ weight + bias) / 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [("p", "b"), ("b", "p")])
@pytest.mark.parametrize("step", [TWO, SHIFTED])
def test_the_bias_behind_a_product_is_changed_where_it_stands(
    order: tuple[str, str], step: LogitMap, tmp_path: Path
) -> None:
    report, made = fused(graph(f"{SUM} y = Add({order[0]}, {order[1]})"), tmp_path, step)
    assert report.done == ("logit map folded into MatMul 'p'",)
    assert operators(made) == ["MatMul", "Add"]
    product, addition = made.graph.node
    assert addition.input[order.index("p")] == product.output[0]
    bias = numbers(made, addition.input[order.index("b")])
    np.testing.assert_allclose(bias, step(B[None])[0], rtol=1e-6)
    np.testing.assert_allclose(run(made, {"x": X})["y"], step(X @ W + B), rtol=1e-5, atol=1e-5)
