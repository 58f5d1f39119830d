"""Numbers that other implementations give on one fixed input."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import metrics


@pytest.fixture(scope="module")
def probs_and_labels() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = (3 * rng.standard_normal((500, 7))).astype("f4")
    y = np.where(rng.random(500) < 0.7, z.argmax(1), rng.integers(0, 7, 500))
    return metrics.softmax(z), y


GOLDEN = {
    # Mukhoti's code (focal_calibration), torchmetrics, netcal and NCToolkit agree on these.
    "ece": (metrics.ece, {}, 0.1558123677968979),
    "classwise_ece": (metrics.classwise_ece, {}, 0.06451832503080368),
    "mce": (metrics.mce, {}, 0.578097383181254),
    "ace": (metrics.ace, {}, 0.18716986809498318),
    "rms": (metrics.rms, {}, 0.18837538361549377),
    "entropy": (metrics.entropy, {}, 0.7912630438804626),
    "nll": (metrics.nll, {}, 1.5687425136566162),
    "brier": (metrics.brier, {}, 0.5019800662994385),
    # verified_calibration: equal mass, and the debiased marginal error.
    "adaptive_ece": (metrics.adaptive_ece, {}, 0.16517528420686725),
    "classwise_rms_debiased": (metrics.classwise_rms_debiased, {}, 0.07523555374719142),
    # Equal mass by interpolated edges (Mukhoti, NCToolkit) and by np.quantile's (netcal).
    "interpolated": (metrics.adaptive_ece, {"split": "interpolated"}, 0.15775862336158752),
    "quantile": (metrics.adaptive_ece, {"split": "quantile"}, 0.15948453456163408),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_equals_the_golden_number(name: str, probs_and_labels: tuple[np.ndarray, np.ndarray]) -> None:
    metric, options, golden = GOLDEN[name]
    assert metric(*probs_and_labels, **options) == pytest.approx(golden, abs=1e-6)


def test_evaluate_gives_what_the_single_functions_give(
    probs_and_labels: tuple[np.ndarray, np.ndarray],
) -> None:
    found = metrics.evaluate(*probs_and_labels, bins=12, edges="left", replicates=0).estimates()
    binned = {"ece", "mce", "ace", "rms", "rms_debiased", "noise_floor", "classwise_ece"}
    binned |= {"overconfidence_error", "underconfidence_error"}
    for name, estimate in found.items():
        options = {"bins": 12, "edges": "left"} if name in binned else {}
        options = {"bins": 12} if name == "adaptive_ece" else options
        single = getattr(metrics, name)(*probs_and_labels, **options)
        assert estimate.value == pytest.approx(single, abs=1e-12), name


@pytest.mark.parametrize(
    ("file", "accuracy", "ece"),
    [("kull_resnet110_c10", 0.9356, 0.0475), ("resnet50_c10_cross_entropy", 0.9505, 0.0435)],
)
def test_published_numbers_follow_from_the_real_logits(data_dir, file, accuracy, ece) -> None:
    with np.load(data_dir / "logits" / f"{file}.npz") as arrays:
        found = metrics.evaluate(arrays["test_logits"], arrays["test_labels"], replicates=0, outputs="logits")
    assert found.accuracy.value == pytest.approx(accuracy, abs=5e-5)
    assert found.ece.value == pytest.approx(ece, abs=5e-5)
