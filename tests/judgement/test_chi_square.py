"""The chi-square distribution is that of scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calib_serve.judgement import chi_square


@pytest.mark.parametrize(
    ("x", "freedom", "distance"),
    [(0.3, 1, 0.5), (1e-5, 2, 1.0), (12.0, 16, 3.0), (500.0, 16, 300.0), (3000.0, 1000, 1800.0)],
)
def test_the_noncentral_share_below_is_exact(x: float, freedom: float, distance: float) -> None:
    wanted = stats.ncx2.cdf(x, freedom, distance)
    assert chi_square.below(x, freedom, distance) == pytest.approx(wanted, rel=1e-8)
    assert chi_square.below(x, freedom) == pytest.approx(stats.chi2.cdf(x, freedom), rel=1e-10)


def test_large_ones_are_near() -> None:
    for x, freedom, distance in ((30_000, 16, 30_000), (29_500, 300, 29_600), (4e6, 2, 4.01e6)):
        wanted = stats.ncx2.cdf(x, freedom, distance)
        assert chi_square.below(x, freedom, distance) == pytest.approx(wanted, abs=1e-4)


def test_the_power_of_a_normal_is_near_for_small_ones_as_well() -> None:
    for freedom, distance in ((5, 10.0), (10, 40.0)):
        for share in (0.05, 0.5, 0.9):
            x = stats.ncx2.ppf(share, freedom, distance)
            assert chi_square._sankaran(x, freedom, distance) == pytest.approx(share, abs=5e-4)


def test_a_small_distance_is_told_where_little_is_asked() -> None:
    found = chi_square.distance_at(1, risk=0.5, power=0.6)
    assert stats.ncx2.cdf(stats.chi2.ppf(0.6, 1), 1, found) == pytest.approx(0.5, rel=1e-6)


def test_nothing_and_everything() -> None:
    assert chi_square.below(0.0, 3) == chi_square.below(-1.0, 3, 2.0) == 0
    assert chi_square.beyond(1e9, 3) == 0
    assert chi_square.below(5.0, 3, np.inf) == 0
    assert chi_square.mixture_beyond(1.0, np.zeros(3)) == 1


def test_a_mixture_of_equal_weights_is_chi_square_and_others_are_near() -> None:
    assert chi_square.mixture_beyond(20.0, np.full(5, 2.0)) == pytest.approx(stats.chi2.sf(10.0, 5))
    weights = 1 / np.arange(1, 30)
    draws = (np.random.default_rng(0).standard_normal((200_000, 29)) ** 2 * weights).sum(axis=1)
    for share in (0.5, 0.95, 0.99):
        x = float(np.quantile(draws, share))
        assert chi_square.mixture_beyond(x, weights) == pytest.approx(1 - share, rel=0.1)
