"""What exporters leave behind is put right before fusing, said, and compared with the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact, head, output_steps
from fuse_graphs import Builder, run
from fuse_texts import TWO, X, fused, graph, operators
from onnx import TensorProto, helper
from test_onnx_parity import X as NUMBERS
from test_onnx_parity import planned

from calib_serve.artifact import LogitMap
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.fuse import fuse_onnx
from calib_serve.fuse.onnx import _parity as parity
from calib_serve.fuse.onnx._files import read, write
from calib_serve.fuse.onnx._parity import check_repairs
from calib_serve.fuse.onnx._repairs import repaired
from calib_serve.scores import softmax

K = 3
ROWS = np.random.default_rng(1).normal(size=(20, 6)).astype("f4")


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def builder() -> Builder:
    return Builder(np.dtype("f4"), np.random.default_rng(0))


def linear(b: Builder, x: str = "x", width: int = 6) -> str:
    return b.node("Gemm", x, b.normal(width, K), b.normal(K))


def fused_on(model: onnx.ModelProto, folder: Path, *steps, classes: int = K, fitted_on="logits", **options):
    onnx.save(model, folder / "raw.onnx")
    fitted = artifact(*steps, classes=classes, outputs=fitted_on)
    report = fuse_onnx(folder / "raw.onnx", fitted, folder / "fused.onnx", **options, unproven=True)
    onnx.checker.check_model(str(folder / "fused.onnx"), full_check=True)
    return report, onnx.load(folder / "fused.onnx")


@pytest.mark.parametrize("opset", [7, 9, 11])
def test_operators_that_did_change_are_converted(opset, tmp_path):
    """A mean over axes that are an attribute, a Dropout without inputs, and a Softmax of two dimensions."""
    b = builder()
    hidden = b.node("ReduceSum", b.node("Reshape", "x", b.number([0, 2, 3], "i8")), axes=[1], keepdims=0)
    y = b.node("Softmax", b.node("Dropout", linear(b, hidden, 3)), output="y")
    model = b.model([info("x", "n", 6)], [info(y, "n", K)], opset=opset, ir_version=4)
    step = LogitMap(np.array(0.5), np.array([1.0, 0.0, -1.0]))  # the same on logits and log-probabilities
    report, calibrated = fused_on(model, tmp_path, step)
    assert report.done[0] == f"opset {opset} -> 13: by onnx.version_converter"
    raw = run(model, {"x": ROWS})["y"].astype("f8")
    np.testing.assert_allclose(run(calibrated, {"x": ROWS})["y"], softmax(step(np.log(raw))), atol=1e-6)
    assert calibrated.graph.node[-1].op_type == "Softmax"


def test_nodes_before_what_they_read_are_put_in_order(tmp_path):
    """As onnxruntime's converter to float16 writes its casts, which onnxruntime runs, and onnx refuses."""
    model = graph(
        "b = Greater(m, m) m = ReduceSum <keepdims: int = 0> (x) y = Softmax(z) z = If (b) <then_branch = "
        "t () => (float[n, 3] u) {u = Neg(h)}, else_branch = "
        "e () => (float[n, 3] v) {v = Mul(h, h)}> h = Relu(x)"
    )
    with pytest.raises(onnx.checker.ValidationError, match="topologically sorted"):
        onnx.checker.check_model(model)
    report, calibrated = fused_on(model, tmp_path, TWO)
    assert report.done[0] == "nodes were before what they read: put in order"
    h = np.maximum(X, 0).astype("f8")
    np.testing.assert_allclose(run(calibrated, {"x": X})["y"], softmax(h * h / 2), atol=1e-6)


@pytest.mark.parametrize("constant", [False, True])
def test_sparse_weights_are_refused(constant, tmp_path):
    values, places = (
        helper.make_tensor("W", kind, [2], [1, 5]) for kind in (TensorProto.FLOAT, TensorProto.INT64)
    )
    weight = helper.make_sparse_tensor(values, places, [6, K])
    nodes = [helper.make_node("Constant", [], ["W"], sparse_value=weight)] if constant else []
    nodes.append(helper.make_node("MatMul", ["x", "W"], ["y"]))
    made = helper.make_graph(nodes, "g", [info("x", "n", 6)], [info("y", "n", K)])
    made.sparse_initializer.extend([] if constant else [weight])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelError, match="'W' is stored as a sparse one"):
        fused_on(model, tmp_path, LogitMap.temperature(2.0))


