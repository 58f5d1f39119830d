"""What a calibration changed, on samples that it was not fitted to, and what that means in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.errors import CalibServeError
from calib_serve.fit.facts import measured_on_folds
from calib_serve.fit.output import held_out_estimates
from calib_serve.fit.samples import Samples
from calib_serve.metrics import Estimate, evaluate, evaluate_logits

__all__ = ["cross_validated", "measured", "percent", "verdict"]

_FOLDS = 5
_REPLICATES = 200


def measured(
    artifact: Artifact,
    logits: ArrayLike,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    on: str = "test",
    seed: int = 0,
) -> Artifact:
    """The artifact with every metric before and after, on samples that nothing was fitted to.

    ``logits`` (n, K) of the model as it is, ``probs`` (n, K) calibrated, class ids ``labels`` (n,); ``on``
    names the samples in ``artifact.data["measured_on"]``.
    """
    before = evaluate_logits(logits, labels, replicates=_REPLICATES, seed=seed)
    after = evaluate(probs, labels, replicates=_REPLICATES, seed=seed)
    return replace(
        artifact,
        before={name: e.as_dict() for name, e in before.estimates().items()},
        after={name: e.as_dict() for name, e in after.estimates().items()},
        data={**artifact.data, "measured_on": on, "measured_samples": after.n},
    )


def cross_validated(
    artifact: Artifact,
    samples: Samples,
    fit: Callable[[Samples], Artifact],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Artifact:
    """The artifact with metrics before and after, of every sample under a ``fit`` to the other folds.

    Where a fold cannot be fitted, because a class or the samples are too few, the artifact says so in
    ``data["measured_on"]`` and holds no metrics.
    """
    folds = min(_FOLDS, len(samples) // 2)
    try:
        before, after = held_out_estimates(samples, fit, folds=folds, seed=seed, progress=progress)
    except CalibServeError as error:
        return replace(artifact, data={**artifact.data, "measured_on": f"nothing: {error}"})
    return measured_on_folds(artifact, before, after, folds=folds, samples=len(samples))


def percent(fraction: float) -> str:
    """How every command writes a share or an error.

    >>> percent(0.0475)
    '4.75 %'
    """
    return f"{100 * fraction:.2f} %"


def verdict(artifact: Artifact) -> str:
    """In words: the ECE before and after, where it was measured, and what is to be made of it.

    >>> from calib_serve.artifact import LogitMap
    >>> known = {"before": {"ece": {"value": 0.0475}}, "after": {"ece": {"value": 0.0113}}}
    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=10, **known)
    >>> verdict(replace(artifact, data={"measured_on": "test"}))
    'ECE 4.75 % -> 1.13 %, measured on test: better calibrated.'
    """
    on = artifact.data.get("measured_on")
    before, after = artifact.metrics_before.get("ece"), artifact.metrics_after.get("ece")
    if before is None or after is None:
        reason = str(on).removeprefix("nothing: ") if on else "there was nothing to measure it on"
        return f"The calibration was not measured ({reason}); give held-out data to see what it does."
    said = f"ECE {percent(before)} -> {percent(after)}, measured on {on or 'held-out samples'}"
    floor = artifact.metrics_after.get("noise_floor")
    if floor is not None:
        said += f"; a calibrated model shows {percent(floor)} by chance"
    return f"{said}: {_judged(artifact, before, after, floor)}."


def _judged(artifact: Artifact, before: Estimate, after: Estimate, floor: Estimate | None) -> str:
    if not artifact.steps:
        return "nothing was changed"
    chance = None if floor is None else (float(floor) if math.isnan(floor.high) else floor.high)
    low = float(after) if math.isnan(after.low) else after.low
    left = 0.0 if artifact.reference is None else artifact.reference.ece()
    if chance is not None and low <= chance:
        return "no miscalibration is left that these samples could show"
    if chance is not None and low > 2 * left and artifact.data.get("measured_on") == "test":
        return (
            f"far more than the {percent(left)} that the calibration set was left with. The two are not "
            "alike, and no calibrator fitted here repairs that; calibrate on samples like those that will be "
            "served"
        )
    if after < before:
        rest = "" if chance is None else "; what is left is more than chance, so try another method or auto"
        return f"better calibrated{rest}"
    return "no better than before; keep the model as it is, or give more calibration data"
