"""Parts of fusion that few graphs meet: copied operators, learned shapes, shifts, ties, narrow types."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import DELTA, LAYER, TWO, K, W, X, fused, graph, operators
from onnx.reference import ReferenceEvaluator

from calib_serve import InputShift, LogitMap, ProbTable
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.linear import NotLinear, find_linear
from calib_serve.fuse.onnx.outputs import OpenScores
from calib_serve.fuse.onnx.parity import check_repairs
from calib_serve.fuse.onnx.reference import _check_outputs
from calib_serve.fuse.onnx.repair import repaired
from calib_serve.fuse.onnx.tail import find_tail
from calib_serve.metrics import softmax

# --- nodes of other domains -------------------------------------------------------------------------


def test_a_copied_map_of_class_names_is_still_an_operator_of_its_domain(tmp_path: Path) -> None:
    body = "z = Neg(x) p = Softmax(z) y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (p)"
    model = graph(body, outputs="seq(map(int64, float)) y")
    _, made = fused(model, tmp_path, TWO, keep_raw=True)
    assert [n.domain for n in made.graph.node if n.op_type == "ZipMap"] == ["ai.onnx.ml"] * 2
    got = run(made, {"x": X})
    for name, want in (("y", softmax(-X / 2)), ("raw_y", softmax(-X))):
        np.testing.assert_allclose([[row[k] for k in (4, 5, 6)] for row in got[name]], want, atol=1e-6)


def test_a_map_of_class_names_beside_another_reader_of_its_scores_is_calibrated_alone(tmp_path: Path) -> None:
    body = (
        "z = Neg(x) p = Softmax(z) y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (p) "
        "other = Neg(p)"
    )
    model = graph(body, outputs="seq(map(int64, float)) y, float[n, 3] other")
    _, made = fused(model, tmp_path, TWO, output_name="y")
    got = run(made, {"x": X})
    np.testing.assert_allclose([[row[k] for k in (4, 5, 6)] for row in got["y"]], softmax(-X / 2), atol=1e-6)
    np.testing.assert_allclose(got["other"], -softmax(-X), atol=1e-6)


def test_a_product_of_another_domain_is_no_linear_layer() -> None:
    bias = "b = Constant <value = float[3] {1, 2, 3}> () "
    model = ir.from_proto(graph(LAYER + bias + "p = of.ours.MatMul(x, w) y = Add(p, b)"))
    found = find_linear(model.graph.outputs[0])
    assert isinstance(found, NotLinear)
    assert found.why == "Add 'y' does not add a constant to a MatMul"


def test_a_bias_that_is_no_constant_keeps_a_layer_from_being_known() -> None:
    model = ir.from_proto(graph(LAYER + "y = Gemm(x, w, v)", inputs="float[n, 3] x, float[3] v"))
    found = find_linear(model.graph.outputs[0])
    assert isinstance(found, NotLinear)
    assert found.why == "the bias of Gemm 'y' is not a constant row"


# --- shapes that only a run tells -------------------------------------------------------------------


def test_a_run_that_tells_shapes_gets_inputs_as_wide_as_the_shift(tmp_path: Path) -> None:
    body = LAYER + "z = com.microsoft.FusedMatMul(x, w) y = Softmax(z)"
    _, made = fused(graph(body, inputs="float[n, features] x"), tmp_path, InputShift(DELTA), TWO)
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax((X + DELTA) @ W / 2), atol=1e-5)


# --- the input shift --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "other"),
    [("y = Gemm(x, v)", W), ("y = MatMul(x, v)", W), ("y = Add(x, v)", W[:1]), ("y = Sub(v, x)", W[:1])],
)
def test_a_shift_is_added_to_the_input_where_no_constant_takes_it(
    body: str, other: np.ndarray, tmp_path: Path
) -> None:
    model = graph(body, inputs=f"float[n, 3] x, float[{len(other)}, 3] v")
    report, made = fused(model, tmp_path, InputShift(DELTA), input_name="x")
    assert report.done == ("shift added to input 'x'",)
    shifted = (X + DELTA).astype("f4")
    want = run(model, {"x": shifted, "v": other})["y"]
    np.testing.assert_allclose(run(made, {"x": X, "v": other})["y"], want, atol=1e-5)


# --- labels, scores and tables ----------------------------------------------------------------------


def test_a_label_never_contradicts_the_predicted_class_beside_it(tmp_path: Path) -> None:
    body = (
        "label, s = ai.onnx.ml.LinearClassifier <classlabels_ints: ints = [0, 1, 2], intercepts: floats = "
        "[0.0, 0.0, 0.0], coefficients: floats = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]> (x) "
        "y = Softmax(s)"
    )
    model = graph(body, outputs="int64[n] label, float[n, 3] y")
    step = LogitMap(np.array([1.0, 1.0, 2.0]))
    _, made = fused(model, tmp_path, step, output_name="y", returns="all")
    tied = np.array([[0.0, 1e-9, -5.0]], "f4")  # apart as logits, and the same as probabilities
    got = run(made, {"x": np.concatenate([tied, X])})
    assert got["probabilities"][0, 0] == got["probabilities"][0, 1]
    assert got["logits"][0, 0] < got["logits"][0, 1]
    assert got["label"].tolist() == got["predicted"].tolist()


def test_a_table_of_a_half_precision_model_is_looked_up_in_single_precision(tmp_path: Path) -> None:
    model = graph("z = Neg(x) y = Softmax(z)", "float16[n, 3] x", "float16[n, 3] y")
    table = ProbTable(np.array([[0.50005]]), np.array([[0.25, 0.75]]))
    _, made = fused(model, tmp_path, table)
    x = np.array([[-0.0004, 0.0, 20.0], [0.0, 0.0, 20.0]], "f2")
    top = softmax(-x.astype("f8")).max(axis=1)
    assert top[0] > 0.50005 > float(np.float16(top[0]))
    # Onnxruntime computes in single precision on most CPUs, whatever the graph says; onnx itself does not.
    by_onnx: Any = ReferenceEvaluator(made).run(["y"], {"x": x})
    for got in (run(made, {"x": x})["y"], by_onnx[0]):
        assert got[:, 0].tolist() == [0.75, 0.25]


def test_a_scale_beyond_half_precision_is_refused_by_its_name(tmp_path: Path) -> None:
    model = graph("z = Neg(x) y = Softmax(z)", "float16[n, 3] x", "float16[n, 3] y")
    with pytest.raises(
        FuseError, match=r"^scale is beyond the range of FLOAT16; export the model in float32"
    ):
        fused(model, tmp_path, LogitMap.temperature(1e-6))
    assert [path.name for path in tmp_path.iterdir()] == ["raw.onnx"]


def test_counts_that_become_floats_are_the_scores_themselves() -> None:
    model = graph("votes = Cast <to: int = 7> (x) y = Cast <to: int = 1> (votes)")
    made = Editor(ir.from_proto(onnx.shape_inference.infer_shapes(model)))
    found = find_tail(made, output="y", outputs=None, artifact=artifact(TWO, classes=K))
    assert (found.logits.name, found.path) == ("y", ())


def test_counts_that_become_floats_are_calibrated(tmp_path: Path) -> None:
    model = graph("votes = Cast <to: int = 7> (x) y = Cast <to: int = 1> (votes)")
    feeds = {"x": 5 * X}
    _, made = fused(model, tmp_path, TWO, inputs=feeds)
    np.testing.assert_allclose(run(made, feeds)["y"], np.trunc(feeds["x"]) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "kind", "taken"),
    [(1, "logits", True), (1, "probabilities", True), (2, "logits", False), (2, "probabilities", True)],
)
def test_one_row_may_be_near_1_by_chance_and_several_are_not(rows: int, kind: str, taken: bool) -> None:
    plan: Any = SimpleNamespace(outputs=kind, source="y", told=None)
    near = np.tile([[0.705, 0.2, 0.1]], (rows, 1))  # as narrow types round them, or logits by chance
    if taken:
        _check_outputs(near, plan)
        return
    with pytest.raises(FuseError, match="'y' is taken for logits, but its numbers are probabilities"):
        _check_outputs(near, plan)


def test_scores_that_were_to_get_an_activation_and_have_none_are_not_let_through() -> None:
    made = Editor(ir.from_proto(onnx.shape_inference.infer_shapes(graph("y = Neg(x)"))))
    bare = find_tail(made, output="y", outputs=None, artifact=artifact(TWO, classes=K))
    assert bare.activation is None
    with pytest.raises(FuseError, match="the scores have no activation"):
        OpenScores().ensures(bare)


# --- repairs and parity -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "axis", "kept"),
    [
        ((4, 3, 2), 2, True), ((4, 3, 2), -1, True), ((4, 3, 2), 1, False), ((4, 3, 1), 1, True),
        ((4, 5, 3, 1), 2, True), ((4, 5, 3, 1), -2, True), ((4, 3, 1, 1), 3, True), ((4, 3), 0, False),
    ],
)  # fmt: skip
def test_an_old_softmax_means_the_same_and_stays_alone_where_one_axis_can_say_it(
    sizes: tuple[int, ...], axis: int, kept: bool
) -> None:
    kind = f"float[{', '.join(map(str, sizes))}]"
    model = graph(f"y = Softmax <axis: int = {axis}> (x)", f"{kind} x", f"{kind} y", imports='"" : 11')
    x = np.random.default_rng(2).normal(size=sizes).astype("f4")
    before = run(model, {"x": x})["y"]
    after, _ = repaired(model)
    assert (operators(after) == ["Softmax"]) == kept
    np.testing.assert_allclose(run(after, {"x": x})["y"], before, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "apart", "same"),
    [("f4", 1e-6, True), ("f4", 1e-4, False), ("f8", 1e-11, True), ("f8", 1e-7, False)],
)
def test_a_repair_may_change_large_numbers_by_the_rounding_of_the_type_alone(
    dtype: str, apart: float, same: bool, tmp_path: Path
) -> None:
    kind = {"f4": ir.DataType.FLOAT, "f8": ir.DataType.DOUBLE}[dtype]
    name = {"f4": "float", "f8": "double"}[dtype]
    for file, factor in (("old.onnx", 1.0), ("new.onnx", 1.0 + apart)):
        body = f"c = Constant <value = {name} {{{factor!r}}}> () y = Mul(x, c)"
        onnx.save(graph(body, f"{name}[n, 3] x", f"{name}[n, 3] y"), tmp_path / file)
    plan: Any = SimpleNamespace(dtype=kind, shifted=None)
    feeds = {"x": np.full((2, K), 1e5, dtype)}
    if same:
        check_repairs(tmp_path / "old.onnx", tmp_path / "new.onnx", plan, feeds)
        return
    with pytest.raises(FuseError, match="cannot be brought up to date: then 'y' differs"):
        check_repairs(tmp_path / "old.onnx", tmp_path / "new.onnx", plan, feeds)


def test_an_artifact_without_scores_of_its_fit_is_said_to_have_none(tmp_path: Path) -> None:
    report, _ = fused(graph("z = Neg(x) y = Softmax(z)"), tmp_path, TWO)
    assert report.own_scores == 0
    assert report.samples == 8
    (parity,) = (text for what, text in report.rows() if what == "parity")
    assert "on 8 inputs, " in parity
