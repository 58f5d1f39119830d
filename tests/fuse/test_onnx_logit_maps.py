"""Where a logit map goes: into the last layer, into a scale, or into one node before the activation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuse_graphs import run
from fuse_texts import LAYER, TWO, X, fused, graph, operators

from calib_serve import LogitMap
from calib_serve.metrics import softmax

BIAS = np.array([0.25, 0.0, -1.0])
ONES = np.ones(3)
"""A map, the operator that it is where it is a node, and what it makes of ``X``."""


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


# --- what is checked --------------------------------------------------------------------------------
