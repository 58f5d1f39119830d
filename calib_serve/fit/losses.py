"""Losses that calibrate while a network is trained or retrained.

Most are a weighted NLL, mean of u(p) * -log p_y, and differ only in the weight u. A
*weight* is a function of log-probabilities (..., K) and class ids (...,); pass one to ``weighted_nll``, plain
or with ``detach=True`` for its gradient-weighted form (Lin 2025, eq. 9), whose gradient is u times that of
the cross-entropy, exactly::

    loss = weighted_nll(logits, labels, focal_weight(gamma=3.0))
    loss = weighted_nll(logits, labels, brier_weight(gamma=4.0, beta=2.0), detach=True)  # BSCE-GRA

Logits are (..., K) in any float dtype and labels (...,) class ids; half precision is computed
in float32. Weights work on logarithms, so that p_y = 0 and p_y = 1 give finite values and
gradients. ``reduction`` is "mean" (over labels), "sum" or "none".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from calib_serve.errors import InputError, ShapeError

__all__ = [
    "Reduction",
    "Weight",
    "brier",
    "brier_weight",
    "cross_entropy",
    "dual_focal",
    "dual_focal_weight",
    "entropy_regularised",
    "flsd",
    "flsd_weight",
    "focal",
    "focal_weight",
    "inconsistency_weight",
    "inverse_focal",
    "inverse_focal_weight",
    "label_smoothing",
    "logit_norm_regularised",
    "mixup",
    "mmce",
    "mmce_weighted",
    "weighted_nll",
]

Reduction = Literal["mean", "sum", "none"]
Weight = Callable[[Tensor, Tensor], Tensor]
"""u(log p, y): log-probabilities (..., K) and class ids (...,) to weights (...,)."""

Loss = Callable[[Tensor, Tensor], Tensor]


def weighted_nll(
    logits: Tensor, labels: Tensor, weight: Weight, *, detach: bool = False, reduction: Reduction = "mean"
) -> Tensor:
    """u(p) * -log p_y; ``detach`` keeps the weight out of the gradient (Lin 2025, eq. 9)."""
    log_p = _log_probs(logits, labels)
    u = weight(log_p.detach() if detach else log_p, labels)
    return _reduce(-u * _of_label(log_p, labels), reduction)


def cross_entropy(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """-log p_y.

    >>> float(cross_entropy(torch.zeros(1, 4), torch.tensor([0])).exp().round(decimals=4))
    4.0
    """
    return _reduce(-_of_label(_log_probs(logits, labels), labels), reduction)


def focal_weight(*, gamma: float) -> Weight:
    """(1 - p_y)^gamma (Lin 2017, eq. 4)."""
    _check_exponent(gamma)
    return lambda log_p, labels: torch.exp(gamma * _log_others(log_p, labels))


def flsd_weight(*, low: float = 5.0, high: float = 3.0, threshold: float = 0.2) -> Weight:
    """(1 - p_y)^gamma with gamma ``low`` where p_y < threshold, else ``high`` (Mukhoti 2020, FLSD-53)."""

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        p_true = _of_label(log_p, labels).exp()
        return torch.exp(torch.where(p_true < threshold, low, high) * _log_others(log_p, labels))

    return weight


def dual_focal_weight(*, gamma: float) -> Weight:
    """(1 - p_y + p_j)^gamma, p_j the largest probability strictly below p_y (Tao 2023, eq. 5)."""
    _check_exponent(gamma)

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        below = log_p < _of_label(log_p, labels).unsqueeze(-1)
        lowest = torch.finfo(log_p.dtype).min  # none lies below: p_j = 0
        log_next = torch.where(below, log_p, lowest).amax(dim=-1)
        return torch.exp(gamma * torch.logaddexp(_log_others(log_p, labels), log_next))

    return weight


def inverse_focal_weight(*, gamma: float) -> Weight:
    """(1 + p_y)^gamma: weighs easy samples up (Wang 2021, eq. 4)."""
    _check_exponent(gamma)
    return lambda log_p, labels: (1 + _of_label(log_p, labels).exp()) ** gamma


def brier_weight(*, gamma: float, beta: float = 2.0) -> Weight:
    """(sum_k |p_k - y_k|^beta)^(gamma / beta), the generalised Brier score (Lin 2025, eq. 11).

    With beta = 1 it is 2^gamma times the focal weight.
    """
    _check_exponent(gamma)
    if beta <= 0:
        raise InputError(f"beta must be positive, got {beta}")

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        # |p_k - y_k| is p_k off the label and 1 - p_y on it.
        gaps = log_p.scatter(-1, labels.long().unsqueeze(-1), _log_others(log_p, labels).unsqueeze(-1))
        return torch.exp(gamma / beta * torch.logsumexp(beta * gaps, dim=-1))

    return weight


def inconsistency_weight(
    *, noise: float = 1.0, samples: int = 32, generator: torch.Generator | None = None
) -> Weight:
    """1 - consistency: how often Gaussian noise on the logits changes the predicted class (Tao 2024).

    ``noise`` is its standard deviation. It is a count without a gradient, detached or not.
    """
    if not noise > 0 or samples < 1:
        raise InputError(f"noise must be positive and samples at least 1, got {noise} and {samples}")

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        predicted = log_p.argmax(dim=-1)
        changed = torch.zeros_like(predicted)
        for _ in range(samples):
            shaken = torch.empty_like(log_p).normal_(std=noise, generator=generator) + log_p.detach()
            changed += shaken.argmax(dim=-1) != predicted
        return changed.to(log_p.dtype) / samples

    return weight


def focal(logits: Tensor, labels: Tensor, *, gamma: float = 3.0, reduction: Reduction = "mean") -> Tensor:
    """-(1 - p_y)^gamma log p_y (Lin 2017, eq. 4); gamma = 0 is the cross-entropy."""
    return weighted_nll(logits, labels, focal_weight(gamma=gamma), reduction=reduction)


def flsd(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Focal loss whose gamma depends on the sample: FLSD-53 (Mukhoti 2020)."""
    return weighted_nll(logits, labels, flsd_weight(), reduction=reduction)


