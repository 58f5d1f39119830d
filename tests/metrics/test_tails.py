"""Tails and quantiles ask scipy for what their names say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from calib_serve.judgement.shape import _mixture_beyond
from calib_serve.metrics import tails


@pytest.mark.parametrize(
    ("k", "n", "p"), [(0, 10, 0.3), (10, 10, 0.3), (37, 100, 0.4), (9_000, 100_000, 0.1)]
)
def test_of_shares(k: int, n: int, p: float) -> None:
    assert tails.binomial_at_most(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-9)
    low = stats.binomtest(k, n, alternative="greater").proportion_ci(0.95, method="exact").low
    assert tails.accuracy_at_least(k, n, risk=0.05) == pytest.approx(low, abs=1e-12)
    assert tails.beta_quantile(0.3, k + 1, n) == pytest.approx(stats.beta.ppf(0.3, k + 1, n), rel=1e-9)
    assert (tails.beta_below(-1.0, 2, 3), tails.beta_below(2.0, 2, 3)) == (0, 1)


@pytest.mark.parametrize(("t", "freedom"), [(0.0, 3), (2.5, 1.7), (-4.0, 20), (3.0, 5000)])
def test_of_student(t: float, freedom: float) -> None:
    assert tails.student_beyond(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9)
    assert tails.student_quantile(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


@pytest.mark.parametrize(
    ("x", "freedom", "distance"),
    [(0.3, 1, 0.5), (1e-5, 2, 1.0), (12.0, 16, 3.0), (3000.0, 1000, 1800.0), (4e6, 2, 4.01e6)],
)
def test_of_chi_square(x: float, freedom: float, distance: float) -> None:
    wanted = stats.ncx2.cdf(x, freedom, distance)
    assert tails.chi_square_below(x, freedom, distance) == pytest.approx(wanted, rel=1e-8)
    assert tails.chi_square_below(x, freedom) == pytest.approx(stats.chi2.cdf(x, freedom), rel=1e-9)
    assert tails.chi_square_beyond(x, freedom) == pytest.approx(stats.chi2.sf(x, freedom), rel=1e-9)
    assert tails.chi_square_below(0.0, freedom, distance) == tails.chi_square_below(x, freedom, math.inf) == 0
    assert tails.chi_square_beyond(-x, freedom) == 1


@pytest.mark.parametrize(("freedom", "risk", "power"), [(1, 0.5, 0.6), (16, 0.01, 0.5), (4, 0.05, 0.999)])
def test_a_distance_is_told_from_none_with_the_power_that_is_asked_for(
    freedom: int, risk: float, power: float
) -> None:
    found = tails.detectable_distance(freedom, risk=risk, power=power)
    assert stats.ncx2.cdf(stats.chi2.ppf(power, freedom), freedom, found) == pytest.approx(risk, rel=1e-6)
    assert tails.chi_square_median(freedom) == pytest.approx(stats.chi2.median(freedom))


def test_a_mixture_of_equal_weights_is_chi_square_and_others_are_near() -> None:
    assert _mixture_beyond(20.0, np.full(5, 2.0)) == pytest.approx(stats.chi2.sf(10.0, 5))
    assert _mixture_beyond(1.0, np.zeros(3)) == 1
    weights = 1 / np.arange(1, 30)
    draws = (np.random.default_rng(0).standard_normal((200_000, 29)) ** 2 * weights).sum(axis=1)
    for share in (0.5, 0.95, 0.99):
        assert _mixture_beyond(np.quantile(draws, share), weights) == pytest.approx(1 - share, rel=0.1)
