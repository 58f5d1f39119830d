"""How much of a loss is calibration error: what recalibration would remove."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.arrays import some_of
from calib_serve.artifact import Artifact
from calib_serve.errors import CalibServeError
from calib_serve.fit.output import fit_by_name
from calib_serve.fit.samples import Samples, folds_of
from calib_serve.metrics import LossTerms, log_probs
from calib_serve.metrics.proper import sample_losses
from calib_serve.scores import Outputs, Scores

_FOLDS = 5
_ENOUGH = 20_000  # samples, of which half teach a calibration as much as four fifths
_MOST = 50_000  # samples that are recalibrated
_MANY = 1 << 20  # logits, above which only a temperature is fitted: others take minutes


@dataclass(frozen=True)
class Refinement:
    """NLL and Brier score as calibration and refinement, under a recalibration by ``method``."""

    method: str
    nll: LossTerms
    brier: LossTerms

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        terms = {name: vars(found) for name, found in (("nll", self.nll), ("brier", self.brier))}
        parts = {name: {k: e.as_dict() for k, e in found.items()} for name, found in terms.items()}
        return {"recalibration": self.method, **parts}

    def says(self) -> str:
        """One sentence.

        >>> from calib_serve.metrics import Estimate
        >>> terms = LossTerms(Estimate(0.312), Estimate(0.021, 0.015, 0.027), Estimate(0.291))
        >>> Refinement("temperature", terms, terms).says()[:65]
        'Of the NLL 0.3120, 0.0210 (0.0150 to 0.0270) is calibration error'
        """
        whole, part, rest = self.nll.loss, self.nll.calibration, self.nll.refinement
        said = f"{part:.4f}" + ("" if math.isnan(part.low) else f" ({part.low:.4f} to {part.high:.4f})")
        by = f"recalibration ({self.method}, cross-validated)"
        if part.low > 0 or (math.isnan(part.low) and part > 0):
            return (
                f"Of the NLL {whole:.4f}, {said} is calibration error that {by} would remove; {rest:.4f} is "
                "refinement."
            )
        return (
            f"Of the NLL {whole:.4f}, {by} would remove nothing that these samples could show: {said}. It is "
            "refinement: another model or more training lowers it, no calibration does."
        )


def recalibrated_losses(
    scores: Any,
    labels: Any = None,
    *,
    outputs: Outputs | None = None,
    method: str | None = None,
    folds: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Refinement | None:
    """The losses of scores and labels, each sample recalibrated by a fit to the other folds.

    ``scores``, ``labels`` and ``outputs`` as in ``Scores.of``, with the weights and groups of ``Scores``.
    ``method`` is by default beta for two classes and structured vector scaling for more, or a temperature for
    more than a million logits and where those cannot be fitted. Of very many samples some are told of. What
    it cannot mend counts as refinement, so calibration is a lower bound. None where nothing can be fitted, as
    to few samples or where every answer is right. Berta 2025.
    """
    given = Scores.of(scores, labels, outputs=outputs)
    samples = Samples.of(given.take(some_of(len(given), _MOST)))
    folds = min(folds or (_FOLDS if len(samples) < _ENOUGH else 2), len(samples) // 2)
    if folds < 2:
        return None
    best = "beta" if samples.classes == 2 else "structured-vector"
    best = best if samples.size <= _MANY else "temperature"
    for name in (method,) if method else tuple(dict.fromkeys((best, "temperature"))):
        try:
            return _decomposed(samples, name, folds=folds, level=level, seed=seed)
        except CalibServeError:
            if method:
                raise
    return None


def _decomposed(samples: Samples, method: str, *, folds: int, level: float, seed: int) -> Refinement:
    fold = folds_of(samples, folds=folds, seed=seed)
    unchanged = fit_by_name("none", samples, samples.labels)
    losses = np.empty((2, 2, len(samples)))
    for f in range(folds):
        held = np.flatnonzero(fold == f)
        part = samples.take(fold != f)
        new = fit_by_name(method, part, part.labels)
        for row, artifact in enumerate((unchanged, new)):
            losses[row][:, held] = _losses(artifact, samples.take(held))
    of: dict[str, Any] = {"level": level, "groups": samples.groups, "weight": samples.weight}
    nll, brier = (LossTerms.of(*losses[:, k], **of) for k in range(2))
    return Refinement(method, nll, brier)


def _losses(artifact: Artifact, samples: Samples) -> NDArray[np.float64]:
    """NLL and Brier score (2, n) of each sample."""
    found = np.empty((2, len(samples)))
    for rows, z in samples.chunks(np.float64):
        probs, y = artifact.of_logits(z), samples.labels[rows]
        found[0, rows] = -log_probs(probs[np.arange(len(y)), y])  # finite where a probability is 0
        found[1, rows] = sample_losses(probs, y, "brier")
    return found
