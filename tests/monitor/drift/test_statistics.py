"""Statistics from bin sums are those of scipy and scikit-learn."""

import math

import numpy as np
import pytest

from calib_serve.core.bins import Bins
from calib_serve.monitor.drift.statistics import auroc, expected_accuracy
from calib_serve.receipts.sums import Sums


def test_auroc_from_bins_is_sklearns_with_binned_scores():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    c = rng.random(2000)
    y = rng.random(2000) < c
    binned = np.ceil(c * 15)
    assert auroc(Bins.tally(c, y)) == pytest.approx(roc_auc_score(y, binned), rel=1e-12)


def test_expected_accuracy_covers_the_truth_while_calibrated():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        c = rng.beta(5, 2, 400)
        accuracy = (rng.random(400) < c).mean()
        expected = expected_accuracy(Sums.served(c))
        inside += abs(accuracy - expected.accuracy) <= 1.96 * expected.standard_error
    assert inside >= 184  # 95 % of 200, less 2 sigma
    assert math.isnan(expected_accuracy(Sums.zeros()).accuracy)
