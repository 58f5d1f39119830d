"""Tails and quantiles ask scipy for what their names say."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from calib_serve.metrics import intervals as tails


@pytest.mark.parametrize(
    ("k", "n", "p"), [(0, 10, 0.3), (10, 10, 0.3), (37, 100, 0.4), (9_000, 100_000, 0.1)]
)
def test_of_shares(k: int, n: int, p: float) -> None:
    assert tails.binomial_at_most(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-9)
    low = stats.binomtest(k, n, alternative="greater").proportion_ci(0.95, method="exact").low
    assert tails.accuracy_at_least(k, n, risk=0.05) == pytest.approx(low, abs=1e-12)
    assert tails.beta_quantile(0.3, k + 1, n) == pytest.approx(stats.beta.ppf(0.3, k + 1, n), rel=1e-9)
    assert (tails.beta_below(-1.0, 2, 3), tails.beta_below(2.0, 2, 3)) == (0, 1)


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
