"""Where a logit map goes: into the last layer, into a scale, or into one node before the activation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuse_graphs import run
from fuse_texts import LAYER, TWO, W, X, fused, graph, operators

from calib_serve import LogitMap
from calib_serve.metrics import log_softmax, softmax

M = np.array([[1.0, 0.5, 0.0], [-0.25, 2.0, 0.125], [0.0, 1.0, 0.5]])
EACH = np.array([0.5, 2.0, -1.0])
BIAS = np.array([0.25, 0.0, -1.0])
ONES = np.ones(3)
NODES = [
    (LogitMap(np.array(0.5)), "Mul", 0.5 * X),
    (LogitMap(EACH), "Mul", EACH * X),
    (LogitMap(M), "Gemm", X @ M.T),
    (LogitMap(M, BIAS), "Gemm", X @ M.T + BIAS),
    (LogitMap(np.array(1.0), BIAS), "Add", X + BIAS),
    (LogitMap(ONES, BIAS), "Add", X + BIAS),
    (LogitMap(np.array([1.0, 1.0, 2.0]), BIAS), "BatchNormalization", [1.0, 1.0, 2.0] * X + BIAS),
    (LogitMap(np.array(0.5), BIAS), "BatchNormalization", 0.5 * X + BIAS),
    (LogitMap(EACH, BIAS), "BatchNormalization", EACH * X + BIAS),
]
"""A map, the operator that it is where it is a node, and what it makes of ``X``."""


@pytest.mark.parametrize(("step", "op", "want"), NODES)
def test_a_map_is_one_node_where_no_layer_takes_it(
    step: LogitMap, op: str, want: np.ndarray, tmp_path: Path
) -> None:
    report, made = fused(graph("y = Identity(x)"), tmp_path, step)
    assert report.done == (f"logit map put in as one {op} ('x' is an input or a constant of the graph)",)
    assert operators(made) == [op, "Identity"]
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("step", [step for step, _, _ in NODES])
@pytest.mark.parametrize("bias", ["", "b = Constant <value = float[3] {1.0, -2.0, 0.5}> () "])
def test_a_map_is_no_node_where_a_layer_takes_it(step: LogitMap, bias: str, tmp_path: Path) -> None:
    model = graph(f"{LAYER} {bias} z = Gemm(x, w{', b' if bias else ''}) y = Softmax(z)")
    report, made = fused(model, tmp_path, step)
    assert report.done == ("logit map folded into Gemm 'z'",)
    assert operators(made) == ["Gemm", "Softmax"]
    logits = X @ W + (np.array([1.0, -2.0, 0.5]) if bias else 0.0)
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(step(logits)), atol=1e-6)


@pytest.mark.parametrize("step", [LogitMap(np.array(1.0)), LogitMap(ONES, 0 * BIAS), LogitMap(np.eye(3))])
def test_a_map_that_changes_nothing_is_nothing_to_do(step: LogitMap, tmp_path: Path) -> None:
    report, made = fused(graph("z = Neg(x) y = Softmax(z)"), tmp_path, step)
    assert report.done == ("the logit map changes nothing: nothing to do",)
    assert operators(made) == ["Neg", "Softmax"]


def test_others_who_read_the_logits_are_named_and_read_the_old_ones(tmp_path: Path) -> None:
    body = LAYER + "z = Gemm(x, w) n = Neg(z) y = Softmax(z)"
    model = graph(body, outputs="float[n, 3] y, float[n, 3] z, float[n, 3] n")
    report, made = fused(model, tmp_path, TWO, output_name="y")
    assert report.done == (
        "logit map put in as one Mul (Neg 'n', the graph output 'z' also reads the logits)",
    )
    got, raw = run(made, {"x": X}), run(model, {"x": X})
    for name in ("z", "n"):
        np.testing.assert_array_equal(got[name], raw[name])
    np.testing.assert_allclose(got["y"], softmax(raw["z"] / 2), atol=1e-6)


def test_a_scale_of_logits_that_others_read_stays(tmp_path: Path) -> None:
    quantised = (
        "s = Constant <value = float {0.25}> () o = Constant <value = int8 {0}> () n = Neg(x) "
        "q = QuantizeLinear(n, s, o) z = DequantizeLinear(q, s, o) y = Softmax(z) "
    )
    report, _ = fused(graph(quantised), tmp_path, TWO)
    assert report.done == ("logit map folded into the scale of DequantizeLinear 'z'",)
    model = graph(quantised + "other = Neg(z)", outputs="float[n, 3] y, float[n, 3] other")
    report, made = fused(model, tmp_path, TWO, output_name="y")
    assert report.done == ("logit map put in as one Mul (Neg 'other' also reads the logits)",)
    np.testing.assert_array_equal(run(made, {"x": X})["other"], run(model, {"x": X})["other"])
    step = LogitMap(np.array(0.5), BIAS)
    report, _ = fused(graph(quantised), tmp_path, step)
    assert report.done == (
        "logit map put in as one BatchNormalization (the logits come from DequantizeLinear 'z', not from a "
        "Gemm or MatMul)",
    )


# --- log-probabilities ------------------------------------------------------------------------------

OF_LOGS = [
    (LogitMap(np.array(0.5), None, "log_probs"), "Mul"),
    (LogitMap(np.array(0.5), BIAS, "log_probs"), "BatchNormalization"),
    (LogitMap(EACH, BIAS, "log_probs"), "BatchNormalization"),
    (LogitMap(M, None, "log_probs"), "Gemm"),
    (LogitMap(ONES, BIAS, "log_probs"), "Add"),
]


@pytest.mark.parametrize(("step", "op"), OF_LOGS)
@pytest.mark.parametrize("end", ["Softmax", "LogSoftmax"])
def test_a_temperature_of_log_probabilities_is_one_of_logits_where_a_softmax_follows(
    end: str, step: LogitMap, op: str, tmp_path: Path
) -> None:
    model = graph(f"{LAYER} z = Gemm(x, w) y = {end}(z)")
    report, made = fused(model, tmp_path, step)
    if step.weight.ndim == 0:
        assert report.done == ("logit map folded into Gemm 'z'",)
        assert operators(made) == ["Gemm", end]
    else:
        said = f"logit map put in as LogSoftmax and one {op} (it acts on log-probabilities)"
        assert report.done == (said,)
        assert [one for one in operators(made) if one != "Constant"] == ["Gemm", "LogSoftmax", op, end]
    want = (softmax if end == "Softmax" else log_softmax)(step(log_softmax(X @ W)))
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, rtol=1e-5, atol=1e-6)


# --- what is checked --------------------------------------------------------------------------------
