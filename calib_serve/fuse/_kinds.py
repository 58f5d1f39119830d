"""The kind of a model's scores against the kind that an artifact was fitted on, and the change between.

ONNX graphs, torch modules and wrapped handlers find the kind in their own ways: by an activation, by numbers,
by a trial. What follows from it is the same for all.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FuseError
from calib_serve.scores import LABELS, PROBABILITIES, Outputs, log_softmax, refuted, to_probs

NORMALISED: tuple[Outputs, ...] = ("log_probs", "probabilities", "probability")
"""Fitted on these, a model is seen through its log-probabilities."""

Change = Literal["none", "normalise", "difference"]
"""How logits (n, K) become those that an artifact was fitted on: log_softmax, or (0, z1 - z0)."""


def check_multilabel(artifact: Artifact, kind: Outputs, what: str) -> None:
    """Check that an artifact and scores are both of labels, or both of classes.

    Args:
        artifact: Calibration, with the kind of scores that it was fitted on.
        kind: Kind of the scores.
        what: The scores in words, such as "the model returns logits".

    Raises:
        FuseError: Where one is of labels and the other of classes.
    """
    if (kind in LABELS) != artifact.is_multilabel:
        these, those = ("labels", "classes") if kind in LABELS else ("classes", "labels")
        raise FuseError(
            f"{what}, scores of {these}, and the artifact was fitted on scores of {those}; say with "
            f"--outputs (outputs=) what they are, or fit it on them: calib-serve fit --outputs {kind}"
        )


def check_numbers(rows: AnyFloats, kind: Outputs, what: str, *, told: bool) -> None:
    """Raise FuseError where the numbers of scores (n, K) cannot be of their ``kind``, or nobody ``told`` it.

    Several rows within [0, 1] are logits only where somebody said so.
    """
    wrong = refuted(rows, kind)
    if not told and kind.endswith(("logits", "logit")) and len(rows) > 1 and rows.any():
        wrong = wrong or ("all lie within [0, 1]" if rows.min() >= 0 and rows.max() <= 1 else "")
    if wrong:
        raise FuseError(f"{what} is taken for {kind}, and cannot be: {wrong}; say what it holds, --outputs")


def change_to_fitted(
    artifact: Artifact,
    kind: Outputs,
    what: str,
    *,
    shown: Outputs | None = None,
    can: Collection[Change] = ("normalise", "difference"),
) -> Change:
    """Find the change from scores of some kind to the kind that the artifact was fitted on.

    Args:
        artifact: Calibration, with the kind of scores that it was fitted on.
        kind: Kind of the scores.
        what: The scores in words, for errors.
        shown: Kind that the model returns of them; None: the scores themselves.
        can: Changes that can be made.

    Raises:
        FuseError: Where no such change does: what a softmax took away does not come back.
    """
    fitted = artifact.model.outputs
    # A temperature has the same effect on logits and log-probabilities; a weight for each class has not.
    if artifact.takes(kind):
        return "none"
    if fitted is None:
        raise FuseError(
            "the artifact does not say what its scores were, as where it was made by hand, and its scale for "
            "each class makes other probabilities of logits than of log-probabilities; say what they were, "
            "in Python: artifact.model.outputs"
        )
    change: Change = "difference" if fitted == "logit" else "normalise" if fitted in NORMALISED else "none"
    if change not in can:
        raise FuseError(
            f"the artifact was fitted on {fitted}, and {what}: what its scale for each class makes of them "
            f"differs; fit it on these (calib-serve fit --outputs {shown or kind}), or give it {fitted}"
        )
    return change


def as_fitted(logits: AnyFloats, change: Change) -> AnyFloats:
    """Turn logits (n, K) of a model's scores into logits of the kind that the artifact was fitted on."""
    if change == "normalise":
        return log_softmax(logits)
    if change == "difference":
        return np.stack([np.zeros_like(logits[:, 0]), logits[:, 1] - logits[:, 0]], axis=1)
    return logits


def as_probs(shown: AnyFloats, kind: Outputs) -> AnyFloats:
    """Turn what a fused model shows into probabilities (n, K); those that it shows are not rounded again."""
    if kind not in PROBABILITIES:
        return to_probs(shown, kind)
    if kind == "probability":
        shown = shown.reshape(-1, 1)
        return np.concatenate([1 - shown, shown], axis=1)
    return shown
