"""One value holds what a classifier gave, and everything that takes scores takes it, with one rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from calib_serve import Artifact, calibrate, compare, decide, evaluate, judge
from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics import ece
from calib_serve.scores import Scores, softmax

NAMES = ["cat", "dog", "owl"]


def samples(n: int, seed: int, scale: float = 2.0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Logits (n, 3) that are ``scale`` times too large, and class ids."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(n, 3))
    return z, (softmax(z / scale).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def test_probabilities_and_logits_of_one_model_give_the_same_everywhere() -> None:
    z, y = samples(2000, 1)
    p = softmax(z)
    for found in (evaluate(p, y, replicates=0), evaluate(z, y, replicates=0)):
        assert found.ece == pytest.approx(ece(p, y), abs=1e-9)
    assert judge(p, y).tests[0].error == pytest.approx(judge(z, y).tests[0].error, abs=1e-9)
    fits = [calibrate(s, y, "temperature", cross_validate=False) for s in (p, z)]
    np.testing.assert_allclose(fits[0].probs(p), fits[1].probs(z), atol=1e-6)
    for one, other in zip(*(compare((s, y), (s, y), ["none", "temperature"]) for s in (p, z)), strict=True):
        assert one.metrics is not None
        assert other.metrics is not None
        assert one.metrics.nll == pytest.approx(other.metrics.nll, abs=1e-4)
    again, later = samples(2000, 2)
    sets = [
        decide(fit, s, later, coverage=0.9).sets for fit, s in zip(fits, (softmax(again), again), strict=True)
    ]
    np.testing.assert_allclose(sets[0].threshold, sets[1].threshold, atol=1e-5)


def test_one_probability_a_sample_is_platt_scaled_as_by_scikit_learn() -> None:
    calibration = pytest.importorskip("sklearn.calibration")
    rng = np.random.default_rng(3)
    s = 2 * rng.normal(size=1500)
    p, y = 1 / (1 + np.exp(-s)), (rng.random(1500) < 1 / (1 + np.exp(1 - 0.6 * s))).astype(int)
    fitted = calibrate(p, y, "platt", cross_validate=False)
    expected = calibration._SigmoidCalibration().fit(s, y).predict(s)
    np.testing.assert_allclose(fitted.probs(p)[:, 1], expected, atol=1e-6)
    assert (
        evaluate(p, y, replicates=0).positive_ece == evaluate(np.c_[1 - p, p], y, replicates=0).positive_ece
    )


@settings(max_examples=25)
@given(st.permutations(range(3)), st.booleans())
def test_columns_are_found_by_their_names(order: list[int], with_ids: bool) -> None:
    z, y = samples(200, 5)
    frame = pd.DataFrame(z, columns=NAMES)
    labels = y if with_ids else np.array(NAMES)[y]
    fitted = calibrate(frame, labels, "vector", class_names=NAMES, cross_validate=False)
    turned = frame[[NAMES[k] for k in order]]
    np.testing.assert_allclose(fitted.probs(turned), fitted.probs(z), atol=1e-12)
    assert fitted.predict(turned).tolist() == np.array(NAMES)[fitted.probs(z).argmax(axis=1)].tolist()
    with pytest.raises(InputError, match="not in both"):
        fitted.probs(turned.rename(columns={"owl": "fox"}))


def test_labels_move_with_their_columns() -> None:
    z, y = samples(300, 6)
    given_order = Scores.of(pd.DataFrame(z, columns=NAMES), np.array(NAMES)[y])
    turned = given_order.in_order(["owl", "cat", "dog"])
    before, after = (
        {name: e.value for name, e in evaluate(one, replicates=0).estimates().items()}
        for one in (given_order, turned)
    )
    assert after == pytest.approx(before)
    assert turned.in_order(NAMES).labels.tolist() == y.tolist()


def test_decisions_are_not_made_of_columns_in_another_order_unless_that_is_meant() -> None:
    z, y = samples(600, 7)
    names = np.array(NAMES)
    fitted = calibrate(pd.DataFrame(z[:300], columns=NAMES), names[y[:300]], "temperature")
    turned = pd.DataFrame(z[300:], columns=NAMES)[["owl", "cat", "dog"]]
    with pytest.raises(InputError, match="another order"):
        decide(fitted, turned, names[y[300:]], coverage=0.9)
    meant = decide(fitted, turned, names[y[300:]], coverage=0.9, columns=NAMES)
    plain = decide(fitted, z[300:], y[300:], coverage=0.9)
    assert meant.sets is not None
    assert plain.sets is not None
    assert meant.sets.threshold == pytest.approx(plain.sets.threshold)


def test_what_was_calibrated_is_not_calibrated_again(tmp_path: Path) -> None:

    z, y = samples(400, 8)
    np.savez(tmp_path / "z.npz", logits=z, labels=y)
    fitted = calibrate(softmax(z), y, "temperature")
    fitted.save(tmp_path / "a")
    np.savez(tmp_path / "p.npz", probs=softmax(z), labels=y)
    files = [str(tmp_path / name) for name in ("a", "p.npz", "o.npz")]
    assert invoke(["export", "probabilities", *files[:2], "-o", files[2]]).exit_code == 0
    made = Scores.read(tmp_path / "o.npz")
    np.testing.assert_allclose(made.probs[:], fitted.probs(softmax(z)))
    with pytest.raises(InputError, match="twice"):
        fitted.probs(made)
    assert evaluate(made, replicates=0).n == 400


def test_pixels_are_samples_and_pictures_are_groups() -> None:
    rng = np.random.default_rng(9)
    z = rng.normal(size=(4, 3, 5, 6))
    y = rng.integers(0, 3, (4, 5, 6))
    first, last = Scores.of(z, y), Scores.of(np.moveaxis(z, 1, -1), y)
    np.testing.assert_array_equal(first.values, last.values)
    assert first.labels.tolist() == y.ravel().tolist()
    assert np.bincount(first.groups).tolist() == [30] * 4
    np.testing.assert_array_equal(first.values[7], z[0, :, 1, 1])
    void = Scores.of(z, np.where(y == 2, 255, y), ignore_label=255)
    assert len(void) == int((y != 2).sum()) == len(void.groups)
    with pytest.raises(ShapeError, match="which axis"):
        Scores.of(rng.normal(size=(4, 3, 3, 3)), rng.integers(0, 3, (4, 3, 3)))


def test_the_largest_probabilities_alone_are_calibrated_as_ranks() -> None:
    rng = np.random.default_rng(10)
    z = 3 * rng.normal(size=(3000, 50))
    p = softmax(z)
    y = (softmax(z / 2).cumsum(axis=1) > rng.random((3000, 1))).argmax(axis=1)
    top = np.argsort(-p, axis=1)[:, :5]
    given_top = Scores.of_top(np.take_along_axis(p, top, 1), top, y)
    assert given_top.classes == 6
    assert (given_top.labels == 0).mean() == (p.argmax(axis=1) == y).mean()
    fitted = calibrate(given_top, method="temperature", cross_validate=False)
    logs = np.log(given_top.values)

    def loss(t: float) -> float:
        return float(-np.log(softmax(logs / t)[np.arange(3000), given_top.labels]).mean())

    best = minimize_scalar(loss, bounds=(0.2, 9), method="bounded", options={"xatol": 1e-10})
    assert fitted.fit["temperature"] == pytest.approx(best.x, rel=1e-5)


def test_a_view_of_probabilities_is_an_array_that_is_made_block_by_block() -> None:
    z, y = samples(50, 11)
    view = Scores.of(z, y, outputs="logits").probs
    np.testing.assert_array_equal(np.asarray(view), softmax(z))
    np.testing.assert_array_equal(view[np.array([3, 1])], softmax(z)[[3, 1]])
    assert view.shape == (50, 3)


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (np.full((30, 3), 0.2), {}, "label_probabilities"),
    (np.linspace(0, 90, 40), {}, "percent"),
    (np.full((30, 2), 0.5), {"outputs": "log_odds"}, "must be one of"),
    (np.full((30, 2), 0.7), {"outputs": "probabilities"}, "sum to 1"),
    (np.full((30, 2), -3.0), {"outputs": "probabilities"}, "lie in"),
    (np.zeros((30, 2)), {"columns": ["a"]}, "frames"),
    (np.zeros((0, 2)), {}, "no sample"),
    (np.zeros((30, 2)), {"sample_weight": -np.ones(30)}, "not negative"),
    (np.zeros((30, 2)), {"sample_weight": np.ones(3)}, "must be"),
    (np.zeros((30, 2)), {"groups": np.ones(3)}, "groups must be"),
    (np.zeros((30, 2)), {"class_names": ["a", "b", "c"]}, "class names"),
    (np.zeros((30, 2)), {"groups": "patient"}, "name a column"),
]


@pytest.mark.parametrize(("scores", "how", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_cannot_be_or_may_be_two_things_is_refused(scores: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Scores.of(scores, np.arange(len(scores)) % 2, **how)


def test_an_artifact_without_a_kind_takes_logits() -> None:
    made = Artifact((), method="none", classes=2)
    assert made.probs([[0.0, 1.0]]).tolist() == softmax([[0.0, 1.0]]).tolist()
