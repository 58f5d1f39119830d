"""Metrics of rows that weigh, and of so many that they are read in one pass, are those of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import metrics
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics import evaluate, evaluation
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


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in groups"])
@pytest.mark.parametrize("classes", [2, 4])
def test_many_rows_in_one_pass_give_what_they_give_row_by_row(
    classes: int, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y = draw(classes)
    groups = np.arange(N) // 4 if grouped else None
    by_row = evaluate(z, y, outputs="logits", replicates=400, groups=groups).estimates()
    monkeypatch.setattr(evaluation, "MOST_ROWS_RESAMPLED", N - 1)
    at_once = evaluate(z, y, outputs="logits", replicates=400, groups=groups).estimates()
    for name, one in by_row.items():
        other = at_once[name]
        near = {"rel": 0.1} if name in FLOORS else {"abs": 1e-9}
        assert other.value == pytest.approx(one.value, **near), name
        if name in ("nll", "brier", "signed_gap", "mean_confidence", "entropy"):
            assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=1e-9), name
        if name in ("ece", "adaptive_ece", "smooth_ece", "refinement_auroc", "aurc"):
            assert 0.6 < (other.high - other.low) / (one.high - one.low) < 1.6, name


def test_intervals_hold_the_truth_of_weighted_rows() -> None:
    truth, held = 0.5, 0
    for _ in range(200):
        right = RNG.random(400) < truth
        weight = RNG.exponential(size=400)
        found = evaluate(np.full((400, 2), 0.5), np.where(right, 0, 1), sample_weight=weight, replicates=0)
        held += found.accuracy.low <= truth <= found.accuracy.high
    assert held / 200 > 0.9


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
    assert "too little" in weighted.reasons[0]
    assert "too much" in judge(metrics.softmax(z), y).reasons[0]


def test_logits_of_any_size_keep_the_nll_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = np.array([[2000.0, 0.0], [0.0, 1e4]] * 20, np.float32), np.array([1, 1] * 20)
    by_row = evaluate(z, y, outputs="logits", replicates=0)
    monkeypatch.setattr(evaluation, "MOST_ROWS_RESAMPLED", 1)
    at_once = evaluate(z, y, outputs="logits", replicates=0)
    assert at_once.nll.value == pytest.approx(by_row.nll.value) == pytest.approx(1000.0)
    assert at_once.entropy.value == 0


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
