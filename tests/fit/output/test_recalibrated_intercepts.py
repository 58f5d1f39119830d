"""An intercept, intercept and slope, and a shift to other shares: maps of statistics, with their errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sizes import sized
from sklearn.linear_model import LogisticRegression

from calib_serve import Artifact, calibrate
from calib_serve.core.errors import FitError
from calib_serve.fit.output.binary import fit_intercept, fit_logistic, fit_platt
from calib_serve.fit.samples import Samples
from calib_serve.metrics import evaluate_event
from calib_serve.scores import sigmoid

HOW = {"outputs": "logit", "cross_validate": False}


def drawn(n: int, rng: np.random.Generator, *, of_group: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Logits too sure of themselves, of a class 1 that is rarer than they say; alike within groups."""
    z = np.repeat(rng.normal(size=n // of_group) * 2, of_group)
    return z, np.repeat(rng.random(n // of_group) < sigmoid(0.6 * z[::of_group] - 1), of_group).astype(int)


@pytest.mark.parametrize("groups", [None, np.arange(600) // 3])
def test_they_are_the_calibration_intercept_and_slope_and_their_errors(groups) -> None:
    z, y = drawn(600, np.random.default_rng(0), of_group=3 if groups is not None else 1)
    fit = calibrate(z, y, "logistic", groups=groups, **HOW).fit
    slope = evaluate_event(sigmoid(z), y, groups=groups).slope
    assert fit["slope"] == pytest.approx(slope.value, rel=1e-9)
    assert slope.high - slope.value == pytest.approx(1.959964 * fit["slope_error"], rel=1e-6)
    plain = LogisticRegression(C=np.inf, tol=1e-12).fit(z[:, None], y)
    assert fit["intercept"] == pytest.approx(plain.intercept_[0], abs=1e-5)
    fit = calibrate(z, y, "intercept", groups=groups, **HOW).fit
    alone = evaluate_event(sigmoid(z), y, groups=groups).intercept
    assert fit["intercept"] == pytest.approx(alone.value, rel=1e-9)
    assert alone.high - alone.value == pytest.approx(1.959964 * fit["intercept_error"], rel=1e-6)


@pytest.mark.parametrize("of_group", [1, 5])
def test_errors_are_the_spread_of_fits_to_other_samples(of_group: int) -> None:
    rng = np.random.default_rng(of_group)
    found = []
    for _ in range(sized(ci=80, nightly=400)):
        z, y = drawn(500, rng, of_group=of_group)
        groups = np.arange(500) // of_group
        both, one = (calibrate(z, y, m, groups=groups, **HOW) for m in ("logistic", "intercept"))
        prior = calibrate(z, y, "none", groups=groups, prior=[0.9, 0.1], **HOW).fit.prior
        facts = [both.fit[name] for name in ("intercept", "intercept_error", "slope", "slope_error")]
        facts += [one.fit["intercept"], one.fit["intercept_error"], prior.shift, prior.shift_error]
        found.append(facts)
    numbers = np.array(found)
    spread, said = numbers[:, ::2].std(axis=0), numbers[:, 1::2].mean(axis=0)
    np.testing.assert_allclose(said, spread, rtol=sized(ci=0.3, nightly=0.15))


def test_a_shift_is_the_one_of_king_and_zeng_and_is_kept(tmp_path) -> None:
    y = np.array([1] * 20 + [0] * 80)
    artifact = calibrate(np.linspace(-1, 1, 100), y, "none", prior=[0.98, 0.02], **HOW)
    prior = artifact.fit.prior
    # Their equation 7: less the log of (1 - tau) / tau x ybar / (1 - ybar).
    assert prior.shift == pytest.approx(-math.log(0.98 / 0.02 * 0.2 / 0.8))
    assert prior.shift_error == pytest.approx(math.sqrt(1 / 20 + 1 / 80), rel=0.01)
    assert artifact.steps[0].bias[1] == pytest.approx(prior.shift)
    artifact.save(tmp_path / "kept")
    assert Artifact.load(tmp_path / "kept").fit.prior == prior


def test_an_intercept_makes_means_right_and_keeps_the_order() -> None:
    z, y = drawn(600, np.random.default_rng(1))
    probs = calibrate(z, y, "intercept", **HOW).probs(z)[:, 1]
    assert probs.mean() == pytest.approx(y.mean(), abs=1e-9)
    assert (np.argsort(probs, kind="stable") == np.argsort(z, kind="stable")).all()


@pytest.mark.parametrize(
    ("fit", "z", "y", "says"),
    [
        (fit_intercept, [-1.0, 1, 2], [1, 1, 1], "both classes"),
        (fit_logistic, [-1.0, 1, 2], [0, 0, 0], "both classes"),
        (fit_logistic, [-2.0, -1, 1, 2], [0, 0, 1, 1], "tells the classes apart"),
        (fit_logistic, [-2.0, -1, -1, 2], [0, 0, 1, 1], "tells the classes apart"),
        (fit_logistic, [2.0, -1, 1, -2, 3], [0, 1, 0, 1, 1], "do not rise"),
        (fit_platt, [1.0, 1, 1, 1], [0, 1, 0, 1], "do not rise"),
    ],
)
def test_a_map_that_is_not_finite_or_falls_is_refused(fit, z, y, says: str) -> None:
    with pytest.raises(FitError, match=says):
        fit(Samples.of(z, y))
