"""The verdict on live estimates: calibrated, off, or not known yet, as far as labels show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calib_serve.core.errors import InputError
from calib_serve.core.text import points
from calib_serve.metrics import TOLERANCE, Cells, Verdict, conclude, direction, finest, line_of
from calib_serve.monitor.estimates import Estimates

_COVERED = 0.9  # share of predictions that "calibrated" must speak of


def judge_estimates(estimates: Estimates, *, tolerance: float = TOLERANCE) -> Verdict:
    """Judge whether confidence is near accuracy on average, as far as labels show.

    The levels of ``calib_serve.metrics``, over the bins of the estimates. "off" is as sure as three
    standard errors, for verdicts are looked at often, and of all predictions even if those that labels do not
    cover are perfect; "calibrated" speaks of at least 90 % of them.

    Args:
        estimates: Estimates of ``estimate``.
        tolerance: Largest mean gap that counts as calibrated, a fraction.
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance is a difference of probabilities, in (0, 1), got {tolerance}")
    e = estimates
    if not e.labels > 0:
        return Verdict("too_little", "Too little to say anything: no labels yet.", (e.bounds.says,))
    if e.missing == "unknown":
        return _of_bounds(e, tolerance)
    if not e.coverage > 0:
        says = f"Too little to say anything: {e.labels:,.0f} labels, and in no bin enough."
        return Verdict("too_little", says, (e.bounds.says,))
    held_to = min(tolerance / e.coverage, 0.999) if e.coverage < _COVERED else tolerance
    cells = finest(lambda count: _cells(e, count), held_to)
    words = ("overconfident", "underconfident", "too sure in some ranges and not in others")
    said = f"{direction(cells, words)}, on average {points(cells.error)} off"
    what = "the predicted class's confidence"
    right = f"is right {100 * e.accuracy.value:.1f} % of the time."
    found = conclude(
        [line_of("confidence", what, cells, said, held_to, required=True)],
        n=e.labels,
        opening=f"It says {100 * e.covered_confidence:.1f} % and {right}",
        of="labels",
        risk=0.003,  # three standard errors, as it is looked at often
    )
    found = replace(found, reasons=(*_why(e), *found.reasons))
    if found.level != "calibrated" or e.coverage >= _COVERED:
        return found
    says = f"No error found, but labels cover only {100 * e.coverage:.0f} % of the predictions."
    return replace(found, level="no_error_found", headline=says, do=("Label some of all confidences.",))


def _cells(e: Estimates, count: int) -> Cells:
    """Join neighbouring covered bins into cells of nearly equal shares of the predictions."""
    bins = [row for row in e.bins if row.covered]
    served = np.array([row.served for row in bins])
    before = (np.cumsum(served) - served / 2) / served.sum()
    cell = np.minimum((before * count).astype(np.intp), count - 1)
    _, cell = np.unique(cell, return_inverse=True)
    share = served / served.sum() * sum(row.effective for row in bins)
    each = np.array([(row.confidence, row.accuracy, row.noise, row.effective) for row in bins]).T
    confidence, accuracy, noise, effective = each
    columns = (share, share * confidence, share * accuracy, share**2 * noise, share**2 / effective)
    weight, said, came, noise, squares = (np.bincount(cell, column).astype(np.float64) for column in columns)
    return Cells(weight, said, came, noise, e.effect, squares)


def _of_bounds(e: Estimates, tolerance: float) -> Verdict:
    low, high = e.worst.gap
    why = ("Labels may be missing for what the outcome was.", e.worst.says)
    if low > tolerance or high < -tolerance:
        kind = "overconfident" if low > 0 else "underconfident"
        least = points(low if low > 0 else -high)
        return Verdict(
            "off", f"Not calibrated: {kind} by {least} at least, whatever the missing labels are.", why
        )
    if -tolerance <= low and high <= tolerance:
        says = f"Calibrated: within {points(tolerance)} on average, whatever the missing labels are."
        return Verdict("calibrated", says, why)
    says = "Too little to say anything: labels are missing for unknown reasons."
    return Verdict("too_little", says, why)


def _why(e: Estimates) -> tuple[str, ...]:
    """Explain the estimates: the gap, the ECE of noise alone, and the unknown part."""
    gap = 100 * e.gap.value
    low, high = 100 * e.gap.low, 100 * e.gap.high
    said = [
        f"Confidence less accuracy is {gap:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}).",
        f"The ECE is {100 * e.ece:.1f} %, of which chance alone would show {100 * e.noise_floor:.1f} %; the "
        f"error that remains is {100 * e.debiased_ece.value:.1f} points ({100 * e.debiased_ece.low:.1f} to "
        f"{100 * e.debiased_ece.high:.1f}).",
    ]
    if e.weighed_by == "labels":
        said.append("No predictions are counted, so this speaks of labelled ones alone.")
    elif e.coverage < 0.995:
        left = 100 * (1 - e.coverage)
        said.append(f"{left:.0f} % of predictions lie where there are too few labels, and are left out.")
    return tuple(said)
