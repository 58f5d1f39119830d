"""The maximum mean calibration error of a batch (Kumar 2018), to be added to a loss."""

from __future__ import annotations

import torch
from torch import Tensor

from calib_serve.fit.losses.log_probs import log_probs

__all__ = ["mmce", "mmce_weighted"]

_NOTHING = 1e-12  # a square below this is rounding, and the root has no gradient at 0


def mmce(logits: Tensor, labels: Tensor, *, width: float = 0.4) -> Tensor:
    """Maximum mean calibration error of the batch (Kumar 2018, eq. 5), kernel exp(-|r - r'| / width).

    The root of the mean over all pairs of samples of gap * kernel * gap, for gaps of right (1 or 0) less
    confidence r. One number per batch, to be added to a loss; memory grows with the batch size squared.

    >>> p = torch.tensor([[0.75, 0.25], [0.75, 0.25]])  # one right, one wrong: gaps 1/4 and -3/4
    >>> float(mmce(p.log(), torch.tensor([0, 1])).round(decimals=4))  # |1/4 - 3/4| / 2
    0.25
    """
    confidence, correct = _top(logits, labels)
    gap = correct - confidence
    return _root(gap @ _laplace(confidence, confidence, width) @ gap / len(gap) ** 2)


def mmce_weighted(logits: Tensor, labels: Tensor, *, width: float = 0.4) -> Tensor:
    """MMCE with right and wrong predictions weighed alike (Kumar 2018, eq. 6); 0 without either.

    The form that the field trains with, as ``cross_entropy + 2 * mmce_weighted`` (Mukhoti 2020). Each pair
    sum is divided by its number of pairs once, as in the paper; published code divides means of the pairs
    again, which makes the loss nearly vanish.

    >>> p = torch.tensor([[0.75, 0.25], [0.75, 0.25]])  # the right one misses 1/4, the wrong one has 3/4
    >>> float(mmce_weighted(p.log(), torch.tensor([0, 1])).round(decimals=4))
    0.5
    """
    confidence, correct = _top(logits, labels)
    right, wrong = confidence[correct > 0], confidence[correct == 0]
    if not len(right) or not len(wrong):
        return confidence.sum() * 0
    right_pairs = (1 - right) @ _laplace(right, right, width) @ (1 - right) / len(right) ** 2
    wrong_pairs = wrong @ _laplace(wrong, wrong, width) @ wrong / len(wrong) ** 2
    mixed_pairs = (1 - right) @ _laplace(right, wrong, width) @ wrong / (len(right) * len(wrong))
    return _root(right_pairs + wrong_pairs - 2 * mixed_pairs)


def _root(square: Tensor) -> Tensor:
    some = square > _NOTHING
    return torch.where(some, torch.where(some, square, torch.ones_like(square)).sqrt(), 0 * square)


def _top(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence and whether it is right, of all samples as one batch (n,)."""
    log_p = log_probs(logits, labels).flatten(0, -2)
    confidence, predicted = log_p.exp().max(dim=-1)
    return confidence, (predicted == labels.flatten()).to(confidence.dtype)


def _laplace(a: Tensor, b: Tensor, width: float) -> Tensor:
    return torch.exp(-(a[:, None] - b[None, :]).abs() / width)
