"""What a graph's scores are, and whether an artifact fitted on scores of some kind may act on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.owner import UNKNOWN
from calib_serve.scores import LABELS, Outputs, exact

__all__ = ["NORMALISED", "as_fitted", "kind_of", "of_one_column"]

NORMALISED: tuple[Outputs, ...] = ("log_probs", "probabilities", "probability")
"""Fitted on these, a model is seen through its log-probabilities."""

_MADE: dict[str, Outputs] = {"Softmax": "probabilities", "LogSoftmax": "log_probs"}
_OF_COLUMNS: dict[Outputs, Outputs] = {"logit": "logits", "probability": "probabilities"}


def kind_of(
    activation: str | None, columns: int | None, artifact: Artifact, told: Outputs | None, output: str
) -> Outputs:
    """What ``output`` holds: shown by its ``activation``, else as told, else as the artifact was fitted.

    ``columns`` a sample, None where unknown. Raises FuseError where these do not go together.
    """
    made = None if activation is None else _MADE.get(activation)
    if activation == "Sigmoid":
        made = "label_probabilities" if artifact.is_multilabel else "probability"
        if made == "probability" and (artifact.classes != 2 or columns not in (None, 1)):
            raise FuseError(
                f"the output {output!r} is made by a Sigmoid a class: any number of labels may be true, and "
                "the artifact is for one class of several; fit it with: calib-serve fit --logits FILE "
                "--outputs label_probabilities"
            )
    if made is not None and told is not None and exact(told, columns or 2) != made:
        raise FuseError(
            f"the output {output!r} is made by a {activation}: it holds {made}, not {told}; leave out "
            "--outputs (outputs=)"
        )
    kind = made or told or artifact.model.outputs or "logits"
    if columns == 1:
        kind = exact(kind, 1)
    elif made is None:
        kind = _OF_COLUMNS.get(kind, kind)
    if (kind in LABELS) != artifact.is_multilabel:
        these, those = ("labels", "classes") if kind in LABELS else ("classes", "labels")
        raise FuseError(
            f"the output {output!r} holds {kind}, scores of {these}, and the artifact is for {those}; say "
            "with --outputs (outputs=) what it holds, or fit on this model's scores"
        )
    return kind


def as_fitted(artifact: Artifact, kind: Outputs, *, activated: bool, one_column: bool) -> Artifact:
    """The artifact as it acts on the graph's logits; FuseError where these are not what it was fitted on.

    A fit sees a model that ends in a softmax through its log-probabilities; the graph has logits before it.
    ``activated``: an activation of the graph makes ``kind`` of its logits. Only where it matters: a
    temperature makes the same of both.
    """
    if not artifact.depends_on_kind or artifact.is_multilabel or artifact.head is not None:
        return artifact
    fitted = artifact.model.outputs
    if fitted is None:
        raise FuseError(UNKNOWN)
    has_logits = activated or kind in ("logits", "logit")
    if fitted in NORMALISED:
        bare = not activated and kind in NORMALISED  # its logits are log-probabilities already
        return artifact if bare else _on_log_probs(artifact)
    if has_logits and one_column == (fitted == "logit"):
        return artifact
    held = "one logit a sample" if one_column and has_logits else kind
    raise FuseError(
        f"the artifact was fitted on {fitted}, and the graph has {held}: what its scale for each class makes "
        f"of them differs; fit it on what this graph returns (calib-serve fit --outputs {kind}), or export "
        f"{fitted}"
    )


def of_one_column(artifact: Artifact) -> LogitMap | None:
    """The logit maps as one on the single logit z, for (0, z); None where they are not linear in it."""
    if any(m.on == "log_probs" and m.weight.ndim for m in artifact.logit_maps):
        return None
    points = np.array([[0.0, 0.0], [0.0, 1.0]])
    for step in artifact.logit_maps:
        points = replace(step, on="logits")(points)
    at_zero, at_one = points[:, 1] - points[:, 0]
    return LogitMap(np.array([at_one - at_zero]), np.array([at_zero]) if at_zero else None)


def _on_log_probs(artifact: Artifact) -> Artifact:
    first = artifact.logit_maps[0]
    steps = tuple(replace(s, on="log_probs") if s is first else s for s in artifact.steps)
    return replace(artifact, steps=steps)
