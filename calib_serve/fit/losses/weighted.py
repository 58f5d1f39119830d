"""Losses that are a weighted NLL, u(p) * -log p_y."""

from __future__ import annotations

from torch import Tensor

from calib_serve.fit.losses.log_probs import Reduction, log_probs, of_label, reduced
from calib_serve.fit.losses.weights import (
    Weight,
    dual_focal_weight,
    flsd_weight,
    focal_weight,
    inverse_focal_weight,
)

__all__ = ["dual_focal", "flsd", "focal", "inverse_focal", "weighted_nll"]


def weighted_nll(
    logits: Tensor, labels: Tensor, weight: Weight, *, detach: bool = False, reduction: Reduction = "mean"
) -> Tensor:
    """u(p) * -log p_y; ``detach`` keeps the weight out of the gradient (Lin 2025, eq. 9)."""
    log_p = log_probs(logits, labels)
    u = weight(log_p.detach() if detach else log_p, labels)
    return reduced(-u * of_label(log_p, labels), reduction)


def focal(logits: Tensor, labels: Tensor, *, gamma: float = 3.0, reduction: Reduction = "mean") -> Tensor:
    """-(1 - p_y)^gamma log p_y (Lin 2017, eq. 4); gamma = 0 is the cross-entropy."""
    return weighted_nll(logits, labels, focal_weight(gamma=gamma), reduction=reduction)


def flsd(logits: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Focal loss whose gamma depends on the sample: FLSD-53 (Mukhoti 2020)."""
    return weighted_nll(logits, labels, flsd_weight(), reduction=reduction)


def dual_focal(
    logits: Tensor, labels: Tensor, *, gamma: float = 5.0, reduction: Reduction = "mean"
) -> Tensor:
    """Dual focal loss, DFL: -(1 - p_y + p_j)^gamma log p_y (Tao 2023, eq. 5)."""
    return weighted_nll(logits, labels, dual_focal_weight(gamma=gamma), reduction=reduction)


def inverse_focal(
    logits: Tensor, labels: Tensor, *, gamma: float = 2.0, reduction: Reduction = "mean"
) -> Tensor:
    """-(1 + p_y)^gamma log p_y (Wang 2021, eq. 4)."""
    return weighted_nll(logits, labels, inverse_focal_weight(gamma=gamma), reduction=reduction)
