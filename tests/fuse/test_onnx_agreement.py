"""Outputs that compute the scores once more are merged with them, or said to be raw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import TWO, editor, fused, graph
from onnx import helper

from calib_serve.artifact import LogitMap, ProbTable
from calib_serve.core.errors import FuseError
from calib_serve.core.options.fuse import OnnxOptions
from calib_serve.fuse import FuseReport, fuse_onnx
from calib_serve.fuse.onnx import _fuse as graph_module
from calib_serve.fuse.onnx._agreement import possible_twins
from calib_serve.fuse.onnx._plan import make_plan

X = np.random.default_rng(1).normal(size=(60, 3)).astype("f4")
BIAS = LogitMap(np.ones(3), np.array([1.5, 0.0, -1.5]))
TABLE = ProbTable([[0.4, 0.6]], [[0.2, 0.5, 0.9]])
WEIGHTS = (
    "w = Constant <value = float[3, 3] {1, 2, 0, 0, 1, -1, 2, 0, 1}> () "
    "again = Constant <value = float[3, 3] {1, 2, 0, 0, 1, -1, 2, 0, 1}> () "
    "turned = Constant <value = float[3, 3] {1, 0, 2, 2, 1, 0, 0, -1, 1}> () "
    "other = Constant <value = float[3, 3] {0, 1, 1, 2, -1, 0, 1, 0, -2}> () "
)
NETWORK = WEIGHTS + "h = Tanh(x) z = MatMul(h, w) y = Softmax(z) "
SHOWN = "float[n, 3] y, int64[n] label"
DECIDES = "label = ArgMax <axis: int = 1, keepdims: int = 0> "


def status(report: FuseReport, name: str = "label") -> tuple[str, str]:
    return next((one.status, one.reason) for one in report.statuses if one.name == name)


def agrees(model: onnx.ModelProto, label: str = "label") -> bool:
    got = run(model, {"x": X})
    return bool((got[label] == got["y"].argmax(axis=1)).all())


@pytest.mark.parametrize("step", [BIAS, TABLE, TWO])
@pytest.mark.parametrize("weight", ["w", "again"])
def test_a_network_that_is_traced_twice_is_computed_once(weight: str, step: object, tmp_path: Path) -> None:
    copy = f"g = Tanh(x) c = MatMul(g, {weight}) q = Softmax(c) {DECIDES} (c) "
    top = "top = ReduceMax <axes: ints = [1], keepdims: int = 0> (q)"
    model = graph(NETWORK + copy + top, outputs=SHOWN + ", float[n] top")
    report, made = fused(model, tmp_path, step, output_name="y")
    assert report.done[0] == "layers that the graph computes twice are computed once: 1"
    assert agrees(made)
    got = run(made, {"x": X})
    np.testing.assert_allclose(got["top"], got["y"].max(axis=1), atol=1e-6)


TURNED = "c = MatMul(g, t) "
"""A copy by a transposed weight: equal numbers of other nodes."""


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (DECIDES + "(c)", "int64[n]"),
        ("q = Softmax(c) label = ReduceMax <axes: ints = [1], keepdims: int = 0> (q)", "float[n]"),
        ("label = Softmax(c)", "float[n, 3]"),
        ("label = ReduceLogSumExp <axes: ints = [1], keepdims: int = 0> (c)", "float[n]"),
        ("k = Constant <value = int64[1] {2}> () v, label = TopK(c, k)", "int64[n, 2]"),
        ("label = Hardmax(c)", "float[n, 3]"),
        ("half = Constant <value = float {0.5}> () q = Softmax(c) label = Greater(q, half)", "bool[n, 3]"),
    ],
)
def test_what_is_made_of_equal_numbers_is_said_to_be_raw(made: str, kind: str, tmp_path: Path) -> None:
    body = NETWORK + "g = Tanh(x) t = Transpose(turned) " + TURNED + made
    model = graph(body, outputs=f"float[n, 3] y, {kind} label")
    report, fused_model = fused(model, tmp_path, BIAS, output_name="y")
    said, why = status(report)
    assert said == "left raw"
    assert why.endswith("which is the scores by a computation of its own")
    got, raw = run(fused_model, {"x": X}), run(model, {"x": X})
    np.testing.assert_array_equal(got["label"], raw["label"])


def test_another_head_of_the_same_features_is_independent(tmp_path: Path) -> None:
    more = "c = MatMul(h, other) q = Softmax(c) " + DECIDES + "(q) s = ReduceMax <axes: ints = [1]> (q) "
    more += "loss = ReduceMean <keepdims: int = 0> (c)"
    model = graph(NETWORK + more, outputs=SHOWN + ", float[n, 1] s, float[n, 3] h, float loss")
    report, _ = fused(model, tmp_path, BIAS, output_name="y")
    assert {one.status for one in report.statuses[1:]} == {"independent"}


def test_tensors_of_other_shapes_than_the_scores_are_not_run_to_be_compared_with_them() -> None:
    more = (
        "g = Tanh(x) wide = Concat <axis: int = 1> (g, g) whole = Cast <to: int = 7> (g) free = Reshape(g, s)"
    )
    made = editor(NETWORK + more + " after = Neg(z)", "float[n, 3] x, int64[r] s")
    plan = make_plan(made, artifact(TWO, classes=3), OnnxOptions())
    assert possible_twins(made.graph, plan).keys() == {"h", "g"}


def branches(one: str, two: str, kinds: str) -> str:
    return (
        f"<then_branch = a () => ({kinds.format(1)}) {{ {one} }}, "
        f"else_branch = b () => ({kinds.format(2)}) {{ {two} }}>"
    )


SIGN = "m = ReduceMean <keepdims: int = 0> (x) no = Constant <value = float {0}> () c = Greater(m, no) "
SCORES = ("s1 = MatMul(h, w)", "s2 = MatMul(h, other)")
HEADS = [
    f"{made} l{i} = ArgMax <axis: int = 1, keepdims: int = 0> (s{i})" for i, made in enumerate(SCORES, 1)
]
ONE_IF = "z, label = If (c) " + branches(*HEADS, "float[n, 3] s{0}, int64[n] l{0}")
LATER = branches(*(one.replace("s1", "t1").replace("s2", "t2") for one in HEADS), "int64[n] l{0}")
TWO_IFS = f"z = If (c) {branches(*SCORES, 'float[n, 3] s{0}')} label = If (c) {LATER}"
LOOP = (
    "t = Constant <value = int64 {3}> () on = Constant <value = bool {1}> () v = Sub(x, x) "
    "o = ArgMax <axis: int = 1, keepdims: int = 0> (v) z, label = Loop (t, on, v, o) <body = a (int64 n0, "
    "bool go, float[n, 3] u, int64[n] was) => (bool more, float[n, 3] s, int64[n] l) { more = Identity(go) "
    "d = MatMul(h, w) s = Add(u, d) l = ArgMax <axis: int = 1, keepdims: int = 0> (s) }>"
)
SCAN = (
    "z, label = Scan <num_scan_inputs: int = 1, body = a (float[3] r) => (float[3] s, int64 l) "
    "{ s = MatMul(r, w) l = ArgMax <axis: int = 0, keepdims: int = 0> (s) }> (h)"
)


@pytest.mark.parametrize("step", [BIAS, TABLE, TWO])
@pytest.mark.parametrize("made", [ONE_IF, TWO_IFS, LOOP, SCAN], ids=["if", "two ifs", "loop", "scan"])
def test_a_label_out_of_a_body_beside_its_scores_is_raw_unless_their_order_stays(
    made: str, step: object, tmp_path: Path
) -> None:
    model = graph(WEIGHTS + "h = Tanh(x) " + SIGN + made + " y = Softmax(z)", outputs=SHOWN)
    report, after = fused(model, tmp_path, step, output_name="y")
    assert status(report)[0] == ("follows" if step is TWO else "left raw")
    assert agrees(after) or step is not TWO
    assert not agrees(after) or step is not BIAS
    assert any("'label' is left raw" in one for one in report.done) == (step is not TWO)


def test_a_label_out_of_a_function_that_stays_is_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: onnx.ModelProto) -> onnx.ModelProto:
        raise RuntimeError("as a C++ library does")

    monkeypatch.setattr("onnx.inliner.inline_local_functions", fails)
    nodes = [
        helper.make_node("Softmax", ["a"], ["p"], axis=1),
        helper.make_node("ArgMax", ["a"], ["l"], axis=1, keepdims=0),
    ]
    model = graph("y, label = of.ours.Head(x)", outputs=SHOWN)
    opset = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("of.ours", "Head", ["a"], ["p", "l"], nodes, opset))
    report, _ = fused(model, tmp_path, BIAS, output_name="y", outputs="probabilities")
    assert status(report)[0] == "left raw"


ONE = "z = Identity(x) y = Softmax(z) "


def test_a_label_that_was_adjusted_is_said_to_name_another_class(tmp_path: Path) -> None:
    prior = "k = Constant <value = float[3] {0, 0.4, 0}> () "
    model = graph(NETWORK + prior + "a = Add(z, k) " + DECIDES + "(a)", outputs=SHOWN)
    hot = LogitMap.temperature(50.0)
    near = {"x": np.eye(3, dtype="f4") * 2}
    report, made = fused(model, tmp_path, hot, output_name="y", inputs=near)
    assert (status(report)[0], report.followers) == ("follows", 1)
    said = [one for one in report.done if "decided by more than the most likely class" in one]
    wrong = int((run(made, near)["label"] != run(made, near)["y"].argmax(axis=1)).sum())
    assert wrong
    assert f"on {wrong} of 3 inputs" in said[0]


def test_a_label_that_contradicts_the_scores_is_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk that is wrong about a label is refuted by the run."""
    told = fused(graph(ONE + DECIDES + "(y)", outputs=SHOWN), tmp_path, TWO, output_name="y")[0].statuses
    monkeypatch.setattr(graph_module, "judge_outputs", lambda *_, **__: told)
    ifs = graph(WEIGHTS + "h = Tanh(x) " + SIGN + TWO_IFS + " y = Softmax(z)", outputs=SHOWN)
    onnx.save(ifs, tmp_path / "raw.onnx")
    with pytest.raises(FuseError, match="the output 'label' contradicts the calibrated scores"):
        fuse_onnx(
            tmp_path / "raw.onnx",
            artifact(BIAS, classes=3),
            tmp_path / "no.onnx",
            output_name="y",
            unproven=True,
        )
    assert not (tmp_path / "no.onnx").exists()


