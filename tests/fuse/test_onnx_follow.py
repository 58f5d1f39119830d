"""What is made of the scores follows the calibrated ones, or a warning says that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import Builder, run
from fuse_texts import LAYER, TWO, fused, graph, operators
from onnx import TensorProto, helper

from calib_serve.artifact import LogitMap, Mixture, ProbTable
from calib_serve.core.errors import FuseError
from calib_serve.fuse import fuse_onnx
from calib_serve.fuse.onnx import _fuse as graph_module

X = np.random.default_rng(1).normal(size=(40, 3)).astype("f4")
BIAS = LogitMap(np.ones(3), np.array([1.0, 0.0, -1.0]))
TABLE = ProbTable([[0.4, 0.6]], [[0.2, 0.5, 0.9]])
CLASSIFIER = (
    "label, s = ai.onnx.ml.LinearClassifier <classlabels_ints: ints = [4, 5, 6], intercepts: floats = "
    "[0.0, 0.0, 0.0], coefficients: floats = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]> (x) "
)
WITH_OTHERS = "float[n, 3] x, float[n, 3] o"


SHOWN = "float[n, 3] y, int64[n] label"
LEFT = "warning: the output 'label' is left raw: it is made of "


@pytest.mark.parametrize(
    ("label", "left"),
    [
        ("label = ArgMax <axis: int = 1, keepdims: int = 0> (a)", ""),
        ("v, i = TopK <axis: int = 1> (a, k) label = Squeeze(i, k)", "'a', which is before"),
        ("d = ArgMax <axis: int = 1, keepdims: int = 0> (o) label = Identity(d)", None),
        ("c = Greater(a, two) d = Cast <to: int = 7> (c) label = ReduceMax <axes: ints = [1], keepdims: "
        "int = 0> (d)",
         "'a', which is before"),
    ],
)  # fmt: skip
def test_what_is_decided_before_the_scores_follows_by_an_arg_max_or_is_said_to_be_raw(
    label: str, left: str | None, tmp_path: Path
) -> None:
    numbers = "k = Constant <value = int64[1] {1}> () two = Constant <value = float {2.0}> () "
    body = numbers + LAYER + "a = MatMul(x, w) z = Identity(a) y = Softmax(z) " + label
    model = graph(body, WITH_OTHERS, SHOWN)
    report, made = fused(model, tmp_path, BIAS, output_name="y")
    statuses = {one.name: one.status for one in report.statuses}
    feeds = {"x": X, "o": -X}
    before, after = run(model, feeds), run(made, feeds)
    if left == "":
        np.testing.assert_array_equal(after["label"], after["y"].argmax(axis=1))
        assert statuses == {"y": "calibrated", "label": "follows"}
        return
    np.testing.assert_array_equal(after["label"], before["label"])
    assert statuses["label"] == ("independent" if left is None else "left raw")
    assert any(what.startswith(f"{LEFT}{left}") for what in report.done) == (left is not None)


@pytest.mark.parametrize(
    ("decision", "step", "status"),
    [
        ("c = Greater(a, zero)", TWO, "follows"),
        ("c = Less(zeros, a)", TWO, "follows"),
        # A temperature moves logits across a half, also those of two classes.
        ("c = Greater(a, half)", TWO, "left raw"),
        ("c = Greater(a, mixed)", TWO, "left raw"),
        ("c = Greater(a, x)", TWO, "left raw"),
        ("c = Greater(a, a)", TWO, "left raw"),
        ("e = Neg(a) c = Greater(e, zero)", TWO, "left raw"),
        ("m = Max(a, zero) c = Cast <to: int = 9> (m)", TWO, "left raw"),
        # Another's operator of this name is another one: here, it compares with exp 0.
        ("n = of.ours.Greater(a, zero) c = Not(n)", TWO, "left raw"),
        ("c = Greater(a, zero)", LogitMap(np.ones(2), np.array([1.0, 0.0])), "left raw"),
        # Behind a mixture there are probabilities, and no logit whose sign could be the same.
        ("c = Greater(a, zero)", Mixture([1.0, 0.25], [0.5, 0.4, 0.1]), "left raw"),
    ],
)
def test_a_threshold_before_the_scores_is_on_calibrated_ones_where_it_is_a_sign(
    decision: str, step: object, status: str, tmp_path: Path
) -> None:
    numbers = (
        "w = Constant <value = float[2, 2] {1, 2, 0, -1}> () zero = Constant <value = float {0}> () "
        "half = Constant <value = float {0.5}> () zeros = Constant <value = float[2] {0, 0}> () "
        "mixed = Constant <value = float[2] {0, 0.5}> () "
    )
    body = (
        numbers + f"a = MatMul(x, w) z = Identity(a) y = Softmax(z) {decision} label = Cast <to: int = 7> (c)"
    )
    model = graph(body, "float[n, 2] x", "float[n, 2] y, int64[n, 2] label")
    nodes = [helper.make_node("Exp", ["b"], ["e"]), helper.make_node("Greater", ["a", "e"], ["c"])]
    opset = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("of.ours", "Greater", ["a", "b"], ["c"], nodes, opset))
    report, made = fused(model, tmp_path, step, classes=2, output_name="y")
    assert [one.status for one in report.statuses] == ["calibrated", status]
    x = X[:, :2]
    np.testing.assert_array_equal(run(made, {"x": x})["label"], run(model, {"x": x})["label"])


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ("s = Identity(z)", "float[n, 3]"),
        ("s = Cast <to: int = 11> (z)", "double[n, 3]"),
        ("s = Transpose(z)", "float[3, n]"),
        ("s = Unsqueeze(z, one)", "float[n, 1, 3]"),
        ("t = Unsqueeze(z, one) s = Squeeze(t, one)", "float[n, 3]"),
        ("s = Flatten(z)", "float[n, 3]"),
        ("s = Reshape(z, flat)", "float[m]"),
    ],
)
def test_logits_that_are_shown_beside_their_probabilities_stay_raw(
    view: str, shown: str, tmp_path: Path
) -> None:
    numbers = "one = Constant <value = int64[1] {1}> () flat = Constant <value = int64[1] {-1}> () "
    body = f"{LAYER}{numbers} z = MatMul(x, w) y = Softmax(z) {view} b = Neg(s)"
    model = graph(body, outputs=f"float[n, 3] y, {shown} s, {shown} b")
    report, made = fused(model, tmp_path, BIAS, output_name="y")
    assert [one.status for one in report.statuses] == ["calibrated", "left raw", "left raw"]
    assert "it shows 'z' as it was before the calibration" in report.statuses[1].reason
    behind = "it is made of 'z' by what shows it as it was before the calibration"
    assert report.statuses[2].reason == behind
    got, raw = run(made, {"x": X}), run(model, {"x": X})
    for name in "sb":
        np.testing.assert_array_equal(got[name], raw[name])


BEFORE = "it is made of 'a', which is before the scores that are calibrated"


CAPTURED = (
    "then_branch = g1 () => (float[n, 3] o1) { o1 = Neg(y) }, "
    "else_branch = g2 () => (float[n, 3] o2) { o2 = Exp(z) }"
)
LOOPED = (
    "t = Constant <value = int64 {3}> () c = Constant <value = bool {1}> () q = Neg(x) s = Sub(q, q) "
    "other = Loop (t, c, s) <body = g1 (int64 i, bool h, float[n, 3] v) => (bool g, float[n, 3] u) "
    "{ g = Identity(h) u = Add(v, y) }>"
)


@pytest.mark.parametrize("step", [TWO, BIAS, TABLE])
@pytest.mark.parametrize(
    ("body", "right", "raw_behind_a_table"),
    [
        (f"u = Constant <value = bool {{1}}> () other = If (u) <{CAPTURED}>", lambda y: -y, True),
        (LOOPED, lambda y: 3 * y, False),
        ("other = of.ours.Sharp(y)", lambda y: y * y, False),
        ("m = Mul(y, x) other = Sub(m, x)", None, False),
    ],
)  # fmt: skip
def test_bodies_and_functions_read_calibrated_scores(
    body: str, right: Any, raw_behind_a_table: bool, step: object, tmp_path: Path
) -> None:
    text = LAYER + "z = MatMul(x, w) y = Softmax(z) " + body
    model = graph(text, outputs="float[n, 3] y, float[n, 3] other")
    square = onnx.helper.make_function(
        "of.ours", "Sharp", ["a"], ["b"], [onnx.helper.make_node("Mul", ["a", "a"], ["b"])],
        [onnx.helper.make_opsetid("", 17)],
    )  # fmt: skip
    model.functions.append(square)
    report, made = fused(model, tmp_path, step, output_name="y")
    got, raw = run(made, {"x": X}), run(model, {"x": X})
    status = report.statuses[1].status
    if step is TABLE and raw_behind_a_table:
        assert status == "left raw"
        return
    assert (status, report.followers) == ("follows", 1)
    want = got["y"] * X - X if right is None else right(got["y"])
    np.testing.assert_allclose(got["other"], want, atol=1e-6)
    assert (np.abs(got["y"] - raw["y"]) > 1e-3).any()


TWO_HEADS = (
    LAYER
    + "f = Tanh(x) z = MatMul(f, w) y = Softmax(z) m = ReduceMax <axes: ints = [1], keepdims: int = 0> (y) "
    "g = Neg(f) h = MatMul(g, w) q = Softmax(h) d = ArgMax <axis: int = 1, keepdims: int = 0> (q) b = "
    "Mul(y, q)"
)


def test_a_second_head_is_calibrated_by_a_second_artifact_and_the_first_one_stays(tmp_path: Path) -> None:
    model = graph(TWO_HEADS, outputs="float[n, 3] y, float[n] m, float[n, 3] q, int64[n] d, float[n, 3] b")
    onnx.save(model, tmp_path / "raw.onnx")
    first, second = (artifact(s, classes=3) for s in (TWO, BIAS))
    one = fuse_onnx(tmp_path / "raw.onnx", first, tmp_path / "one.onnx", output_name="y", unproven=True)
    assert [s.status for s in one.statuses] == [
        "calibrated",
        "follows",
        "independent",
        "independent",
        "follows",
    ]
    two = fuse_onnx(tmp_path / "one.onnx", second, tmp_path / "two.onnx", output_name="q", unproven=True)
    assert [s.status for s in two.statuses] == [
        "independent",
        "independent",
        "calibrated",
        "follows",
        "follows",
    ]
    before, got, raw = (
        run(m, {"x": X}) for m in (str(tmp_path / "one.onnx"), str(tmp_path / "two.onnx"), model)
    )
    np.testing.assert_array_equal(got["y"], before["y"])
    np.testing.assert_allclose(got["y"], first.of_logits(np.log(raw["y"].astype("f8"))), atol=1e-6)
    np.testing.assert_allclose(got["q"], second.of_logits(np.log(raw["q"].astype("f8"))), atol=1e-6)
    np.testing.assert_array_equal(got["d"], got["q"].argmax(axis=1))
    np.testing.assert_allclose(got["b"], got["y"] * got["q"], atol=1e-6)
    marks = {p.key: p.value for p in onnx.load(tmp_path / "two.onnx").metadata_props}
    assert marks["calib_serve.fingerprint"] == f"{first.fingerprint},{second.fingerprint}"
    assert two.model == one.model, "an artifact is of the original file"
    for name in ("y", "m", "b", None):
        with pytest.raises(FuseError) as refused:
            fuse_onnx(tmp_path / "one.onnx", second, tmp_path / "no.onnx", output_name=name, unproven=True)
        assert str(refused.value) == (
            f"{tmp_path / 'one.onnx'} is calibrated already ({first.fingerprint[:12]}); fuse into the "
            "original, or name an output of other scores, --output-name (output_name=): ['q', 'd']"
        )
    with pytest.raises(FuseError, match=r"is calibrated already .* fuse into the original$"):
        fuse_onnx(tmp_path / "two.onnx", second, tmp_path / "no.onnx", output_name="q", unproven=True)


@pytest.mark.parametrize("off", [1.0, 3e-4])
def test_a_follower_that_does_not_follow_is_found_before_anything_is_written(
    off: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = LAYER + "two = Constant <value = float {2}> () z = MatMul(x, w) y = Softmax(z) other = Mul(y, two)"
    model = graph(body, outputs="float[n, 3] y, float[n, 3] other")
    onnx.save(model, tmp_path / "raw.onnx")
    right = graph_module.carry_out

    def wrong(editor, plan):
        """Make another number of the scores than the graph does."""
        (node,) = (n for n in editor.graph if n.op_type == "Mul")
        found = right(editor, plan)
        editor.put(node, 1, 2 * (1 + off), "off")
        return found

    monkeypatch.setattr(graph_module, "carry_out", wrong)
    with pytest.raises(FuseError, match="the output 'other' does not follow the calibrated scores"):
        fuse_onnx(
            tmp_path / "raw.onnx",
            artifact(BIAS, classes=3),
            tmp_path / "out.onnx",
            output_name="y",
            unproven=True,
        )
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("", ("label",)), ("name = Cast <to: int = 6> (label)", ("name",)),
        ("name = Cast <to: int = 6> (label)", ("label", "name")), ("", ()),
    ],
)  # fmt: skip
def test_a_classifiers_label_follows_where_anybody_sees_it(
    names: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    body = CLASSIFIER + "tiny = Constant <value = float {1e-3}> () e = Exp(s) a = Max(e, tiny) b = Log(a) "
    kinds = {"label": "int64[n] label", "name": "int32[n] name"}
    outputs = ", ".join(["float[n, 3] y", *(kinds[name] for name in shown)])
    report, made = fused(
        graph(body + "y = Softmax(b)" + names, outputs=outputs), tmp_path, BIAS, output_name="y"
    )
    said = ["labels by LinearClassifier 'label' follow the calibrated scores"] if shown else []
    assert list(report.done[1:]) == said
    assert operators(made).count("ArgMax") == len(said)
    assert [one.name for one in made.graph.output] == ["y", *shown]
    got = run(made, {"x": X})
    for name in shown:
        np.testing.assert_array_equal(got[name], 4 + got["y"].argmax(axis=1))
        assert got[name].dtype == {"label": np.int64, "name": np.int32}[name]
    assert (got["y"].argmax(axis=1) != X.argmax(axis=1)).any()


@pytest.mark.parametrize("inner", ["ArgMax <axis: int = 1, keepdims: int = 0>", "of.ours.ArgMax"])
def test_a_decision_in_a_branch_or_by_an_operator_of_others_is_left_as_it_is(
    inner: str, tmp_path: Path
) -> None:
    label = f"d = {inner} (a) label = Neg(d)"
    if "axis" in inner:
        label = (
            f"u = Constant <value = bool {{1}}> () label = If (u) <then_branch = g1 () => (int64[n] d) "
            f"{{ d = {inner} (a) }}, else_branch = g2 () => (int64[n] e) {{ e = {inner} (x) }}>"
        )
    model = graph(LAYER + "a = MatMul(x, w) z = Identity(a) y = Softmax(z) " + label, outputs=SHOWN)
    least = [helper.make_node("ArgMin", ["b"], ["c"], axis=1, keepdims=0)]
    opset = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("of.ours", "ArgMax", ["b"], ["c"], least, opset))
    report, made = fused(model, tmp_path, BIAS, output_name="y")
    assert [(one.status, one.reason) for one in report.statuses[1:]] == [("left raw", BEFORE)]
    np.testing.assert_array_equal(run(made, {"x": X})["label"], run(model, {"x": X})["label"])


@pytest.mark.parametrize(
    ("op", "ordered"),
    [
        ("Identity(a)", True), ("Cast <to: int = 1> (a)", True), ("Exp(a)", True), ("Log(a)", True),
        ("Softmax(a)", True), ("LogSoftmax(a)", True), ("Sigmoid(a)", True), ("Div(a, two)", True),
        ('ai.onnx.ml.Normalizer <norm: string = "L1"> (a)', True), ("Sub(a, two)", True),
        ("Max(a, tiny)", True), ("Neg(a)", False), ("Abs(a)", False),
    ],
)  # fmt: skip
def test_labels_follow_where_the_scores_are_made_in_the_order_of_what_decides_them(
    op: str, ordered: bool, tmp_path: Path
) -> None:
    numbers = "two = Constant <value = float {2}> () tiny = Constant <value = float {1e-4}> () "
    label = "label = ArgMax <axis: int = 1, keepdims: int = 0> (a)"
    body = f"{numbers} a = Exp(x) z = {op} y = Softmax(z) {label}"
    report, made = fused(graph(body, outputs=SHOWN), tmp_path, BIAS, output_name="y")
    assert report.statuses[1].status == ("follows" if ordered else "left raw")
    got = run(made, {"x": X})
    assert bool((got["label"] == got["y"].argmax(axis=1)).all()) is ordered


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


COMPARISONS = {
    "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less, "LessOrEqual": np.less_equal
}  # fmt: skip


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("threshold", [0.5, 0.3])
@pytest.mark.parametrize("step", [LogitMap.temperature(2.0), LogitMap(np.ones(2), np.array([0.0, 1.0]))])
def test_a_threshold_is_on_the_calibrated_scores(threshold, step, comparison, tmp_path):
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    p = b.node("Sigmoid", b.node("Gemm", "x", b.normal(6, 1), b.normal(1)), output="y")
    label = b.node("Cast", b.node(comparison, p, b.number(threshold)), to=TensorProto.INT64, output="label")
    model = b.model([info("x", "n", 6)], [info(p, "n", 1), info(label, "n", 1, kind=TensorProto.INT64)])
    onnx.save(model, tmp_path / "raw.onnx")
    report = fuse_onnx(
        tmp_path / "raw.onnx", artifact(step, classes=2), tmp_path / "fused.onnx", unproven=True
    )
    assert report.statuses[1].status == "follows"
    assert "a threshold on the way is now on calibrated scores" in report.statuses[1].reason
    x = np.random.default_rng(1).normal(size=(50, 6)).astype("f4")
    raw, got = run(model, {"x": x}), run(str(tmp_path / "fused.onnx"), {"x": x})
    np.testing.assert_array_equal(got["label"], COMPARISONS[comparison](got["y"], np.float32(threshold)))
    if threshold == 0.3 or not step.is_scalar:
        assert (raw["label"] != got["label"]).any()
