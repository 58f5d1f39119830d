"""Log-probabilities of classes, kept exact near 0 and 1, and what every loss does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from calib_serve.errors import InputError, ShapeError

__all__ = ["Loss", "Reduction", "log_others", "log_probs", "of_label", "reduced", "wide"]

Reduction = Literal["mean", "sum", "none"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of logits (..., K) and class ids (...,)."""


def wide(logits: Tensor) -> Tensor:
    """Half precision as single."""
    return logits if logits.dtype == torch.float64 else logits.float()


def log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """(..., K), checked together with class ids (...,)."""
    if logits.ndim < 1 or logits.shape[-1] < 2 or labels.shape != logits.shape[:-1]:
        raise ShapeError(
            f"logits must be (..., K) with K >= 2 and labels (...,) class ids, got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}; pass class ids, not one-hot"
        )
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise InputError(f"labels must be integer class ids, got {labels.dtype}")
    return torch.log_softmax(wide(logits), dim=-1)


def of_label(log_p: Tensor, labels: Tensor) -> Tensor:
    """Log p_y (...,)."""
    return log_p.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)


def log_others(log_p: Tensor, labels: Tensor) -> Tensor:
    """log(1 - p_y), summed from the other classes: exact where p_y rounds to 1."""
    others = log_p.scatter(-1, labels.long().unsqueeze(-1), -torch.inf)
    return torch.logsumexp(others, dim=-1)


def reduced(losses: Tensor, reduction: Reduction) -> Tensor:
    """Mean, sum or each."""
    if reduction == "mean":
        return losses.mean()
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise InputError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
