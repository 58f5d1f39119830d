"""Neural Clamping: one shift of every input and one temperature, fitted together (Tang 2024).

    artifact = fit_neural_clamping(load_model("model.pt2"), images, labels)

The paper takes gamma and T from the calibration set itself, which a full-size shift can overfit.
``judge="folds"`` instead scores every candidate on samples it was not fitted to, and takes the best T for
those samples: a shift that memorised its images is then at least not overconfident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.clamping.efficient import checked_inputs
from calib_serve.fit.clamping.objective import (
    Candidate,
    Objective,
    Overtaken,
    Penalty,
    QuasiNewton,
    Solution,
    Solver,
    Start,
    best_temperature,
    candidates,
    clamped,
    first_coefficients,
)
from calib_serve.fit.clamping.schedules import PAPER
from calib_serve.fit.facts import measured_on_folds, reference_bins
from calib_serve.fit.output.held_out import facts_of_probabilities
from calib_serve.fit.samples import Samples
from calib_serve.models import Classifier, Progress
from calib_serve.scores import log_softmax, softmax

GAMMAS: tuple[float, ...] = tuple(i / 20 for i in range(21))
"""The paper's candidates: 0 to 1 in steps of 0.05 (section 3.3)."""

Judge = Literal["folds", "calibration-ece"]


