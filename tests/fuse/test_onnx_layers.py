"""The last linear layer of a graph: where it is found, and how maps, heads and constants come into it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import head
from fuse_graphs import run
from fuse_texts import LAYER, TWO, K, W, X, editor, fused, graph, operators, value
from onnx import TensorProto

from calib_serve.artifact import Head, LogitMap, Mixture
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
    assert isinstance(found, str)
    assert found == why


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


@pytest.mark.parametrize(
    ("layer", "takes", "after"),
    [
        ("y = Gemm(f, w)", True, ["Gemm"]),
        ("y = MatMul(f, w)", False, ["MatMul"]),
        ("p = MatMul(f, w) y = Add(p, b)", True, ["MatMul", "Add"]),
    ],
)
def test_a_product_of_features_of_any_shape_takes_no_bias(layer: str, takes: bool, after: list[str]) -> None:
    made = editor(LAYER + BIAS + "f = of.ours.Body(x) " + layer)
    found = find_linear(made.graph.outputs[0])
    assert isinstance(found, Linear)
    assert found.rewrite(made, 2 * found.weight, OFFSET) is takes
    assert [op for op in operators(made.graph) if op not in ("Constant", "Body")] == after
    again = find_linear(made.graph.outputs[0])
    assert isinstance(again, Linear)
    np.testing.assert_array_equal(again.weight, found.weight * (2 if takes else 1))
    assert takes == (again.bias is not None and bool((again.bias == OFFSET).all()))


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
    said, warned = report.done
    assert said == f"logit map put in as one Mul ({why})"
    assert warned.startswith(
        f"warning: the output {shown!r} is left raw: it is made of {shown!r}, which is before"
    )
    before, after = run(model, {"x": X}), run(made, {"x": X})
    np.testing.assert_array_equal(after[shown], before[shown])
    np.testing.assert_allclose(after["y"], before["y"] / 2, rtol=1e-6)


OFFSET = np.array([0.25, 0.0, -1.0])
ONES = np.ones(3)


@pytest.mark.parametrize("step", [LogitMap(np.array(1.0)), LogitMap(ONES, 0 * OFFSET), LogitMap(np.eye(3))])
def test_a_map_that_changes_nothing_is_nothing_to_do(step: LogitMap, tmp_path: Path) -> None:
    report, made = fused(graph("z = Neg(x) y = Softmax(z)"), tmp_path, step)
    assert report.done == ("the logit map changes nothing: nothing to do",)
    assert operators(made) == ["Neg", "Softmax"]


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
DEEP = head(3, K, 2, np.random.default_rng(0))


def by_hand(step: Head, features: np.ndarray) -> np.ndarray:
    """Its logits, in float64."""
    hidden = features.astype("f8") @ step.weights[0].T.astype("f8") + step.biases[0]
    for w, b in zip(step.weights[1:], step.biases[1:], strict=True):
        hidden = np.maximum(hidden, 0) @ w.T.astype("f8") + b
    return hidden


@pytest.mark.parametrize("step", [ONE, DEEP])
@pytest.mark.parametrize("end", ["z = Gemm(g, w) y = Softmax(z)", "y = Gemm(g, w)"])
def test_features_of_another_type_are_read_in_the_type_of_the_logits(
    end: str, step: Head, tmp_path: Path
) -> None:
    model = graph(LAYER + "f = Cast <to: int = 10> (x) g = Cast <to: int = 1> (f) " + end)
    _, made = fused(model, tmp_path, step, features="f")
    assert made.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    logits = by_hand(step, X.astype("f2"))
    want = softmax(logits) if "Softmax" in end else logits
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)


@pytest.mark.parametrize(("features", "folded"), [(None, True), ("f", True), ("z", False), ("g", False)])
def test_a_head_is_the_last_layer_where_that_reads_its_features(
    features: str | None, folded: bool, tmp_path: Path
) -> None:
    body = LAYER + "f = Neg(x) g = Abs(x) z = MatMul(f, w) y = Softmax(z)"
    report, made = fused(graph(body, "float[n, k] x"), tmp_path, ONE, features=features, inputs={"x": X})
    said = f"head of 1 layers reads {features!r}"
    assert report.done == ("head put into Gemm 'z'" if folded else said,)
    read = {None: -X, "f": -X, "z": -X @ W, "g": np.abs(X)}[features]
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(by_hand(ONE, read)), atol=1e-5)


def test_what_needed_no_node_is_told_apart(tmp_path: Path) -> None:
    model = graph(LAYER + "z = MatMul(x, w) y = Softmax(z)")
    report, _ = fused(model, tmp_path, ONE, TWO, Mixture([1.0, 0.5], [0.5, 0.3, 0.2]))
    assert report.folded == report.done[:2] == ("head put into Gemm 'z'", "logit map folded into Gemm 'z'")
    assert report.as_dict()["folded"] == [*report.folded]
    assert report.as_dict()["nodes_before"] == 3
    assert fused(graph("z = Neg(x) y = Softmax(z)"), tmp_path, TWO)[0].folded == ()


def test_a_head_leaves_the_layer_whose_logits_are_shown(tmp_path: Path) -> None:
    model = graph(LAYER + "z = MatMul(x, w) y = Softmax(z)", outputs="float[n, 3] y, float[n, 3] z")
    report, made = fused(model, tmp_path, ONE, output_name="y")
    assert report.done[0] == "head of 1 layers reads 'x'"
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["z"], run(model, {"x": X})["z"])
    np.testing.assert_allclose(got["y"], softmax(by_hand(ONE, X)), atol=1e-5)


WEIGHT = "float[3, 3] w = {1, 2, 0, 0, 1, -1, 2, 0, 1}"


def test_a_weight_behind_an_identity_is_a_constant_all_the_same(tmp_path: Path) -> None:
    model = graph("v = Identity(w) z = MatMul(x, v) y = Softmax(z)", constants=WEIGHT)
    report, made = fused(model, tmp_path, TWO)
    assert report.done == ("logit map folded into MatMul 'z'",)
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(X @ W / 2), atol=1e-6)


def test_an_operator_of_another_domain_may_do_anything_to_a_constant() -> None:
    weight = ir.Value(name="w", const_value=ir.tensor([2.0]))
    assert constant(ir.node("Identity", [weight]).outputs[0]) is not None
    assert constant(ir.node("Identity", [weight], domain="com.example").outputs[0]) is None


def test_numbers_that_are_not_of_their_shape_are_an_error_of_the_model() -> None:
    model = graph("y = Mul(x, w)")
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[3], raw_data=bytes(16)))
    made = Editor(ir.from_proto(model))
    with pytest.raises(ModelError, match=r"^the numbers of 'w' are not as their type and shape say: "):
        constant(value(made, "w"))
