"""Losses: golden values and gradients, gradcheck, and stability where a probability is 0 or 1."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit import losses as L

WEIGHTS = {
    "focal 0.5": L.focal_weight(gamma=0.5),
    "focal 3": L.focal_weight(gamma=3.0),
    "flsd": L.flsd_weight(),
    "dual focal": L.dual_focal_weight(gamma=5.0),
    "inverse focal": L.inverse_focal_weight(gamma=2.0),
    "brier 1 1": L.brier_weight(gamma=1.0, beta=1.0),
    "brier 4 2": L.brier_weight(gamma=4.0, beta=2.0),
}

LOSSES = {
    "cross entropy": L.cross_entropy,
    "focal": L.focal,
    "brier": L.brier,
    "entropy regularised": L.entropy_regularised,
    "logit norm": L.logit_norm_regularised,
    "bsce": lambda z, y, **k: L.weighted_nll(z, y, WEIGHTS["brier 4 2"], **k),
    "bsce-gra": lambda z, y, **k: L.weighted_nll(z, y, WEIGHTS["brier 4 2"], detach=True, **k),
}


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    z = (3 * rng.standard_normal((500, 7))).astype("f4")
    y = np.where(rng.random(500) < 0.7, z.argmax(1), rng.integers(0, 7, 500))
    return torch.tensor(z), torch.tensor(y)


def brier_weighted(gamma: float, beta: float, *, detach: bool):
    weight = L.brier_weight(gamma=gamma, beta=beta)
    return partial(L.weighted_nll, weight=weight, detach=detach, reduction="sum")


# (loss, value, norm of the gradient, its first entry), as the authors' codes give them.
GOLDEN = {
    "focal 2": (partial(L.focal, gamma=2.0), 1.2995680570602417, 0.030719300732016563, 5.624823461403139e-05),
    "focal 3 summed": (
        partial(L.focal, gamma=3.0, reduction="sum"),
        625.863525390625,
        15.246207237243652,
        0.02948594279587269,
    ),
    "flsd-53": (
        partial(L.weighted_nll, weight=WEIGHTS["flsd"], reduction="sum"),
        613.9229736328125,
        15.788704872131348,
        0.030471589416265488,
    ),
    "brier": (L.brier, 0.5019800662994385, 0.013941971585154533, -4.635004006559029e-05),
    # The code in circulation leaves out the root that the paper has (Kumar 2018, eq. 5).
    "mmce squared": (
        lambda z, y: L.mmce(z, y) ** 2,
        0.006682735402137041,
        0.0018643031362444162,
        -1.0806940736074466e-05,
    ),
    "dual focal 5": (
        partial(L.weighted_nll, weight=WEIGHTS["dual focal"], reduction="sum"),
        660.3548583984375,
        24.906578063964844,
        0.02890712209045887,
    ),
    "bsce 4 2": (
        brier_weighted(4.0, 2.0, detach=False),
        1641.59326171875,
        64.31918334960938,
        -0.10042987763881683,
    ),
    "bsce-gra 4 2": (
        brier_weighted(4.0, 2.0, detach=True),
        1641.59326171875,
        35.153160095214844,
        0.0463060587644577,
    ),
    "bsce 5 1": (brier_weighted(5.0, 1.0, detach=False), 19180.5625, 490.9676208496094, 0.9750909805297852),
}


def gradient(loss, logits: Tensor, labels: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    loss(leaf, labels).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("name", GOLDEN)
def test_value_and_gradient_equal_the_golden_numbers(name: str, batch: tuple[Tensor, Tensor]) -> None:
    loss, value, norm, first = GOLDEN[name]
    assert loss(*batch).item() == pytest.approx(value, rel=1e-6)
    grad = gradient(loss, *batch)
    assert grad.norm().item() == pytest.approx(norm, rel=1e-5)
    assert grad[0, 0].item() == pytest.approx(first, rel=1e-5)


def small() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    z = 2 * torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    return z, torch.randint(5, (2, 3), generator=generator)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "bsce-gra"])
def test_gradients_are_right(name: str) -> None:
    z, y = small()
    assert torch.autograd.gradcheck(lambda x: LOSSES[name](x, y), (z.requires_grad_(),))


def test_mmce_is_the_root_over_all_pairs_by_hand() -> None:
    # Confidences .8, .6, .6 of which the second is wrong: gaps .2, -.6, .4.
    p = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.4, 0.6]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    near, far = 1.0, float(np.exp(-0.2 / 0.4))
    squares = 0.2**2 + 0.6**2 + 0.4**2 + 2 * (-0.6 * 0.4 * near) + 2 * far * (0.2 * -0.6 + 0.2 * 0.4)
    assert L.mmce(p.log(), y).item() == pytest.approx((squares / 9) ** 0.5)
    # Weighted: the right ones miss .2 and .4, two of them; the wrong one has .6 too much.
    right = (0.2**2 + 0.4**2 + 2 * far * 0.2 * 0.4) / 4
    mixed = (0.2 * 0.6 * far + 0.4 * 0.6 * near) / 2
    assert L.mmce_weighted(p.log(), y).item() == pytest.approx((right + 0.6**2 - 2 * mixed) ** 0.5)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_weights_and_gradients_are_finite_where_a_probability_is_0_or_1(name: str, dtype) -> None:
    z = torch.tensor([[60000.0, 0, 0], [-60000.0, 0, 0], [0, 0, 0], [90.0, 0, -90.0]]).to(dtype)
    y = torch.tensor([0, 0, 1, 0])
    for detach in (False, True):
        loss = partial(L.weighted_nll, weight=WEIGHTS[name], detach=detach, reduction="none")
        assert torch.isfinite(loss(z, y)).all()
        assert torch.isfinite(gradient(loss, z, y)).all()
    for other in LOSSES.values():
        assert torch.isfinite(other(z, y))
        assert torch.isfinite(gradient(other, z, y)).all()
    assert torch.isfinite(gradient(L.mmce, z, y)).all()
    assert torch.isfinite(gradient(L.mmce_weighted, z, y)).all()


@pytest.mark.parametrize("name", LOSSES)
def test_reductions_agree_and_any_batch_shape_is_taken(name: str) -> None:
    z, y = small()
    each = LOSSES[name](z, y, reduction="none")
    assert each.shape == y.shape
    assert LOSSES[name](z, y, reduction="sum").item() == pytest.approx(each.sum().item())
    assert LOSSES[name](z, y).item() == pytest.approx(each.mean().item())
    assert LOSSES[name](z[0, 0], y[0, 0]).item() == pytest.approx(each[0, 0].item())
    assert LOSSES[name](z.float(), y.to(torch.int32)).item() == pytest.approx(each.mean().item(), rel=1e-5)


def test_mixup_weighs_the_losses_of_both_labels() -> None:
    z, a = small()
    b = (a + 1) % 5
    mixed = L.mixup(partial(L.focal, gamma=2.0), z, a, b, 0.3)
    assert mixed.item() == pytest.approx(
        0.3 * L.focal(z, a, gamma=2.0).item() + 0.7 * L.focal(z, b, gamma=2.0).item()
    )


def test_regularised_losses_equal_torchs_own_and_their_formulas(batch: tuple[Tensor, Tensor]) -> None:
    z, y = batch
    assert L.cross_entropy(z, y).item() == pytest.approx(torch.nn.functional.cross_entropy(z, y).item())
    entropy = torch.distributions.Categorical(logits=z).entropy().mean().item()
    assert L.entropy_regularised(z, y, strength=0.4).item() == pytest.approx(
        L.cross_entropy(z, y).item() - 0.4 * entropy, rel=1e-5
    )
    norm = z.abs().sum(-1).mean().item()
    assert L.logit_norm_regularised(z, y, strength=0.2).item() == pytest.approx(
        L.cross_entropy(z, y).item() + 0.2 * norm, rel=1e-5
    )


def test_input_that_cannot_be_right_is_refused() -> None:
    z, y = small()
    with pytest.raises(ShapeError, match="not one-hot"):
        L.focal(z, torch.nn.functional.one_hot(y, 5))
    with pytest.raises(InputError, match="integer class ids"):
        L.focal(z, y.double())
    with pytest.raises(ShapeError, match="K >= 2"):
        L.focal(z[..., :1], y)
    with pytest.raises(InputError, match="gamma"):
        L.focal(z, y, gamma=-1.0)
