"""A label rate that moves is seen, one that does not is not, however often one looks."""

import math

import numpy as np
import pytest

from calib_serve.monitor.label_signs import rate_changes
from calib_serve.receipts.sums import Sums


def cohort(seed, n, rate, *, weight=1.0):
    """Predictions of which labels come back by ``rate`` of confidence and outcome."""
    rng = np.random.default_rng(seed)
    c = 1 - 0.75 * rng.beta(1, 4, n)
    y = (rng.random(n) < c).astype(float)
    came = rng.random(n) < rate(c, y)
    return Sums.served(c) + Sums.labelled(c[came], y[came], weight=weight)


def tenth(c, _):
    return np.full(len(c), 0.1)


def test_the_statistic_is_that_of_two_proportions():
    before, now = cohort(0, 5000, tenth), cohort(1, 8000, lambda c, _: np.full(len(c), 0.2))
    strongest = rate_changes(before, now).moved[0]
    bin_ = round(strongest.lower * 15)
    k, n = before.labels[bin_], before.predictions[bin_]
    j, m = now.labels[bin_], now.predictions[bin_]
    pooled = (k + j) / (n + m)
    z = (j / m - k / n) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    assert (strongest.before, strongest.now, strongest.z) == pytest.approx((k / n, j / m, z))


def test_steady_rates_stay_quiet_over_many_looks():
    for seed in range(600):
        found = rate_changes(cohort(2 * seed, 3000, tenth), cohort(2 * seed + 1, 3000, tenth))
        assert found.moved == ()
        assert found.says == "Labels come back at the rates they did before."


def test_wrong_predictions_that_come_back_more_often_move_the_rate_where_they_are():
    def complaining(c, y):
        return np.where(y == 0, 0.4, 0.1)

    found = rate_changes(cohort(0, 40_000, tenth), cohort(1, 40_000, complaining))
    assert found.moved
    assert all(one.now > one.before for one in found.moved)
    assert [abs(one.z) for one in found.moved] == sorted((abs(one.z) for one in found.moved), reverse=True)
    assert found.moved[0].upper < 0.95  # few of the surest are wrong
    assert found.says.startswith("Labels come back more often at confidences")
    assert "may depend on the outcome" in found.says
