"""Try an archive's handler before and after its calibration: the seam found, the replies compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError, ModelError
from calib_serve.scores import LABELS, PROBABILITIES, Outputs, exact, to_logits, to_probs
from calib_serve.seam import Request, check_reply, run_trial, same_format

__all__ = ["Seam", "check_kind", "find_seam", "prove_seam"]


@dataclass(frozen=True)
class Seam:
    """Where the class scores of a handler pass, and what was found there.

    ``place`` and ``output`` as in ``ModelOptions``; ``kind`` of the scores, ``columns`` (1: one number) and
    one ``row`` of them; ``request`` that the handler answered with ``reply``, ``bare``: as a body alone, so
    behind an envelope; ``batches``: whether it answers two at once; ``class_names`` of the handler's mapping.
    """

    place: str
    output: str
    kind: Outputs
    columns: int
    row: tuple[float, ...]
    request: Mapping[str, str]
    bare: bool
    reply: Any
    handler: str
    places: tuple[str, ...]
    batches: bool = True
    class_names: Mapping[str, Any] | None = None

    def as_request(self) -> bytes:
        """The request, as an archive keeps it for its workers."""
        return json.dumps({"request": dict(self.request), "bare": self.bare}).encode()

    @property
    def classes(self) -> int:
        """K, or L of labels."""
        return self.columns if self.kind in LABELS else max(2, self.columns)


def find_seam(
    folder: Path,
    *,
    requests: Sequence[Request] = (),
    input_shape: tuple[int | None, ...] | None = None,
    classes: int | None = None,
    seam: str | None = None,
    output: str | None = None,
    kind: Outputs | None = None,
    batch_size: int = 1,
) -> Seam:
    """The seam of the archive unpacked in ``folder``, by asking its own handler in a process of its own.

    ``requests``: the first that it answers is taken (default: made-up pictures, arrays and texts). ``seam``,
    ``output`` and ``kind``: where they are known. Raises ModelError, which says what was tried.
    """
    found = run_trial(
        folder,
        "look",
        requests=[request.as_dict() for request in requests],
        shape=None if input_shape is None else [-1 if size is None else size for size in input_shape],
        classes=classes,
        seam=seam,
        output=output,
        outputs=kind,
        batch_size=batch_size,
    )
    measured: Outputs = found["kind"]
    if kind is not None and exact(kind, found["columns"]) != measured:
        raise ModelError(
            f"{kind} are expected at the seam {found['seam']!r}; its values are {measured}: say --outputs "
            f"{measured}, with an artifact that was fitted on such"
        )
    return Seam(
        place=found["seam"],
        output=found["output"],
        kind=kind or measured,
        columns=found["columns"],
        row=tuple(found["row"]),
        request=found["request"],
        bare=found["bare"],
        reply=found["reply"],
        handler=found["handler"],
        places=tuple(found["places"]),
        batches=found.get("batches", True),
        class_names=found["class_names"],
    )


def check_kind(seam: Seam, artifact: Artifact, told: Outputs | None) -> None:
    """FuseError where the artifact's steps give other probabilities for scores of another kind.

    A temperature makes the same of logits and of log-probabilities; a weight for each class does not.
    """
    fitted = artifact.model.outputs
    if artifact.is_multilabel != (seam.kind in LABELS):
        raise FuseError(_of_other_truths(seam, artifact))
    if artifact.takes(seam.kind) or (fitted is None and seam.kind == "logits"):
        return
    if fitted is not None:
        raise FuseError(
            f"the artifact was fitted on {fitted}, and {seam.kind} pass the seam {seam.place!r}: what it "
            "makes of them differs; fit it on this archive with: calib-serve fit --from"
        )
    if told is None:
        raise FuseError(
            f"{seam.kind} pass the seam {seam.place!r}, and the artifact does not say what it was fitted on; "
            f"give --outputs {seam.kind} if it was fitted on such, else fit it on this archive with --from"
        )


def _of_other_truths(seam: Seam, artifact: Artifact) -> str:
    fitted = artifact.model.outputs or "scores"
    if artifact.is_multilabel:
        label = "label_probabilities" if seam.kind in PROBABILITIES else "label_logits"
        return (
            f"the artifact was fitted on {fitted}, of labels of which any may be true, and {seam.kind} pass "
            f"the seam {seam.place!r}, of which one class is true as far as can be seen; say --outputs "
            f"{label} if each is of a label of its own"
        )
    return (
        f"{seam.kind} pass the seam {seam.place!r}: one sigmoid a label (multi-label). The artifact was "
        f"fitted on {fitted}, of which one class is true, so that they would become nonsense; fit one on "
        f"this archive with: calib-serve fit --from ARCHIVE --outputs {seam.kind}"
    )


def prove_seam(folder: Path, seam: Seam, artifact: Artifact, *, in_body: bool = False) -> None:
    """Ask the calibrated archive unpacked in ``folder`` what the original answered.

    ``in_body``: its replies hold the original's as ``prediction``.

    Raises FuseError where the calibrated confidence is not the artifact's, where the reply has another
    format, or shows another confidence.
    """
    try:
        got = run_trial(folder, "answer", requests=[dict(seam.request)], bare=seam.bare)
        reply, headers = got["replies"][0], got["headers"][0]
        reply = reply["prediction"] if in_body else reply
        if "x-calib-confidence" not in headers:
            raise ModelError(f"nothing passes the seam {seam.place!r} once it is calibrated")
        if not same_format(seam.reply, reply):
            raise ModelError(f"the reply changes its format, from {seam.reply!r:.200} to {reply!r:.200}")
        if not artifact.model_steps:  # these change the logits themselves
            _check_numbers(seam, artifact, reply, headers)
    except ModelError as error:
        raise FuseError(f"the handler {seam.handler} cannot be calibrated: {error}") from error


def _check_numbers(seam: Seam, artifact: Artifact, reply: Any, headers: Mapping[str, str]) -> None:
    row = np.array([seam.row])
    probs = artifact.of_logits(to_logits(row, seam.kind))[0]
    served = [float(text) for text in headers["x-calib-confidence"].split(",")]
    wanted = [float(probs.max())]
    if artifact.is_multilabel:
        labels = [int(text) for text in headers["x-calib-label"].split(",")]
        wanted = [max(float(probs[k]), 1 - float(probs[k])) for k in labels]
        served = [max(c, 1 - c) for c in served]  # by any threshold
    for one, other in zip(served, wanted, strict=True):
        if not abs(one - other) < 1e-5:
            raise ModelError(f"the calibrated handler's confidence is {one:.6f}, the artifact's {other:.6f}")
    raw = to_probs(row, seam.kind)[0]
    check_reply(seam.reply, reply, raw, probs, labels=artifact.is_multilabel)
