"""What labels say nothing of: classes without a sample, and probabilities of exactly 0.

Every method with numbers of its own for each class would press absent classes to 0, as no label ever is
theirs. So it is fitted to the other classes alone. What is put back for an absent class is what a
temperature makes of it: its weight is the mean of the others', and its bias such that on average it gets as
much probability.

A forest that no tree votes for, a missing score that is filled in, a rule that overrules the model: their
logarithm is whatever number stands for that of 0, and decides a fit alone. So it is chosen like any other
parameter, by the NLL of held-out samples, and is the first step of the calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Examples, LogitMap, ProbTable, Step
from calib_serve.errors import CalibServeError, FitError
from calib_serve.fit.facts import complete, data_fingerprint
from calib_serve.fit.output import fit_by_name
from calib_serve.fit.output.tables import equal_mass, table_of
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import Samples, folds_of
from calib_serve.metrics import log_probs, log_softmax
from calib_serve.scores import PROBABILITIES, softmax

Floats = NDArray[np.float64]

_STEPS = 100  # of a table that stands for a temperature
_FARTHEST = 50.0  # of a bias
_HALVINGS = 40
_NAMED = 10


@dataclass(frozen=True, eq=False)
class Absent:
    """The classes that have samples (K',), of so many ``classes``."""

    seen: NDArray[np.intp]
    classes: int

    def remark(self, names: Sequence[str] = ()) -> str:
        """In a sentence."""
        missing = np.setdiff1d(np.arange(self.classes), self.seen)
        called = ", ".join(names[k] if names else str(k) for k in missing[:_NAMED].tolist())
        more = ", ..." if len(missing) > _NAMED else ""
        whole = f"{len(missing)} of {self.classes} classes have no sample ({called}{more})"
        return f"{whole}: nothing is learnt of them"

    def without(self, samples: Samples) -> Samples:
        """The samples as of a model of the seen classes alone."""
        place = np.full(self.classes, -1)
        place[self.seen] = np.arange(len(self.seen))
        return replace(samples, logits=samples.logits[:, self.seen], labels=place[samples.labels])

    def back(self, artifact: Artifact, samples: Samples) -> Artifact:
        """An artifact that was fitted without them, for all classes; ``samples`` have all columns."""
        t = _temperature(samples)
        outside = np.setdiff1d(np.arange(self.classes), self.seen)
        wanted = _mass(samples, (LogitMap.temperature(t),), outside)
        steps = self._steps(artifact, samples, t, 0.0)
        if any(isinstance(step, LogitMap) and step.bias is not None for step in artifact.steps):
            low, high = -_FARTHEST, _FARTHEST
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                more = _mass(samples, self._steps(artifact, samples, t, middle), outside) > wanted
                low, high = (low, middle) if more else (middle, high)
            steps = self._steps(artifact, samples, t, low)
        made = complete(
            steps, samples, method=artifact.method, fit=artifact.fit, class_names=artifact.class_names
        )
        return replace(made, versions=artifact.versions)

    def _steps(self, artifact: Artifact, samples: Samples, t: float, bias: float) -> tuple[Step, ...]:
        maps = [step for step in artifact.steps if isinstance(step, LogitMap) and step.bias is not None]
        last = maps[-1] if maps else None
        return tuple(
            self._put_back(step, samples, t, bias if step is last else 0.0) for step in artifact.steps
        )

    def _put_back(self, step: Step, samples: Samples, t: float, bias: float) -> Step:
        if isinstance(step, ProbTable) and len(step.edges) == len(self.seen):
            return self._table(step, samples, t)
        if not isinstance(step, LogitMap) or step.classes is None:
            return step
        weight, at = step.weight, np.ix_(self.seen, self.seen)
        if weight.ndim == 2:
            weight = np.eye(self.classes) * np.diag(step.weight).mean()
            weight[at] = step.weight
        elif weight.ndim == 1:
            weight = np.full(self.classes, step.weight.mean())
            weight[self.seen] = step.weight
        offset = None
        if step.bias is not None:
            offset = np.full(self.classes, step.bias.mean() + bias)
            offset[self.seen] = step.bias
        return LogitMap(weight, offset, step.on, step.least)

    def _table(self, step: ProbTable, samples: Samples, t: float) -> ProbTable:
        """With a row for each absent class that is, step by step, the temperature."""
        probs = np.concatenate([softmax(z) for _, z in samples.chunks(np.float64)])
        cooled = np.concatenate([softmax(z / t) for _, z in samples.chunks(np.float64)])
        place = {k: i for i, k in enumerate(self.seen.tolist())}
        rows = []
        for k in range(self.classes):
            if k in place:
                rows.append((step.edges[place[k]], step.values[place[k]]))
                continue
            edges = equal_mass(_STEPS)(probs[:, k])
            index = np.searchsorted(edges, probs[:, k])
            count, total = (np.bincount(index, w, len(edges) + 1) for w in (None, cooled[:, k]))
            rows.append((edges, total / np.maximum(count, 1)))
        return table_of(rows)


def absent_of(samples: Samples) -> Absent | None:
    """The classes that have samples, where not all have; None where all have, or fewer than two."""
    seen = np.flatnonzero(np.bincount(samples.labels, minlength=samples.classes))
    return Absent(seen, samples.classes) if 1 < len(seen) < samples.classes else None


def _temperature(samples: Samples) -> float:
    try:
        return float(temperature(samples)["temperature"])
    except FitError:
        return 1.0


def _mass(samples: Samples, steps: tuple[Step, ...], classes: NDArray[np.intp]) -> float:
    """The mean probability of some classes."""
    artifact = Artifact(steps, method="of absent classes", classes=samples.classes)
    return sum(float(artifact.of_logits(z)[:, classes].sum()) for _, z in samples.chunks()) / len(samples)


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
            made = fit_by_name(by, inside)
        except CalibServeError:
            return float("inf")
        for part, z in out.chunks(np.float64):
            p = made.of_logits(z)
            losses = -log_probs(p[np.arange(len(p)), out.labels[part]])
            total += float(out.weighted_sum(losses, part))
    return total
