"""The tuned head: between the deployed head and one of its own, by what held-out samples say."""

from __future__ import annotations

import numpy as np
import pytest

from calib_serve.artifact import Artifact, Head
from calib_serve.core.errors import FitError, InputError, ShapeError
from calib_serve.fit import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.fit.tuned_head import STRENGTHS, fit_tuned_head
from calib_serve.metrics import nll
from calib_serve.scores import softmax

RNG = np.random.default_rng(3)
TRUE = RNG.standard_normal((4, 6))
OFF = TRUE + 1.2 * RNG.standard_normal((4, 6))  # a deployed head that has the truth only roughly


def draw(n: int, seed: int, weight: np.ndarray = TRUE) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6)).astype(np.float32)
    return x, np.array([rng.choice(4, p=p) for p in softmax(x @ weight.T)])


CAL, TEST = draw(2_000, 0), draw(5_000, 1)
ROUGH = Head((3 * OFF,), (np.zeros(4),))


def error(artifact: Artifact, test: tuple[np.ndarray, np.ndarray] = TEST) -> float:
    assert artifact.head is not None
    return float(nll(artifact.probs(artifact.head(test[0])), test[1]))


def test_at_infinite_strength_it_is_the_deployed_head_and_its_temperature() -> None:
    artifact = fit_tuned_head(*CAL, ROUGH, strength=np.inf)
    alone = fit_temperature(Samples.of(ROUGH(CAL[0].astype(np.float64)), CAL[1]))
    np.testing.assert_allclose(
        artifact.probs(artifact.head(TEST[0])), alone.probs(ROUGH(TEST[0])), rtol=1e-4, atol=1e-7
    )
    assert (artifact.fit["moved"], artifact.fit["strength"]) == (0, None)
    assert artifact.fit["behind"]["temperature"] == pytest.approx(1, abs=1e-6)


def test_a_rough_head_is_corrected_and_the_temperature_alone_beaten() -> None:
    tuned, alone = fit_tuned_head(*CAL, ROUGH), fit_tuned_head(*CAL, ROUGH, strength=np.inf)
    bayes = float(nll(softmax(TEST[0] @ TRUE.T), TEST[1]))
    assert error(tuned) < error(alone) - 0.1
    assert error(tuned) < bayes + 0.02
    assert tuned.fit["strength"] in STRENGTHS
    least = min(tuned.fit["held_out_nll"].values())
    assert tuned.fit["held_out_nll"][f"{tuned.fit['strength']:.3g}"] == least


def test_hostile_input_is_refused() -> None:
    x, y = CAL
    two = Head((np.zeros((3, 6)), np.zeros((4, 3))), (np.zeros(3), np.zeros(4)))
    for wrong, error_type, said in (
        ({"head": two}, InputError, "one linear layer"),
        ({"strength": float("nan")}, InputError, "above 0"),
        ({"then": "masked-head"}, InputError, "masked-head changes the model"),
        ({"features": x[:, :5]}, ShapeError, "features must be"),
        ({"features": np.where(x > 2, np.nan, x)}, InputError, "NaN"),
        ({"labels": y + 1}, InputError, "label"),
        ({"folds": 1}, InputError, "folds"),
        ({"labels": (ROUGH(x)).argmin(axis=1)}, FitError, "no higher"),
    ):
        given = {"features": x, "labels": y, "head": ROUGH} | wrong
        with pytest.raises(error_type, match=said):
            fit_tuned_head(given.pop("features"), given.pop("labels"), given.pop("head"), **given)
