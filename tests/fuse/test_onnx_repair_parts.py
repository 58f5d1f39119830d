"""Repairs one by one: forced inputs, old opsets, and shapes that were stated wrongly."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fuse_graphs import run
from fuse_texts import graph, operators
from test_onnx_local_functions import local

from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.repair import repaired


def imports(model: onnx.ModelProto) -> list[tuple[str, int]]:
    return [(one.domain, one.version) for one in model.opset_import]


# --- forced inputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "constant"), [(3, True), (4, False), (5, False)])
def test_from_ir_4_on_an_initializer_among_the_inputs_is_a_default(version: int, constant: bool) -> None:
    model = graph("y = Add(x, c)", "float[n, 3] x, float[3] c", imports='"" : 13')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, "f4"), "c"))
    model.ir_version = version
    made, done = repaired(model)
    assert [one.name for one in made.graph.input] == (["x"] if constant else ["x", "c"])
    assert done == (["IR version 3 -> 7: initializers are constants, no inputs"] if constant else [])
    assert made.ir_version == (7 if constant else version)


# --- opsets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "done"),
    [
        ('"" : 13', [("", 13)], []), ('"" : 14', [("", 14)], []),
        ('"" : 12', [("", 13)], ["opset 12 -> 13: no operator changes"]),
        ('"ai.onnx" : 12', [("ai.onnx", 13)], ["opset 12 -> 13: no operator changes"]),
        ('"ai.onnx" : 13, "of.ours" : 1', [("ai.onnx", 13), ("of.ours", 1)], []),
        ('"of.ours" : 14, "" : 12', [("of.ours", 14), ("", 13)], ["opset 12 -> 13: no operator changes"]),
        ('"" : 11, "ai.onnx" : 12', [("", 13), ("ai.onnx", 13)], ["opset 12 -> 13: no operator changes"]),
        ('"of.ours" : 1', [("of.ours", 1), ("", 13)],
         ["opset of standard operators missing -> 13: no operator changes"]),
    ],
)  # fmt: skip
def test_only_older_standard_operators_are_raised(
    before: str, after: list[tuple[str, int]], done: list[str]
) -> None:
    made, said = repaired(graph("y = Selu(x)", imports=before))
    assert (imports(made), said) == (after, done)


ROW_BY_ROW = "y = Scan <num_scan_inputs: int = 1, body = b (float[3] u) => (float[3] v) {{ v = {}(u) }}> (x)"


@pytest.mark.parametrize(
    ("body", "function", "changed"),
    [
        ("y = Softmax(x)", "Selu", True), ("y = Selu(x)", "Selu", False),
        ("y = of.ours.Softmax(x)", "Selu", False), (ROW_BY_ROW.format("Softmax"), "Selu", True),
        (ROW_BY_ROW.format("Selu"), "Selu", False), (ROW_BY_ROW.format("of.ours.Softmax"), "Selu", False),
        ("z = local.Net(x) y = Selu(z)", "Softmax", True), ("z = local.Net(x) y = Selu(z)", "Selu", False),
        ("y = Selu(x)", "local.Softmax", False),
    ],
)  # fmt: skip
def test_a_model_is_converted_where_a_standard_operator_changed(
    body: str, function: str, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def convert(model: onnx.ModelProto, to: int) -> onnx.ModelProto:
        asked.append(to)
        return model

    monkeypatch.setattr("onnx.version_converter.convert_version", convert)
    net, inner = f"Net (x) => (y) {{ y = {function}(x) }}", "Softmax (x) => (y) { y = Selu(x) }"
    model = local(body, net, inner, opset=11, inside=11)
    repaired(model)
    assert asked == ([13] if changed else [])


@pytest.mark.parametrize(
    ("op", "axis"),
    [
        ("Softmax", None), ("Softmax", 2), ("Softmax", -1), ("LogSoftmax", None), ("LogSoftmax", 2),
        ("LogSoftmax", -1), ("Hardmax", 2), ("Hardmax", -1),
    ],
)  # fmt: skip
def test_what_was_over_the_last_axes_together_stays_alone_where_one_of_them_is_not_1(
    op: str, axis: int | None
) -> None:
    told = "" if axis is None else f"<axis: int = {axis}>"
    model = graph(f"y = {op} {told} (x)", "float[2, 1, 3] x", "float[2, 1, 3] y", imports='"" : 11')
    x = np.random.default_rng(0).normal(size=(2, 1, 3)).astype("f4")
    before = run(model, {"x": x})["y"]
    made, done = repaired(model)
    alone = axis is not None
    assert (operators(made) == [op]) == alone
    if alone:
        assert [(one.name, one.i) for one in made.graph.node[0].attribute] == [("axis", 2)]
    assert done == [f"opset 11 -> 13: {'no operator changes' if alone else 'by onnx.version_converter'}"]
    np.testing.assert_allclose(run(made, {"x": x})["y"], before, atol=1e-6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_what_was_over_the_second_axis_as_nobody_told_another_is_told_to_be(op: str) -> None:
    model = graph(f"y = {op}(x)", "float[4, 3, 1] x", "float[4, 3, 1] y", imports='"" : 11')
    x = np.random.default_rng(0).normal(size=(4, 3, 1)).astype("f4")
    before = run(model, {"x": x})["y"]
    made, _ = repaired(model)
    assert operators(made) == [op]
    assert [(one.name, one.i) for one in made.graph.node[0].attribute] == [("axis", 1)]
    np.testing.assert_allclose(run(made, {"x": x})["y"], before, atol=1e-6)


def test_what_was_over_a_size_behind_one_of_1_is_not_left_alone() -> None:
    sizes = "float[2, 3, 1, 4]"
    model = graph("y = Softmax <axis: int = 1> (x)", f"{sizes} x", f"{sizes} y", imports='"" : 11')
    x = np.random.default_rng(0).normal(size=(2, 3, 1, 4)).astype("f4")
    want = np.exp(x) / np.exp(x).sum(axis=(1, 2, 3), keepdims=True)
    made, _ = repaired(model)
    np.testing.assert_allclose(run(made, {"x": x})["y"], want, atol=1e-6)


def test_a_conversion_leaves_other_domains_as_they_are() -> None:
    body = "s = of.ours.Softmax <axis: int = 1> (x) a = Softmax <axis: int = 1> (x) y = Add(a, s)"
    made, done = repaired(graph(body, imports='"" : 11, "of.ours" : 1'))
    assert sorted(imports(made)) == [("", 13), ("of.ours", 1)]
    assert [(one.domain, one.op_type) for one in made.graph.node] == [
        ("of.ours", "Softmax"), ("", "Softmax"), ("", "Add")
    ]  # fmt: skip
    assert made.graph.node[0].attribute[0].i == 1
    assert done == ["opset 11 -> 13: no operator changes"]


@pytest.mark.parametrize(
    ("words", "why"),
    [("", "RuntimeError"), (" \n\n  no shape of x \nmore", "no shape of x"), ("n" * 300, "n" * 200)],
)
def test_why_a_model_cannot_be_converted_is_said_in_one_line(
    words: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(*_: object) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr("onnx.version_converter.convert_version", convert)
    with pytest.raises(FuseError) as error:
        repaired(graph("a = Relu(x) y = Neg(a)", imports='"" : 11'))
    assert str(error.value) == (
        "the model has opset 11, fusing needs 13 or newer, and onnx.version_converter cannot convert Neg, "
        f"Relu: {why}; export it again with a newer opset (opset_version=, target_opset=)"
    )


# --- shapes that were stated wrongly ----------------------------------------------------------------


def test_only_shapes_that_are_wrong_are_corrected() -> None:
    body = (
        "a = Neg(x) odd = of.ours.Odd(x) right = Neg(odd) m = Sigmoid(a) "
        "maps = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [7, 8, 9]> (m)"
    )
    outputs = "float[n, 3] y, seq(map(int64, float)) maps, float[n, 9] right"
    model = graph(body + " y = Neg(a)", outputs=outputs)
    for name, shape in (("a", (None, 4)), ("odd", ("n", 9)), ("m", ("rows", "classes"))):
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, 1, shape))
    before = onnx.ModelProto()
    before.CopyFrom(model)
    made, done = repaired(model)
    assert done == ["'a' was stated to be (?, 4), but is (n, 3): corrected"]
    assert made.graph.output == before.graph.output
    assert list(made.graph.value_info)[1:] == list(before.graph.value_info)[1:]
