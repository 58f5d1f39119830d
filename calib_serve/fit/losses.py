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

from calib_serve.core.errors import InputError, ShapeError

Reduction = Literal["mean", "sum", "none"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of logits (..., K) and class ids (...,)."""

Weight = Callable[[Tensor, Tensor], Tensor]
"""u(log p, y): log-probabilities (..., K) and class ids (...,) to weights (...,)."""


def _wide(logits: Tensor) -> Tensor:
    """Return half precision as single."""
    # bfloat16 holds 8 bits: a log_softmax in it is off by hundredths.
    return logits if logits.dtype == torch.float64 else logits.float()


def _log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities (..., K) of logits (..., K) that are checked together with class ids (...,)."""
    if logits.ndim < 1 or logits.shape[-1] < 2 or labels.shape != logits.shape[:-1]:
        raise ShapeError(
            f"logits must be (..., K) with K >= 2 and labels (...,) class ids, got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}; pass class ids, not one-hot"
        )
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise InputError(f"labels must be integer class ids, got {labels.dtype}")
    return torch.log_softmax(_wide(logits), dim=-1)


def _of_label(log_p: Tensor, labels: Tensor) -> Tensor:
    """Return log p_y (...,)."""
    return log_p.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)


def _log_others(log_p: Tensor, labels: Tensor) -> Tensor:
    """Return log(1 - p_y), summed from the other classes: exact where p_y rounds to 1."""
    # 1 - exp(log p_y) is 0 in float32 from p_y = 1 - 3e-8 on, and its logarithm infinite.
    others = log_p.scatter(-1, labels.long().unsqueeze(-1), -torch.inf)
    return torch.logsumexp(others, dim=-1)


def _reduced(losses: Tensor, reduction: Reduction) -> Tensor:
    """Reduce losses to one number, or keep each."""
    if reduction == "mean":
        return losses.mean()
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise InputError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def focal_weight(*, gamma: float) -> Weight:
    """Weigh by (1 - p_y)^gamma (Lin 2017, eq. 4).

    Args:
        gamma: Exponent.
    """
    _check_exponent(gamma)
    return lambda log_p, labels: torch.exp(gamma * _log_others(log_p, labels))


def flsd_weight(*, low: float = 5.0, high: float = 3.0, threshold: float = 0.2) -> Weight:
    """Weigh by (1 - p_y)^gamma, with a gamma that depends on p_y (Mukhoti 2020, FLSD-53).

    Args:
        low: gamma below the threshold.
        high: gamma from there on.
        threshold: Of p_y.
    """

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        p_true = _of_label(log_p, labels).exp()
        return torch.exp(torch.where(p_true < threshold, low, high) * _log_others(log_p, labels))

    return weight


def dual_focal_weight(*, gamma: float) -> Weight:
    """Weigh by (1 - p_y + p_j)^gamma, p_j the next probability strictly below p_y: DFL (Tao 2023, eq. 5).

    Args:
        gamma: Exponent.
    """
    _check_exponent(gamma)

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        below = log_p < _of_label(log_p, labels).unsqueeze(-1)
        lowest = torch.finfo(log_p.dtype).min  # none lies below: p_j = 0
        log_next = torch.where(below, log_p, lowest).amax(dim=-1)
        return torch.exp(gamma * torch.logaddexp(_log_others(log_p, labels), log_next))

    return weight


def inverse_focal_weight(*, gamma: float) -> Weight:
    """Weigh by (1 + p_y)^gamma, easy samples up (Wang 2021, eq. 4).

    Args:
        gamma: Exponent.
    """
    _check_exponent(gamma)
    return lambda log_p, labels: (1 + _of_label(log_p, labels).exp()) ** gamma


