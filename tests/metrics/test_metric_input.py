"""Input that cannot be right is refused with an error that says what to pass."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import metrics
from calib_serve.core.errors import InputError, ShapeError

PROBS = np.array([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5]])
LABELS = np.array([0, 1, 0])

OF_PROBS = [
    metrics.accuracy,
    metrics.adaptive_ece,
    metrics.binned,
    metrics.brier,
    metrics.classwise_ece,
    metrics.ece,
    metrics.ece_terms,
    metrics.entropy,
    metrics.nll,
    metrics.refinement_auroc,
    metrics.smooth_ece,
]

BAD = {
    "one-hot labels": (PROBS, np.eye(2)[LABELS], ShapeError, "not one-hot"),
    "labels of another length": (PROBS, LABELS[:2], ShapeError, r"labels must be \(3,\), got \(2,\)"),
    "a label that is no class": (PROBS, [0, 2, 0], InputError, r"\[0, 2\), got 0 to 2"),
    "float labels": (PROBS, [0.0, 1.0, 0.0], InputError, r"\.astype\(int\)"),
    "NaN": (np.where(PROBS == 0.7, np.nan, PROBS), LABELS, InputError, "sum to 1"),
    "logits": (np.log(PROBS), LABELS, InputError, r"softmax\(logits\)"),
    "percent": (100 * PROBS, LABELS, InputError, "sum to 1"),
    "a negative probability": (PROBS + np.array([0.5, -0.5]), LABELS, InputError, "non-negative"),
    "no sample": (np.empty((0, 2)), np.empty(0, int), ShapeError, "n >= 1"),
    "binary scores": (PROBS[:, 1], LABELS, ShapeError, r"np\.stack\(\[1 - p, p\]"),
    "complex numbers": (PROBS + 0j, LABELS, InputError, "must be numbers"),
}


OF_SOFT_LABELS = (metrics.brier, metrics.nll)


def test_soft_labels_are_shares_of_the_classes() -> None:
    p, q = np.array([[0.8, 0.2], [1.0, 0.0]]), np.array([[0.5, 0.5], [1.0, 0.0]])
    # Of a share of 0 the logarithm does not count, and a weight of 3 is three rows.
    nll, brier = -np.log(0.8 * 0.2) / 2, 2 * 0.3**2
    assert metrics.nll(p, q, sample_weight=[1, 3]) == pytest.approx(nll / 4)
    assert metrics.brier(p, q, sample_weight=[1, 3]) == pytest.approx(brier / 4)
    for wrong in (q[:, :1], q[:1], q * 1.1, q - [[1, -1], [0, 0]], np.where(q == 1, np.nan, q)):
        for metric in OF_SOFT_LABELS:
            with pytest.raises((InputError, ShapeError)):
                metric(p, wrong)


@pytest.mark.parametrize("case", BAD)
def test_every_metric_refuses(case: str) -> None:
    probs, labels, error, message = BAD[case]
    for metric in OF_PROBS:
        if case == "one-hot labels" and metric in OF_SOFT_LABELS:
            continue
        with pytest.raises(error, match=message):
            metric(probs, labels)


@pytest.mark.parametrize(
    "options",
    [
        {"bins": 0},
        {"edges": "both"},
        {"replicates": -1},
        {"replicates": 15},
        {"level": 0.0},
        {"level": 1.0},
        {"level": 95},
    ],
    ids=str,
)
def test_evaluate_refuses_options_that_cannot_be_right(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        metrics.evaluate(PROBS, LABELS, **options)


def test_the_fewest_replicates_give_every_error_its_interval() -> None:
    found = metrics.evaluate(PROBS, LABELS, replicates=16, outputs="probabilities")
    assert np.isfinite([found.ece.low, found.ece.high, found.classwise_ece.low, found.aurc.low]).all()


def test_logits_are_refused_when_not_finite() -> None:
    for wrong in (np.nan, np.inf):
        with pytest.raises(InputError, match=r"missing|finite"):
            metrics.evaluate([[0.0, wrong]], [0], outputs="logits")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_every_float_type_is_taken_and_computed_in_float64(dtype: type) -> None:
    rng = np.random.default_rng(1)
    probs = metrics.softmax(rng.standard_normal((300, 20))).astype(dtype)
    labels = rng.integers(0, 20, 300)
    exact = probs.astype(np.float64)
    for metric in (metrics.ece, metrics.nll, metrics.entropy, metrics.brier, metrics.classwise_ece):
        assert metric(probs, labels) == pytest.approx(metric(exact / 1.0, labels), rel=1e-12)


EXTREMES = {
    "one sample": ([[0.5, 0.5]], [1]),
    "all right": (np.tile([[0.9, 0.1]], (20, 1)), [0] * 20),
    "all wrong": (np.tile([[0.9, 0.1]], (20, 1)), [1] * 20),
    "certain, and once wrong": (np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 1]),
    "all equally unsure": (np.full((30, 4), 0.25), np.arange(30) % 4),
    "a confidence that rounds above 1": (np.array([[1.0000001, 0, 0]] * 5, np.float32), [0, 0, 1, 2, 0]),
    "more classes than samples": (np.full((3, 500), 1 / 500, np.float16), [0, 1, 499]),
}


@pytest.mark.parametrize("case", EXTREMES)
def test_extreme_but_right_input_gives_numbers_without_a_warning(case: str) -> None:
    probs, labels = EXTREMES[case]
    for bins in (1, 15, 300):
        found = metrics.evaluate(probs, labels, bins=bins, replicates=16, outputs="probabilities").estimates()
        for name, e in found.items():
            held = e.value if np.isnan(e.debiased) else e.debiased
            assert not e.low > held + 1e-12, name
            assert not e.high < held - 1e-12, name
        assert 0 <= found["ece"].value <= 1 + 1e-6
    decomposed = metrics.brier_terms(probs, labels)
    assert decomposed.brier == pytest.approx(found["brier"].value)
    assert metrics.ece_terms(probs, labels).ece == pytest.approx(metrics.ece(probs, labels))
    assert metrics.abstention(probs, labels, risk=0.1).answered in (0, 1)
    assert metrics.paired_changes(probs, probs, labels, replicates=5)["ece"].difference.value == 0
