"""The masked head: what masks do, what q does, and that the finished head is calibrated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from calib_serve.core.errors import FitError, InputError, ShapeError
from calib_serve.fit import fit_temperature
from calib_serve.fit.masked import UNMASKED, Masking, Retention, fit_masked_head, train_masked
from calib_serve.fit.samples import Samples
from calib_serve.metrics import accuracy, ece, nll
from calib_serve.scores import softmax

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


def test_masked_weights_get_no_gradient(sets) -> None:
    (x, y), _, _ = sets
    how = Masking(
        hidden=None, retention=Retention(first=0.25, adapt=None), inference="unmasked",
        epochs=1, batch=600, momentum=0.0, decay=0.0, schedule="constant",
    )  # fmt: skip
    first = train_masked(x, y, 5, masking=replace(how, rate=1e-30)).head.weights[0]
    masked = train_masked(x, y, 5, masking=how).head.weights[0]
    kept = (masked != first).mean()
    assert 0.1 < kept < 0.4  # a quarter of 80 weights, give or take


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
    with pytest.raises(FitError, match="diverged"):
        fit_masked_head(x, y, masking=replace(SHORT, rate=1e9, epochs=2))


def test_without_masks_it_is_plain_training_of_the_same_head(sets) -> None:
    """Against torch's own modules and SGD, from the same start and in the same order."""
    (x, y), _, _ = sets
    how = replace(UNMASKED, hidden=8, epochs=2, batch=50, schedule="constant", scaled=False, rate=0.01)
    start = train_masked(x, y, 5, masking=replace(how, rate=1e-30, decay=0.0, epochs=1)).head
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5))
    for layer, w, b in zip((net[0], net[2]), start.weights, start.biases, strict=True):
        layer.weight.data, layer.bias.data = torch.from_numpy(w.copy()), torch.from_numpy(b.copy())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    for epoch in (1, 2):
        order = np.random.default_rng((0, epoch)).permutation(len(y))
        for rows in np.split(order, 12):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                net(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])
            )
            loss.backward()
            optimizer.step()
    ours = train_masked(x, y, 5, masking=how).head
    with torch.no_grad():
        np.testing.assert_allclose(ours(x), net(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)


def test_a_method_behind_the_head_is_fitted_to_the_held_out_part(sets) -> None:
    (x, y), (held_x, held_y), (test_x, test_y) = sets
    how = replace(UNMASKED, epochs=30, batch=32, hidden=64)
    bare = fit_masked_head(x, y, held_x, held_y, masking=how)
    artifact = fit_masked_head(x, y, held_x, held_y, masking=how, then="temperature")
    assert [step.kind for step in artifact.steps] == ["head", "logit_map"]
    alone = fit_temperature(Samples.of(bare.head(held_x), held_y))
    assert artifact.fit["behind"]["temperature"] == alone.fit["temperature"]
    np.testing.assert_array_equal(artifact.probs(bare.head(test_x)), alone.probs(bare.head(test_x)))
    assert nll(artifact.probs(artifact.head(test_x)), test_y) < nll(softmax(bare.head(test_x)), test_y)
    assert artifact.reference.ece() < bare.reference.ece()
    with pytest.raises(InputError, match="there is no method 'temprature'"):
        fit_masked_head(x, y, held_x, held_y, then="temprature")
