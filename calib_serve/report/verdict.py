"""The verdict of a report: that of the samples, and what a calibration changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from calib_serve.artifact import Artifact
from calib_serve.judgement import CALIBRATE, DEPLOY, MINUS, Verdict, percent, points, signed_points
from calib_serve.metrics import Change, Evaluation, LabelsEvaluation

__all__ = ["MINUS", "compared", "percent", "points", "signed_points"]

_CHANCE = 0.05
_WITH_95 = "95\N{NO-BREAK SPACE}% interval"

_STORY = (
    ("ece", "The calibration error", True),
    ("nll", "The negative log-likelihood", False),
    ("accuracy", "Accuracy", True),
    ("refinement_auroc", "How well confidence tells right from wrong (AUROC)", False),
)


def compared(
    found: Verdict,
    after: Evaluation | LabelsEvaluation,
    *,
    before: Evaluation | LabelsEvaluation | None = None,
    changes: Mapping[str, Change] | None = None,
    artifact: Artifact | None = None,
) -> Verdict:
    """The verdict ``found`` on samples with what changed from ``before``, and what that says to do.

    A calibration that costs accuracy or likelihood beyond chance is not to be deployed, whatever the level.
    """
    moved = changes or {}
    refused = _refusals(moved)
    do = [line for line in found.do if not (refused and line == DEPLOY)]
    if found.level == "off" and isinstance(after, Evaluation) and (known := _repair(after, artifact)):
        do = [*(line for line in do if line != CALIBRATE), known]
    told = (
        ()
        if before is None
        else _changed_labels(before, after)
        if isinstance(before, LabelsEvaluation) and isinstance(after, LabelsEvaluation)
        else _changed(before, after, moved)
    )
    return replace(found, reasons=(*found.reasons, *_of_bins(after)), do=(*refused, *do), changed=told)


def _of_bins(found: Evaluation | LabelsEvaluation) -> tuple[str, ...]:
    """The ECE that the page shows, which noise alone makes larger than 0."""
    if isinstance(found, LabelsEvaluation):
        ece, floor, what = found.positive_ece, found.positive_noise_floor, " of P(label)"
    else:
        ece, floor, what = found.ece, found.noise_floor, ""
    return (
        f"Expected calibration error{what}: {percent(ece)}. A perfectly calibrated model would show about "
        f"{percent(floor)} on this many samples by chance alone.",
    )


def _changed(
    before: Evaluation | LabelsEvaluation,
    after: Evaluation | LabelsEvaluation,
    changes: Mapping[str, Change],
) -> tuple[str, ...]:
    told = []
    for name, words, share in _STORY:
        if name in changes:
            values = getattr(before, name).value, getattr(after, name).value
            told.append(_move(words, *values, changes[name], share))
    return tuple(told)


def _changed_labels(before: LabelsEvaluation, after: LabelsEvaluation) -> tuple[str, ...]:
    shares = (
        ("The calibration error of P(label)", before.positive_ece, after.positive_ece),
        ("Accuracy of the decisions", before.accuracy, after.accuracy),
    )
    return (
        *(f"{words} went from {percent(old, 2)} to {percent(new, 2)}." for words, old, new in shares),
        f"The negative log-likelihood of a label went from {before.nll:.4f} to {after.nll:.4f}.",
    )


def _move(words: str, old: float, new: float, change: Change, share: bool) -> str:
    shown = [percent(v, 2) if share else f"{v:.4f}" for v in (old, new)]
    if change.difference.value == 0:
        return f"{words} stayed at {shown[1]}."
    way = "fell" if change.difference.value < 0 else "rose"
    if math.isnan(change.p):
        return f"{words} {way} from {shown[0]} to {shown[1]}; whether by chance was not tested."
    if not change.p < _CHANCE:
        return f"{words} {way} from {shown[0]} to {shown[1]}, which may be chance (p = {change.p:.2f})."
    chance = "p\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}0.001" if change.p < 0.001 else f"p = {change.p:.3f}"
    low, high = change.difference.low, change.difference.high
    span = f"{100 * low:+.2f} to {100 * high:+.2f} points" if share else f"{low:+.4f} to {high:+.4f}"
    span = span.replace("-", MINUS)
    moved = f"{words} {way} from {shown[0]} to {shown[1]}"
    return f"{moved} ({_WITH_95} of the change {span}; {chance})."


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
    """What else can be said where the calibration's own samples are known; else nothing."""
    reference = None if artifact is None else artifact.reference
    if reference is None or not reference.n:
        return ""
    # Calibrated where it was fitted, and off by far more where it is tested.
    learned = max(reference.ece() - reference.noise_floor(), 0.0)
    beyond = found.ece.value - found.noise_floor.value
    if beyond > max(2 * learned, reference.ece()):
        return (
            f"The test data differ from the calibration data, where the error is {percent(reference.ece())}: "
            "fit again on samples of the data that it meets now."
        )
    return "Try a more flexible method, or more calibration samples, and compare on held-out data."
