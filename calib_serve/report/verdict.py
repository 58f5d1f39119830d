"""The verdict of a report: that of the samples, and what a calibration changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from calib_serve.artifact import Artifact
from calib_serve.judgement import CALIBRATE, DEPLOY, MORE, Verdict, gain_of
from calib_serve.metrics import Change, Evaluation, LabelsEvaluation
from calib_serve.metrics.comparison import Moved
from calib_serve.words import p_value, percent

__all__ = ["compared"]

_CHANCE = 0.05


def compared(
    found: Verdict,
    after: Evaluation | LabelsEvaluation,
    *,
    before: Evaluation | LabelsEvaluation | None = None,
    changes: Mapping[str, Change] | None = None,
    moved: Moved | None = None,
    artifact: Artifact | None = None,
) -> Verdict:
    """The verdict ``found`` on samples with what changed from ``before``, and what that says to do.

    A calibration that costs accuracy or likelihood beyond chance is not to be deployed, whatever the level.
    """
    refused = _refusals(changes or {})
    do = [line for line in found.do if not (refused and line == DEPLOY)]
    if found.level == "off" and isinstance(after, Evaluation) and (known := _repair(after, artifact)):
        do = [known, *(line for line in do if line != CALIBRATE)]
    found = replace(found, do=(*refused, *do))
    if before is None:
        return found
    changed = (
        *(moved.says() if moved else ()),
        _likelihood(before.nll, after.nll, (changes or {}).get("nll")),
    )
    return replace(found, gain=gain_of([_ece(before, after)]), changed=changed)


def _ece(
    before: Evaluation | LabelsEvaluation, after: Evaluation | LabelsEvaluation
) -> tuple[str, float, float, float]:
    if isinstance(before, LabelsEvaluation) and isinstance(after, LabelsEvaluation):
        return "P(label)", before.positive_ece, after.positive_ece, after.positive_noise_floor
    return "", float(before.ece), float(after.ece), float(after.noise_floor)


def _likelihood(old: float, new: float, change: Change | None) -> str:
    """What became of the proper score, which also sees what the confidence hides."""
    chance = "" if change is None else p_value(change.p)
    return f"Negative log-likelihood {old:.4f} -> {new:.4f}{chance}."


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
    return MORE
