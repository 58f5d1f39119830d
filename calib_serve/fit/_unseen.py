"""Classes without a calibration sample and probabilities of exactly 0, neither of which a fit can learn.

Every method with numbers of its own for each class would press absent classes to 0, as no label ever is
theirs. So it is fitted to the other classes alone. What is put back for an absent class is what a
temperature makes of it: its weight is the mean of the others', and its bias such that on average it gets as
much probability.

A forest that no tree votes for, a missing score that is filled in, a rule that overrules the model: their
logarithm is whatever number stands for that of 0, and decides a fit alone. So it is chosen like any other
parameter, by the NLL of held-out samples, and is the first step of the calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from calib_serve.artifact import Artifact, Examples, LogitMap, ProbTable, Step
from calib_serve.core.errors import CalibServeError, FitError
from calib_serve.core.text import a_few
from calib_serve.fit.facts import complete, data_fingerprint
from calib_serve.fit.folds import fits_of_folds, folds_of
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output.candidates import KEEPING, TWO_CLASSES, fitter_of
from calib_serve.fit.output.offset import moved, offset_of
from calib_serve.fit.output.tables import table_of, temperature_row
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.samples import Samples
from calib_serve.scores import PROBABILITIES, log_probs, log_softmax, softmax

_ZERO = 1e-9  # a probability below it was 0 before rounding, or is as good as 0
_FLOORS = (1e-6, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
_RANKED = ("none", "isotonic", "histogram-width", "histogram-mass")
"""Methods that use the order of probabilities alone, or change none."""


@dataclass(frozen=True, eq=False)
class Absent:
    """The classes that have calibration samples: ``seen`` (K',) of ``classes`` in all."""

    seen: NDArray[np.intp]
    classes: int

    def remark(self, names: Sequence[str] = ()) -> str:
        """Name the classes without a sample, in a sentence."""
        missing = np.setdiff1d(np.arange(self.classes), self.seen)
        called = a_few(names[k] if names else k for k in missing.tolist())
        whole = f"{len(missing)} of {self.classes} classes have no sample ({called})"
        return f"{whole}: nothing is learnt of them"

    def without(self, samples: Samples) -> Samples:
        """The samples as of a model that has the seen classes alone."""
        place = np.full(self.classes, -1)
        place[self.seen] = np.arange(len(self.seen))
        return replace(samples, logits=samples.logits[:, self.seen], labels=place[samples.labels])

    def back(self, artifact: Artifact, samples: Samples) -> Artifact:
        """Extend an artifact of the seen classes alone to all classes; ``samples`` have all columns."""
        try:
            t = temperature(samples).temperature
        except FitError:
            t = float("inf")
        outside = np.setdiff1d(np.arange(self.classes), self.seen)
        # Where a temperature says nothing, each is as likely as one more sample of it would make it.
        apart = bool(artifact.steps) and offset_of(samples, t) is not None
        t = t if np.isfinite(t) else 1.0
        share = len(outside) / (len(samples) + self.classes)
        wanted = share if apart else _mass(samples, (LogitMap.temperature(t),), outside)
        level = samples.mean()
        unit = float(moved(samples, -level).logits.std()) if apart else 1.0

        def steps(bias: float) -> tuple[Step, ...]:
            if not apart:
                return self._steps(artifact, samples, t, bias)
            offset = np.zeros(self.classes)
            offset[outside] = level[self.seen].mean() - level[outside] + bias * unit
            return LogitMap(np.array(1.0), offset), *self._steps(artifact, samples, t, 0.0)

        found = 0.0
        if apart or any(isinstance(step, LogitMap) and step.bias is not None for step in artifact.steps):

            def excess(bias: float) -> float:
                return _mass(samples, steps(bias), outside) - wanted

            # Where even the lowest bias gives absent classes more than that, it stays.
            low, high = -50.0, 50.0
            found = low if excess(low) >= 0 else brentq(excess, low, high, xtol=1e-9)
        made = complete(
            steps(found), samples, method=artifact.method, fit={}, class_names=artifact.class_names
        )
        return replace(made, fit=artifact.fit, versions=artifact.versions)

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
        """Add a row for each absent class: the temperature, written as a step function."""
        probs = np.concatenate([softmax(z) for _, z in samples.chunks(np.float64)])
        cooled = np.concatenate([softmax(z / t) for _, z in samples.chunks(np.float64)])
        place = {k: i for i, k in enumerate(self.seen.tolist())}
        rows = []
        for k in range(self.classes):
            if k in place:
                rows.append((step.edges[place[k]], step.values[place[k]]))
            else:
                rows.append(temperature_row(probs[:, k], cooled[:, k]))
        return table_of(rows)


def _mass(samples: Samples, steps: tuple[Step, ...], classes: NDArray[np.intp]) -> float:
    """The mean probability of ``classes``, summed over them."""
    artifact = Artifact(steps, method="of absent classes", classes=samples.classes)
    return sum(float(artifact.of_logits(z)[:, classes].sum()) for _, z in samples.chunks()) / len(samples)


@dataclass(frozen=True)
class Floor:
    """The ``share`` of probabilities of (nearly) 0, and the floor ``least`` that replaces them, or None."""

    share: float
    least: float | None = None

    @property
    def remark(self) -> str:
        """The floor and the share of probabilities below it, in a sentence."""
        said = f"{100 * self.share:.2g} % of the probabilities are 0, or below {_ZERO:g}"
        if self.least is None:
            return said
        return f"{said}: those below {self.least:g} are read as that, which held-out folds chose"

    def floored(self, samples: Samples) -> Samples:
        """The samples with log-probabilities of at least the floor's."""
        if self.least is None:
            return samples
        logits = np.empty((len(samples), samples.classes))
        for rows, z in samples.chunks(values=1 << 20):
            logits[rows] = np.maximum(log_softmax(z), np.log(self.least))
        return replace(samples, logits=logits, rows=None)

    def before(self, artifact: Artifact, samples: Samples) -> Artifact:
        """Put the floor before an artifact of floored samples, so that it takes ``samples`` as they are."""
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
        return replace(made, examples=Examples(z, made.of_segments(z, made.rounds(len(z))[0])[0]), data=data)


def floor_of(samples: Samples, method: str, *, seed: int = 0) -> Floor | None:
    """Choose the floor of probabilities of 0 for a fit of ``method``; None where no probability is 0."""
    if samples.outputs not in PROBABILITIES:
        return None
    share = float(np.mean([(log_softmax(z) < np.log(_ZERO)).mean() for _, z in samples.chunks()]))
    if share == 0 or method in _RANKED:
        return Floor(share) if share else None
    samples = samples.some(MEASURED.most_samples_cross_validated)
    by = "platt" if samples.classes == 2 else "temperature"
    try:
        fold = folds_of(samples, folds=3, seed=seed)
    except CalibServeError:
        return Floor(share)
    tried = {least: _held_out(Floor(share, least), samples, fold, by) for least in (None, *_FLOORS)}
    return Floor(share, min(tried, key=lambda least: tried[least]))


def _held_out(floor: Floor, samples: Samples, fold: NDArray[np.intp], by: str) -> float:
    """The NLL of held-out samples under a floor; infinite where nothing can be fitted."""
    floored, losses = floor.floored(samples), np.empty(len(samples))
    try:
        for rows, p in floored.held_out(fold, fits_of_folds(floored, fold, fitter_of(by, {}))):
            losses[rows] = -log_probs(p[np.arange(len(p)), floored.labels[rows]])
    except CalibServeError:
        return float("inf")
    return float(floored.weighted_sum(losses))


@dataclass(frozen=True)
class Unseen:
    """Parts of the samples that a fit cannot learn from: probabilities of 0, and classes without a sample."""

    floor: Floor | None
    absent: Absent | None

    @classmethod
    def of(cls, samples: Samples, method: str, *, keeping: bool, seed: int) -> Unseen:
        """Look at the samples for a fit of ``method``; ``keeping``: the fit keeps every predicted class."""
        if samples.is_multilabel:
            return cls(None, None)
        alone = keeping or method in KEEPING or (method in TWO_CLASSES and samples.classes > 2)
        seen, k = np.flatnonzero(np.bincount(samples.labels, minlength=samples.classes)), samples.classes
        absent = None if alone or not 1 < len(seen) < k else Absent(seen, k)
        return cls(floor_of(samples, method, seed=seed), absent)

    @property
    def changes(self) -> bool:
        """Whether the fit sees other samples than the measurement does."""
        return self.absent is not None or (self.floor is not None and self.floor.least is not None)

    def fitted(self, samples: Samples, fit: Callable[[Samples], Artifact]) -> Artifact:
        """Fit to the samples without the unseen parts; return an artifact for the samples as they are."""
        floored = samples if self.floor is None else self.floor.floored(samples)
        made = fit(floored if self.absent is None else self.absent.without(floored))
        made = made if self.absent is None else self.absent.back(made, floored)
        return made if self.floor is None else self.floor.before(made, samples)

    def remarks(self, class_names: Sequence[str]) -> list[str]:
        """Remarks on the floor and on the absent classes, a sentence each."""
        said = [] if self.floor is None else [self.floor.remark]
        return said if self.absent is None else [*said, self.absent.remark(class_names)]
