"""A proper score of ordered classes: the ranked probability score."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.metrics.proper import soft_or_hard

__all__ = ["ranked_probability_score"]


def ranked_probability_score(
    probs: ArrayLike, labels: ArrayLike, *, normalized: bool = False, sample_weight: ArrayLike | None = None
) -> float:
    """The mean over samples of sum_k (P(y <= k) - [y <= k])^2 over the K - 1 thresholds (Epstein 1969).

    Probabilities (n, K) are of classes in their order; labels class ids (n,), or soft (n, K). ``normalized``
    divides by K - 1, so that it lies between 0 and 1; without it it is the sum, of which the Brier score of
    two classes is twice as much.

    >>> round(ranked_probability_score([[0.2, 0.5, 0.3]], [1]), 12)  # (0.2 - 0)^2 + (0.7 - 1)^2
    0.13
    """
    p, q, w = soft_or_hard(probs, labels, sample_weight)
    apart = np.cumsum(p - q, axis=1)[:, :-1]
    found = np.einsum("nk,nk->n", apart, apart)
    return float(np.average(found, weights=w)) / (p.shape[1] - 1 if normalized else 1)