def brier_weight(*, gamma: float, beta: float = 2.0) -> Weight:
    """Weigh by (sum_k |p_k - y_k|^beta)^(gamma / beta), the Brier score of BSCE and BSCE-GRA (Lin 2025).

    This is the authors' code. Their equation 11 reads sum_k |p_k - y_k|^gamma: its norm is of one number, so
    that beta drops out. With beta = 1 it is 2^gamma times the focal weight.

    **It biases**: a network that minimises BSCE-GRA is underconfident where the truth is uncertain. Of two
    classes the optimum is the truth at the temperature 1 + gamma, which a fitted temperature takes back, so
    always fit one afterwards. Of more classes none does so exactly. The paper's proof that the optimum is the
    truth (section 9) has the truth in the weight, where the loss has the label.

    Args:
        gamma: Exponent of the whole.
        beta: Exponent of each distance.

    >>> from calib_serve.fit.losses import weighted_nll
    >>> y = torch.tensor([0] * 9 + [1])  # the truth is (.9, .1)
    >>> z = (torch.tensor([0.9, 0.1]).log() / 5).requires_grad_()  # at T = 1 + 4
    >>> weighted_nll(z.expand(10, 2), y, brier_weight(gamma=4.0), detach=True).backward()
    >>> [round(p, 3) for p in z.softmax(0).tolist()], bool(z.grad.abs().max() < 1e-6)  # and there it rests
    ([0.608, 0.392], True)
    """
    _check_exponent(gamma)
    if beta <= 0:
        raise InputError(f"beta must be positive, got {beta}")

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        # |p_k - y_k| is p_k off the label and 1 - p_y on it.
        gaps = log_p.scatter(-1, labels.long().unsqueeze(-1), _log_others(log_p, labels).unsqueeze(-1))
        return torch.exp(gamma / beta * torch.logsumexp(beta * gaps, dim=-1))

    return weight


def _check_exponent(gamma: float) -> None:
    if not gamma >= 0:
        raise InputError(f"gamma must be 0 or more, got {gamma}")


def weighted_nll(
    logits: Tensor, labels: Tensor, weight: Weight, *, detach: bool = False, reduction: Reduction = "mean"
) -> Tensor:
    """Return u(p) * -log p_y.

    Args:
        logits: (..., K).
        labels: Class ids (...,).
        weight: u, a function of log-probabilities and class ids.
        detach: Whether the weight stays out of the gradient (Lin 2025, eq. 9).
        reduction: "mean", "sum" or "none".
    """
    log_p = _log_probs(logits, labels)
    # Detached for the weight alone: -log p_y keeps its gradient.
    u = weight(log_p.detach() if detach else log_p, labels)
    return _reduced(-u * _of_label(log_p, labels), reduction)


def focal(logits: Tensor, labels: Tensor, *, gamma: float = 3.0, reduction: Reduction = "mean") -> Tensor:
    """Return -(1 - p_y)^gamma log p_y (Lin 2017, eq. 4).

    Args:
        logits: (..., K).
        labels: Class ids (...,).
        gamma: Exponent; 0 is the cross-entropy.
        reduction: "mean", "sum" or "none".
    """
    return weighted_nll(logits, labels, focal_weight(gamma=gamma), reduction=reduction)