def fit_neural_clamping(
    classifier: Classifier,
    inputs: AnyFloats,
    labels: ArrayLike,
    *,
    gamma: float | Sequence[float] = 0.0,
    penalty: Penalty | Sequence[Penalty] = "tenth",
    resolution: int | Sequence[int | None] | Literal["auto"] | None = "auto",
    judge: Judge = "folds",
    folds: int = 3,
    start: Start = "zero",
    norm_power: Literal[1, 2] = 1,
    normalisation: tuple[ArrayLike, ArrayLike] | None = None,
    clip: tuple[float, float] | None = None,
    input_range: tuple[float, float] | None = None,
    solver: Solver | None = None,
    checkpoints: str | Path | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """Fit the shift delta and temperature T of least focal loss plus a penalty on delta (eq. 9).

    ``gamma``, ``penalty`` and ``resolution`` may each be a list: then ``judge`` chooses. The schedule as the
    paper prints it is ``fit_neural_clamping_paper``.

    Args:
        classifier: The model.
        inputs: (n, *input_shape), as it takes them.
        labels: Class ids (n,).
        gamma: Of the focal loss; 0, the cross-entropy, by default, where the paper has 1: the probabilities
            of least focal loss are not the true ones.
        penalty: "tenth" of the uncalibrated loss, the paper's rule, or lambda itself.
        resolution: Delta as r x r coefficients a channel, enlarged; None is full size, "auto" tries 4 and
            full size where folds judge images.
        judge: "folds", the held-out NLL over folds, which also give T and the reference bins; or
            "calibration-ece", the calibration set's own, as in the paper, with the T that was fitted along
            with delta.
        folds: Number of folds.
        start: First delta: "zero", "random", or "data", that of Theorem 3.2.
        norm_power: Power of the penalty's norm.
        normalisation: (mean, std) of the preprocessing, behind which delta then is.
        clip: Range that shifted inputs are kept in.
        input_range: Feasible [a, b] of the inputs, for ``start``.
        solver: ``QuasiNewton()`` by default.
        checkpoints: Folder to resume a killed fit from.
        class_names: Names of the classes (K,).
        seed: Seed of the random draws.
        progress: Called with how many passes are done, and of how many.

    Raises:
        InputError: For data that does not fit the model.
        ShapeError: For data of another shape.
        FitError: Where no temperature is best.
    """
    y = checked_inputs(classifier, inputs, labels)
    if resolution == "auto":
        # On few samples of many pixels a full-size delta overfits: then 4 x 4 is tried as well.
        image = len(classifier.input_shape) == 3 and min(classifier.input_shape[1:]) >= 8
        resolution = (4, None) if image and judge == "folds" else None

    def begin(objective: Objective, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        # The entropy's gradient is taken at the temperature that the model needs, not at 1.
        t = best_temperature(logits, objective.labels, objective.gamma) if start == "data" else 1.0
        return first_coefficients(
            objective, start, spread=PAPER.spread, seed=seed, temperature=t, input_range=input_range
        )

    base = Objective.of((classifier, inputs, y), normalisation, checkpoints, power=norm_power, clip=clip)
    solve, logits = solver or QuasiNewton(progress=progress), classifier.logits(inputs)
    search = _Search(base, logits, candidates(gamma, penalty, resolution), solve, begin)
    chosen = search.choose(judge, folds=folds, seed=seed)
    _, objective, found = next(replace(search, settings=[chosen.setting]).solved())
    # Beside the scores, to see what delta adds to a temperature on the same folds.
    alone = _held_out_nll(logits, y, _fold_of(len(y), folds, seed))
    artifact = clamped(
        objective,
        chosen.setting,
        found,
        uncalibrated=logits,
        facts={
            "place": "input" if normalisation is None else "after normalisation",
            "start": start,
            "solver": type(solve).__name__,
            "judge": judge,
            "candidates": chosen.scores,
            "held_out_nll_of_temperature_alone": alone,
            "seed": seed,
        },
        class_names=class_names,
        temperature=chosen.temperature,
        logits=chosen.logits,
    )
    if chosen.logits is None:
        return artifact
    held_out = np.exp(_held_out_log_probs(chosen.logits, y, _fold_of(len(y), folds, seed)))
    samples = Samples(chosen.logits, y)
    facts = facts_of_probabilities(softmax(logits), held_out, samples, class_names=class_names, seed=seed)
    return measured_on_folds(artifact, facts, folds=folds, samples=len(y))


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The best setting, every score, and held-out results of the best.

    ``logits`` are those of every calibration input under a shift that was fitted without its fold, and
    ``temperature`` is the one of least NLL for them; both None where nothing was held out.
    """

    setting: Candidate
    scores: list[dict[str, Any]]
    logits: NDArray[np.float32] | None = None
    temperature: float | None = None


@dataclass(frozen=True, eq=False)
class _Search:
    """Settings to choose among on the inputs of ``base``, whose uncalibrated ``logits`` (n, K) are known.

    ``begin`` makes delta's first coefficients of an objective and its inputs' uncalibrated logits.
    """

    base: Objective
    logits: NDArray[np.float32]
    settings: Sequence[Candidate]
    solve: Solver
    begin: Callable[[Objective, NDArray[np.float32]], NDArray[np.float64]]

    def solved(self, race: _Race | None = None) -> Iterator[tuple[Candidate, Objective, Solution]]:
        """Solve each setting from its neighbour's end at the same resolution; skip those overtaken."""
        ends: dict[int | None, NDArray[np.float64]] = {}
        for setting in self.settings:
            objective = setting.objective(replace(self.base, unshifted=self.logits), self.logits)
            if race is not None:
                objective = replace(objective, watch=race.watch(objective))
            first = ends.get(setting.resolution)
            try:
                found = self.solve(objective, self.begin(objective, self.logits) if first is None else first)
            except Overtaken:
                continue
            ends[setting.resolution] = found.coefficients
            yield setting, objective, found

    def choose(self, judge: Judge, *, folds: int, seed: int) -> _Chosen:
        """Choose by the least NLL on held-out folds, or the least ECE of the calibration set itself."""
        labels = self.base.labels
        # The paper's way (section 3.3), which is optimistic: delta was fitted to the same samples.
        if judge == "calibration-ece":
            if len(self.settings) == 1:
                return _Chosen(self.settings[0], [])
            ends = [(one, softmax(found.logits / found.temperature)) for one, _, found in self.solved()]
            scores = {one: reference_bins(probs, labels).ece() for one, probs in ends}
            return _Chosen(min(scores, key=scores.__getitem__), self._table(scores))
        if judge != "folds":
            raise InputError(f"judge must be 'folds' or 'calibration-ece', got {judge!r}")
        fold = _fold_of(len(labels), folds, seed)
        held_out = self._held_out(fold)
        scores = {one: _held_out_nll(z, labels, fold) for one, z in held_out.items()}
        best = min(scores, key=scores.__getitem__)
        # Of held-out logits: a T that was fitted along with a delta that overfits is too low.
        t = best_temperature(held_out[best], labels, 0.0)
        return _Chosen(best, self._table(scores), held_out[best], t)

    def _held_out(self, fold: NDArray[np.intp]) -> dict[Candidate, NDArray[np.float32]]:
        """The logits of every sample under the shift fitted without its fold, of settings never overtaken."""
        base, found = self.base, {one: np.empty_like(self.logits) for one in self.settings}
        for f in np.unique(fold):
            kept, held = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
            part = replace(base, inputs=base.inputs[kept], labels=base.labels[kept])
            rest = replace(base, inputs=base.inputs[held], labels=base.labels[held])
            race = _Race(replace(rest, unshifted=self.logits[held]))
            search = replace(self, base=part, logits=self.logits[kept], settings=list(found))
            for one, _, end in search.solved(race):
                found[one][held] = race.finished(one, end.coefficients)
            found = {one: found[one] for one in race.losses}
        return found

    def _table(self, scores: Mapping[Candidate, float]) -> list[dict[str, Any]]:
        return [{**vars(s), "score": scores.get(s)} for s in self.settings]


@dataclass(frozen=True, eq=False)
class _Race:
    """The settings of a search on one held-out fold, and the held-out ``losses`` of those solved.

    Full-size deltas learn their images by heart in a few steps: such a search is not run to its end.
    """

    held: Objective
    losses: dict[Candidate, NDArray[np.float64]] = field(default_factory=dict)

    def finished(self, setting: Candidate, coefficients: NDArray[np.float64]) -> NDArray[np.float32]:
        """Enter a solved setting; return the fold's logits under its shift."""
        logits = replace(self.held, resolution=setting.resolution).logits(coefficients)
        self.losses[setting] = self._losses(logits)
        return logits

    def watch(self, objective: Objective) -> Callable[[NDArray[np.float64]], None] | None:
        """Raise Overtaken where the loss rises and is beyond chance above the least of those solved."""
        if not self.losses:
            return None
        held = replace(self.held, resolution=objective.resolution)
        rival, least = min(self.losses.values(), key=np.mean), np.inf

        def judge(coefficients: NDArray[np.float64]) -> None:
            nonlocal least
            own = self._losses(held.logits(coefficients))
            behind = own - rival
            if own.mean() > least and behind.mean() > 2.0 * behind.std() / np.sqrt(len(own)):
                raise Overtaken
            least = min(least, own.mean())

        return judge

    def _losses(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Each sample's loss at the T of least loss, or at 1 where none is: every sample is right."""
        try:
            t = best_temperature(logits, self.held.labels, 0.0)
        except FitError:
            t = 1.0
        return np.asarray(-log_softmax(logits / t)[np.arange(len(logits)), self.held.labels])


def _held_out_log_probs(
    logits: NDArray[np.float32], labels: NDArray[np.intp], fold: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Log-probabilities (n, K) of held-out logits, each fold's at the T of least NLL for the others."""
    found = np.empty(logits.shape)
    for f in np.unique(fold):
        held = fold == f
        found[held] = log_softmax(logits[held] / best_temperature(logits[~held], labels[~held], 0.0))
    return found


def _held_out_nll(logits: NDArray[np.float32], labels: NDArray[np.intp], fold: NDArray[np.intp]) -> float:
    return -float(_held_out_log_probs(logits, labels, fold)[np.arange(len(labels)), labels].mean())


def _fold_of(n: int, folds: int, seed: int) -> NDArray[np.intp]:
    if not 2 <= folds <= n // 2:
        raise InputError(f"folds must lie in 2..{n // 2} for {n} samples, got {folds}")
    # Not stratified: the folds only rank settings, and every setting has the same folds.
    return np.random.default_rng(seed).permutation(n) % folds
