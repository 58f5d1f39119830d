"""Strictly proper losses: least at the true probabilities."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from calib_serve.fit.losses.log_probs import Reduction, log_probs, of_label, reduced

__all__ = ["brier", "cross_entropy"]


def cross_entropy(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """-log p_y.

    >>> import torch
    >>> float(cross_entropy(torch.zeros(1, 4), torch.tensor([0])).exp().round(decimals=4))
    4.0
    """
    return reduced(-of_label(log_probs(logits, labels), labels), reduction)


def brier(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """sum_k (p_k - y_k)^2 (Brier 1950): the Brier loss, BL.

    >>> import torch
    >>> float(brier(torch.zeros(1, 2), torch.tensor([0])))
    0.5
    """
    p = log_probs(logits, labels).exp()
    target = functional.one_hot(labels.long(), p.shape[-1]).to(p.dtype)
    return reduced(((p - target) ** 2).sum(dim=-1), reduction)
