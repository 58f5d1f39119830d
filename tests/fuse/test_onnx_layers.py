"""The last linear layer of a graph: where it is found, and how maps, heads and constants come into it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from fuse_artifacts import head
from fuse_graphs import run
from fuse_texts import LAYER, TWO, K, W, X, fused, graph, value
from onnx import TensorProto

from calib_serve.artifact import Head, LogitMap
from calib_serve.core.errors import ModelError
from calib_serve.fuse.onnx._graph import Editor, constant
from calib_serve.fuse.onnx._layers import Linear, find_linear
from calib_serve.scores import softmax

BIAS = "b = Constant <value = float[3] {1.0, -2.0, 0.5}> () "
GEMM = LAYER + BIAS + "z = Gemm(x, w, b) "
SUM = LAYER + BIAS + "p = MatMul(x, w) "
RATIO = "r = Constant <value = float {0.5}> () "


def layer_of(body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, 3] y") -> Linear | str:
    return find_linear(ir.from_proto(graph(body, inputs, outputs)).graph.outputs[0])


ROW = [1.0, -2.0, 0.5]
FLAGS = "yes = Constant <value = bool {1}> () no = Constant <value = bool {0}> () "


def added(shape: str, numbers: str = "2") -> str:
    return LAYER + f"b = Constant <value = float{shape} {{{numbers}}}> () "


@pytest.mark.parametrize(
    ("body", "weight", "bias"),
    [
        (LAYER + "y = Gemm(x, w)", 1.0, None), (LAYER + "y = MatMul(x, w)", 1.0, None),
        (LAYER + "y = Gemm <alpha: float = 0.5, transB: int = 1> (x, w)", 0.5, None),
        (LAYER + "y = Gemm(x, w, nothing)", 1.0, None), (GEMM + FLAGS + "y = Dropout(z, , no)", 1.0, ROW),
        (GEMM + "y = Identity(z)", 1.0, ROW), (GEMM + "y = Dropout(z)", 1.0, ROW),
        (GEMM + RATIO + "y = Dropout(z, r)", 1.0, ROW),
        (GEMM + RATIO + FLAGS + "d = Dropout(z, r, no) y = Identity(d)", 1.0, ROW),
        (LAYER + BIAS + "y = Gemm <beta: float = 2.0> (x, w, b)", 1.0, [2.0, -4.0, 1.0]),
        (SUM + "y = Add(p, b)", 1.0, ROW), (SUM + "y = Add(b, p)", 1.0, ROW),
        *((added(shape) + "y = Gemm(x, w, b)", 1.0, [2.0, 2.0, 2.0]) for shape in ("", "[1]", "[1, 1]")),
        *((added(s) + "p = MatMul(x, w) y = Add(p, b)", 1.0, [2.0, 2.0, 2.0]) for s in ("", "[1, 1]")),
        (added("[1, 3]", "1, -2, 0.5") + "y = Gemm(x, w, b)", 1.0, ROW),
        (added("[1, 3]", "1, -2, 0.5") + "p = MatMul(x, w) y = Add(p, b)", 1.0, ROW),
    ],
)  # fmt: skip
def test_a_linear_layer_is_found_in_every_form(body: str, weight: float, bias: list[float] | None) -> None:
    found = layer_of(body)
    assert isinstance(found, Linear)
    assert found.features.name == "x"
    np.testing.assert_array_equal(found.weight, weight * (W if "transB" in body else W.T))
    assert (None if found.bias is None else found.bias.tolist()) == bias


TWO_ROWS = added("[2, 3]", "1, 2, 3, 4, 5, 6")
NO_LAYER = "the logits come from {}, not from a Gemm or MatMul"


@pytest.mark.parametrize(
    ("body", "inputs", "why"),
    [
        ("y = Gemm(x, w)", "float[n, 3] x, float[3, 3] w", "the weight of Gemm 'y' is not a constant"),
        (LAYER + "y = Gemm <transA: int = 1> (x, w)", "float[3, n] x", "Gemm 'y' transposes its features"),
        (
            LAYER + "y = Gemm(x, w, b)",
            "float[n, 3] x, float[3] b",
            "the bias of Gemm 'y' is not a constant row",
        ),
        (TWO_ROWS + "y = Gemm(x, w, b)", "float[2, 3] x", "the bias of Gemm 'y' is not a constant row"),
        (
            LAYER + "y = MatMul(w, x)",
            "float[3, 3] x",
            "the weight of MatMul 'y' is not a constant matrix on the right",
        ),
        (
            TWO_ROWS + "p = MatMul(x, w) y = Add(p, b)",
            "float[2, 3] x",
            "what Add 'y' adds is not a constant row of 3",
        ),
        (
            SUM + "q = Neg(p) y = Add(p, b)",
            "float[n, 3] x",
            "the product of MatMul 'p' is used elsewhere too",
        ),
        (
            LAYER + "p = MatMul(x, w) y = Add(p, x)",
            "float[n, 3] x",
            "Add 'y' does not add a constant to a MatMul",
        ),
        (
            GEMM + "q = Neg(z) y = Identity(z)",
            "float[n, 3] x",
            "the input of Identity 'y' is used elsewhere too",
        ),
        (GEMM + "y = Dropout(z, , mode)", "float[n, 3] x, bool mode", NO_LAYER.format("Dropout 'y'")),
        (GEMM + FLAGS + "y = Dropout(z, , yes)", "float[n, 3] x", NO_LAYER.format("Dropout 'y'")),
        (LAYER + "y = of.ours.Gemm(x, w)", "float[n, 3] x", NO_LAYER.format("Gemm 'y'")),
        ("y = Identity(x)", "float[n, 3] x", "'x' is an input or a constant of the graph"),
    ],
)
def test_where_no_linear_layer_is_found_the_reason_is_said(body: str, inputs: str, why: str) -> None:
    assert layer_of(body, inputs) == why


OFFSET = np.array([0.25, 0.0, -1.0])


def test_dequantised_logits_are_mapped_for_all_that_read_them_but_for_who_shows_them_raw(
    tmp_path: Path,
) -> None:
    quantised = (
        "s = Constant <value = float {0.25}> () o = Constant <value = int8 {0}> () n = Neg(x) "
        "q = QuantizeLinear(n, s, o) z = DequantizeLinear(q, s, o) y = Softmax(z) "
    )
    report, _ = fused(graph(quantised), tmp_path, TWO)
    assert report.done == (
        "logit map put in as one Mul (the logits come from DequantizeLinear 'z', not from a Gemm or MatMul)",
    )
    model = graph(quantised + "other = Neg(z)", outputs="float[n, 3] y, float[n, 3] other")
    _, made = fused(model, tmp_path, TWO, output_name="y")
    np.testing.assert_array_equal(run(made, {"x": X})["other"], run(model, {"x": X})["other"] / 2)
    model = graph(quantised + "other = Identity(z)", outputs="float[n, 3] y, float[n, 3] other")
    report, made = fused(model, tmp_path, TWO, output_name="y")
    assert report.done[0] == "logit map put in as one Mul (Identity 'other' also reads the logits)"
    np.testing.assert_array_equal(run(made, {"x": X})["other"], run(model, {"x": X})["other"])
    step = LogitMap(np.array(0.5), OFFSET)
    report, _ = fused(graph(quantised), tmp_path, step)
    assert report.done == (
        "logit map put in as one BatchNormalization (the logits come from DequantizeLinear 'z', not from a "
        "Gemm or MatMul)",
    )


ONE = head(3, K, 1, np.random.default_rng(0))


def by_hand(step: Head, features: np.ndarray) -> np.ndarray:
    """Its logits, in float64."""
    hidden = features.astype("f8") @ step.weights[0].T.astype("f8") + step.biases[0]
    for w, b in zip(step.weights[1:], step.biases[1:], strict=True):
        hidden = np.maximum(hidden, 0) @ w.T.astype("f8") + b
    return hidden


def test_a_head_leaves_the_layer_whose_logits_are_shown(tmp_path: Path) -> None:
    model = graph(LAYER + "z = MatMul(x, w) y = Softmax(z)", outputs="float[n, 3] y, float[n, 3] z")
    report, made = fused(model, tmp_path, ONE, output_name="y")
    assert report.done[0] == "head of 1 layers reads 'x'"
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["z"], run(model, {"x": X})["z"])
    np.testing.assert_allclose(got["y"], softmax(by_hand(ONE, X)), atol=1e-5)


def test_numbers_that_are_not_of_their_shape_are_an_error_of_the_model() -> None:
    model = graph("y = Mul(x, w)")
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[3], raw_data=bytes(16)))
    made = Editor(ir.from_proto(model))
    with pytest.raises(ModelError, match=r"^the numbers of 'w' are not as their type and shape say: "):
        constant(value(made, "w"))
