"""Weights u(p) of the NLL: functions of log-probabilities (..., K) and class ids (...,)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from calib_serve.errors import InputError
from calib_serve.fit.losses.log_probs import log_others, of_label

__all__ = [
    "Weight",
    "brier_weight",
    "dual_focal_weight",
    "flsd_weight",
    "focal_weight",
    "inconsistency_weight",
    "inverse_focal_weight",
]

Weight = Callable[[Tensor, Tensor], Tensor]
"""u(log p, y): log-probabilities (..., K) and class ids (...,) to weights (...,)."""


def focal_weight(*, gamma: float) -> Weight:
    """(1 - p_y)^gamma (Lin 2017, eq. 4)."""
    _check_exponent(gamma)
    return lambda log_p, labels: torch.exp(gamma * log_others(log_p, labels))


def flsd_weight(*, low: float = 5.0, high: float = 3.0, threshold: float = 0.2) -> Weight:
    """(1 - p_y)^gamma with gamma ``low`` where p_y < threshold, else ``high`` (Mukhoti 2020, FLSD-53)."""

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        p_true = of_label(log_p, labels).exp()
        return torch.exp(torch.where(p_true < threshold, low, high) * log_others(log_p, labels))

    return weight


def dual_focal_weight(*, gamma: float) -> Weight:
    """(1 - p_y + p_j)^gamma, p_j the largest probability strictly below p_y: DFL (Tao 2023, eq. 5)."""
    _check_exponent(gamma)

    def weight(log_p: Tensor, labels: Tensor) -> Tensor:
        below = log_p < of_label(log_p, labels).unsqueeze(-1)
        lowest = torch.finfo(log_p.dtype).min  # none lies below: p_j = 0
        log_next = torch.where(below, log_p, lowest).amax(dim=-1)
        return torch.exp(gamma * torch.logaddexp(log_others(log_p, labels), log_next))

    return weight


def inverse_focal_weight(*, gamma: float) -> Weight:
    """(1 + p_y)^gamma: weighs easy samples up (Wang 2021, eq. 4)."""
    _check_exponent(gamma)
    return lambda log_p, labels: (1 + of_label(log_p, labels).exp()) ** gamma


def brier_weight(*, gamma: float, beta: float = 2.0) -> Weight:
    """(sum_k |p_k - y_k|^beta)^(gamma / beta), the generalised Brier score of BSCE and BSCE-GRA (Lin 2025).

    This is the authors' code. Their equation 11 reads sum_k |p_k - y_k|^gamma: its norm is of one number, so
    that beta drops out. With beta = 1 it is 2^gamma times the focal weight.

    **It biases**: a network that minimises BSCE-GRA is underconfident where the truth is uncertain. Of two
    classes the optimum is the truth at the temperature 1 + gamma, which a fitted temperature takes back, so
    always fit one afterwards. Of more classes none does so exactly. The paper's proof that the optimum is the
    truth (section 9) has the truth in the weight, where the loss has the label.

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
        gaps = log_p.scatter(-1, labels.long().unsqueeze(-1), log_others(log_p, labels).unsqueeze(-1))
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


def _check_exponent(gamma: float) -> None:
    if not gamma >= 0:
        raise InputError(f"gamma must be 0 or more, got {gamma}")
