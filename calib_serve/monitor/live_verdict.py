"""The verdict on live estimates: calibrated, off, or not known yet, as far as labels show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calib_serve.core.errors import InputError
from calib_serve.core.text import points
from calib_serve.metrics import TOLERANCE, Cells, Verdict, conclude, direction, finest, held_to, line_of
from calib_serve.monitor._bin_gaps import LEAST
from calib_serve.monitor.estimates import Estimates

_WAYS = ("overconfident", "underconfident", "too sure in some ranges and not in others")
_WAYS_OF_EVENT = ("too high", "too low", "too high in some ranges and too low in others")

_LIVE = {
    "calibrated": ("Nothing is to be done: labels go on being compared.",),
    "off": (
        "Check what labels it; then refit on the newest labels, or go back a version. Act on fewer "
        "predictions until then.",
    ),
}
"""Advice for a model that serves; how many more labels would prove it holds for any."""


def judge_estimates(estimates: Estimates, *, tolerance: float = TOLERANCE, event: str = "") -> Verdict:
    """Judge whether confidence is near accuracy on average, as far as labels show.

    The levels of ``calib_serve.metrics``, over the bins of the estimates. "off" is as sure as three
    standard errors, for verdicts are looked at often, and of all predictions even if those that labels do not
    cover are perfect; "calibrated" speaks of at least 90 % of them.

    Args:
        estimates: Estimates of ``estimate``.
        tolerance: Largest mean gap that counts as calibrated, a fraction; of a rare event at most a fifth of
            its share.
        event: Name of the class that the confidences are probabilities of, whatever was predicted; "" for
            those of the predicted class.
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance is a difference of probabilities, in (0, 1), got {tolerance}")
    e = estimates
    if not e.labels > 0:
        return Verdict("too_little", "Too little to say anything: no labels yet.", (e.bounds.says(event),))
    if e.missing == "unknown" and e.worst.unseen > 0:
        return _of_bounds(e, tolerance, event)
    if e.labels < LEAST:
        says = f"Too little to say anything: {e.labels:,.0f} labels."
        return Verdict("too_little", says, (e.bounds.says(event),))
    if event:
        came = e.accuracy.value
        tolerance = held_to(tolerance, came, e.labels)
    covers = e.coverage >= 0.9  # "calibrated" must speak of as many predictions
    within = tolerance if covers else min(tolerance / e.coverage, 0.999)
    cells = finest(lambda count: _cells(e, count), within)
    what = f"P({event})" if event else "the predicted class's confidence"
    said = f"{direction(cells, _WAYS_OF_EVENT if event else _WAYS)}, on average {points(cells.error)} off"
    found = conclude(
        [line_of("confidence", what, cells, f"{what} is {said}" if event else said, within, required=True)],
        n=e.labels,
        opening=_opening(e, event),
        of="labels",
        risk=0.003,  # three standard errors, as it is looked at often
    )
    found = replace(found, reasons=(*_why(e, event), *found.reasons), do=_LIVE.get(found.level, found.do))
    if found.level != "calibrated" or covers:
        return found
    says = f"No error found, but labels cover only {100 * e.coverage:.0f} % of the predictions."
    return replace(found, level="no_error_found", headline=says, do=("Label some of all confidences.",))


def _cells(e: Estimates, count: int) -> Cells:
    """Join neighbouring bins into cells of nearly equal shares of the predictions that count."""
    bins = [row for row in e.bins if row.counted]
    counted = np.array([row.counted for row in bins])
    before = (np.cumsum(counted) - counted / 2) / counted.sum()
    cell = np.minimum((before * count).astype(np.intp), count - 1)
    _, cell = np.unique(cell, return_inverse=True)
    share = counted / counted.sum() * sum(row.effective for row in bins)
    # A bin stands for its share of the labels.
    rows = [
        (n, n * row.confidence, n * row.accuracy, n**2 * row.noise, n**2 / row.effective)
        for row, n in zip(bins, share, strict=True)
    ]
    sums = [np.bincount(cell, column).astype(np.float64) for column in np.array(rows).T]
    weight, said, came, noise, squares = sums
    return Cells(weight, said, came, noise, e.effect, squares)


def _of_bounds(e: Estimates, tolerance: float, event: str) -> Verdict:
    low, high = e.worst.gap
    why = ("Labels may be missing for what the outcome was.", e.worst.says(event))
    if low > tolerance or high < -tolerance:
        ways = _WAYS_OF_EVENT if event else _WAYS
        kind = f"{f'P({event}) is ' if event else ''}{ways[0] if low > 0 else ways[1]}"
        least = points(low if low > 0 else -high)
        return Verdict(
            "off", f"Not calibrated: {kind} by {least} at least, whatever the missing labels are.", why
        )
    if -tolerance <= low and high <= tolerance:
        says = f"Calibrated: within {points(tolerance)} on average, whatever the missing labels are."
        return Verdict("calibrated", says, why)
    says = "Too little to say anything: labels are missing for unknown reasons."
    return Verdict("too_little", says, why)


def _opening(e: Estimates, event: str) -> str:
    accuracy, confidence = 100 * e.accuracy.value, 100 * e.covered_confidence
    if event:
        return f"P({event}) is {confidence:.1f} % on average, and {event} is {accuracy:.1f} % of the labels."
    return f"It says {confidence:.1f} % and is right {accuracy:.1f} % of the time."


def _why(e: Estimates, event: str) -> tuple[str, ...]:
    """Explain the estimates: the gap, the ECE of noise alone, and the unknown part."""
    gap = 100 * e.gap.value
    low, high = 100 * e.gap.low, 100 * e.gap.high
    said = [
        f"{f'P({event}) less its share' if event else 'Confidence less accuracy'} is {gap:+.1f} points (95 % "
        f"interval {low:+.1f} to {high:+.1f}).",
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
