"""Which passes a graph gets, and in which order; the fit's own scores through the steps alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_artifacts import head
from fuse_graphs import run
from fuse_texts import DELTA, LAYER, TWO, K, X, graph
from test_onnx_outputs import MIXED, TOP, fused, of

from calib_serve import InputShift, LogitMap
from calib_serve.artifact import Examples
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.graph import Normalization, fuse_onnx
from calib_serve.metrics import log_softmax, sigmoid, softmax
from calib_serve.scores import Outputs, from_probs, to_logits

BY_CLASS = LogitMap(np.array([0.5, 1.0, 2.0]))

# --- scores (n, K, 1, 1) ----------------------------------------------------------------------------


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


# --- the fit's own scores ---------------------------------------------------------------------------


@pytest.mark.parametrize("returns", ["same", "probabilities", "all"])
def test_the_fit_s_own_scores_are_proved_for_whatever_is_returned(returns: Any, tmp_path: Path) -> None:
    plain, z = of(BY_CLASS), X[:8].astype("f8")
    fitted = of(BY_CLASS, examples=Examples(z, plain.probs(z)))
    onnx.save(graph("z = Neg(x) y = Softmax(z)"), tmp_path / "raw.onnx")
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "fused.onnx", returns=returns)
    assert report.own_scores == 8
