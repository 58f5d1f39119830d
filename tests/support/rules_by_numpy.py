"""What the recording rules say, computed another way."""

import math

import numpy as np

BINS = 15
LEAST_SHARE = 1e-4
"""An empty bin counts as this in the stability index."""


def bins_by_numpy(c, y, w, seen):
    """Share of the predictions, mean confidence and accuracy of every bin; NaN where labels are too few."""
    b = np.minimum(np.ceil(c * BINS).astype(int) - 1, BINS - 1)
    share = np.bincount(b, minlength=BINS) / len(c)
    found = np.full((2, BINS), np.nan)
    for k in range(BINS):
        on = seen & (b == k)
        if on.sum() >= 5:
            found[:, k] = np.average(c[on], weights=w[on]), np.average(y[on], weights=w[on])
    return share, *found


def _psi(share, reference):
    p, q = (np.maximum(np.asarray(one) / np.sum(one), LEAST_SHARE) for one in (share, reference))
    return float(((p - q) * np.log(p / q)).sum())


def by_numpy(c, y, w, seen, reference):
    """Every recorded number, from confidences, right or not, weights and which are labelled alone."""
    b = np.minimum(np.ceil(c * BINS).astype(int) - 1, BINS - 1)
    share = np.bincount(b, minlength=BINS) / len(c)
    covered = [k for k in range(BINS) if (seen & (b == k)).sum() >= 5]
    p = share[covered]
    rows = [(c[on], y[on], w[on]) for on in (seen & (b == k) for k in covered)]
    conf, acc = (np.array([np.average(r[i], weights=r[2]) for r in rows]) for i in (0, 1))
    v = np.array([(ww**2 * cc * (1 - cc)).sum() / ww.sum() ** 2 for cc, _, ww in rows])
    gap, mean = conf - acc, lambda column: float(p @ column / p.sum())
    many = np.array([len(r[0]) >= 20 for r in rows])
    return {
        "labels": seen.sum(),
        "served": len(c),
        "served_confidence": c.mean(),
        "coverage": p.sum(),
        "ece": mean(abs(gap)),
        "noise_floor": mean(np.sqrt(2 / math.pi * v)),
        "gap_error": math.sqrt(p**2 @ v) / p.sum(),
        "signed_gap": mean(gap),
        "mce": abs(gap)[many].max(),
        "accuracy": mean(acc),
        "brier": mean([np.average((cc - yy) ** 2, weights=ww) for cc, yy, ww in rows]),
        "debiased_l2_squared": mean(gap**2 - v),
        "confidence_psi": _psi(share, reference),
    }
