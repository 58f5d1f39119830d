"""The loss as calibration and refinement: what a recalibration would remove, on samples it has not seen."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit.refinement import recalibrated_losses
from calib_serve.metrics import LossTerms, brier, brier_terms, nll, sample_losses
from calib_serve.scores import softmax


def drawn(n: int, factor: float, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, classes))
    return factor * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.mark.parametrize("classes", [2, 4])
def test_what_a_known_factor_costs_is_calibration_and_the_rest_refinement(classes: int) -> None:
    z, y = drawn(6000, 3.0, classes)
    found = recalibrated_losses(z, y, outputs="logits")
    assert found is not None
    exact = {"nll": nll(softmax(z / 3), y), "brier": brier(softmax(z / 3), y)}
    whole = {"nll": nll(softmax(z), y), "brier": brier(softmax(z), y)}
    for name, terms in (("nll", found.nll), ("brier", found.brier)):
        assert terms.loss.value == pytest.approx(whole[name], rel=1e-9)
        assert terms.loss.value == pytest.approx(terms.calibration.value + terms.refinement.value)
        assert terms.refinement.value == pytest.approx(exact[name], abs=0.005)
        cost = whole[name] - exact[name]
        assert terms.calibration.low < cost < terms.calibration.high
        assert terms.calibration.low > 0


def test_of_a_calibrated_model_nothing_would_be_removed() -> None:
    found = recalibrated_losses(*drawn(3000, 1.0), outputs="logits")
    assert found is not None
    assert found.nll.calibration.low < 0
    assert abs(found.nll.calibration.value) < 0.01
    assert "would remove nothing" in found.says()


def test_one_confidence_has_the_same_terms_as_in_murphys_bins() -> None:
    p, y = np.tile([0.8, 0.2], (10, 1)), np.array([0] * 6 + [1] * 4)
    losses = (sample_losses(q, y, "brier") for q in (p, np.tile([0.6, 0.4], (10, 1))))
    found, murphy = LossTerms.of(*losses), brier_terms(p, y)
    assert found.loss.value == pytest.approx(murphy.brier)
    assert found.calibration.value == pytest.approx(murphy.calibration)
    assert found.refinement.value == pytest.approx(murphy.refinement)


def test_the_interval_of_calibration_is_of_pairs() -> None:
    loss = np.random.default_rng(0).exponential(size=400)
    terms = LossTerms.of(loss + 0.01, loss)
    assert terms.calibration.high - terms.calibration.low < 1e-9
    assert terms.loss.high - terms.loss.low > 0.1


def test_where_nothing_can_be_fitted_nothing_is_told() -> None:
    z, y = drawn(40, 1.0)
    assert recalibrated_losses(z[:1], y[:1], outputs="logits") is None
    one_class = recalibrated_losses(z, np.zeros(40, int), outputs="logits")
    assert one_class is None or np.isfinite(one_class.nll.loss.value)
    right = recalibrated_losses(z, z.argmax(axis=1), outputs="logits")
    assert right is None or np.isfinite(right.nll.refinement.value)
    huge = recalibrated_losses(1e28 * np.abs(z), y, outputs="logits")
    assert huge is None or np.isfinite(huge.nll.loss.value)


def test_what_cannot_be_right_is_refused() -> None:
    with pytest.raises(InputError, match="missing"):
        recalibrated_losses([[np.nan, 1.0]] * 4, [0, 1, 0, 1])
    for level in (0, 1, 2, np.nan):
        with pytest.raises(InputError, match="level"):
            recalibrated_losses([[0.0, 1.0]] * 4, [0, 1, 0, 1], level=level)
    with pytest.raises(ShapeError, match="both be"):
        LossTerms.of([0.5, 0.5], [0.2])
