"""Intervals, and the distributions that they end in, against formulas and references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from calib_serve import metrics
from calib_serve.metrics import distributions as tails
from calib_serve.metrics import intervals
from calib_serve.metrics.plausible import CellGaps
from calib_serve.metrics.refinement import ranked_areas


def draw(rng: np.random.Generator, n: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Binary predictions at confidence c that are right with probability c ** power."""
    c = 0.5 + 0.5 * rng.beta(3, 1.2, n)
    return np.stack([c, 1 - c], axis=1), np.where(rng.random(n) < c**power, 0, 1)


def test_shares_have_wilsons_interval() -> None:
    for k, n, level in ((8, 10, 0.95), (0, 7, 0.9), (7, 7, 0.99), (500, 1000, 0.5)):
        found = metrics.wilson_interval(k, n, level=level)
        scipys = stats.binomtest(k, n).proportion_ci(level, method="wilson")
        assert (found.low, found.high) == pytest.approx((scipys.low, scipys.high), abs=1e-12)


def test_the_auroc_has_delongs_interval() -> None:
    rng = np.random.default_rng(0)
    c = np.round(rng.uniform(0.5, 1, 120), 2)
    correct = rng.random(120) < c
    right, wrong = c[correct], c[~correct]
    wins = (right[:, None] > wrong) + (right[:, None] == wrong) / 2
    error = math.sqrt(wins.mean(1).var(ddof=1) / len(right) + wins.mean(0).var(ddof=1) / len(wrong))
    found = metrics.evaluate(np.stack([c, 1 - c], 1), np.where(correct, 0, 1), replicates=0).refinement_auroc
    assert found.value == pytest.approx(wins.mean())
    log_odds, half = (
        special.logit(wins.mean()),
        stats.norm.ppf(0.975) * error / wins.mean() / (1 - wins.mean()),
    )
    assert (found.low, found.high) == pytest.approx(special.expit([log_odds - half, log_odds + half]))


def test_intervals_hold_their_estimate_and_are_the_same_for_the_same_seed() -> None:
    rng = np.random.default_rng(1)
    sample = draw(rng, 300, 1.2)
    found = metrics.evaluate(*sample, replicates=400)
    for name, e in found.estimates().items():
        shown = e.value if math.isnan(e.debiased) else e.debiased
        assert e.low <= shown <= e.high or name == "positive_min_cllr", name
        assert math.isnan(e.debiased) or 0 <= e.debiased <= e.value, name
    assert found == metrics.evaluate(*sample, replicates=400)
    other = metrics.evaluate(*sample, replicates=400, seed=1)
    assert found.ece.value == other.ece.value
    assert found.ece.high != other.ece.high
    wider = metrics.evaluate(*sample, replicates=400, level=0.99)
    assert wider.ece.high >= found.ece.high
    assert wider.nll.high > found.nll.high


def test_a_record_is_shown_by_its_main_metrics_and_in_a_notebook_by_all() -> None:
    found = metrics.evaluate([[0.75, 0.25], [0.65, 0.35]], [0, 1], replicates=0)
    main = f"accuracy={found.accuracy}, ece={found.ece}, nll={found.nll}"
    assert repr(found) == f"Evaluation(n=2, classes=2, {main})"
    page = found._repr_html_()
    assert "2 n, 2 classes" in page
    assert all(name in page and f"{e.value:.4f}" in page for name, e in found.estimates().items())


def test_infinite_and_undefined_metrics_are_told_as_such() -> None:
    found = metrics.evaluate([[1.0, 0.0], [1.0, 0.0]], [1, 1], replicates=20, outputs="probabilities")
    assert found.nll.value == math.inf
    assert math.isnan(found.refinement_auroc.value)  # no right prediction to compare with
    assert found.as_dict()["nll"] == {"value": None, "low": None, "high": None}
    sure = metrics.evaluate([[1000.0, 0.0], [1000.0, 0.0]], [1, 1], outputs="logits", replicates=20)
    assert sure.nll.value == 1000


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


def test_the_interval_of_a_share_lies_within_its_range_and_is_wider_towards_the_middle() -> None:
    for value in (0.02, 0.97):
        found = intervals.share_interval(value, 0.02, level=0.95)
        assert 0 < found.low < value < found.high < 1
        assert (found.high - value > value - found.low) == (value < 0.5)
    # A share whose error is small beside both ends has the plain interval.
    found = intervals.share_interval(0.5, 0.001, level=0.95)
    assert (found.low, found.high) == pytest.approx((0.5 - 0.00196, 0.5 + 0.00196), abs=1e-6)
    # Nothing is known, and nothing overflows.
    assert intervals.share_interval(1e-9, 0.1, level=0.95).high == 1.0
    # The log-odds of an end are infinite.
    assert intervals.share_interval(1.0, 0.0, level=0.95).low == 1.0
    assert math.isnan(intervals.share_interval(0.4, math.nan, level=0.95).low)


