"""Samples that are checked already keep their labels, and weights are never dropped without a word."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit import fit_temperature, select
from calib_serve.fit.samples import Samples

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.standard_normal((300, 3))
LABELS = np.where(RNG.random(300) < 0.6, LOGITS.argmax(axis=1), RNG.integers(0, 3, 300))
WEIGHT = RNG.random(300) + 0.1


def test_weights_given_with_samples_count_as_with_arrays() -> None:
    samples = Samples.of(LOGITS, LABELS)
    for options in (
        {"sample_weight": WEIGHT},
        {"class_weight": "balanced"},
        {"class_weight": [1.0, 2.0, 3.0], "sample_weight": WEIGHT},
    ):
        expected = fit_temperature(Samples.of(LOGITS, LABELS, **options)).fit["temperature"]
        assert fit_temperature(Samples.of(samples, LABELS, **options)).fit["temperature"] == expected
        assert expected != fit_temperature(Samples.of(LOGITS, LABELS)).fit["temperature"]
    chosen = select(Samples.of(samples, LABELS, sample_weight=WEIGHT), candidates=["temperature"])
    assert chosen.data["weighted"]


def test_other_labels_and_a_second_set_of_weights_are_refused() -> None:
    samples = Samples.of(LOGITS, LABELS, sample_weight=WEIGHT)
    for labels in ((LABELS + 1) % 3, LABELS[:-1]):
        with pytest.raises(InputError, match="have labels already"):
            Samples.of(samples, labels)
    with pytest.raises(InputError, match="have weights already"):
        Samples.of(samples, LABELS, sample_weight=WEIGHT)
    with pytest.raises(InputError, match="have weights already"):
        Samples.of(samples, LABELS, class_weight="balanced")
    with pytest.raises(ShapeError, match="sample_weight"):
        Samples.of(Samples.of(LOGITS, LABELS), LABELS, sample_weight=WEIGHT[:-1])
