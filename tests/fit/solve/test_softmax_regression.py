"""The convex problem under the linear calibrators: right derivatives, right optimum, right curvature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from calib_serve.core.errors import InputError
from calib_serve.fit.samples import Samples
from calib_serve.fit.softmax_regression import Penalty, Problem

PENALTY = Penalty(off=0.01, diagonal=1e-4, bias=0.003)
BOTH = pytest.mark.parametrize("on", ["logits", "log_probs"])
SHAPES = pytest.mark.parametrize("shape", ["full", "diagonal", "scalar"])


def problem(shape, on, n=300, k=5, weighted=True) -> Problem:
    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal((n, k))
    y = (0.4 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
    weight = rng.random(n) if weighted else None
    return Problem.of(Samples.of(z, y, sample_weight=weight), shape, on=on, scale=0.5)


@BOTH
@SHAPES
def test_the_optimum_is_the_one_that_scipy_finds(shape, on):
    p = problem(shape, on)
    ours = p.solve(PENALTY, gap=1e-12)
    theirs = minimize(
        lambda t: p.evaluate(t, PENALTY), np.zeros(p.size), jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    assert ours.value == pytest.approx(theirs.fun, abs=1e-11)
    assert np.abs(ours.x - theirs.x).max() < 1e-4
    assert ours.gap < 1e-12


@pytest.mark.parametrize(("shape", "k"), [("full", 40), ("diagonal", 600)])
def test_with_many_classes_the_block_preconditioner_still_reaches_the_optimum(shape, k):
    p = problem(shape, "logits", n=1000, k=k, weighted=False)
    penalty = Penalty(0.01, 0.01, 0.01)
    found = p.solve(penalty, gap=1e-9)
    value, gradient = p.evaluate(found.x, penalty)
    # All second derivatives of the penalty are 0.02, so the NLL's convexity bounds the distance.
    assert gradient @ gradient / (2 * 0.02) < 1e-6
    assert value == found.value


def test_a_full_matrix_of_ten_thousand_classes_is_refused_with_advice():
    samples = Samples.of(np.zeros((2, 10_000), np.float16), np.array([0, 1]))
    with pytest.raises(InputError, match="structured-vector"):
        Problem.of(samples, "full")
