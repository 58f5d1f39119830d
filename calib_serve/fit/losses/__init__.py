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

from calib_serve.fit.losses.log_probs import Loss, Reduction
from calib_serve.fit.losses.mmce import mmce, mmce_weighted
from calib_serve.fit.losses.proper import brier, cross_entropy
from calib_serve.fit.losses.regularised import (
    entropy_regularised,
    label_smoothing,
    logit_norm_regularised,
    mixup,
)
from calib_serve.fit.losses.weighted import dual_focal, flsd, focal, inverse_focal, weighted_nll
from calib_serve.fit.losses.weights import (
    Weight,
    brier_weight,
    dual_focal_weight,
    flsd_weight,
    focal_weight,
    inconsistency_weight,
    inverse_focal_weight,
)

__all__ = [
    "Loss",
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
