"""Plain language: is it calibrated, how sure is that, what changed, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from calib_serve.artifact import Artifact
from calib_serve.metrics import Change, Evaluation
from calib_serve.report.classes import ClassRow
from calib_serve.report.consistency import CalibrationTest

__all__ = ["Level", "Verdict", "judge", "percent", "points", "signed_points"]

Level = Literal["calibrated", "close", "unproven", "off"]
"""``calibrated``: no sign of an error, and one beyond the tolerance would have shown; ``close``: an
error that is real but within the tolerance; ``unproven``: no sign, but too few samples to tell;
``off``: an error beyond the tolerance, or one that may be."""

MINUS = "\N{MINUS SIGN}"
_CHANCE = 0.05
_WITH_95 = "95\N{NO-BREAK SPACE}% interval"


@dataclass(frozen=True)
class Verdict:
    """The level, a headline, and sentences: how ``sure`` it is, what ``changed``, what to ``do``."""

    level: Level
    headline: str
    sure: tuple[str, ...]
    changed: tuple[str, ...]
    do: tuple[str, ...]


def percent(value: float, digits: int = 1) -> str:
    r"""A fraction in percent.

    >>> percent(0.0475)
    '4.8\xa0%'
    """
    return "unknown" if not math.isfinite(value) else f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def points(value: float, digits: int = 1) -> str:
    r"""A difference of two fractions, without its sign.

    >>> points(-0.0362)
    '3.6\xa0points'
    """
    return "unknown" if not math.isfinite(value) else f"{100 * abs(value):.{digits}f}\N{NO-BREAK SPACE}points"


def signed_points(value: float) -> str:
    """A difference of two fractions in points, with its sign.

    >>> signed_points(0.0412), signed_points(-0.0001)
    ('+4.1', '0.0')
    """
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", MINUS)


def judge(
    found: Evaluation,
    test: CalibrationTest,
    *,
    before: Evaluation | None = None,
    changes: Mapping[str, Change] | None = None,
    classes: Sequence[ClassRow] = (),
    artifact: Artifact | None = None,
    tolerance: float = 0.02,
) -> Verdict:
    """Judge the metrics ``found`` of a model; ``tolerance`` is the acceptable mean gap.

    ``before`` and ``changes`` are of the same samples without the calibration.
    """
    level = _level(found, test, tolerance)
    return Verdict(
        level,
        _headline(level, found),
        _sure(found, test),
        _changed(before, found, changes or {}),
        _do(
            level, found, test, changes=changes or {}, classes=classes, artifact=artifact, tolerance=tolerance
        ),
    )


def _level(found: Evaluation, test: CalibrationTest, tolerance: float) -> Level:
    if test.p >= _CHANCE:
        return "calibrated" if test.critical <= tolerance else "unproven"
    # Without replicates there is no interval: use the estimate itself.
    high = found.ece.high if math.isfinite(found.ece.high) else found.ece.value
    return "close" if high <= tolerance else "off"


def _direction(found: Evaluation) -> str:
    gap = found.signed_gap
    # Errors of both signs cancel in the mean gap, not in the ECE.
    one_sided = abs(gap.value) >= found.ece.value / 2
    if one_sided and gap.low > 0:
        return "overconfident"
    if one_sided and gap.high < 0:
        return "underconfident"
    return "too sure in some ranges and not sure enough in others"


def _headline(level: Level, found: Evaluation) -> str:
    if level == "calibrated":
        return "Calibrated: its confidence can be taken at its word."
    if level == "unproven":
        return "No sign of miscalibration, but too few samples to be sure."
    off_by = points(found.ece.value)
    if level == "close":
        return f"Nearly calibrated: on average {off_by} off, within the tolerance."
    return f"Not calibrated: {_direction(found)}, on average {off_by} off."


def _sure(found: Evaluation, test: CalibrationTest) -> tuple[str, ...]:
    ece = found.ece
    interval = f" ({_WITH_95} {percent(ece.low)} to {percent(ece.high)})" if ece.low == ece.low else ""
    chance = "less than one in a thousand" if test.p < 0.001 else f"{test.p:.3f}"
    gap = found.signed_gap.value
    says = (
        f"It is right in {percent(found.accuracy.value)} of {found.n:,} test predictions and says "
        f"{percent(found.mean_confidence.value)} on average: "
        f"{points(gap)} too {'much' if gap > 0 else 'little'}."
    )
    return (
        says,
        f"Expected calibration error: {percent(ece.value)}{interval}.",
        f"A perfectly calibrated model would show {percent(test.expected)} on this many samples by chance "
        f"alone, and more than {percent(test.critical)} one time in twenty. The chance of an error as large "
        f"as this one, if it were calibrated: {chance}.",
    )


_STORY = (
    ("ece", "The calibration error", True),
    ("nll", "The negative log-likelihood", False),
    ("accuracy", "Accuracy", True),
    ("refinement_auroc", "How well confidence tells right from wrong (AUROC)", False),
)


def _changed(before: Evaluation | None, after: Evaluation, changes: Mapping[str, Change]) -> tuple[str, ...]:
    if before is None:
        return ()
    told = []
    for name, words, share in _STORY:
        if name in changes:
            values = getattr(before, name).value, getattr(after, name).value
            told.append(_move(words, *values, changes[name], share))
    return tuple(told)


def _move(words: str, old: float, new: float, change: Change, share: bool) -> str:
    shown = [percent(v, 2) if share else f"{v:.4f}" for v in (old, new)]
    if change.difference.value == 0:
        return f"{words} stayed at {shown[1]}."
    way = "fell" if change.difference.value < 0 else "rose"
    if not change.p < _CHANCE:
        return f"{words} {way} from {shown[0]} to {shown[1]}, which may be chance (p = {change.p:.2f})."
    chance = "p\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}0.001" if change.p < 0.001 else f"p = {change.p:.3f}"
    low, high = change.difference.low, change.difference.high
    span = f"{100 * low:+.2f} to {100 * high:+.2f} points" if share else f"{low:+.4f} to {high:+.4f}"
    span = span.replace("-", MINUS)
    moved = f"{words} {way} from {shown[0]} to {shown[1]}"
    return f"{moved} ({_WITH_95} of the change {span}; {chance})."


def _do(
    level: Level,
    found: Evaluation,
    test: CalibrationTest,
    *,
    changes: Mapping[str, Change],
    classes: Sequence[ClassRow],
    artifact: Artifact | None,
    tolerance: float,
) -> tuple[str, ...]:
    advice = [*_refusals(changes)]
    if level == "unproven":
        # The error that chance alone explains falls with the square root of the sample count, and
        # more slowly while few samples leave bins empty: hence the quarter on top.
        needed = math.ceil(1.25 * found.n * (test.critical / tolerance) ** 2 / 100) * 100
        advice.append(
            f"Test on about {needed:,} samples: only then would an error of {percent(tolerance)} stand out."
        )
    if level == "off":
        advice.append(_repair(found, artifact))
    worst = classes[0] if classes else None
    if worst is not None and worst.certain_gap > tolerance:
        way = "overconfident" if worst.gap.value > 0 else "underconfident"
        advice.append(
            f"Mind the class “{worst.name}”: predictions of it are {way} by {points(worst.gap.value)}. "
            "A temperature cannot correct single classes; a method with a number per class can."
        )
    if level in ("calibrated", "close") and not _refusals(changes):
        advice.append("Deploy it, and watch it with live labels: calibration lasts only as long as its data.")
    return tuple(advice)


def _refusals(changes: Mapping[str, Change]) -> list[str]:
    """Reasons not to deploy, each beyond chance."""
    bad = (("accuracy", -1, "accuracy fell"), ("nll", 1, "the negative log-likelihood rose"))
    worse = [
        words
        for name, sign, words in bad
        if name in changes and changes[name].p < _CHANCE and sign * changes[name].difference.value > 0
    ]
    return [f"Do not deploy this calibration: {' and '.join(worse)}."] if worse else []


def _repair(found: Evaluation, artifact: Artifact | None) -> str:
    reference = None if artifact is None else artifact.reference
    if reference is None or not reference.n:
        return "Calibrate it on held-out samples of the data that it will meet, then test again."
    # Calibrated where it was fitted, and beyond noise off where it is tested.
    learned = reference.ece() - reference.noise_floor()
    if found.ece.low > reference.ece() and learned < found.ece.value / 2:
        return (
            f"The test data differ from the calibration data, where the error is {percent(reference.ece())}: "
            "fit again on samples of the data that it meets now."
        )
    return "Try a more flexible method, or more calibration samples, and compare on held-out data."
