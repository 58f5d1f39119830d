"""What the recording rules say, computed another way: from predictions and labels, not from sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

BINS = 15
FEWEST = 5
"""Labels that a bin must hold to be covered."""
TOLERANCE, SIGMAS = 0.02, 4
LEAST_SHARE = 1e-4
"""An empty bin counts as this in the stability index."""


def bins_of(confidence: Any) -> Any:
    """Return the bin of each confidence; bins are closed on the right."""
    return np.minimum(np.ceil(np.asarray(confidence) * BINS).astype(int) - 1, BINS - 1)


def bins_by_numpy(
    c: Any, y: Any, w: Any, labelled: Any, *, served: Any = None, effect: float = 1.0
) -> dict[str, Any]:
    """Return share, gap, confidence, accuracy and variance of every bin; NaN where the rules record none.

    ``labelled`` and ``served`` are how often each row counts as a label and as a prediction; ``served`` is
    NaN in bins without such a counter. Without it all rows are served, and every bin has its counters.
    """
    b, labelled = bins_of(c), np.asarray(labelled, float)
    there = range(BINS) if served is None else np.unique(b)
    served = np.ones(len(c)) if served is None else np.asarray(served, float)
    found = {name: np.full(BINS, np.nan) for name in ("share", "gap", "confidence", "accuracy", "variance")}
    weights = labelled * w
    by = served if np.nansum(served) else weights
    for k in there:
        on = b == k
        if np.nansum(by):
            found["share"][k] = by[on].sum() / np.nansum(by)
        cc, yy, ww = c[on], y[on], weights[on]
        if ww.sum():
            found["gap"][k] = np.average(cc - yy, weights=ww)
            # Of independent labels at least: an effect below 1 would promise more than there is.
            found["variance"][k] = (ww * w[on] * cc * (1 - cc)).sum() / ww.sum() ** 2 * max(effect, 1)
        if labelled[on].sum() >= FEWEST:
            found["confidence"][k], found["accuracy"][k] = (np.average(one, weights=ww) for one in (cc, yy))
    return found


def by_numpy(
    c: Any, y: Any, w: Any, labelled: Any, reference: Any = None, *,
    served: Any = None, effect: float = 1.0,
) -> Mapping[str, float]:  # fmt: skip
    """Return every recorded number of a version, without those that are not recorded."""
    bins = bins_by_numpy(c, y, w, labelled, served=served, effect=effect)
    served = np.ones(len(c)) if served is None else np.asarray(served, float)
    found = {"labels": float(np.sum(labelled))}
    if not np.isnan(served).all():
        found["served"] = np.nansum(served)
    if np.nansum(served) and reference is not None:
        found["confidence_psi"] = _psi(bins["share"], reference)
    if np.isnan(bins["share"]).all():
        return found
    labelled_bins = ~np.isnan(bins["share"]) & ~np.isnan(bins["gap"])
    share, gap, variance = (bins[name][labelled_bins] for name in ("share", "gap", "variance"))
    if share.sum():
        found["ece"] = share @ np.abs(gap) / share.sum()
        found["noise_floor"] = share @ np.sqrt(2 / math.pi * variance) / share.sum()
    covered = ~np.isnan(bins["share"]) & ~np.isnan(bins["accuracy"])
    share, gap, variance = (bins[name][covered] for name in ("share", "gap", "variance"))
    found["coverage"] = share.sum()
    if share.sum():
        found["signed_gap"] = share @ gap / share.sum()
        found["accuracy"] = share @ bins["accuracy"][covered] / share.sum()
    if found["labels"] >= 500 and found["coverage"] >= 0.5:
        # Of gaps of normal size the mean size varies by sqrt(1 - 2 / pi) of what their mean does.
        error = math.sqrt((1 - 2 / math.pi) * (share**2 @ variance)) / share.sum()
        squared = share @ (gap**2 - variance) / share.sum()
        off = found["ece"] > found["noise_floor"] + SIGMAS * error and squared > TOLERANCE**2
        found["verdict"] = 1.0 if off else 0.5
    return found


def _psi(share: Any, reference: Any) -> float:
    """Return the stability index of bins that have a share of the predictions and one in the reference."""
    reference = np.asarray(reference, float)
    here = ~(np.isnan(share) | np.isnan(reference))
    p, q = (np.maximum(one[here], LEAST_SHARE) for one in (share, reference / np.nansum(reference)))
    return float(((p - q) * np.log(p / q)).sum())
