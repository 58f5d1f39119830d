"""From a model's scores to predictions: calibrated, decided on, counted and signed, for every handler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.receipts import SignedReceipt
from calib_serve.reporter.recorder import Decision, Tag, decisions
from calib_serve.scores import to_logits
from calib_serve.serve.observer import Observer, observe
from calib_serve.serve.worker import WorkerHandler

__all__ = [
    "INVALID",
    "NOTHING",
    "AnyPrediction",
    "CalibratedHandler",
    "Decided",
    "Failure",
    "LabelsPrediction",
    "Prediction",
    "Result",
    "Row",
    "all_or_none",
    "decide_rows",
]


class Decided(NamedTuple):
    """The ids of the classes in the set, likeliest first; whether to abstain; whether it may be acted on.

    None where not decided.
    """

    in_set: tuple[int, ...] | None = None
    abstain: bool | None = None
    act: bool | None = None


NOTHING = Decided()


@dataclass(frozen=True, eq=False)
class Prediction:
    """One prediction: ``probabilities`` (K,) float64 of ``logits``; ``receipt`` None if receipts are off.

    ``decided``: the classes in its set, whether to abstain and whether it may be acted on, where the artifact
    or the archive says so.
    """

    probabilities: NDArray[np.float64]
    predicted: int
    confidence: float
    logits: NDArray[Any]
    receipt: SignedReceipt | None = None
    decided: Decided = NOTHING


@dataclass(frozen=True, eq=False)
class LabelsPrediction:
    """One prediction of a multi-label model: ``probabilities`` (L,) float64 of ``logits``.

    ``predicted``: the labels whose probability is the archive's threshold or more; ``decisions``: those about
    labels that receipts are for.
    """

    probabilities: NDArray[np.float64]
    predicted: tuple[int, ...]
    decisions: Sequence[Decision]
    logits: NDArray[Any]


@dataclass(frozen=True)
class Failure:
    """Why one item has no prediction; ``reason`` is shown to the client."""

    status: int
    reason: str


INVALID = Failure(500, "the model's output for this input is NaN or infinite")


class Row(NamedTuple):
    """One row's calibrated probabilities (K,), and the logits (K,) that they are of."""

    probs: NDArray[np.float64]
    logits: NDArray[Any]


AnyPrediction = Union[Prediction, LabelsPrediction]
Result = Union[AnyPrediction, Failure]
T = TypeVar("T")


def all_or_none(rows: Sequence[T | Failure]) -> list[T | Failure]:
    """The rows of one request of several, which has one status: if one fails, the request fails for it.

    >>> all_or_none([1, Failure(500, "no"), Failure(400, "too short")])
    [Failure(status=400, reason='instance 2: too short')]
    """
    failures = [(row.status, i, row.reason) for i, row in enumerate(rows) if isinstance(row, Failure)]
    if not failures:
        return list(rows)
    status, i, reason = min(failures)  # what the client can mend comes first
    return [Failure(status, f"instance {i}: {reason}")]


