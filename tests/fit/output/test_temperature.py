"""Temperature scaling finds the optimum, proves it, and says so where there is none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from too_sure import draw

from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.output.temperature import TopLogits, fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.metrics import ece, nll, softmax

SETS = {  # published or independently measured: T, and test ECE after, in percent
    "kull_resnet110_c10": (2.395, 1.1321),
    "akamaster_resnet20_c10": (2.33555, 0.6954),
    "akamaster_resnet56_c10": (2.45442, 0.5947),
    "banking77_mlp_inhouse": (0.77433, 1.518),
    "c10LT_resnet110": (3.44519, 5.9032),
    "resnet50_c10_cross_entropy": (2.4975, None),
    "pneumonia_cnn_inhouse": (0.91973, None),
}


def fitted(logits, labels, **weighing):
    return fit_temperature(Samples.of(logits, labels, **weighing))


@pytest.mark.parametrize("name", SETS)
def test_on_real_logits_the_nll_is_the_exact_optimum_to_1e_8(data_dir: Path, name: str):
    data = np.load(data_dir / "logits" / f"{name}.npz")
    logits, labels = data["cal_logits"], data["cal_labels"]
    artifact = fitted(logits, labels)
    t, test_ece = SETS[name]
    assert artifact.fit["temperature"] == pytest.approx(t, abs=5e-4)
    reference = minimize_scalar(
        lambda u: nll(softmax(logits.astype(np.float64) * math.exp(u)), labels),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-12},
    )
    assert artifact.fit["nll_after"] == pytest.approx(reference.fun, rel=1e-8)
    assert artifact.fit["nll_before"] == pytest.approx(
        nll(softmax(logits.astype(np.float64)), labels), rel=1e-9
    )
    assert artifact.fit["objective"] == "nll"
    assert artifact.fit["iterations"] <= 4  # each a pass over all samples, which is the time of a fit
    if test_ece is not None:
        probs = artifact.probs(data["test_logits"])
        assert 100 * ece(probs, data["test_labels"]) == pytest.approx(test_ece, abs=2e-3)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.2, 20), st.integers(2, 12), st.integers(0, 1000))
def test_the_gradient_vanishes_where_the_search_ends(t: float, k: int, seed: int):
    logits, labels = draw(300, k, t, seed)
    artifact = fitted(logits, labels)
    assert artifact.fit["gradient_norm"] < 1e-9
    s = 1 / artifact.fit["temperature"]
    rows = TopLogits.of(Samples.of(logits, labels))
    assert rows.slope(s).nll <= min(rows.slope(s * f).nll for f in (0.99, 1.01))


@pytest.mark.parametrize(("n", "k"), [(2000, 10), (6000, 1000)])  # passes in float64, and in float32
def test_float16_float32_and_float64_give_the_same_temperature(n: int, k: int):
    logits, labels = draw(n, k, 3.0)
    half = logits.astype(np.float16)
    found = [fitted(half.astype(d), labels).fit["temperature"] for d in ("f2", "f4", "f8")]
    assert found[0] == found[1] == pytest.approx(found[2], rel=1e-12)
    assert found[0] == pytest.approx(3.0, rel=0.05)


def test_class_weights_multiply_the_weights_of_their_samples():
    logits, labels = draw(300, 3, 2.0)
    per_class = np.array([1.0, 5.0, 0.5])
    by_class = fitted(logits, labels, class_weight=per_class).fit["temperature"]
    by_sample = fitted(logits, labels, sample_weight=per_class[labels]).fit["temperature"]
    assert by_class == pytest.approx(by_sample, rel=1e-12)
    balanced = fitted(logits, labels, class_weight="balanced").fit["temperature"]
    inverse = 1 / np.bincount(labels)
    assert balanced == pytest.approx(
        fitted(logits, labels, class_weight=inverse).fit["temperature"], rel=1e-9
    )


def test_without_a_finite_optimum_the_error_says_why():
    logits, labels = draw(100, 4, 1.0)
    with pytest.raises(FitError, match="every sample is classified right"):
        fitted(logits, logits.argmax(axis=1))
    with pytest.raises(FitError, match="every sample is classified right"):
        fitted(1e4 * logits, logits.argmax(axis=1))
    with pytest.raises(FitError, match="no higher than those of the others"):
        fitted(logits, logits.argmin(axis=1))
    with pytest.raises(FitError, match="no higher than those of the others"):
        fit_temperature(Samples.of(np.full((100, 4), 2.0), labels))


@pytest.mark.parametrize("wrong", [[-1.0, 1], [0.0, 0], [np.nan, 1], [np.inf, 1], [1.0, 2, 3], "equal"])
def test_class_weights_that_cannot_be_right_are_refused(wrong):
    with pytest.raises(InputError, match="weight"):
        Samples.of(np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([0, 1]), class_weight=wrong)


def test_weights_whose_sum_is_infinite_weigh_as_smaller_ones_do():
    logits, labels = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]]), np.array([0, 1, 1])
    with np.errstate(over="ignore"):
        found = Samples.of(logits, labels, sample_weight=[1e308, 1e308, 5e307]).weights
    np.testing.assert_allclose(found, [1.2, 1.2, 0.6])
