"""Net benefit, likelihood ratios and skill: by hand, by brute force, and where samples say little."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sizes import sized

from calib_serve import metrics
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.likelihood_ratios import _Trials

RNG = np.random.default_rng(0)
DRAWS = sized(ci=100, nightly=1000)


def trials(n: int, rng: np.random.Generator, *, of_group: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are a log-ratio of N(1.5, 1) to N(0, 1), and outcomes; alike within groups."""
    y = np.repeat(rng.random(n // of_group) < 0.3, of_group).astype(int)
    x = np.repeat(rng.normal(size=n // of_group), of_group) + 1.5 * y
    return 1.5 * x - 1.5**2 / 2, y


def calibrated(ratios: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-ratios - np.log(0.3 / 0.7)))


@st.composite
def few(draw) -> tuple[np.ndarray, np.ndarray]:
    """Few scores with ties, both outcomes among them."""
    y = [*draw(st.lists(st.integers(0, 1), max_size=12)), 0, 1]
    scores = draw(st.lists(st.integers(-3, 3), min_size=len(y), max_size=len(y)))
    return np.array(scores, float), np.array(y)


@given(few(), st.floats(0.01, 0.99))
@example(
    (
        np.array([0.0, -2, 2, 0, 0, 0, 0, 1, 0, 0, -1, -2, -1]),
        np.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1]),
    ),
    0.5,
)
@settings(deadline=None)
def test_the_hull_gives_what_trying_every_threshold_does(pair, prior: float) -> None:
    scores, y = pair
    thresholds = [*np.unique(scores), np.inf]
    miss = np.array([(scores[y == 1] < t).mean() for t in thresholds])
    alarm = np.array([(scores[y == 0] >= t).mean() for t in thresholds])
    least = (prior * miss + (1 - prior) * alarm).min() / min(prior, 1 - prior)
    found = metrics.evaluate_ratios(scores, y, prior=prior)
    assert found["min_dcf"].value == pytest.approx(least, abs=1e-12)
    # The equal error rate of the hull is the least error at the worst of all priors.
    weights = np.linspace(0, 1, 20_001)
    worst = np.min(weights[:, None] * miss + (1 - weights[:, None]) * alarm, axis=1).max()
    assert found["eer"].value == pytest.approx(worst, abs=1e-4)
    pooled = _Trials.of(scores, y, None, None).best
    rising = pooled[np.argsort(scores, kind="stable")]
    assert (rising[1:] >= rising[:-1]).all()
    assert found["min_cllr"] == pytest.approx(metrics.evaluate_ratios(pooled, y)["cllr"].value, abs=1e-12)
    assert found["min_cllr"] <= found["cllr"].value + 1e-12


@pytest.mark.parametrize("of_group", [1, 5])
def test_intervals_hold_the_truth_as_often_as_they_say(of_group: int) -> None:
    rng = np.random.default_rng(of_group)
    n = 1000

    def measured(ratios, y, groups=None) -> list[metrics.Estimate]:
        p = calibrated(ratios)
        pair = np.stack([1 - p, p], axis=1)
        curve = metrics.decision_curve(p, y, thresholds=[0.2, 0.99], groups=groups)
        scores = ("nll", "brier")
        skills = [metrics.skill(pair, y, score=s, groups=groups) for s in scores]  # type: ignore[arg-type]
        costs = metrics.evaluate_ratios(ratios, y, prior=0.3, groups=groups)
        of_ratios = [costs[name] for name in ("cllr", "eer", "min_dcf")]
        return [*curve.model, *curve.over_all, *curve.all, *skills, *of_ratios]

    truth = measured(*trials(1_000_000, rng))
    groups = None if of_group == 1 else np.arange(n) // of_group
    found = [measured(*trials(n, rng, of_group=of_group), groups) for _ in range(DRAWS)]
    held = [[e.low <= t.value <= e.high for e, t in zip(row, truth, strict=True)] for row in found]
    assert np.mean(held, axis=0).min() >= 0.88
    assert np.mean(held) <= 0.99


def test_a_decision_for_none_or_without_an_error_is_no_proof() -> None:
    none = metrics.decision_curve(np.full(50, 0.1), np.arange(50) < 5, thresholds=[0.9]).model[0]
    assert none.low < -0.1 < none.value == 0 < 0.01 < none.high
    apart, y = np.arange(40.0), np.arange(40) >= 20
    found = metrics.evaluate_ratios(apart, y)
    for name in ("eer", "min_dcf"):
        assert found[name].value == 0 < 0.05 < found[name].high


@pytest.mark.parametrize("k", [1, 3])
def test_a_weight_is_as_many_rows(k: int) -> None:
    ratios, y = trials(400, RNG)
    counts = RNG.integers(0, 4, 400) * k
    rows = np.repeat(np.arange(400), counts)
    p = calibrated(ratios)
    pair = np.stack([1 - p, p], axis=1)
    for one, args in [
        (lambda *a, **w: [metrics.decision_curve(*a, thresholds=[0.3], **w).model[0]], (p, y)),
        (lambda *a, **w: [metrics.skill(*a, **w)], (pair, y)),
        (lambda *a, **w: list(metrics.evaluate_ratios(*a, **w).values()), (ratios, y)),
    ]:
        repeated = one(*(a[rows] for a in args))
        assert list(map(float, one(*args, sample_weight=counts))) == pytest.approx(list(map(float, repeated)))


def test_treating_all_and_none_are_the_ends_of_a_curve() -> None:
    ratios, y = trials(500, RNG)
    curve = metrics.decision_curve(calibrated(ratios), y, thresholds=[1e-9, 0.25, 0.5, 1 - 1e-9])
    assert (curve.model[0], curve.model[-1]) == (curve.all[0], 0)
    for model, every, over in zip(curve.model, curve.all, curve.over_all, strict=True):
        assert model - every == pytest.approx(over, rel=1e-6)


def test_certainty_that_is_wrong_costs_infinitely_and_far_tails_do_not() -> None:
    assert metrics.evaluate_ratios([np.inf, -1.0], [0, 1])["cllr"].value == np.inf
    assert metrics.skill([[1, 0], [0.5, 0.5]], [1, 0], score="nll").value == -np.inf
    assert np.isnan(metrics.skill([[0.9, 0.1]] * 2, [0, 0]))
    # 1 - 1e-20 is 1 in float64; the other column still knows.
    assert metrics.log_ratios([[1e-20, 1.0]], prior=0.5)[0] == pytest.approx(20 * np.log(10))


def test_skill_is_over_the_shares_of_the_classes() -> None:
    p, y = [[0.9, 0.1], [0.2, 0.8]], [0, 1]
    assert metrics.skill(p, y).value == pytest.approx(1 - (0.02 + 0.08) / 2 / 0.5)
    nce = 1 + (np.log(0.9) + np.log(0.8)) / 2 / np.log(2)
    assert metrics.skill(p, y, score="nll").value == pytest.approx(nce)


def test_two_classes_are_evaluated_as_one_decides_and_more_are_not() -> None:
    ratios, y = trials(600, RNG)
    p = calibrated(ratios)
    found = metrics.evaluate(p, y, outputs="probability")
    ours = metrics.log_ratios(p, prior=y.mean())
    assert found.positive_cllr == pytest.approx(metrics.evaluate_ratios(ours, y)["cllr"])
    assert found.positive_cllr.low < found.positive_cllr < found.positive_cllr.high
    assert found.positive_min_cllr <= found.positive_cllr
    assert found.positive_brier_skill == pytest.approx(1 - found.positive_brier / (y.mean() * (1 - y.mean())))
    assert metrics.evaluate(p, 0 * y, outputs="probability").positive_eer is None
    of_three = metrics.evaluate(np.full((9, 3), 1 / 3), np.arange(9) % 3, outputs="probabilities")
    assert of_three.positive_eer is None


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: metrics.decision_curve([0.5], [1], thresholds=[1.0]), InputError),
        (lambda: metrics.decision_curve([0.5], [1], thresholds=[]), ShapeError),
        (lambda: metrics.evaluate_ratios([1.0, 2.0], [1, 1]), InputError),
        (lambda: metrics.evaluate_ratios([1.0, np.nan], [0, 1]), InputError),
        (lambda: metrics.evaluate_ratios([[1.0, 2.0]], [0, 1]), ShapeError),
        (lambda: metrics.evaluate_ratios([1.0, 2.0], [0, 1], prior=0), InputError),
        (lambda: metrics.log_ratios([0.5], prior=1), InputError),
        (lambda: metrics.skill([[0.5, 0.5]], [0], score="ece"), InputError),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_measured_is_refused(call, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