def test_a_label_on_inputs_of_one_class_is_not_called_independent(tmp_path: Path) -> None:
    ifs = graph(WEIGHTS + "h = Tanh(x) " + SIGN + TWO_IFS + " y = Softmax(z)", outputs=SHOWN)
    same = {"x": np.tile(np.array([2, 1, 1], "f4"), (6, 1))}
    named = "on every input it names the class of the scores, "
    typical = "by a computation of its own; they are all of one class: give typical ones, --inputs (inputs=)"
    for step, found in (
        (BIAS, ("left raw", named + typical)),
        (TWO, ("follows", f"{named}which the calibration keeps")),
    ):
        report, _ = fused(ifs, tmp_path, step, output_name="y", inputs=same)
        assert status(report) == found


@pytest.mark.parametrize(("share", "said"), [(0.005, "left raw"), (0.2, "independent")])
def test_a_label_of_nearly_every_row_is_one_of_the_scores(share: float, said: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(1000, 3)).astype("f4")
    named = x.argmax(axis=1)
    named[: int(share * len(x))] = (named[: int(share * len(x))] + 1) % 3
    model = graph("y = Softmax(x) label = Cast <to: int = 7> (o)", "float[n, 3] x, float[n] o", SHOWN)
    feeds = {"x": x, "o": named.astype("f4")}
    report, _ = fused(model, tmp_path, BIAS, output_name="y", inputs=feeds)
    assert status(report)[0] == said
