"""Probabilities of exactly 0: what they are read as, chosen on held-out folds.

A forest that no tree votes for, a missing score that is filled in, a rule that overrules the model: their
logarithm is whatever number stands for that of 0, and decides a fit alone. So it is chosen like any other
parameter, by the NLL of held-out samples, and is the first step of the calibration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Examples, LogitMap
from calib_serve.errors import CalibServeError
from calib_serve.fit.facts import data_fingerprint
from calib_serve.fit.output import fit_by_name
from calib_serve.fit.samples import Samples, folds_of
from calib_serve.metrics import log_probs, log_softmax
from calib_serve.scores import PROBABILITIES

_ZERO = 1e-9  # what is below it was 0 before it was rounded, or is as good as 0
_TRIED = (1e-6, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
_FOLDS = 3
_MOST = 100_000  # samples that it is chosen on
_BLOCK = 1 << 20  # values
_RANKED = ("none", "isotonic", "venn-abers", "histogram-width", "histogram-mass")
"""Methods that use the order of probabilities alone, or change none."""


@dataclass(frozen=True)
class Floor:
    """The ``share`` of probabilities that are 0, or as good; ``least`` is what they are read as, or None."""

    share: float
    least: float | None = None

    @property
    def remark(self) -> str:
        """In a sentence."""
        said = f"{100 * self.share:.2g} % of the probabilities are 0, or below {_ZERO:g}"
        if self.least is None:
            return said
        return f"{said}: those below {self.least:g} are read as that, which held-out folds chose"

    def floored(self, samples: Samples) -> Samples:
        """The samples with log-probabilities that are at least the floor's."""
        if self.least is None:
            return samples
        logits = np.empty((len(samples), samples.classes))
        for rows, z in samples.chunks(values=_BLOCK):
            logits[rows] = np.maximum(log_softmax(z), np.log(self.least))
        return replace(samples, logits=logits, rows=None)

    def before(self, artifact: Artifact, samples: Samples) -> Artifact:
        """An artifact that was fitted to floored samples, for ``samples`` as they are."""
        if self.least is None:
            return artifact
        made = replace(
            artifact, steps=(LogitMap(np.array(1.0), None, "log_probs", self.least), *artifact.steps)
        )
        if samples.part or artifact.examples is None:
            return made
        rows = Examples.rows(len(samples), samples.classes)
        z = np.asarray(samples.logits[rows if samples.rows is None else samples.rows[rows]], np.float64)
        data = {**made.data, "sha256": data_fingerprint(samples.logits, samples.labels)}
        return replace(made, examples=Examples(z, made.of_logits(z)), data=data)


def floor_of(samples: Samples, method: str, *, seed: int = 0) -> Floor | None:
    """What probabilities of 0 are read as in a fit of ``method``; None where there are none of them."""
    if samples.outputs not in PROBABILITIES:
        return None
    share = float(np.mean([(log_softmax(z) < np.log(_ZERO)).mean() for _, z in samples.chunks()]))
    if share == 0 or samples.outputs == "label_probabilities" or method in _RANKED:
        return Floor(share) if share else None
    samples = samples.some(_MOST)
    by = "platt" if samples.classes == 2 else "temperature"
    try:
        fold = folds_of(samples, folds=_FOLDS, seed=seed)
    except CalibServeError:
        return Floor(share)
    tried = {least: _held_out(Floor(share, least), samples, fold, by) for least in (None, *_TRIED)}
    return Floor(share, min(tried, key=lambda least: tried[least]))


def _held_out(floor: Floor, samples: Samples, fold: NDArray[np.intp], by: str) -> float:
    """The NLL of held-out samples under this floor; infinite where nothing can be fitted."""
    floored, total = floor.floored(samples), 0.0
    for f in range(_FOLDS):
        inside, out = floored.take(fold != f), floored.take(fold == f)
        try:
            made = fit_by_name(by, inside, inside.labels)
        except CalibServeError:
            return float("inf")
        for part, z in out.chunks(np.float64):
            p = made.of_logits(z)
            losses = -log_probs(p[np.arange(len(p)), out.labels[part]])
            total += float(losses.sum() if out.weight is None else losses @ out.weight[part])
    return total
