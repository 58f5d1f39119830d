"""What the recording rules say, computed another way: from predictions and labels, not from sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

BINS = 15
FEWEST, MANY = 5, 20
"""Labels that a bin must hold to be covered, and to count for the largest gap."""
LEAST_SHARE = 1e-4
"""An empty bin counts as this in the stability index."""


def bins_of(confidence: Any) -> Any:
    """Return the bin of each confidence; bins are closed on the right."""
    return np.minimum(np.ceil(np.asarray(confidence) * BINS).astype(int) - 1, BINS - 1)


def bins_by_numpy(c: Any, y: Any, w: Any, labelled: Any, *, served: Any = None) -> dict[str, Any]:
    """Return share, weight, confidence and accuracy of every bin; NaN where the rules record none.

    ``labelled`` and ``served`` are how often each row counts as a label and as a prediction; ``served`` is
    NaN in bins without such a counter. Without it all rows are served, and every bin has its counters.
    """
    b, labelled = bins_of(c), np.asarray(labelled, float)
    there = range(BINS) if served is None else np.unique(b)
    served = np.ones(len(c)) if served is None else np.asarray(served, float)
    found = {name: np.full(BINS, np.nan) for name in ("share", "weight", "confidence", "accuracy", "noise")}
    found |= {name: np.full(BINS, np.nan) for name in ("brier", "plain gap", "plain noise")}
    found |= {"labels": np.zeros(BINS)}
    weights = labelled * w
    by = served if np.nansum(served) else weights
    for k in there:
        on = b == k
        found["labels"][k], found["weight"][k] = labelled[on].sum(), weights[on].sum()
        if np.nansum(by):
            found["share"][k] = by[on].sum() / np.nansum(by)
        cc, yy, ww = c[on], y[on], weights[on]
        if ww.sum():
            found["plain gap"][k] = abs(np.average(cc - yy, weights=ww))
            found["plain noise"][k] = (ww * w[on] * cc * (1 - cc)).sum() / ww.sum() ** 2
        if labelled[on].sum() >= FEWEST:
            found["confidence"][k], found["accuracy"][k] = (np.average(one, weights=ww) for one in (cc, yy))
            found["brier"][k] = np.average((cc - yy) ** 2, weights=ww)
            found["noise"][k] = (ww * w[on] * cc * (1 - cc)).sum() / ww.sum() ** 2
    return found


def by_numpy(
    c: Any, y: Any, w: Any, labelled: Any, reference: Any = None, *,
    served: Any = None, effect: float = 1.0,
) -> Mapping[str, float]:  # fmt: skip
    """Return every recorded number of a version, without those that are not recorded."""
    bins = bins_by_numpy(c, y, w, labelled, served=served)
    served = np.ones(len(c)) if served is None else np.asarray(served, float)
    known = ~np.isnan(bins["confidence"])
    gap = bins["confidence"] - bins["accuracy"]
    found = {"labels": float(np.sum(labelled))}
    if not np.isnan(served).all():
        found["served"] = np.nansum(served)
    if np.nansum(served):
        found["served_confidence"] = np.average(c, weights=np.nan_to_num(served))
        if reference is not None:
            found["confidence_psi"] = _psi(bins["share"], reference)
    if (known & (bins["labels"] >= MANY)).any():
        found["mce"] = np.abs(gap[known & (bins["labels"] >= MANY)]).max()
    if np.isnan(bins["share"]).all():
        return found
    any_label = ~np.isnan(bins["share"]) & ~np.isnan(bins["plain gap"])
    whole = bins["share"][any_label]
    if whole.sum():
        chance = np.sqrt(2 / math.pi * bins["plain noise"][any_label] * max(effect, 1))
        found["ece"] = whole @ bins["plain gap"][any_label] / whole.sum()
        found["noise_floor"] = whole @ chance / whole.sum()
    known &= ~np.isnan(bins["share"])
    share = bins["share"][known]
    found["coverage"] = share.sum()
    if share.sum():
        # Of independent labels at least: an effect below 1 would promise more than there is.
        noise = bins["noise"][known] * max(effect, 1)
        columns = {
            "signed_gap": gap[known],
            "accuracy": bins["accuracy"][known],
            "brier": bins["brier"][known],
            "debiased_l2_squared": gap[known] ** 2 - noise,
        }
        found |= {name: share @ column / share.sum() for name, column in columns.items()}
        found["gap_error"] = math.sqrt(share**2 @ noise) / share.sum()
    return found


def _psi(share: Any, reference: Any) -> float:
    """Return the stability index of bins that have a share of the predictions and one in the reference."""
    reference = np.asarray(reference, float)
    here = ~(np.isnan(share) | np.isnan(reference))
    p, q = (np.maximum(one[here], LEAST_SHARE) for one in (share, reference / np.nansum(reference)))
    return float(((p - q) * np.log(p / q)).sum())
