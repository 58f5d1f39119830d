"""The losses that are compared, by name: each paper's, at every coefficient that it tries.

A loss is a function of logits (n, K) and class ids (n,). The first sixteen or so are one setting of each;
the rest are the other coefficients of Wang 2021 (section 3.1 and figure 6) and Lin 2025 (table 6).
"""

from __future__ import annotations

from functools import partial

import torch

from calib_serve.fit import losses

MIXUP_ALPHA = 0.2

# Wang 2021, section 3.1: the coefficients that each method chooses from.
SMOOTHINGS = (0.01, 0.03, 0.05, 0.07, 0.09)
NORMS = (0.001, 0.005, 0.01, 0.05, 0.1)
FOCAL_GAMMAS = (1, 3, 5, 7, 9)
INVERSE_GAMMAS = (1, 2, 3)  # figure 6
BRIER_GAMMAS = (3, 4, 5, 6, 7, 8)  # Lin 2025, table 6


def with_mmce(logits, labels, *, strength):
    """Cross-entropy and the calibration error of the batch (Kumar 2018, eq. 5)."""
    return losses.cross_entropy(logits, labels) + strength * losses.mmce(logits, labels)


def with_weighted_mmce(logits, labels, *, strength):
    """Right and wrong predictions weighed alike (Kumar 2018, eq. 6; Mukhoti 2020 has strength 2)."""
    return losses.cross_entropy(logits, labels) + strength * losses.mmce_weighted(logits, labels)


def weighted(weight, *, gradient):
    """u(p) as a weight of the loss, or of its gradient (GRA; Lin 2025, eq. 9)."""
    return partial(losses.weighted_nll, weight=weight, detach=gradient)


def smoothing(epsilon):
    return f"label smoothing {epsilon:g}".replace(" 0.", " .")


def norm(strength):
    return f"L1 norm of logits {strength:g}".replace(" 0.", " .")


def focal(gamma):
    return f"focal, gamma {gamma}"


def inverse_focal(gamma):
    return f"inverse focal, gamma {gamma}"


def brier_weighted(gamma):
    return f"BSCE-GRA, gamma {gamma}"


EVERY = {
    "cross-entropy": losses.cross_entropy,
    **{smoothing(e): partial(torch.nn.functional.cross_entropy, label_smoothing=e) for e in SMOOTHINGS},
    **{norm(s): partial(losses.logit_norm_regularised, strength=s) for s in NORMS},
    **{focal(g): partial(losses.focal, gamma=float(g)) for g in FOCAL_GAMMAS},
    **{
        inverse_focal(g): weighted(losses.inverse_focal_weight(gamma=float(g)), gradient=False)
        for g in INVERSE_GAMMAS
    },
    "FLSD-53": weighted(losses.flsd_weight(), gradient=False),
    "FLSD-53-GRA": weighted(losses.flsd_weight(), gradient=True),
    "dual focal, gamma 5": weighted(losses.dual_focal_weight(gamma=5.0), gradient=False),
    "dual focal-GRA, gamma 5": weighted(losses.dual_focal_weight(gamma=5.0), gradient=True),
    "BSCE, gamma 4": weighted(losses.brier_weight(gamma=4.0, beta=2.0), gradient=False),
    **{
        brier_weighted(g): weighted(losses.brier_weight(gamma=float(g), beta=2.0), gradient=True)
        for g in BRIER_GAMMAS
    },
    "Brier": losses.brier,
    "entropy .1": partial(losses.entropy_regularised, strength=0.1),
    "mixup": losses.cross_entropy,  # of mixed inputs: train_losses.py mixes them
    "MMCE, 2": partial(with_mmce, strength=2),
    "weighted MMCE, 2": partial(with_weighted_mmce, strength=2),
    "weighted MMCE, .2": partial(with_weighted_mmce, strength=0.2),
}

FIRST = (
    "cross-entropy",
    smoothing(0.05),
    norm(0.01),
    focal(3),
    inverse_focal(2),
    "FLSD-53",
    "FLSD-53-GRA",
    "dual focal, gamma 5",
    "dual focal-GRA, gamma 5",
    "BSCE, gamma 4",
    brier_weighted(4),
    "Brier",
    "entropy .1",
    "mixup",
    "MMCE, 2",
    "weighted MMCE, 2",
)

LOSSES = {name: EVERY[name] for name in (*FIRST, *(name for name in EVERY if name not in FIRST))}
