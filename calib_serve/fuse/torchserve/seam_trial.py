"""Try an archive's handler before and after its calibration: the seam found, the replies compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.data import LabelledRequests
from calib_serve.errors import FuseError, ModelError
from calib_serve.scores import LABELS, PROBABILITIES, Outputs, class_count, exact, to_logits
from calib_serve.seam import SECONDS, Request, alternatives, leaves, run_trial, same_format

__all__ = ["SECONDS", "Seam", "check_kind", "find_seam", "prove_seam", "some_of"]

_MOST = 8  # samples that are sent to find a seam

_CLOSE = 1e-4


@dataclass(frozen=True)
class Seam:
    """Where the class scores of a handler pass, and what was found there.

    ``place``, ``output`` and ``padded`` as in ``ModelOptions``; ``kind`` of the scores, ``columns`` (1: one
    number). ``requests`` that differ, which the handler answered one by one with ``replies``, ``bare``: as a
    body alone, so behind an envelope; ``rows`` (n, K) of scores passed, and ``batched``: those of all at
    once, in order and in reverse. ``in_order``: whether they passed one after another, not on several
    threads; ``alone_because``: why it cannot be asked so, or nothing. ``form``: which of the forms given the
    first was answered in; ``class_names`` of the handler's mapping.
    """

    place: str
    output: str
    kind: Outputs
    columns: int
    padded: bool
    rows: NDArray[np.float64]
    requests: tuple[Mapping[str, str], ...]
    replies: tuple[Any, ...]
    batched: tuple[NDArray[np.float64], ...]
    in_order: bool
    alone_because: str
    form: int
    bare: bool
    handler: str
    places: tuple[str, ...]
    class_names: Mapping[str, Any] | None = None

    @property
    def batches(self) -> bool:
        """Whether it answers several at once, and which row is whose is proved."""
        return not self.alone_because

    @property
    def reply(self) -> Any:
        """The first."""
        return self.replies[0]

    @property
    def shows_scores(self) -> bool:
        """Whether the first reply is the scores as they are, and no more: no class, no probability."""
        numbers = list(leaves(self.reply).values())
        row = self.rows[0]
        return self.kind not in PROBABILITIES and all(
            not isinstance(one, str) and bool((np.abs(one.value - row) < 1e-5).any()) for one in numbers
        )

    def as_request(self) -> bytes:
        """The request, as an archive keeps it for its workers."""
        return json.dumps({"request": dict(self.requests[0]), "bare": self.bare}).encode()

    @property
    def classes(self) -> int:
        """K, or L of labels."""
        return class_count(self.kind, self.columns)


def some_of(data: LabelledRequests) -> list[tuple[Request, ...]]:
    """Some samples from first to last, each in the forms that it may be sent in."""
    some = np.unique(np.linspace(0, len(data) - 1, _MOST).astype(int)).tolist()
    return [alternatives(data.files[i] if data.rows is None else data.rows[i]) for i in some]


def find_seam(
    folder: Path,
    *,
    requests: Sequence[Request] = (),
    others: Sequence[Sequence[Request]] = (),
    input_shape: tuple[int | None, ...] | None = None,
    classes: int | None = None,
    seam: str | None = None,
    output: str | None = None,
    kind: Outputs | None = None,
    batch_size: int = 1,
    seconds: float = SECONDS,
) -> Seam:
    """Find and prove the seam of the archive unpacked in ``folder``, by asking its handler in a process.

    ``requests``: one sample in the forms that it may be sent in (default: made-up pictures, arrays, texts),
    ``others``: more samples in the same forms (default: made from the one). ``seam``, ``output`` and
    ``kind``: where they are known; ``seconds`` that an answer may take. Raises ModelError, which says what
    was tried.
    """
    found = run_trial(
        folder,
        "look",
        seconds=seconds,
        requests=[request.as_dict() for request in requests],
        others=[[request.as_dict() for request in forms] for forms in others],
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
        padded=found["padded"],
        rows=np.array(found["rows"]),
        requests=tuple(found["requests"]),
        replies=tuple(found["replies"]),
        batched=tuple(map(np.array, found["batched"])),
        in_order=found["in_order"],
        alone_because=found["alone_because"],
        form=found["form"],
        bare=found["bare"],
        handler=found["handler"],
        places=tuple(found["places"]),
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


def prove_seam(
    folder: Path, seam: Seam, artifact: Artifact, *, in_body: bool = False, seconds: float = SECONDS
) -> None:
    """Ask the calibrated archive unpacked in ``folder`` what the original answered, alone and at once.

    ``in_body``: its replies hold the original's as ``prediction``.

    Raises FuseError where a calibrated confidence is not the artifact's for the scores of that request, where
    a reply has another format.
    """
    some = seam.requests[: len(seam.batched[0])] if seam.batched else ()
    ordered = [list(some), list(reversed(some))] if some else []
    batches = [*([request] for request in seam.requests), *ordered]
    rows = [*(row[None] for row in seam.rows), *seam.batched]
    before = [*([reply] for reply in seam.replies), *([None] * len(batch) for batch in ordered)]
    try:
        got = run_trial(
            folder,
            "answer",
            seconds=seconds,
            batches=[[dict(request) for request in batch] for batch in batches],
            bare=seam.bare,
        )
        for asked, scores, replies in zip(got, rows, before, strict=True):
            for row, headers, first, reply in zip(
                scores, asked["headers"], replies, asked["replies"], strict=True
            ):
                now = reply["prediction"] if in_body else reply
                _check_one(seam, artifact, row, headers, first=first, now=now)
    except ModelError as error:
        raise FuseError(f"the handler {seam.handler} cannot be calibrated: {error}") from error


def _check_one(
    seam: Seam,
    artifact: Artifact,
    row: NDArray[np.float64],
    headers: Mapping[str, str],
    *,
    first: Any,
    now: Any,
) -> None:
    """One request's answer; ``first`` is the uncalibrated one, None if not to be compared."""
    if "x-calib-confidence" not in headers:
        raise ModelError(f"nothing passes the seam {seam.place!r} once it is calibrated")
    if first is not None and not same_format(first, now):
        raise ModelError(f"the reply changes its format, from {first!r:.200} to {now!r:.200}")
    if artifact.model_steps:  # these change the logits themselves
        return
    probs = artifact.of_logits(to_logits(row[None], seam.kind))[0]
    served = [float(text) for text in headers["x-calib-confidence"].split(",")]
    wanted = [float(probs.max())]
    if artifact.is_multilabel:
        labels = [int(text) for text in headers["x-calib-label"].split(",")]
        wanted = [max(float(probs[k]), 1 - float(probs[k])) for k in labels]
        served = [max(c, 1 - c) for c in served]  # by any threshold
    for one, other in zip(served, wanted, strict=True):
        if not abs(one - other) < _CLOSE:
            raise ModelError(f"the calibrated handler's confidence is {one:.6f}, the artifact's {other:.6f}")
