"""The handler of an archive that ``calib-serve pack`` wrote: scores to predictions and their receipts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.receipts import Tag, count_choices
from calib_serve.scores import to_logits
from calib_serve.torchserve._observer import Observer, observe
from calib_serve.torchserve._predictions import (
    INVALID,
    AnyPrediction,
    Failure,
    LabelsPrediction,
    Prediction,
    Result,
    Row,
    row_decisions,
)
from calib_serve.torchserve._worker import WorkerHandler
from calib_serve.torchserve.mar_options import ModelOptions


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

    def calibrated(
        self, scores: NDArray[Any], segments: Sequence[str] | None = None
    ) -> tuple[list[Row | Failure], NDArray[np.float64]]:
        """Calibrate scores (n, K), (n,) or (n, 1) to rows and probabilities (n, K).

        A row that is not finite becomes INVALID. ``segments`` of each: its source where the artifact has maps
        by source.
        """
        # The common batch has no NaN, and takes the short way.
        logits = to_logits(scores, self.options.outputs)
        if np.isfinite(logits).all():
            probs = self._probs(logits, segments)
            return list(map(Row, probs, logits)), probs
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        probs = self._probs(np.where(finite[:, None], logits, 0.0), segments)
        rows = zip(probs, logits, finite.tolist(), strict=True)
        return [Row(p, z) if ok else INVALID for p, z, ok in rows], probs

    def _probs(self, logits: NDArray[Any], segments: Sequence[str] | None) -> NDArray[np.float64]:
        probs, unknown = self.artifact.of_segments(logits, segments)
        if unknown:
            self._observer.broken("source", times=unknown)
        return probs

    def predictions(
        self, rows: Sequence[Row | Failure], tags: Sequence[Tag] = (), *, invalid: int | None = None
    ) -> list[Result]:
        """Count, sign and decide on the rows; a failure stays in its place.

        ``tags`` of each row, or none. ``invalid``: the number of rows that the model gave no numbers for,
        where some of them are not among these.
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
        found = row_decisions(
            self.artifact,
            [row.probs for row in rows],
            abstain_below=self.options.abstain_below,
            segments=[tag.segment for tag in tags] or "",
        )
        return [
            Prediction(row.probs, k, confidence, row.logits, receipt, decisions)
            for row, (k, confidence), receipt, decisions in zip(rows, pairs, receipts, found, strict=True)
        ]

    def _of_labels(self, rows: Sequence[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnyPrediction]:
        threshold = self.options.threshold
        found = count_choices(
            self._observer, [row.probs for row in rows], threshold=threshold, tags=tags, invalid=invalid
        )
        return [
            LabelsPrediction(
                row.probs, tuple(np.flatnonzero(row.probs >= threshold).tolist()), one, row.logits
            )
            for row, one in zip(rows, found, strict=True)
        ]