class CalibratedHandler(WorkerHandler):
    """A handler of an archive that ``calib-serve pack`` wrote.

    ``options``, ``artifact``, ``name`` and ``version`` are set before the model is loaded.
    """

    options: ModelOptions
    artifact: Artifact
    name: str
    version: str

    _observer: Observer

    def initialize(self, ctx: Any) -> None:
        """Load the calibration and the model, and start the counters at 0."""
        folder = Path(ctx.system_properties["model_dir"])
        self.options = ModelOptions.read(ctx.model_yaml_config or {})
        self.artifact = Artifact.load(folder / self.options.artifact)
        self.options.check_artifact(self.artifact)
        self.name = str(ctx.manifest["model"]["modelName"])
        self.version = str(ctx.manifest["model"]["modelVersion"])
        self.load(folder, ctx)
        self._observer = observe(
            self.options, self.artifact, model=self.name, version=self.version, folder=folder
        )
        self.started(self._observer.flush)

    def load(self, folder: Path, ctx: Any) -> None:
        """Load the model of the archive unpacked in ``folder``."""
        raise NotImplementedError

    def calibrated(self, scores: NDArray[Any]) -> tuple[list[Row | Failure], NDArray[np.float64]]:
        """The rows of a model's scores and their probabilities (n, K); what is not finite is INVALID."""
        logits = to_logits(scores, self.options.outputs)
        if np.isfinite(logits).all():
            probs = self.artifact.of_logits(logits)
            return list(map(Row, probs, logits)), probs
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        probs = self.artifact.of_logits(np.where(finite[:, None], logits, 0.0))
        rows = zip(probs, logits, finite.tolist(), strict=True)
        return [Row(p, z) if ok else INVALID for p, z, ok in rows], probs

    def predictions(
        self, rows: Sequence[Row | Failure], tags: Sequence[Tag] = (), *, invalid: int | None = None
    ) -> list[Result]:
        """Count, sign and decide on the rows; a failure stays in its place.

        ``tags`` of each row, or none. ``invalid``: how many rows the model gave no numbers for, where some of
        them are not among these.
        """
        if invalid is None:
            invalid = sum(row is INVALID for row in rows)
        made = [row for row in rows if not isinstance(row, Failure)]
        if not any(map(any, tags)):
            tags = ()  # receipts of these are signed faster
        if len(made) < len(rows) and tags:
            tags = [tag for tag, row in zip(tags, rows, strict=True) if not isinstance(row, Failure)]
        of_rows = self._of_labels if self.artifact.is_multilabel else self._of_classes
        found = of_rows(made, tags, invalid)
        if len(made) == len(rows):
            return list(found)
        rest = iter(found)
        return [row if isinstance(row, Failure) else next(rest) for row in rows]

    def _of_classes(self, rows: Sequence[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnyPrediction]:
        top = [int(row.probs.argmax()) for row in rows]
        pairs = [(k, min(float(row.probs[k]), 1.0)) for row, k in zip(rows, top, strict=True)]
        receipts = self._observer.served(
            pairs, logits=[row.logits for row in rows], tags=tags, invalid=invalid
        )
        found = decide_rows(
            self.artifact,
            [row.probs for row in rows],
            abstain_below=self.options.abstain_below,
            segments=[tag.segment for tag in tags] or "",
        )
        return [
            Prediction(row.probs, k, confidence, row.logits, receipt, decided)
            for row, (k, confidence), receipt, decided in zip(rows, pairs, receipts, found, strict=True)
        ]

    def _of_labels(self, rows: Sequence[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnyPrediction]:
        threshold = self.options.threshold
        found = decisions(
            self._observer, [row.probs for row in rows], threshold=threshold, tags=tags, invalid=invalid
        )
        return [
            LabelsPrediction(
                row.probs, tuple(np.flatnonzero(row.probs >= threshold).tolist()), one, row.logits
            )
            for row, one in zip(rows, found, strict=True)
        ]


def decide_rows(
    artifact: Artifact,
    probs: Sequence[NDArray[np.float64]],
    *,
    abstain_below: float | None = None,
    segments: str | Sequence[str] = "",
) -> list[Decided]:
    """What the artifact decides by calibrated probabilities, each (K,); ``abstain_below`` of the archive.

    ``segments`` of each, or of all: what may be acted on there may depend on them.
    """
    rules = (artifact.sets, artifact.abstain, abstain_below, artifact.contract)
    if not probs or all(rule is None for rule in rules):
        return [NOTHING] * len(probs)
    p = np.stack(probs)
    sets: Sequence[Any] = [None] * len(p)
    if artifact.sets is not None:
        inside = artifact.sets(p)
        sets = [_likeliest_first(row, np.flatnonzero(of)) for row, of in zip(p, inside, strict=True)]
    below: Sequence[Any] = [None] * len(p)
    if artifact.abstain is not None:
        below = artifact.abstain(p).tolist()
    elif abstain_below is not None:
        below = (p.max(axis=1) < abstain_below).tolist()
    acts: Sequence[Any] = [None] * len(p)
    if artifact.contract is not None and artifact.contract.decides:
        acts = artifact.contract.acts(p.max(axis=1), p.argmax(axis=1), segments).tolist()
    return [Decided(*one) for one in zip(sets, below, acts, strict=True)]


def _likeliest_first(probs: NDArray[np.float64], ids: NDArray[np.intp]) -> tuple[int, ...]:
    return tuple(ids[np.argsort(-probs[ids], kind="stable")].tolist())
