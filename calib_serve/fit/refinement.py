"""NLL and Brier score, split into calibration and refinement, by a recalibration of folds (Berta 2025)."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import some_of
from calib_serve.core.errors import CalibServeError, InputError
from calib_serve.core.options.base import check_between
from calib_serve.fit.folds import FOLDS, fits_of_folds, folds_of
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output.candidates import fitter_of
from calib_serve.fit.samples import Samples
from calib_serve.metrics import LossTerms, sample_losses
from calib_serve.scores import Outputs, Scores, log_probs, softmax


@dataclass(frozen=True)
class Refinement:
    """NLL and Brier score split into calibration and refinement, under a recalibration.

    Args:
        method: Name of the recalibration.
        nll: Terms of the NLL, in nats.
        brier: Terms of the Brier score, 0 to 2.
    """

    method: str
    nll: LossTerms
    brier: LossTerms

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        terms = {name: vars(found) for name, found in (("nll", self.nll), ("brier", self.brier))}
        parts = {name: {k: e.as_dict() for k, e in found.items()} for name, found in terms.items()}
        return {"recalibration": self.method, **parts}

    def says(self) -> str:
        """The calibration part of the NLL in one sentence.

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
    level: float = 0.95,
) -> Refinement | None:
    """Decompose the losses of scores, each sample recalibrated by a fit to the other folds (Berta 2025).

    The recalibration is beta for two classes and structured vector scaling for more, or a temperature for
    more than a million logits and where those cannot be fitted; by 5 folds, of 20,000 samples or more 2. What
    it cannot mend counts as refinement, so calibration is a lower bound. None where nothing can be
    fitted, as to few samples or where every answer is right.

    Args:
        scores: Class scores (n, K); or ``Scores``, with weights and groups. Of more than 50,000 rows some are
            used.
        labels: Class ids (n,), or names.
        outputs: Kind of the scores; see ``Scores.of``.
        level: Coverage of the intervals, a fraction.

    Raises:
        InputError: For scores, labels and a level that cannot be right.
    """
    check_between("level", level)
    given = Scores.of(scores, labels, outputs=outputs)
    if given.is_multilabel:
        raise InputError(
            f"{given.outputs} are of labels, each with losses of its own: give one class a sample"
        )
    samples = Samples.of(given.take(some_of(len(given), 50_000)))
    folds = min(FOLDS if len(samples) < MEASURED.samples_for_two_folds else 2, samples.units // 2)
    if folds < 2:
        return None
    best = "beta" if samples.classes == 2 else "structured-vector"
    best = best if samples.size <= MEASURED.most_logits_for_a_map else "temperature"
    for name in dict.fromkeys((best, "temperature")):
        with suppress(CalibServeError):
            return _decomposed(samples, name, folds=folds, level=level)
    return None


def _decomposed(samples: Samples, method: str, *, folds: int, level: float) -> Refinement:
    fold = folds_of(samples, folds=folds, seed=0)
    losses = np.empty((2, 2, len(samples)))
    for rows, z in samples.chunks(np.float64):
        losses[0][:, rows] = _losses(softmax(z), samples.labels[rows])
    fits = fits_of_folds(samples, fold, fitter_of(method, {}))
    for held, probs in samples.held_out(fold, fits):
        losses[1][:, held] = _losses(probs, samples.labels[held])
    of: dict[str, Any] = {"level": level, "groups": samples.groups, "weight": samples.weight}
    nll, brier = (LossTerms.of(*losses[:, k], **of) for k in range(2))
    return Refinement(method, nll, brier)


def _losses(probs: NDArray[np.float64], labels: NDArray[np.intp]) -> NDArray[np.float64]:
    """The NLL and Brier score (2, n) of each sample."""
    p_true = probs[np.arange(len(labels)), labels]
    return np.stack([-log_probs(p_true), sample_losses(probs, labels, "brier")])  # finite where p_true is 0
