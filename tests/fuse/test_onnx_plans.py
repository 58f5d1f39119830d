"""Which passes a graph gets, and in which order; the fit's own scores through the steps alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import head
from fuse_graphs import run
from fuse_texts import DELTA, LAYER, TWO, K, W, X, graph, operators
from test_onnx_end_passes import BARE
from test_onnx_outputs import EACH, MIXED, TOP, fused, of

from calib_serve import InputShift, LogitMap
from calib_serve.artifact import Examples
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.graph import Normalization, fuse_onnx
from calib_serve.fuse.onnx.own_scores import scores_of, steps_alone
from calib_serve.fuse.onnx.parity import TOLERANCE
from calib_serve.fuse.onnx.plan import Request, make_plan
from calib_serve.metrics import log_softmax, sigmoid, softmax
from calib_serve.scores import Outputs, from_probs, to_logits

BY_CLASS = LogitMap(np.array([0.5, 1.0, 2.0]))
HALF_OF_LOGS = LogitMap(np.array(0.5), None, "log_probs")
POOLED = ("float[n, 3, 1, 1] x", "float[n, 3, 1, 1] y")
FLATTENED = "scores of more than two dimensions flattened (Flatten, Unsqueeze added)"
X4 = X[..., None, None]

# --- scores (n, K, 1, 1) ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "steps", "flattened"),
    [
        ("Softmax", (), False),
        ("Softmax", (TWO,), False),
        ("Softmax", (TWO, TWO), False),
        ("Softmax", (HALF_OF_LOGS,), False),  # before the softmax it is a temperature
        ("Softmax", (BY_CLASS,), True),
        ("Softmax", (TWO, BY_CLASS), True),
        ("Softmax", (MIXED,), True),
        ("Softmax", (TOP,), True),
        ("", (TWO,), False),
        ("", (HALF_OF_LOGS,), True),
    ],
)
def test_pooled_scores_keep_their_shape_inside_where_one_number_scales_them(
    tail: str, steps: tuple[Any, ...], flattened: bool, tmp_path: Path
) -> None:
    body = "z = Neg(x) y = Softmax <axis: int = 1> (z)" if tail else "y = Neg(x)"
    report, made = fused(graph(body, *POOLED), tmp_path, of(*steps))
    assert [FLATTENED in report.done, "Flatten" in operators(made)] == [flattened] * 2
    want = of(*steps).probs(-X)
    got = run(made, {"x": X4})["y"]
    assert got.shape == X4.shape
    np.testing.assert_allclose(got[..., 0, 0] if tail else softmax(got[..., 0, 0]), want, atol=1e-5)


def test_pooled_scores_are_rows_where_other_outputs_are_asked_for(tmp_path: Path) -> None:
    report, made = fused(graph("y = Neg(x)", *POOLED), tmp_path, of(TWO), returns="probabilities")
    assert report.done[0] == FLATTENED
    np.testing.assert_allclose(run(made, {"x": X4})["probabilities"], softmax(-X / 2), atol=1e-5)


@pytest.mark.parametrize("kind", BARE)
def test_pooled_scores_without_an_activation_are_opened_by_class(kind: Outputs, tmp_path: Path) -> None:
    body = BARE[kind].replace("(x)", "(flat)").replace("y =", "rows =")
    shape = "to = Constant <value = int64[4] {-1, 3, 1, 1}> () "
    model = graph(f"flat = Flatten(x) {shape}{body} y = Reshape(rows, to)", *POOLED)
    report, made = fused(model, tmp_path, of(TWO, outputs=kind), outputs=kind)
    assert report.done[0] == FLATTENED
    want = {"probabilities": softmax, "log_probs": log_softmax, "label_probabilities": sigmoid}[kind](X / 2)
    np.testing.assert_allclose(run(made, {"x": X4})["y"][..., 0, 0], want, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("y = Neg(x)", "logit"),
        ("z = Neg(x) y = Sigmoid(z)", "probability"),
        ("z = Neg(x) s = Sigmoid(z) m = Neg(s) y = Neg(m)", "probability"),
    ],
)
def test_a_binary_model_s_one_pooled_score_is_calibrated(body: str, kind: Outputs, tmp_path: Path) -> None:
    model = graph(body, "float[n, 1, 1, 1] x", "float[n, 1, 1, 1] y")
    _, made = fused(model, tmp_path, of(TWO, classes=2, outputs=kind), outputs=kind)
    x = X4[:, :1]
    want = -x / 2 if kind == "logit" else sigmoid(-x / 2)
    np.testing.assert_allclose(run(made, {"x": x})["y"], want, atol=1e-5)


def test_a_new_head_of_a_pooled_layer_gives_rows_that_become_pooled_scores(tmp_path: Path) -> None:
    step = head(3, K, 1, np.random.default_rng(0))
    body = "features = Flatten(x) z = Neg(x) y = Softmax <axis: int = 1> (z)"
    report, made = fused(graph(body, *POOLED), tmp_path, of(step), features="features")
    assert report.done == (FLATTENED, "head of 1 layers reads 'features'")
    np.testing.assert_allclose(run(made, {"x": X4})["y"][..., 0, 0], softmax(step(X)), atol=1e-5)


# --- one column -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "steps", "widened"),
    [
        ("y = Neg(x)", (TWO,), False),
        ("z = Neg(x) y = Sigmoid(z)", (TWO,), False),
        ("y = Neg(x)", (MIXED,), True),
        ("y = Neg(x)", (TOP,), True),
        ("z = Neg(x) y = Sigmoid(z)", (MIXED,), True),
        ("s = Sigmoid(x) m = Neg(s) y = Neg(m)", (TWO,), True),
    ],
)
def test_one_score_becomes_two_only_where_both_classes_are_calibrated(
    body: str, steps: tuple[Any, ...], widened: bool, tmp_path: Path
) -> None:
    kind: Outputs = "probability" if "Sigmoid" in body else "logit"
    fitted = of(*steps, classes=2, outputs=kind)
    model = graph(body, "float[n, 1] x", "float[n, 1] y")
    report, made = fused(model, tmp_path, fitted, outputs=kind)
    said = "one score a sample made two, as the calibration acts on both classes"
    assert (said in report.done) == widened
    raw = run(model, {"x": X[:, :1]})["y"]
    want = from_probs(fitted.probs(to_logits(raw, kind)), raw, kind)
    np.testing.assert_allclose(run(made, {"x": X[:, :1]})["y"], want, atol=1e-4)


def test_numbers_of_one_column_are_logits_where_somebody_says_so(tmp_path: Path) -> None:
    model = graph("y = Sigmoid(x) ", "float[n, 1] x", "float[n, 1] y")
    model.graph.node[0].output[0] = "s"
    model.graph.node.append(onnx.helper.make_node("Abs", ["s"], ["y"]))
    fitted = of(TWO, classes=2, outputs="logit")
    _, made = fused(model, tmp_path, fitted, outputs="logit")
    np.testing.assert_allclose(run(made, {"x": X[:, :1]})["y"], sigmoid(X[:, :1]) / 2, atol=1e-6)
    with pytest.raises(FuseError, match="'y' is taken for logit, but its numbers are probability"):
        fused(model, tmp_path, fitted)


# --- heads, shifts and what is said -----------------------------------------------------------------


@pytest.mark.parametrize("tail", ["Softmax", "LogSoftmax", ""])
def test_a_head_takes_the_layer_before_any_activation_or_none(tail: str, tmp_path: Path) -> None:
    step = head(3, K, 1, np.random.default_rng(0))
    body = LAYER + (f"z = MatMul(x, w) y = {tail}(z)" if tail else "y = MatMul(x, w)")
    report, made = fused(graph(body), tmp_path, of(step, TWO))
    assert [done.split(" into ")[0] for done in report.done] == ["head put", "logit map folded"]
    want = {"": lambda z: z, "Softmax": softmax, "LogSoftmax": log_softmax}[tail](step(X) / 2)
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)


def test_a_head_has_no_layer_to_replace_before_bare_probabilities(tmp_path: Path) -> None:
    step = head(3, K, 1, np.random.default_rng(0))
    with pytest.raises(FuseError, match="'y' holds probabilities that no Softmax makes, and a new head"):
        fused(graph(BARE["probabilities"]), tmp_path, of(step), outputs="probabilities", features="x")


NORMAL = Normalization(np.array([0.5]), np.array([2.0]))


@pytest.mark.parametrize(
    ("step", "normal"), [(InputShift(DELTA), None), (None, NORMAL), (InputShift(DELTA), NORMAL)]
)
def test_a_normalisation_and_a_shift_act_in_this_order_each_with_or_without_the_other(
    step: InputShift | None, normal: Normalization | None, tmp_path: Path
) -> None:
    model = graph("z = Tanh(x) y = Softmax(z)")
    _, made = fused(model, tmp_path, of(*([] if step is None else [step])), normalization=normal)
    x = X if normal is None else (X - 0.5) / 2
    want = softmax(np.tanh(x if step is None else x + DELTA))
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)


def test_the_plan_knows_the_sizes_of_a_shifted_input_and_of_no_other() -> None:
    proto = onnx.shape_inference.infer_shapes(graph("z = Tanh(x) y = Softmax(z)"))
    for step, normal, known in (
        (InputShift(DELTA), None, {"x": (3,)}), (None, NORMAL, {}), (None, None, {}),
    ):  # fmt: skip
        fitted = of(*([] if step is None else [step]))
        plan = make_plan(Editor(ir.from_proto(proto)), fitted, Request(normalization=normal))
        assert plan.shapes == known
        assert plan.shifted == (None if step is normal is None else "x")


@pytest.mark.parametrize(
    ("kind", "near"),
    [("float", ir.DataType.FLOAT), ("double", ir.DataType.DOUBLE), ("float16", ir.DataType.FLOAT16)],
)
def test_the_narrowest_type_says_what_rounding_is_allowed(kind: str, near: Any, tmp_path: Path) -> None:
    model = graph("z = Tanh(x) y = Softmax(z)", f"{kind}[n, 3] x", f"{kind}[n, 3] y")
    report, _ = fused(model, tmp_path, of(TWO))
    assert report.tolerance == TOLERANCE[near]  # of logits below 1


def test_what_is_done_is_said_in_the_order_of_the_plan_and_what_is_not_done_is_not(tmp_path: Path) -> None:
    model = graph(LAYER + "z = MatMul(x, w) label = ArgMax <axis: int = 1> (z) y = Softmax(z)",
                  outputs="float[n, 3] y, int64[n, 1] label")  # fmt: skip
    report, made = fused(model, tmp_path, of(InputShift(DELTA), TWO, EACH), output_name="y")
    assert report.done == (
        "logit map folded into MatMul 'z'",
        "prob table put in as standard operators",
        "shift folded into Gemm 'z'",
    )
    got, p = run(made, {"x": X}), of(TWO, EACH).probs((X + DELTA) @ W)
    np.testing.assert_allclose(got["y"], p, atol=1e-5)
    assert got["label"].ravel().tolist() == p.argmax(axis=1).tolist()


# --- the fit's own scores ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "activation", "fitted_on", "steps"),
    [
        ("logits", None, "logits", (BY_CLASS,)),
        ("log_probs", None, "probabilities", (TWO,)),
        ("log_probs", None, "log_probs", (BY_CLASS,)),
        ("log_probs", "LogSoftmax", "logits", (HALF_OF_LOGS,)),
        ("probabilities", None, "log_probs", (TWO, TOP)),
        ("probabilities", "Softmax", "logits", (MIXED,)),
        ("logit", None, "logit", (TWO,)),
        ("probability", None, "probability", (TWO,)),
        ("probability", "Sigmoid", "probability", (TOP,)),
        ("label_logits", None, "label_logits", (EACH,)),
        ("label_probabilities", None, "label_probabilities", (TWO,)),
        ("label_probabilities", "Sigmoid", "label_logits", (BY_CLASS,)),
    ],
)
def test_the_steps_alone_make_of_the_fit_s_scores_what_the_artifact_does(
    kind: Outputs, activation: str | None, fitted_on: Outputs, steps: tuple[Any, ...]
) -> None:
    classes = 2 if kind in ("logit", "probability") else K
    z = X[:, :classes].astype("f8")
    fitted = of(InputShift(np.ones(5)), *steps, classes=classes, outputs=fitted_on)
    plan: Any = SimpleNamespace(outputs=kind, activation=activation, returns="same")
    model, own = steps_alone(fitted, plan, 17)
    assert (own.outputs, own.activation, own.shifted) == (kind, activation, None)
    scores = scores_of(z, own)
    assert scores.dtype == np.float32
    (got,) = run(ir.to_proto(model), {"scores": scores}).values()
    raw = {
        "log_probs": log_softmax, "probabilities": softmax, "label_probabilities": sigmoid,
        "logit": lambda z: z[:, 1:] - z[:, :1], "probability": lambda z: sigmoid(z[:, 1:] - z[:, :1]),
    }.get(kind, lambda z: z)(z)  # fmt: skip
    want = fitted.probs(z if activation or kind in ("logits", "label_logits") else to_logits(raw, kind))
    if kind == "logits":
        np.testing.assert_allclose(got, BY_CLASS.weight * z, atol=1e-5)
    elif kind == "log_probs":
        np.testing.assert_allclose(got, np.log(want), atol=1e-5)
    else:
        np.testing.assert_allclose(got, from_probs(want, raw, kind), atol=1e-5)


@pytest.mark.parametrize("returns", ["same", "probabilities", "all"])
def test_the_fit_s_own_scores_are_proved_for_whatever_is_returned(returns: Any, tmp_path: Path) -> None:
    plain, z = of(BY_CLASS), X[:8].astype("f8")
    fitted = of(BY_CLASS, examples=Examples(z, plain.probs(z)))
    onnx.save(graph("z = Neg(x) y = Softmax(z)"), tmp_path / "raw.onnx")
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "fused.onnx", returns=returns)
    assert report.own_scores == 8