def test_a_circle_of_nodes_and_an_input_without_a_shape_are_named(tmp_path):
    onnx.save(graph("a = Neg(b) b = Neg(a) y = Softmax(b)"), tmp_path / "raw.onnx")
    with pytest.raises(ModelError, match="topologically sorted"):
        fuse_onnx(tmp_path / "raw.onnx", artifact(TWO, classes=K), tmp_path / "fused.onnx", unproven=True)
    shapeless = graph("y = Softmax(x)")
    shapeless.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(shapeless, tmp_path / "raw.onnx")
    with pytest.raises(ModelError, match=r"inputs without a shape: \['x'\]"):
        fuse_onnx(tmp_path / "raw.onnx", artifact(TWO, classes=K), tmp_path / "fused.onnx", unproven=True)


def local(
    body: str, *functions: str, outputs: str = "float[n, 3] y", opset: int = 17, inside: int = 17
) -> onnx.ModelProto:
    """A model with local functions, each "Name (x) => (y) { body }"."""
    imports = f'"" : {opset}, "ai.onnx.ml" : 3, "local" : 1, "other" : 1, "of.ours" : 1'
    head = f"<ir_version: 8, opset_import: [{imports}]> g (float[n, 3] x) => ({outputs}) {{ {body} }}"
    parts = [f'<domain: "local", opset_import: ["" : {inside}, "local" : 1]> {one}' for one in functions]
    return onnx.parser.parse_model("\n".join([head, *parts]))


WRITTEN_OUT = "local functions written out: "


@pytest.mark.parametrize("kind", ["temperature", "matrix", "dirichlet", "classwise", "head"])
def test_scores_inside_of_functions_are_calibrated_there(kind: str, tmp_path: Path) -> None:
    """Functions in functions, as exporters of modules write them: a block, a linear layer, a softmax."""
    model = local(
        "h = local.Linear(x, w1, b1) a = local.Act(h) y = local.Out(a, w2, b2)",
        "Probs (z) => (p) { p = Softmax <axis: int = -1> (z) }",
        "Linear (x, w, b) => (y) { m = MatMul(x, w) y = Add(m, b) }",
        "Act (x) => (y) { y = Relu(x) }",
        "Out (x, w, b) => (p) { z = local.Linear(x, w, b) p = local.Probs(z) }",
    )
    rng = np.random.default_rng(0)
    for name in ("w1", "b1", "w2", "b2"):
        numbers = rng.normal(size=(K, K)[: 2 if "w" in name else 1]).astype("f4")
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    steps = (head(K, K, 1, rng),) if kind == "head" else output_steps(kind, K, rng)
    report, made = fused(model, tmp_path, *steps)
    assert report.done[0] == WRITTEN_OUT + "Act, Linear, Out, Probs"
    assert any("folded" in what or "head put into" in what for what in report.done) == (kind != "dirichlet")
    assert not made.functions
    assert "Probs" not in operators(made)
    if kind in ("temperature", "dirichlet"):
        want = artifact(*steps, classes=K).of_logits(np.log(run(model, {"x": X})["y"].astype("f8")))
        np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)


def imports(model: onnx.ModelProto) -> list[tuple[str, int]]:
    return [(one.domain, one.version) for one in model.opset_import]


@pytest.mark.parametrize(("version", "constant"), [(3, True), (4, False), (5, False)])
def test_from_ir_4_on_an_initializer_among_the_inputs_is_a_default(version: int, constant: bool) -> None:
    model = graph("y = Add(x, c)", "float[n, 3] x, float[3] c", imports='"" : 13')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, "f4"), "c"))
    model.ir_version = version
    made, done = repaired(model)
    assert [one.name for one in made.graph.input] == (["x"] if constant else ["x", "c"])
    assert done == (["IR version 3 -> 7: initializers are constants, no inputs"] if constant else [])
    assert made.ir_version == (7 if constant else version)