def dual_focal(
    logits: Tensor, labels: Tensor, *, gamma: float = 5.0, reduction: Reduction = "mean"
) -> Tensor:
    """-(1 - p_y + p_j)^gamma log p_y (Tao 2023, eq. 5)."""
    return weighted_nll(logits, labels, dual_focal_weight(gamma=gamma), reduction=reduction)


def inverse_focal(
    logits: Tensor, labels: Tensor, *, gamma: float = 2.0, reduction: Reduction = "mean"
) -> Tensor:
    """-(1 + p_y)^gamma log p_y (Wang 2021, eq. 4)."""
    return weighted_nll(logits, labels, inverse_focal_weight(gamma=gamma), reduction=reduction)


def brier(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """sum_k (p_k - y_k)^2 (Brier 1950).

    >>> float(brier(torch.zeros(1, 2), torch.tensor([0])))
    0.5
    """
    p = _log_probs(logits, labels).exp()
    target = functional.one_hot(labels.long(), p.shape[-1]).to(p.dtype)
    return _reduce(((p - target) ** 2).sum(dim=-1), reduction)


def label_smoothing(
    logits: Tensor, labels: Tensor, *, epsilon: float = 0.05, reduction: Reduction = "mean"
) -> Tensor:
    """Cross-entropy against (1 - epsilon) of the label and epsilon spread over all K (Szegedy 2016)."""
    if not 0 <= epsilon < 1:
        raise InputError(f"epsilon must lie in [0, 1), got {epsilon}")
    log_p = _log_probs(logits, labels)
    return _reduce(-(1 - epsilon) * _of_label(log_p, labels) - epsilon * log_p.mean(dim=-1), reduction)


def entropy_regularised(
    logits: Tensor, labels: Tensor, *, strength: float = 0.1, reduction: Reduction = "mean"
) -> Tensor:
    """-log p_y - strength * entropy (Pereyra 2017; Singh 2021, eq. 10)."""
    log_p = _log_probs(logits, labels)
    entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return _reduce(-_of_label(log_p, labels) - strength * entropy, reduction)


def logit_norm_regularised(
    logits: Tensor, labels: Tensor, *, strength: float = 0.01, p: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """-log p_y + strength * ||z||_p of each sample's logits (Joo and Chung 2020; Wang 2021, sec. 3)."""
    if p < 1:
        raise InputError(f"p must be at least 1 for a norm, got {p}")
    log_p = _log_probs(logits, labels)
    norm = torch.linalg.vector_norm(_wide(logits), ord=p, dim=-1)
    return _reduce(-_of_label(log_p, labels) + strength * norm, reduction)


def mmce(logits: Tensor, labels: Tensor, *, width: float = 0.4) -> Tensor:
    """Squared maximum mean calibration error of the batch (Kumar 2018, eq. 5), kernel exp(-|r - r'| / width).

    One number per batch, to be added to a loss; memory grows with the batch size squared.
    """
    confidence, correct = _top(logits, labels)
    gap = correct - confidence
    return gap @ _laplace(confidence, confidence, width) @ gap / len(gap) ** 2


def mmce_weighted(logits: Tensor, labels: Tensor, *, width: float = 0.4) -> Tensor:
    """Squared MMCE with right and wrong predictions weighed alike (Kumar 2018, eq. 6); 0 without either.

    Each pair sum is divided by its number of pairs once, as in the paper; published code divides means of the
    pairs again and takes the root, which makes the loss nearly vanish.
    """
    confidence, correct = _top(logits, labels)
    right, wrong = confidence[correct > 0], confidence[correct == 0]
    if not len(right) or not len(wrong):
        return confidence.sum() * 0
    right_pairs = (1 - right) @ _laplace(right, right, width) @ (1 - right) / len(right) ** 2
    wrong_pairs = wrong @ _laplace(wrong, wrong, width) @ wrong / len(wrong) ** 2
    mixed_pairs = (1 - right) @ _laplace(right, wrong, width) @ wrong / (len(right) * len(wrong))
    return right_pairs + wrong_pairs - 2 * mixed_pairs


def mixup(loss: Loss, logits: Tensor, labels: Tensor, partners: Tensor, share: float | Tensor) -> Tensor:
    """``share`` of the loss against ``labels``, the rest against ``partners`` (Thulasidasan 2019).

    ``share`` is one number, or (...,) with a ``loss`` that does not reduce.
    """
    return share * loss(logits, labels) + (1 - share) * loss(logits, partners)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.ndim < 1 or logits.shape[-1] < 2 or labels.shape != logits.shape[:-1]:
        raise ShapeError(
            f"logits must be (..., K) with K >= 2 and labels (...,) class ids, got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}; pass class ids, not one-hot"
        )
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise InputError(f"labels must be integer class ids, got {labels.dtype}")
    return torch.log_softmax(_wide(logits), dim=-1)


def _of_label(log_p: Tensor, labels: Tensor) -> Tensor:
    return log_p.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)


def _log_others(log_p: Tensor, labels: Tensor) -> Tensor:
    """log(1 - p_y), summed from the other classes: exact where p_y rounds to 1."""
    others = log_p.scatter(-1, labels.long().unsqueeze(-1), -torch.inf)
    return torch.logsumexp(others, dim=-1)


def _reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "mean":
        return losses.mean()
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise InputError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def _check_exponent(gamma: float) -> None:
    if not gamma >= 0:
        raise InputError(f"gamma must be 0 or more, got {gamma}")


def _top(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence and whether it is right, of all samples as one batch (n,)."""
    log_p = _log_probs(logits, labels).flatten(0, -2)
    confidence, predicted = log_p.exp().max(dim=-1)
    return confidence, (predicted == labels.flatten()).to(confidence.dtype)


def _laplace(a: Tensor, b: Tensor, width: float) -> Tensor:
    return torch.exp(-(a[:, None] - b[None, :]).abs() / width)
