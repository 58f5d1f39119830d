"""The shadow of a reporter: an artifact that says of the same inputs what it would have served."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError, ShapeError
from calib_serve.receipts import shadow_tag
from calib_serve.reporter.given import array_of

__all__ = ["ReporterShadow"]

_FINGERPRINT = re.compile(r"(sha256:)?[0-9a-f]{64}")


class ReporterShadow:
    """Of ``what``: an artifact, its folder, or a fingerprint, where its probabilities are given.

    ``served``: the artifact beside which it runs, or the number of classes. InputError for a shadow that
    cannot act on what the served one acts on.
    """

    def __init__(self, what: Artifact | str | Path, served: Artifact | int) -> None:
        self.classes = served if isinstance(served, int) else served.classes
        self.artifact: Artifact | None = None
        if isinstance(what, str) and _FINGERPRINT.fullmatch(what):
            self.tag = shadow_tag(what)
            return
        shadow = what if isinstance(what, Artifact) else Artifact.load(what)
        shadow.check_beside(
            Artifact((), method="none", classes=served) if isinstance(served, int) else served
        )
        self.artifact, self.tag = shadow, shadow_tag(shadow.fingerprint)

    def says(
        self, rows: Sequence[int], *, probs: ArrayLike | None, logits: NDArray[np.float64] | None
    ) -> list[tuple[int, float]]:
        """Class and confidence of these rows: of probabilities (n, K) or (K,), else made of logits (n, K).

        InputError or ShapeError where there is neither.
        """
        if not rows:
            return []
        if probs is not None:
            p = np.atleast_2d(array_of(probs))
        elif self.artifact is not None and logits is not None:
            p = self.artifact.of_logits(logits[list(rows)])
            rows = range(len(rows))
        else:
            raise InputError("a shadow needs logits, or its own probabilities")
        if p.ndim != 2 or p.shape[1] != self.classes or len(p) <= max(rows):
            raise ShapeError(f"the shadow's probabilities must be (n, {self.classes}), got {p.shape}")
        best = p[list(rows)].argmax(axis=1)
        return list(zip(best.tolist(), p[list(rows), best].tolist(), strict=True))