@pytest.mark.parametrize(
    ("before", "after", "done"),
    [
        ('"" : 13', [("", 13)], []), ('"" : 14', [("", 14)], []),
        ('"" : 12', [("", 13)], ["opset 12 -> 13: no operator changes"]),
        ('"ai.onnx" : 12', [("", 13)], ["opset 12 -> 13: no operator changes"]),
        ('"ai.onnx" : 13, "of.ours" : 1', [("", 13), ("of.ours", 1)], []),
        ('"of.ours" : 14, "" : 12', [("of.ours", 14), ("", 13)], ["opset 12 -> 13: no operator changes"]),
        ('"" : 11, "ai.onnx" : 12', [("", 13)], ["opset 12 -> 13: no operator changes"]),
        ('"of.ours" : 1', [("of.ours", 1), ("", 13)],
         ["opset of standard operators missing -> 13: no operator changes"]),
    ],
)  # fmt: skip
def test_only_older_standard_operators_are_raised(
    before: str, after: list[tuple[str, int]], done: list[str]
) -> None:
    made, said = repaired(graph("y = Selu(x)", imports=before))
    assert (imports(made), said) == (after, done)


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
    assert done == ["opset 11 -> 13: by onnx.version_converter"]
    np.testing.assert_allclose(run(made, {"x": x})["y"], before, atol=1e-6)


def test_a_hardmax_that_the_converter_makes_one_over_the_first_axis_alone_is_refused(tmp_path: Path) -> None:
    """One class a sample becomes one a pixel (onnx 1.23.2): findings/ has it without this program."""
    b = builder()
    gated = b.node("Mul", b.node("Hardmax", "x", axis=1), "x")
    y = linear(b, b.node("Flatten", b.node("GlobalAveragePool", gated)), width=3)
    model = b.model([info("x", "n", 3, 4, 4)], [info(y, "n", K)], opset=12, ir_version=7)
    with pytest.raises(FuseError, match="cannot be brought up to date"):
        fused_on(model, tmp_path, LogitMap(2 * np.ones(K), np.zeros(K)))
    assert not (tmp_path / "fused.onnx").exists()


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


@pytest.mark.parametrize("false", ["a = Not(x)", "a = MatMul(x, w)"])
def test_a_model_that_fails_the_full_check_as_it_came_is_held_to_the_plain_one(
    false: str, tmp_path: Path
) -> None:
    sizes = "float[4, 3] w = {1, 2, 0, 0, 1, -1, 2, 0, 1, 1, 1, 1}"
    onnx.save(graph(f"{false} y = Neg(x)", constants=sizes), tmp_path / "raw.onnx")
    model = read(tmp_path / "raw.onnx")
    assert model.meta["repairs"] == (
        "warning: onnx's full check fails on this model as it is; the plain check was made",
    )
    assert not model.meta["strict"]
    write(model, tmp_path / "out.onnx", out=tmp_path / "out.onnx")


def compared(old: str, new: str, folder: Path, outputs: str = "float[n, 3] y", **facts: Any) -> None:
    """Check a repaired graph against the file's, both given as text."""
    for name, body in (("old.onnx", old), ("new.onnx", new)):
        onnx.save(graph(body, outputs=outputs), folder / name)
    check_repairs(folder / "old.onnx", folder / "new.onnx", planned(**facts), {"x": NUMBERS})


TIMES = "c = Constant <value = float {{{}}}> () m = Mul(x, c) "
MAPS = TIMES + "y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [7, 8, 9]> (m)"


@pytest.mark.parametrize(
    ("body", "outputs"),
    [(TIMES + "y = Identity(m)", "float[n, 3] y"), (MAPS, "seq(map(int64, float)) y")],
)
def test_a_repair_may_change_numbers_by_a_share_of_what_the_file_gives(
    body: str, outputs: str, tmp_path: Path
) -> None:
    half: Any = {"outputs": outputs, "dtype": ir.DataType.FLOAT16}  # a hundredth is allowed
    old, new = body.format("1e4"), body.format("9.9e3")
    compared(old, new, tmp_path, **half)
    with pytest.raises(FuseError) as error:
        compared(new, old, tmp_path, **half)
    assert str(error.value) == (
        "the model's operators cannot be brought up to date: then 'y' differs; export it again with a newer "
        "opset (opset_version=, target_opset=)"
    )


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1.0, np.nan]), np.array([np.nan, 1.0]), False),
        (np.ones((2, 1)), np.ones((2, 3)), False),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), False),
        (np.array(["a", "b"]), np.array(["a", "c"]), False),
        (np.array([b"a", b"b"]), np.array([b"a", b"c"]), False),
        (np.array([True, False]), np.array([True, True]), False),
        ([np.ones(2), np.ones(2)], [np.ones(2), np.zeros(2)], False),
        ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}, True),
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}, False),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, False),
    ],
)
def test_outputs_of_every_kind_are_compared_with_the_file_s(old: Any, new: Any, same: bool) -> None:
    assert parity.equal(old, new, 1e-5) is same
