"""Every method, and the choice among them, refuses sets that teach nothing and says what poor ones lack."""

from __future__ import annotations

import numpy as np
import pytest
from too_sure import draw

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.folds import folds_of
from calib_serve.fit.output.candidates import CANDIDATES, fit_by_name
from calib_serve.fit.output.selection import select
from calib_serve.fit.samples import Samples

METHODS = [*(name for name in CANDIDATES if name != "none"), "auto"]


def fit(method: str, z: np.ndarray, y: np.ndarray) -> Artifact:
    return select(Samples.of(z, y)) if method == "auto" else fit_by_name(method, z, y)


Z, Y = draw(120)
REFUSED = {
    "one class": (Z, np.zeros(len(Z), int), FitError, "all 120 labels are of class 0"),
    "all wrong": (Z, Z.argmin(axis=1), FitError, "not one of 120 samples is classified right"),
    "a number of its own added to each row": (
        np.ones_like(Z) * np.arange(120)[:, None], Y, FitError, "same for every sample",
    ),
    "NaN": (np.where(Z > 8, np.nan, Z), Y, InputError, "is missing"),
    "both infinities once subtracted": (1.7e308 * np.sign(Z), Y, InputError, "clip them first"),
}  # fmt: skip
SAID = {
    "few samples": (*draw(12), "12 samples tell little"),
    "fewer samples than classes": (*draw(15, 20), "20 classes have no sample"),
    "a class that never occurs": (Z, np.where(Y == 3, 0, Y), "1 of 4 classes have no sample (3)"),
    "all right": (Z, Z.argmax(axis=1), "every sample is classified right"),
    "each row four times": (np.tile(Z[:30], (4, 1)), np.tile(Y[:30], 4), "only 30 of 120 rows"),
    "ties": (np.round(Z / 6), Y, "the largest logit ties"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_set_that_teaches_nothing_is_refused_with_what_to_do(method: str, case: str) -> None:
    z, y, error, match = REFUSED[case]
    with pytest.raises(error, match=match):
        fit(method, z, y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", SAID)
def test_what_a_poor_set_lacks_is_said_by_every_method_or_the_fit_is_refused(method: str, case: str) -> None:
    z, y, words = SAID[case]
    try:
        artifact = fit(method, z, y)
    except (FitError, InputError):
        assert method != "auto", "the choice among methods must find one"
        return
    assert any(words in remark for remark in artifact.fit.remarks)
    probs = artifact.probs(z)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-9)
    if method == "auto":
        assert probs.min() > 0
        assert probs.max() < 1


def test_of_a_set_that_lacks_nothing_nothing_is_said() -> None:
    assert fit_by_name("temperature", Z, Y).fit.remarks == ()
    assert fit_by_name("temperature", *draw(20)).fit.remarks == ()
    (said,) = fit_by_name("temperature", Samples.of(Z, Y, class_weight=[1, 1, 1, 0])).fit.remarks
    assert said.startswith("1 of 4 classes have no sample (3)")
    tied = Z.copy()
    tied[:5, :2] = 1 + tied[:5].max(axis=1, keepdims=True)
    assert any("in 5 of 120 rows" in said for said in fit_by_name("temperature", tied, Y).fit.remarks)


def test_copies_of_a_row_share_its_fold_and_many_alike_are_spread() -> None:
    z, y = draw(200)
    twice = Samples.of(np.concatenate([z, z]), np.concatenate([y, y]))
    fold = folds_of(twice, folds=5, seed=0)
    np.testing.assert_array_equal(fold[:200], fold[200:])
    few = Samples.of(np.round(z / 8), y)
    alike = folds_of(Samples.of(np.tile(z[:4], (50, 1)), y), folds=5, seed=0)
    assert np.ptp(np.bincount(alike)) <= 4
    assert len(np.unique(folds_of(few, folds=5, seed=0))) == 5


def test_rows_that_differ_in_one_class_by_little_are_not_the_same() -> None:
    logits = np.tile([0.0, 1.0, -1e6], (120, 1))
    logits[::2, 0] += 1e-3
    assert fit_by_name("temperature", logits, Y % 2).fit["temperature"] > 0