def test_an_influence_is_what_a_little_more_of_a_prediction_does_to_an_area() -> None:
    rng = np.random.default_rng(0)
    c, n, more = np.sort(rng.integers(1, 40, 4000) / 40), 4000, 1e-3
    right, weight = (rng.random(n) < c).astype(float), rng.random(n) + 0.5
    areas, _, few, ends = ranked_areas(c, right, weight)
    step = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    moved_by = few.influences()[0].items()
    moves = {name: np.where(right, won[step], lost[step]) for name, (won, lost) in moved_by}
    for row in (0, 1, n // 2, n - 2, n - 1):
        heavier = weight.copy()
        heavier[row] += more * weight.sum()
        moved = ranked_areas(c, right, heavier)[0]
        for name, influence in moves.items():
            # Counts of few predictions differ from shares by terms of 1 / n.
            assert (moved[name] - areas[name]) / more == pytest.approx(influence[row], rel=0.02, abs=0.02), (
                name
            )
    for name, influence in moves.items():
        assert np.average(influence, weights=weight) == pytest.approx(0, abs=2e-3), name


@pytest.mark.parametrize(
    ("gaps", "noise", "share"),
    [
        ([0.5, -1.0, 1.0, 0.0], [1.0] * 4, 1.0),
        # Two of four are far off, and chance adds as the standard errors of the others: 2 + 1 of 10.
        ([50.0, 1.0, -60.0, 0.5], [9.0, 4.0, 16.0, 1.0], 0.3),
        ([1.5] * 15, [1.0] * 15, 1 / 15),  # none is clearly off, all together are
        ([3.0, 0.0], [0.0, 0.0], 0.0),
    ],
)
def test_chance_lies_in_the_bins_that_may_be_calibrated(
    gaps: list[float], noise: list[float], share: float
) -> None:
    cells = CellGaps(np.array(gaps), np.array(noise), np.array(noise))
    assert cells.calibrated_share() == pytest.approx(share)


def test_the_range_of_a_binomial_is_scipys() -> None:
    n = np.array([1.0, 3, 10, 57, 1000, 10.6])
    for p in (0.0, 1e-3, 0.1, 0.5, 0.93, 1.0):
        for level in (0.5, 0.95, 0.997):
            ends = tails.binomial_range(np.full(6, p), n, level=level)
            whole = np.floor(n)
            for found, share in zip(ends, ((1 - level) / 2, (1 + level) / 2), strict=True):
                np.testing.assert_allclose(found, np.maximum(stats.binom.ppf(share, whole, p), 0) / whole)


def test_the_chance_of_rare_events_is_that_of_their_exact_distribution() -> None:
    rng = np.random.default_rng(0)
    for p in (rng.gamma(0.8, 0.01, 400), rng.random(60), np.full(100, 0.002), rng.beta(0.05, 0.3, 300)):
        mass = np.ones(1)
        for one in p:
            mass = np.convolve(mass, [1 - one, one])
        for seen in range(0, len(p) + 1, 3):
            exact = min(2 * min(mass[: seen + 1].sum(), mass[seen:].sum()), 1)
            if exact > 1e-9:
                assert tails.events_chance(p, seen) == pytest.approx(exact, rel=0.1)


def test_the_chance_of_weighted_events_is_that_of_draws() -> None:
    rng = np.random.default_rng(1)
    p, weight = rng.gamma(0.8, 0.05, 300).clip(0, 0.9), rng.choice([0.5, 1, 2, 4], 300)
    drawn = (rng.random((50_000, 300)) < p) @ weight
    for share in (0.005, 0.05, 0.9, 0.995):
        seen = float(np.quantile(drawn, share))
        seen_so = 2 * min((drawn <= seen).mean(), (drawn >= seen).mean())
        assert tails.events_chance(p, seen, weight) == pytest.approx(seen_so, rel=0.25)
    # Four copies of each in a group are worth a quarter of them.
    assert tails.events_chance(np.repeat(p, 4), 4 * 40, effect=4.0) == pytest.approx(
        tails.events_chance(p, 40), rel=0.1
    )
