"""Cross-entropy that holds confidence down: by its target, its entropy, its logits or mixed samples."""

from __future__ import annotations

import torch
from torch import Tensor

from calib_serve.errors import InputError
from calib_serve.fit.losses.log_probs import Loss, Reduction, log_probs, of_label, reduced, wide

__all__ = ["entropy_regularised", "label_smoothing", "logit_norm_regularised", "mixup"]


def label_smoothing(
    logits: Tensor, labels: Tensor, *, epsilon: float = 0.05, reduction: Reduction = "mean"
) -> Tensor:
    """Cross-entropy against (1 - epsilon) of the label, epsilon spread over all K: LS (Szegedy 2016)."""
    if not 0 <= epsilon < 1:
        raise InputError(f"epsilon must lie in [0, 1), got {epsilon}")
    log_p = log_probs(logits, labels)
    return reduced(-(1 - epsilon) * of_label(log_p, labels) - epsilon * log_p.mean(dim=-1), reduction)


def entropy_regularised(
    logits: Tensor, labels: Tensor, *, strength: float = 0.1, reduction: Reduction = "mean"
) -> Tensor:
    """-log p_y - strength * entropy: entropy regularisation, ERL (Pereyra 2017; Singh 2021, eq. 10)."""
    log_p = log_probs(logits, labels)
    entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return reduced(-of_label(log_p, labels) - strength * entropy, reduction)


def logit_norm_regularised(
    logits: Tensor, labels: Tensor, *, strength: float = 0.01, p: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """-log p_y + strength * ||z||_p of each sample's logits (Joo and Chung 2020; Wang 2021, sec. 3)."""
    if p < 1:
        raise InputError(f"p must be at least 1 for a norm, got {p}")
    log_p = log_probs(logits, labels)
    norm = torch.linalg.vector_norm(wide(logits), ord=p, dim=-1)
    return reduced(-of_label(log_p, labels) + strength * norm, reduction)


def mixup(loss: Loss, logits: Tensor, labels: Tensor, partners: Tensor, share: float | Tensor) -> Tensor:
    """``share`` of the loss against ``labels``, the rest against ``partners`` (Thulasidasan 2019).

    ``share`` is one number, or (...,) with a ``loss`` that does not reduce.
    """
    return share * loss(logits, labels) + (1 - share) * loss(logits, partners)