def cross_entropy(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Return -log p_y.

    Args:
        logits: (..., K).
        labels: Class ids (...,).
        reduction: "mean", "sum" or "none".

    >>> import torch
    >>> float(cross_entropy(torch.zeros(1, 4), torch.tensor([0])).exp().round(decimals=4))
    4.0
    """
    return _reduced(-_of_label(_log_probs(logits, labels), labels), reduction)


def brier(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Return sum_k (p_k - y_k)^2 (Brier 1950): the Brier loss, BL.

    Args:
        logits: (..., K).
        labels: Class ids (...,).
        reduction: "mean", "sum" or "none".

    >>> import torch
    >>> float(brier(torch.zeros(1, 2), torch.tensor([0])))
    0.5
    """
    p = _log_probs(logits, labels).exp()
    target = functional.one_hot(labels.long(), p.shape[-1]).to(p.dtype)
    return _reduced(((p - target) ** 2).sum(dim=-1), reduction)


def entropy_regularised(
    logits: Tensor, labels: Tensor, *, strength: float = 0.1, reduction: Reduction = "mean"
) -> Tensor:
    """Return -log p_y - strength * entropy: ERL (Pereyra 2017; Singh 2021, eq. 10).

    Args:
        logits: (..., K).
        labels: Class ids (...,).
        strength: Weight of the entropy.
        reduction: "mean", "sum" or "none".
    """
    log_p = _log_probs(logits, labels)
    # A reward for entropy: it flattens the probabilities.
    entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return _reduced(-_of_label(log_p, labels) - strength * entropy, reduction)


def logit_norm_regularised(
    logits: Tensor, labels: Tensor, *, strength: float = 0.01, reduction: Reduction = "mean"
) -> Tensor:
    """Return -log p_y + strength * ||z||_1 of a sample's logits (Joo and Chung 2020; Wang 2021, sec. 3).

    Args:
        logits: (..., K).
        labels: Class ids (...,).
        strength: Weight of the norm.
        reduction: "mean", "sum" or "none".
    """
    log_p = _log_probs(logits, labels)
    norm = torch.linalg.vector_norm(_wide(logits), ord=1, dim=-1)
    return _reduced(-_of_label(log_p, labels) + strength * norm, reduction)


def mixup(loss: Loss, logits: Tensor, labels: Tensor, partners: Tensor, share: float | Tensor) -> Tensor:
    """Return the loss against two labels of mixed samples (Thulasidasan 2019).

    Args:
        loss: Function of logits and class ids.
        logits: (..., K).
        labels: Class ids of the first samples (...,).
        partners: Class ids of the second (...,).
        share: Share of the first, one number, or (...,) with a loss that does not reduce.
    """
    return share * loss(logits, labels) + (1 - share) * loss(logits, partners)


def mmce(logits: Tensor, labels: Tensor, *, width: float = 0.4) -> Tensor:
    """Return the batch's maximum mean calibration error (Kumar 2018, eq. 5), kernel exp(-|r - r'| / width).

    The root of the mean over all pairs of samples of gap * kernel * gap, for gaps of right (1 or 0) less
    confidence r. One number per batch, to be added to a loss; memory grows with the batch size squared.

    Args:
        logits: (..., K).
        labels: Class ids (...,).
        width: Width of the kernel.

    >>> p = torch.tensor([[0.75, 0.25], [0.75, 0.25]])  # one right, one wrong: gaps 1/4 and -3/4
    >>> float(mmce(p.log(), torch.tensor([0, 1])).round(decimals=4))  # |1/4 - 3/4| / 2
    0.25
    """
    confidence, correct = _top(logits, labels)
    gap = correct - confidence
    return _root(gap @ _laplace(confidence, confidence, width) @ gap / len(gap) ** 2)


def mmce_weighted(logits: Tensor, labels: Tensor, *, width: float = 0.4) -> Tensor:
    """Return MMCE with right and wrong predictions weighed alike (Kumar 2018, eq. 6); 0 without either.

    The form that the field trains with, as ``cross_entropy + 2 * mmce_weighted`` (Mukhoti 2020). Each pair
    sum is divided by its number of pairs once, as in the paper; published code divides means of the pairs
    again, which makes the loss nearly vanish.

    Args:
        logits: (..., K).
        labels: Class ids (...,).
        width: Width of the kernel.

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
    some = square > 1e-12  # below is rounding, and the root has no gradient at 0
    return torch.where(some, torch.where(some, square, torch.ones_like(square)).sqrt(), 0 * square)


def _top(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidences and whether they are right, of all samples as one batch (n,)."""
    log_p = _log_probs(logits, labels).flatten(0, -2)
    confidence, predicted = log_p.exp().max(dim=-1)
    return confidence, (predicted == labels.flatten()).to(confidence.dtype)


def _laplace(a: Tensor, b: Tensor, width: float) -> Tensor:
    return torch.exp(-(a[:, None] - b[None, :]).abs() / width)
