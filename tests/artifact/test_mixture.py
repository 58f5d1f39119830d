"""A mixture of softmaxes is one step of an artifact like any other."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve import Artifact, LogitMap, Mixture, ProbTable
from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics import softmax

LOGITS = np.random.default_rng(0).normal(0, 3, (50, 4))
MIXTURE = Mixture(scales=[0.5, 1.0], weights=[0.6, 0.3, 0.1])


def test_it_is_the_weighted_sum_and_a_distribution():
    expected = 0.6 * softmax(LOGITS / 2) + 0.3 * softmax(LOGITS) + 0.1 / 4
    np.testing.assert_allclose(MIXTURE(LOGITS), expected, rtol=1e-14)
    np.testing.assert_allclose(MIXTURE(LOGITS).sum(axis=1), 1, rtol=1e-14)


def test_it_acts_after_the_logit_maps_and_before_the_table():
    table = ProbTable(np.array([[0.5]]), np.array([[0.3, 0.8]]))
    artifact = Artifact((LogitMap.temperature(2.0), MIXTURE, table), method="all", classes=4)
    np.testing.assert_array_equal(artifact.probs(LOGITS), table(MIXTURE(LOGITS / 2)))
    with pytest.raises(InputError, match="mixture, prob_table"):
        Artifact((table, MIXTURE), method="wrong order", classes=4)
    with pytest.raises(InputError, match="mixture"):
        Artifact((MIXTURE, MIXTURE), method="twice", classes=4)


@pytest.mark.parametrize(
    ("scales", "weights", "error"),
    [
        ([1.0], [1.0], ShapeError),
        ([], [1.0], ShapeError),
        ([0.0], [0.5, 0.5], InputError),
        ([1.0], [1.5, -0.5], InputError),
        ([1.0], [0.5, 0.4], InputError),
        ([np.nan], [0.5, 0.5], InputError),
    ],
)
def test_what_is_no_mixture_of_distributions_is_refused(scales, weights, error):
    with pytest.raises(error):
        Mixture(scales=scales, weights=weights)
