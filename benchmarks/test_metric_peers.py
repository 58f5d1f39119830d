"""Where their conventions agree with ours, torchmetrics, netcal and others give our numbers.

python benchmarks/peers.py requirements-metrics.txt
.venv-bench-metrics/bin/python -m pytest benchmarks/test_metric_peers.py
"""

from __future__ import annotations

import calibration as uncertainty_calibration
import netcal.metrics
import numpy as np
import pytest
import torch
from torchmetrics.functional import classification as torchmetrics

from calib_serve import metrics
from calib_serve.core.bins import Bins


@pytest.fixture(scope="module", params=[(1000, 3), (5000, 10), (800, 100)], ids=str)
def sample(request) -> tuple[np.ndarray, np.ndarray]:
    n, classes = request.param
    rng = np.random.default_rng(n)
    logits = 2 * rng.standard_normal((n, classes))
    labels = np.where(rng.random(n) < 0.6, logits.argmax(1), rng.integers(0, classes, n))
    labels[:classes] = np.arange(classes)  # netcal takes the classes that are present for all there are
    return metrics.softmax(logits), labels


@pytest.mark.parametrize(("ours", "norm"), [("ece", "l1"), ("l2", "l2"), ("mce", "max")])
def test_torchmetrics_calibration_errors(sample, ours: str, norm: str) -> None:
    p, y = sample
    theirs = torchmetrics.multiclass_calibration_error(
        torch.from_numpy(p), torch.from_numpy(y), p.shape[1], n_bins=15, norm=norm
    )
    found = getattr(metrics.binned(p, y, edges="left"), ours)()
    assert found == pytest.approx(float(theirs), abs=1e-6)


def test_torchmetrics_auroc_and_accuracy(sample) -> None:
    p, y = sample
    correct = torch.from_numpy((p.argmax(1) == y).astype(int))
    auroc = torchmetrics.binary_auroc(torch.from_numpy(p.max(1)), correct)
    assert metrics.refinement_auroc(p, y) == pytest.approx(float(auroc), abs=1e-6)
    theirs = torchmetrics.multiclass_accuracy(
        torch.from_numpy(p), torch.from_numpy(y), p.shape[1], average="micro"
    )
    assert metrics.accuracy(p, y) == pytest.approx(float(theirs), abs=1e-6)


def test_netcals_calibration_errors(sample) -> None:
    p, y = sample
    found = metrics.binned(p, y, edges="left")
    assert found.ece() == pytest.approx(netcal.metrics.ECE(15).measure(p, y))
    assert found.mce() == pytest.approx(netcal.metrics.MCE(15).measure(p, y))
    assert found.ace() == pytest.approx(netcal.metrics.ACE(15).measure(p, y))


def test_uncertainty_calibrations_errors(sample) -> None:
    p, y = sample
    assert metrics.ece(p, y) == pytest.approx(uncertainty_calibration.get_ece(p, y))
    marginal = uncertainty_calibration.get_ece(p, y, mode="marginal")
    assert metrics.classwise_ece(p, y) == pytest.approx(marginal)
    assert metrics.adaptive_ece(p, y) == pytest.approx(uncertainty_calibration.get_ece_em(p, y))


def test_a_confidence_on_an_edge_goes_where_each_of_them_puts_it() -> None:
    # .5 and .75 are edges of four bins: uncertainty-calibration closes bins on the right, as we do,
    # torchmetrics and netcal on the left.
    confidence, correct = np.array([0.5, 0.625, 0.75, 0.5]), np.array([1, 0, 0, 1])
    right = Bins.tally(confidence, correct, bins=4).ece()
    left = Bins.tally(confidence, correct, bins=4, edges="left").ece()
    assert right != pytest.approx(left)
    c, y = torch.from_numpy(confidence), torch.from_numpy(correct)
    assert float(torchmetrics.binary_calibration_error(c, y, n_bins=4)) == pytest.approx(left)
    assert netcal.metrics.ECE(4).measure(confidence, correct) == pytest.approx(left)
    assert uncertainty_calibration.get_ece(confidence, correct, num_bins=4) == pytest.approx(right)
