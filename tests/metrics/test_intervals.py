"""Intervals: the analytic ones by their formulas, the bootstrapped ones by their coverage."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from scipy import stats

from calib_serve import metrics
from calib_serve.artifact.results import measured
from calib_serve.errors import InputError
from calib_serve.metrics.intervals import Estimate, inverted


def draw(rng: np.random.Generator, n: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Binary predictions at confidence c that are right with probability c ** power."""
    c = 0.5 + 0.5 * rng.beta(3, 1.2, n)
    return np.stack([c, 1 - c], axis=1), np.where(rng.random(n) < c**power, 0, 1)


def test_shares_have_wilsons_interval() -> None:
    for k, n, level in ((8, 10, 0.95), (0, 7, 0.9), (7, 7, 0.99), (500, 1000, 0.5)):
        found = metrics.wilson_interval(k, n, level=level)
        scipys = stats.binomtest(k, n).proportion_ci(level, method="wilson")
        assert (found.low, found.high) == pytest.approx((scipys.low, scipys.high), abs=1e-12)


def test_means_have_the_normal_interval() -> None:
    values = np.random.default_rng(0).exponential(size=200)
    found = metrics.mean_interval(values, level=0.9)
    low, high = stats.norm.interval(0.9, values.mean(), stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high))


def test_the_auroc_has_delongs_interval() -> None:
    rng = np.random.default_rng(0)
    c = np.round(rng.uniform(0.5, 1, 120), 2)
    correct = rng.random(120) < c
    right, wrong = c[correct], c[~correct]
    wins = (right[:, None] > wrong) + (right[:, None] == wrong) / 2
    error = math.sqrt(wins.mean(1).var(ddof=1) / len(right) + wins.mean(0).var(ddof=1) / len(wrong))
    found = metrics.evaluate(np.stack([c, 1 - c], 1), np.where(correct, 0, 1), replicates=0).refinement_auroc
    assert found.value == pytest.approx(wins.mean())
    assert found.low == pytest.approx(wins.mean() - stats.norm.ppf(0.975) * error)
    assert found.high == pytest.approx(wins.mean() + stats.norm.ppf(0.975) * error)


def test_intervals_hold_their_estimate_and_are_the_same_for_the_same_seed() -> None:
    rng = np.random.default_rng(1)
    sample = draw(rng, 300, 1.2)
    found = metrics.evaluate(*sample, replicates=400)
    for name, e in found.estimates().items():
        shown = e.value if math.isnan(e.debiased) else e.debiased
        assert e.low <= shown <= e.high, name
        assert math.isnan(e.debiased) or 0 <= e.debiased <= e.value, name
    assert found == metrics.evaluate(*sample, replicates=400)
    other = metrics.evaluate(*sample, replicates=400, seed=1)
    assert found.ece.value == other.ece.value
    assert found.ece.high != other.ece.high
    wider = metrics.evaluate(*sample, replicates=400, level=0.99)
    assert wider.ece.high >= found.ece.high
    assert wider.nll.high > found.nll.high


def test_an_errors_interval_holds_the_truths_under_which_it_is_no_surprise() -> None:
    # |gap| of one bin whose gap is normal with standard error .1, for true gaps up to 1.
    truth = np.linspace(0, 1, 41)
    noise = 0.1 * stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    drawn = np.abs(truth[:, None] + noise)
    far = inverted(0.5, truth, drawn, level=0.95)
    assert (far.debiased, far.low, far.high) == pytest.approx((0.5, 0.5 - 0.196, 0.5 + 0.196), abs=0.005)
    near = inverted(0.12, truth, drawn, level=0.95)
    assert near.low == 0
    assert 0.05 < near.debiased < 0.12
    assert near.high == pytest.approx(0.12 + 0.196, abs=0.02)
    # Less than calibrated models usually show tells no more than what they usually show.
    usual = drawn[0].mean() - drawn[0].std(ddof=1)
    assert inverted(0.0, truth, drawn, level=0.95).high == inverted(usual, truth, drawn, level=0.95).high


def test_errors_beyond_all_truths_and_undefined_ones_have_no_false_bounds() -> None:
    truth, drawn = np.array([0.0, 0.1]), np.array([[0.0, 0.02], [0.1, 0.12]])
    beyond = inverted(0.9, truth, drawn, level=0.95)
    assert beyond.low <= 0.9 <= beyond.high <= 1
    assert math.isnan(inverted(math.nan, truth, drawn, level=0.95).low)
    assert math.isnan(inverted(0.1, truth, drawn[:, :1], level=0.95).low)


def test_an_estimate_is_kept_with_what_chance_adds_to_it() -> None:
    e = Estimate(0.3, 0.0, 0.25, debiased=0.1)
    assert repr(e) == "0.3000 (debiased 0.1000) [0.0000, 0.2500]"
    assert pickle.loads(pickle.dumps(e)).debiased == 0.1
    assert e.as_dict() == {"value": 0.3, "low": 0.0, "high": 0.25, "debiased": 0.1}
    assert "debiased" not in Estimate(0.3).as_dict()
    assert measured({"ece": e.as_dict(), "nll": {"value": 1.0}})["ece"].debiased == 0.1
    assert math.isnan(measured({"ece": {"value": 0.3, "low": 0.0, "high": 0.25}})["ece"].debiased)


def test_infinite_and_undefined_metrics_are_told_as_such() -> None:
    found = metrics.evaluate([[1.0, 0.0], [1.0, 0.0]], [1, 1], replicates=20)
    assert found.nll.value == math.inf
    assert math.isnan(found.refinement_auroc.value)  # no right prediction to compare with
    assert found.as_dict()["nll"] == {"value": None, "low": None, "high": None}
    sure = metrics.evaluate_logits([[1000.0, 0.0], [1000.0, 0.0]], [1, 1], replicates=20)
    assert sure.nll.value == 1000


def test_levels_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="means 95 %"):
        metrics.wilson_interval(1, 2, level=95)
