"""Skill: how much of a reference's loss is gone."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.core.arrays import as_floats
from calib_serve.core.errors import InputError
from calib_serve.metrics.intervals import Estimate, mean_interval
from calib_serve.metrics.proper import sample_losses
from calib_serve.metrics.samples import checked, weighing_rows


def skill(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    reference: ArrayLike | Literal["shares"],
    score: Literal["nll", "brier"] = "brier",
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    level: float = 0.95,
) -> Estimate:
    """Return 1 - loss / loss of the reference: 1 is perfect, 0 as good as the reference, below 0 worse.

    Of the Brier score it is the BSS, of the NLL over the shares of the classes NIST's normalised
    cross-entropy (NCE); both are ratios of means, with the interval of such (the delta method). NaN where the
    reference makes no loss, and minus infinity where a true class was given probability 0.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
        reference: "shares", the classes' shares among these very labels, given for each sample; or
            probabilities of your own, (K,) for each sample or (n, K).
        score: "nll" or "brier".
        sample_weight: (n,).
        groups: Which samples belong together (n,).
        level: Coverage of the interval, a fraction.

    >>> skill([[0.9, 0.1], [0.1, 0.9]], [0, 1], reference="shares").value  # 1 - 0.02 / 0.5
    0.96
    """
    if score not in ("nll", "brier"):
        raise InputError(f"score must be 'nll' or 'brier', got {score!r}")
    p, y = checked(probs, labels)
    if not isinstance(reference, str):
        given = (
            np.broadcast_to(as_floats(reference, "reference"), p.shape)
            if np.ndim(reference) == 1
            else reference
        )
        p = np.stack([p, checked(given, y)[0]], axis=1)
    p, y, w, codes = weighing_rows(p, y, sample_weight, groups)
    if isinstance(reference, str):
        if reference != "shares":
            raise InputError(f"reference must be 'shares' or probabilities, got {reference!r}")
        shares = np.bincount(y, w, p.shape[1]) / np.bincount(y, w).sum()
        p = np.stack([p, np.broadcast_to(shares, p.shape)], axis=1)
    own, other = (sample_losses(p[:, i], y, score) for i in (0, 1))
    mean, of_reference = (float(np.average(loss, weights=w)) for loss in (own, other))
    if not of_reference:
        return Estimate(math.nan)
    ratio = mean / of_reference
    if not (math.isfinite(mean) and math.isfinite(of_reference)):
        return Estimate(1 - ratio)
    parts = 1 - ratio - (own - ratio * other) / of_reference
    return mean_interval(parts, level=level, groups=codes, weight=w)
