"""Metrics of rows that weigh, and of so many that they are read in one pass, are those of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import metrics
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import percent
from calib_serve.metrics import evaluate
from calib_serve.metrics.judging import judge

RNG = np.random.default_rng(0)
N = 1200
FLOORS = ("noise_floor", "positive_noise_floor")  # weights leave fewer samples to average chance away


def draw(classes: int) -> tuple[np.ndarray, np.ndarray]:
    z = 2 * RNG.standard_normal((N, classes))
    return z, (z + 1.5 * RNG.gumbel(size=z.shape)).argmax(axis=1)


def values(z: np.ndarray, y: np.ndarray, kind: str, **how: object) -> dict[str, float]:
    scores = z if kind == "logits" else metrics.softmax(z)
    found = evaluate(scores, y, outputs=kind, replicates=0, **how).estimates()
    return {name: estimate.value for name, estimate in found.items() if name not in FLOORS}


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_weight_is_as_many_rows_and_a_scale_is_nothing(classes: int, kind: str) -> None:
    (z, y), counts = draw(classes), RNG.integers(0, 4, N)
    again = np.repeat(np.arange(N), counts)
    weighted = values(z, y, kind, sample_weight=counts)
    assert weighted == pytest.approx(values(z[again], y[again], kind), abs=1e-9)
    kept = counts > 0
    assert weighted == values(z[kept], y[kept], kind, sample_weight=counts[kept])
    fractions = RNG.random(N)
    assert values(z, y, kind, sample_weight=fractions) == pytest.approx(
        values(z, y, kind, sample_weight=2.5 * fractions), abs=1e-9
    )
    assert values(z, y, kind, sample_weight=np.full(N, 0.3)) == pytest.approx(values(z, y, kind), abs=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_rows_four_times_over_in_groups_say_what_they_say_once(classes: int) -> None:
    z, y = draw(classes)
    row = np.arange(N).repeat(4)
    once = evaluate(z, y, outputs="logits", replicates=400).estimates()
    again = evaluate(z[row], y[row], outputs="logits", replicates=400, groups=row).estimates()
    for name in ("nll", "ece", "adaptive_ece", "smooth_ece", "classwise_ece", "mce", "ace", "rms"):
        one, four = once[name], again[name]
        assert four.value == pytest.approx(one.value, abs=1e-9), name
        assert four.high - four.low == pytest.approx(one.high - one.low, rel=0.25), name


def test_intervals_hold_the_truth_of_weighted_rows() -> None:
    truth, held = 0.5, 0
    for _ in range(80):
        right = RNG.random(400) < truth
        weight = RNG.exponential(size=400)
        found = evaluate(np.full((400, 2), 0.5), np.where(right, 0, 1), sample_weight=weight, replicates=0)
        held += found.accuracy.low <= truth <= found.accuracy.high
    assert held / 80 > 0.85


def test_groups_that_move_together_widen_intervals_of_weighted_rows() -> None:
    p = np.tile([0.7, 0.3], (N, 1))
    y = (RNG.random(N // 20) < 0.3).astype(int).repeat(20)
    weight = RNG.random(N) + 0.5
    alone, together = (
        evaluate(p, y, sample_weight=weight, groups=groups, replicates=80)
        for groups in (None, np.arange(N) // 20)
    )
    assert together.nll.high - together.nll.low > 3 * (alone.nll.high - alone.nll.low)
    assert together.ece.high - together.ece.low > 2 * (alone.ece.high - alone.ece.low)


def test_a_verdict_weighs_as_metrics_do() -> None:
    z, y = draw(3)
    right = metrics.softmax(z).argmax(axis=1) == y
    weight = np.where(right, 3.0, 0.0)
    weight[np.flatnonzero(~right)[:100]] = 1.0
    kept = weight > 0
    weighted = judge(metrics.softmax(z), y, sample_weight=weight)
    alone = judge(metrics.softmax(z[kept]), y[kept], sample_weight=weight[kept])
    assert (weighted.headline, weighted.reasons) == (alone.headline, alone.reasons)
    for one, other in zip(weighted.tests, alone.tests, strict=True):
        assert (one.error, one.most) == pytest.approx((other.error, other.most), rel=1e-9)
    assert f"It is right in {percent(np.average(right, weights=weight))} of" in weighted.reasons[0]
    assert "too little" in weighted.reasons[0]
    assert "too much" in judge(metrics.softmax(z), y).reasons[0]


def test_logits_of_any_size_keep_the_nll_finite() -> None:
    z, y = np.array([[2000.0, 0.0], [0.0, 1e4]] * 20, np.float32), np.array([1, 1] * 20)
    found = evaluate(z, y, outputs="logits", replicates=0)
    assert found.nll.value == pytest.approx(1000.0)
    assert found.entropy.value == 0


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        (np.ones(3), ShapeError),
        (-np.ones(N), InputError),
        (np.zeros(N), InputError),
        (np.full(N, np.nan), InputError),
        (["heavy"] * N, InputError),
    ],
    ids=["fewer", "negative", "none", "NaN", "text"],
)
def test_weights_that_cannot_be_are_refused(weight, error) -> None:
    z, y = draw(3)
    for use in (evaluate, judge):
        with pytest.raises(error):
            use(z, y, sample_weight=weight, outputs="logits")
