"""Parts of fusion by themselves: what an output holds, which shapes contradict, where a linear layer is."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from calib_serve import Artifact, LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.kinds import kind_of
from calib_serve.fuse.onnx.linear import Linear, NotLinear, find_linear
from calib_serve.fuse.onnx.own_scores import scores_of
from calib_serve.fuse.onnx.repair import _contradict

TWO = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
THREE = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3)


@pytest.mark.parametrize(
    ("activation", "columns", "artifact", "told", "kind"),
    [
        (None, 3, THREE, None, "logits"), (None, None, THREE, None, "logits"), (None, 1, TWO, None, "logit"),
        (None, 2, TWO, None, "logits"), ("Softmax", 3, THREE, None, "probabilities"),
        ("Softmax", None, THREE, None, "probabilities"),
        ("Softmax", 3, THREE, "probabilities", "probabilities"),
        ("LogSoftmax", 3, THREE, None, "log_probs"), ("Softmax", 3, THREE, "logits", None),
        ("LogSoftmax", 3, THREE, "probabilities", None), (None, 3, THREE, "probabilities", "probabilities"),
        (None, 1, TWO, "probabilities", "probability"), (None, 2, TWO, "probability", "probabilities"),
        ("Sigmoid", 1, TWO, None, "probability"), ("Sigmoid", None, TWO, None, "probability"),
        ("Sigmoid", 2, TWO, None, None), ("Sigmoid", 1, THREE, None, None),
        ("Sigmoid", 1, TWO, "logit", None),
        ("Sigmoid", 1, TWO, "probability", "probability"),
        ("Sigmoid", 1, TWO, "probabilities", "probability"),
        (None, 3, THREE, "label_logits", None),
    ],
)  # fmt: skip
def test_an_output_holds_what_made_it_or_what_is_told(activation, columns, artifact, told, kind) -> None:
    if kind is not None:
        assert kind_of(activation, columns, artifact, told, "z") == kind
        return
    with pytest.raises(FuseError, match=r"'z'|labels"):
        kind_of(activation, columns, artifact, told, "z")


def tensor(shape: list[int | str | None] | None) -> onnx.TypeProto.Tensor:
    return helper.make_tensor_type_proto(TensorProto.FLOAT, shape).tensor_type


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        ([2, 3], [2, 3], False), ([2, 3], [2, 4], True), ([2, 3], [2], True), ([2, 3], None, False),
        (None, [2, 3], False), (None, None, False), (["n", 3], [2, 3], False), ([2, 3], ["n", 4], True),
        ([None, 3], [7, 3], False), ([7, 3], [None, 3], False), (["n", "m"], ["k", "l"], False),
        ([0, 3], ["n", 3], False), (["n", 3], [0, 3], False),
    ],
)  # fmt: skip
def test_shapes_contradict_where_both_are_told_and_differ(one, other, contradict: bool) -> None:
    assert _contradict(tensor(one), tensor(other)) is contradict


W, B = np.arange(6.0, dtype="f4").reshape(2, 3), np.array([1, -2, 3], "f4")
ROWS = np.ones((4, 3), "f4")


def graph(
    *nodes: onnx.NodeProto, output: str, shown: tuple[str, ...] = (), **constants: np.ndarray
) -> ir.Value:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in (output, *shown)]
    made = helper.make_graph(
        list(nodes), "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])], values,
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = ir.from_proto(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    return model.graph.outputs[0]


def product() -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", "w"], ["p"], name="product")


@pytest.mark.parametrize("order", list(itertools.permutations(["p", "b"])), ids=str)
def test_a_product_and_what_is_added_are_a_linear_layer(order: tuple[str, ...]) -> None:
    for bias in (B, B[None]):
        found = find_linear(
            graph(product(), helper.make_node("Add", [*order], ["z"]), output="z", w=W, b=bias)
        )
        assert isinstance(found, Linear)
        assert found.weight.tolist() == W.T.tolist()
        assert found.bias is not None
        assert found.bias.tolist() == B.tolist()
        assert found.output.name == "z"
        assert (found.features.name, found.product.name) == ("x", "product")
    alone = find_linear(graph(product(), output="p", w=W))
    assert isinstance(alone, Linear)
    assert alone.bias is None
    assert alone.weight.tolist() == W.T.tolist()


@pytest.mark.parametrize(
    ("attributes", "weight", "bias"),
    [
        ({}, W.T, B), ({"transB": 1}, W.T, B), ({"alpha": 2.0}, 2 * W.T, B), ({"beta": 0.5}, W.T, B / 2),
        ({"alpha": 3.0, "beta": 2.0, "transB": 1}, 3 * W.T, 2 * B),
    ],
)  # fmt: skip
def test_a_gemm_is_one_with_its_factors(
    attributes: dict[str, float], weight: np.ndarray, bias: np.ndarray
) -> None:
    stored = W.T.copy() if attributes.get("transB") else W
    found = find_linear(
        graph(helper.make_node("Gemm", ["x", "w", "b"], ["z"], **attributes), output="z", w=stored, b=B)
    )
    assert isinstance(found, Linear)
    assert found.weight.tolist() == weight.tolist()
    assert found.bias is not None
    assert found.bias.tolist() == bias.tolist()


def test_what_is_no_linear_layer_says_why() -> None:
    add = helper.make_node("Add", ["p", "b"], ["z"], name="addition")
    not_a_row = find_linear(graph(product(), add, output="z", w=W, b=ROWS))
    assert isinstance(not_a_row, NotLinear)
    assert "addition" in not_a_row.why
    assert "adds is not a constant row of 3" in not_a_row.why
    a_column = find_linear(graph(product(), add, output="z", w=W, b=B.reshape(3, 1)))
    assert isinstance(a_column, NotLinear), "it is added to three rows, to each class alike"
    elsewhere = find_linear(graph(product(), add, output="z", shown=("p",), w=W, b=B))
    assert isinstance(elsewhere, NotLinear)
    assert "product" in elsewhere.why
    assert "used elsewhere too" in elsewhere.why
    square = helper.make_node("MatMul", ["x", "x"], ["z"], name="square")
    not_constant = find_linear(graph(square, output="z"))
    assert isinstance(not_constant, NotLinear)
    assert "square" in not_constant.why
    assert "is not a constant matrix on the right" in not_constant.why


@pytest.mark.parametrize(("outputs", "shown"), [("logit", 2.0), ("probability", 1 / (1 + np.exp(-2.0)))])
def test_one_column_is_the_second_class_s_logit_less_the_first_s(outputs: str, shown: float) -> None:
    plan = SimpleNamespace(outputs=outputs, activation=None)
    np.testing.assert_allclose(scores_of(np.array([[1.0, 3.0]]), plan), [[shown]], rtol=1e-6)
