"""Numbers that other implementations give on one fixed input."""

from __future__ import annotations

from typing import Any

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
    "ece": 0.1558123677968979,
    "classwise_ece": 0.06451832503080368,
    "mce": 0.578097383181254,
    "ace": 0.18716986809498318,
    "rms": 0.18837538361549377,
    "entropy": 0.7912630438804626,
    "nll": 1.5687425136566162,
    "brier": 0.5019800662994385,
    # verified_calibration: equal mass.
    "adaptive_ece": 0.16517528420686725,
}
BINNED = {"mce": "mce", "ace": "ace", "rms": "l2", "noise_floor": "noise_floor"}


@pytest.mark.parametrize("edges", ["right", "left"])
def test_evaluate_and_the_single_functions_give_the_golden_numbers(
    probs_and_labels: tuple[np.ndarray, np.ndarray], edges: Any
) -> None:
    found = metrics.evaluate(*probs_and_labels, edges=edges, replicates=0).estimates()
    bins = metrics.binned(*probs_and_labels, edges=edges)
    for name, golden in GOLDEN.items():
        how = {"edges": edges} if name in ("ece", "classwise_ece") else {}
        single = (
            getattr(bins, BINNED[name])()
            if name in BINNED
            else getattr(metrics, name)(*probs_and_labels, **how)
        )
        assert found[name].value == pytest.approx(single, abs=1e-12), name
        assert single == pytest.approx(golden, abs=1e-6), name
    for name in ("smooth_ece", "refinement_auroc"):
        assert found[name].value == pytest.approx(getattr(metrics, name)(*probs_and_labels), abs=1e-12)


@pytest.mark.parametrize(
    ("file", "accuracy", "ece"),
    [("kull_resnet110_c10", 0.9356, 0.0475), ("resnet50_c10_cross_entropy", 0.9505, 0.0435)],
)
def test_published_numbers_follow_from_the_real_logits(data_dir, file, accuracy, ece) -> None:
    with np.load(data_dir / "logits" / f"{file}.npz") as arrays:
        found = metrics.evaluate(arrays["test_logits"], arrays["test_labels"], replicates=0, outputs="logits")
    assert found.accuracy.value == pytest.approx(accuracy, abs=5e-5)
    assert found.ece.value == pytest.approx(ece, abs=5e-5)
