"""The drift detector of ``calib_serve.monitor.drift``, by numba: the same numbers, label by label."""

from __future__ import annotations

import numba
import numpy as np

from calib_serve.core.bins import bin_index
from calib_serve.monitor.drift import bets, rounds
from calib_serve.monitor.measured import BINS_STAKE, CLASSES_STAKE

BINS = 15
_CHOSEN = np.arange(len(rounds.SHIFTS))[rounds.OF_PARTS]
_CLASSES = rounds.CLASS_SLOTS
_MOST = 128  # starts alive at once


@numba.njit(cache=True)
def _parts_after(state, label, part, pays, prior, spacing, thin):
    """The worth of the bets on parts after one label."""
    starts, count, paid, capital, belief = state
    n = count[0]
    k_all = len(pays) // 2
    if n == 0 or label - starts[n - 1] >= spacing:
        starts[n] = label
        capital[n, :] = (label - paid[0]) / k_all
        for d in range(3):
            belief[n, :, d, :] = prior[d]
        paid[0] = label
        n += 1
        kept = 1
        for j in range(1, n):
            if j < n - 1 and label + spacing - starts[kept - 1] <= thin * (label + spacing - starts[j + 1]):
                capital[j + 1] += capital[j]
            else:
                if kept != j:
                    starts[kept], capital[kept], belief[kept] = starts[j], capital[j], belief[j]
                kept += 1
        n = kept
        count[0] = n
    total = 0.0
    for j in range(n):
        for k in range(k_all):
            over = belief[j, part, 1, k] * pays[k]
            under = belief[j, part, 2, k] * pays[k_all + k]
            growth = belief[j, part, 0, k] + over + under
            belief[j, part, 0, k] /= growth
            belief[j, part, 1, k] = over / growth
            belief[j, part, 2, k] = under / growth
            capital[j, k] *= growth
            total += capital[j, k]
    return total


@numba.njit(cache=True)
def _fresh(parts, sizes):
    return (
        np.zeros(_MOST, np.int64),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.zeros((_MOST, sizes)),
        np.zeros((_MOST, parts, 3, sizes)),
    )


@numba.njit(cache=True)
def _run(pays, bins, classes, stakes, shares, prior, spacing, thin, chosen, threshold):
    """The first label at which the statistic reaches the threshold, 0 if none, and the statistic then."""
    half, few = pays.shape[1] // 2, len(chosen)
    worth, of_parts = np.zeros(2 * half), np.empty(2 * few)
    by_bin, by_class = _fresh(BINS, few), _fresh(_CLASSES, few)
    evidence = 0.0
    for i in range(len(pays)):
        evidence = 0.0
        for k in range(2 * half):
            worth[k] = (worth[k] + 1) * pays[i, k]
            evidence += stakes[k] * worth[k]
        for k in range(few):
            of_parts[k], of_parts[few + k] = pays[i, chosen[k]], pays[i, half + chosen[k]]
        evidence += shares[0] * _parts_after(by_bin, i + 1, bins[i], of_parts, prior, spacing, thin)
        evidence += shares[1] * _parts_after(by_class, i + 1, classes[i], of_parts, prior, spacing, thin)
        if evidence >= threshold:
            return i + 1, evidence
    return 0, evidence


def run(c, y, classes, *, tolerance, arl, length=8_000):
    """The label of the first alarm, 0 without one, and the statistic then.

    ``classes``: slots. Of a long stream a short piece is tried first, as most alarm early.
    """
    label, evidence = 0, 0.0
    for cut in sorted({min(length, len(c)), len(c)}):
        label, evidence = _run(
            rounds.payoffs(c[:cut], y[:cut], tolerance=tolerance),
            bin_index(c[:cut], bins=BINS),
            classes[:cut],
            bets.signed_stakes(tolerance=tolerance, arl=arl),
            np.array([BINS_STAKE, CLASSES_STAKE]),
            bets.PRIOR,
            bets.SPACING,
            bets.THIN,
            _CHOSEN,
            arl,
        )
        if label:
            break
    return label, evidence
