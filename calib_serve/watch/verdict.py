"""What the live numbers come to, in plain words: calibrated, off, or not proven yet."""

from __future__ import annotations

from calib_serve.errors import InputError
from calib_serve.judgement import Verdict, rounded_up
from calib_serve.watch.drift import TOLERANCE
from calib_serve.watch.estimates import Estimates

__all__ = ["TOLERANCE", "judge"]

_CANCELLING = 2.0  # tolerances within which errors of bins must surely be that cancel on average
_SURELY = 1.5  # half intervals of 95 %: three standard errors
_COVERED = 0.9  # share of predictions that "calibrated" must speak of


def judge(estimates: Estimates, *, tolerance: float = TOLERANCE) -> Verdict:
    """Whether confidence is within ``tolerance`` of accuracy, on average and in bins, as far as labels tell.

    "off": surely not (the gap, or the ECE, is beyond it by three standard errors, for all predictions even if
    what is not covered is perfect; verdicts are looked at often). "calibrated": the gap's 95 % interval lies
    within it, the ECE too, and at least 90 % of predictions are covered. Else "unproven", with what is
    missing.
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance is a difference of probabilities, in (0, 1), got {tolerance}")
    e = estimates
    if not e.labels > 0:
        return Verdict("unproven", "No labels yet: nothing is known about calibration.", (e.bounds.says,))
    if e.missing == "unknown":
        return _of_bounds(e, tolerance)
    if not e.coverage > 0:
        says = f"Too few labels to tell: {e.labels:,.0f}, and in no bin enough."
        return Verdict("unproven", says, (e.bounds.says,))
    return _off(e, tolerance) or _calibrated(e, tolerance) or _unproven(e, tolerance)


def _off(e: Estimates, tolerance: float) -> Verdict | None:
    accuracy, confidence = 100 * e.accuracy.value, 100 * e.covered_confidence
    gap = e.gap.value
    if _surely(abs(gap), gap - e.gap.low if gap > 0 else e.gap.high - gap) * e.coverage > tolerance:
        kind = "Overconfident" if gap > 0 else "Underconfident"
        says = f"{kind}: it says {confidence:.1f} % and is right {accuracy:.1f} % of the time."
        return Verdict("off", says, _why(e))
    if _surely(e.ece.value, e.ece.value - e.ece.low) * e.coverage > tolerance:
        says = f"Some confidences are off, by {100 * e.ece.value:.1f} points on average: see the diagram."
        over = ("They nearly cancel overall.",) if abs(gap) <= tolerance else ()
        return Verdict("off", says, (*over, *_why(e)))
    return None


def _surely(size: float, half: float) -> float:
    """The least that ``size`` surely is, from half of its 95 % interval."""
    return size - _SURELY * half


def _calibrated(e: Estimates, tolerance: float) -> Verdict | None:
    within = max(e.gap.high, -e.gap.low) <= tolerance
    alike = e.ece.value <= tolerance and e.ece.high <= _CANCELLING * tolerance
    if not (within and alike and e.coverage >= _COVERED):
        return None
    says = f"Confidence means what it says, to within {_points(tolerance)}."
    return Verdict("calibrated", says, _why(e))


def _unproven(e: Estimates, tolerance: float) -> Verdict:
    needed = _needed(e, tolerance)
    if e.coverage < _COVERED:
        says = f"Not known for all predictions: labels cover {100 * e.coverage:.0f} % of them."
    elif max(e.gap.low, -e.gap.high) > tolerance:
        kind = "overconfident" if e.gap.value > 0 else "underconfident"
        says = f"Probably {kind}, by {_points(abs(e.gap.value))}: not sure yet."
    elif needed > 1:
        enough = rounded_up(needed * e.labels)
        says = f"Too few labels to tell: {e.labels:,.0f}, and about {enough:,.0f} would do."
    else:
        says = f"At the limit of {_points(tolerance)}: too close to call."
    return Verdict("unproven", says, _why(e))


def _needed(e: Estimates, tolerance: float) -> float:
    """Times the labels there are, to tell the gap and the ECE from what is tolerated."""
    times = 0.0
    for number, limit in ((e.gap, tolerance), (e.ece, _CANCELLING * tolerance)):
        half = (number.high - number.low) / 2
        size = abs(number.value) if number.low > 0 or number.high < 0 else 0.0
        half *= _SURELY if size > limit else 1.0
        # The nearer to the limit, the more labels; within a quarter of it no number is worth naming.
        times = max(times, (half / max(abs(size - limit), limit / 4)) ** 2)
    return times


def _of_bounds(e: Estimates, tolerance: float) -> Verdict:
    low, high = e.worst.gap
    why = ("Labels may be missing for what the outcome was.", e.worst.says)
    if low > tolerance or high < -tolerance:
        kind = "Overconfident" if low > 0 else "Underconfident"
        least = _points(low if low > 0 else -high)
        return Verdict("off", f"{kind} by at least {least}, whatever the missing labels are.", why)
    if -tolerance <= low and high <= tolerance:
        says = f"Confidence is within {_points(tolerance)} of accuracy, whatever the missing labels are."
        return Verdict("calibrated", says, why)
    return Verdict("unproven", "Not to be told while labels are missing for unknown reasons.", why)


def _why(e: Estimates) -> tuple[str, ...]:
    """The gap, what noise alone would show, and what is not known."""
    gap = 100 * e.gap.value
    low, high = 100 * e.gap.low, 100 * e.gap.high
    said = [
        f"Confidence less accuracy is {gap:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}).",
        f"The ECE is {100 * e.ece.value:.1f} % ({100 * e.ece.low:.1f} to {100 * e.ece.high:.1f}): bins show "
        f"{100 * e.ece_observed:.1f} %, and noise alone would show {100 * e.noise_floor:.1f} %.",
    ]
    if e.weighed_by == "labels":
        said.append("No predictions are counted, so this speaks of labelled ones alone.")
    elif e.coverage < 0.995:
        left = 100 * (1 - e.coverage)
        said.append(f"{left:.0f} % of predictions lie where there are too few labels, and are left out.")
    return tuple(said)


def _points(share: float) -> str:
    points = f"{100 * share:.1f}".removesuffix(".0")
    return f"{points} point" + ("" if points == "1" else "s")
