"""The masked head: what masks do, what q does, and that the finished head is calibrated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib_serve.artifact import Artifact
from calib_serve.errors import FitError, InputError, ShapeError
from calib_serve.fit.losses import focal
from calib_serve.fit.masked.fit import PAPER, Masking, Retention, fit_masked_head
from calib_serve.fit.masked.training import train_masked
from calib_serve.metrics import accuracy, ece, nll, softmax

CENTRES = 2.0 * np.random.default_rng(5).standard_normal((5, 16))


def draw(n: int, seed: int):
    """Five overlapping clouds: the Bayes classifier is right about three times in four."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    return (CENTRES[labels] + 3.4 * rng.standard_normal((n, 16))).astype(np.float32), labels


@pytest.fixture(scope="module")
def sets():
    return draw(600, 0), draw(600, 1), draw(4_000, 2)


SHORT = Masking(epochs=30, batch=32, hidden=64)


def test_held_out_feedback_calibrates_a_head_that_knows_its_training_set_by_heart(sets) -> None:
    (x, y), (held_x, held_y), (test_x, test_y) = sets
    plain = train_masked(x, y, 5, masking=replace(SHORT, retention=Retention(first=1.0, adapt=None)))
    artifact = fit_masked_head(x, y, held_x, held_y, masking=SHORT)
    before, after = softmax(plain.head(test_x)), softmax(artifact.head(test_x))
    assert ece(before, test_y) > 0.1
    assert ece(after, test_y) < 0.5 * ece(before, test_y)
    assert nll(after, test_y) < nll(before, test_y)
    assert accuracy(after, test_y) > accuracy(before, test_y) - 0.01
    assert artifact.reference.n == 600


def test_masked_weights_get_no_gradient_and_all_do_without_the_restriction(sets) -> None:
    (x, y), _, _ = sets
    how = Masking(
        hidden=None, retention=Retention(first=0.25, adapt=None), inference="unmasked", draw="epoch",
        epochs=1, batch=600, momentum=0.0, decay=0.0, schedule="constant",
    )  # fmt: skip
    first = train_masked(x, y, 5, masking=replace(how, rate=1e-30)).head.weights[0]
    masked = train_masked(x, y, 5, masking=how).head.weights[0]
    free = train_masked(x, y, 5, masking=replace(how, masked_gradient=False)).head.weights[0]
    kept = (masked != first).mean()
    assert 0.1 < kept < 0.4  # a quarter of 80 weights, give or take
    assert (free != first).all()


def test_expected_weights_are_the_unmasked_ones_times_q(sets) -> None:
    (x, y), _, _ = sets
    how = replace(SHORT, epochs=2, retention=Retention(first=0.3, adapt=None))
    expected = train_masked(x, y, 5, masking=how).head
    unmasked = train_masked(x, y, 5, masking=replace(how, inference="unmasked")).head
    for scaled, whole in zip(expected.weights, unmasked.weights, strict=True):
        np.testing.assert_allclose(scaled, 0.3 * whole, rtol=1e-5)
    for one, other in zip(expected.biases, unmasked.biases, strict=True):
        np.testing.assert_array_equal(one, other)


def test_features_of_another_unit_give_the_same_logits(sets) -> None:
    (x, y), (held_x, held_y), _ = sets
    how = replace(SHORT, epochs=3)
    one = fit_masked_head(x, y, held_x, held_y, masking=how).head(held_x[:50])
    other = fit_masked_head(1024 * x, y, 1024 * held_x, held_y, masking=how).head(1024 * held_x[:50])
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_the_same_seed_gives_the_same_head_and_another_one_another(sets) -> None:
    (x, y), (held_x, held_y), _ = sets
    how = replace(SHORT, epochs=2)
    one, again, other = (fit_masked_head(x, y, held_x, held_y, masking=how, seed=s) for s in (0, 0, 1))
    assert one.fingerprint == again.fingerprint != other.fingerprint


def kill_never(epoch: int, of: int) -> None:
    assert epoch <= of


@given(
    st.floats(0.05, 1), st.floats(0, 1), st.floats(0, 1), st.integers(1, 40),
    st.sampled_from(["held-out", "training"]),
)  # fmt: skip
def test_q_moves_by_no_more_than_its_bound_and_stays_a_share(q, conf, acc, epoch, adapt) -> None:
    how = Retention(adapt=adapt)
    moved = how.moved(q, confidence=conf, accuracy=acc, epoch=epoch, epochs=40)
    assert abs(moved - q) <= how.bound(epoch, 40) + 1e-12
    assert 0.05 <= moved <= 1
    direction = (acc - conf) if adapt == "held-out" else (conf - acc)
    assert (moved - q) * direction >= 0


def test_the_paper_s_reading_is_offered_under_its_name(sets) -> None:
    (x, y), (held_x, held_y), _ = sets
    artifact = fit_masked_head(x, y, held_x, held_y, masking=replace(PAPER, epochs=3))
    assert (artifact.fit["inference"], artifact.fit["adapt"]) == ("unmasked", "training")


def test_a_head_trains_on_any_loss_views_and_depth_and_survives_its_file(sets, tmp_path) -> None:
    (x, y), _, _ = sets
    views = np.stack([x, x + np.float32(0.1)])
    for hidden, layers in ((None, 1), (8, 2)):
        how = Masking(hidden=hidden, loss=focal, epochs=2, batch=64)
        artifact = fit_masked_head(views, y, masking=how, class_names=("a", "b", "c", "d", "e"))
        assert len(artifact.head.weights) == layers
        assert artifact.fit["loss"] == "focal"
        loaded = Artifact.load(artifact.save(tmp_path / str(layers)))
        assert np.array_equal(loaded.head(x), artifact.head(x))
        assert artifact.data["trained_on"] == 450
        assert artifact.reference.n == 150


def test_hostile_input_is_refused(sets) -> None:
    (x, y), (held_x, held_y), _ = sets
    with pytest.raises(ShapeError, match="one-hot"):
        fit_masked_head(x, np.eye(5)[y])
    with pytest.raises(ShapeError, match="16 wide, the held-out ones 15"):
        fit_masked_head(x, y, held_x[:, :15], held_y)
    with pytest.raises(InputError, match="both, or neither"):
        fit_masked_head(x, y, held_x)
    with pytest.raises(InputError, match="all 600 samples are of class 3"):
        fit_masked_head(x, np.full(600, 3))
    with pytest.raises(InputError, match=r"0\.\.2"):
        fit_masked_head(x, y, classes=3)
    with pytest.raises(InputError, match="NaN"):
        fit_masked_head(np.where(x > 9, np.nan, x), y)
    with pytest.raises(InputError, match="held_share"):
        fit_masked_head(x, y, held_share=1.0)
    with pytest.raises(InputError, match="inference"):
        Masking(inference="sampled")
    with pytest.raises(InputError, match="q must lie"):
        Retention(first=0.0)
    with pytest.raises(FitError, match="diverged"):
        fit_masked_head(x, y, masking=replace(SHORT, rate=1e9, epochs=2))
