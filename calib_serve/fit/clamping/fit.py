"""Neural Clamping: one shift of every input and one temperature, fitted together (Tang 2024).

    artifact = fit_neural_clamping(load_model("model.pt2"), images, labels)

The paper takes gamma and T from the calibration set itself, which a full-size shift can overfit.
``judge="folds"`` instead scores every candidate on samples it was not fitted to, and takes the best T for
those samples: a shift that memorised its images is then at least not overconfident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import InputError
from calib_serve.fit.clamping.choice import (
    Judge,
    Penalty,
    candidates,
    choose,
    held_out_nll_of_temperature,
    held_out_probs,
    solved,
)
from calib_serve.fit.clamping.efficient import entropy_shift
from calib_serve.fit.clamping.facts import checked, search_facts, unit_of_delta
from calib_serve.fit.clamping.objective import Objective, QuasiNewton, Solver, best_temperature
from calib_serve.fit.clamping.schedules import PAPER
from calib_serve.fit.facts import complete, data_fingerprint, measured_on_folds
from calib_serve.fit.output.selection import facts_of_probabilities
from calib_serve.fit.progress import Checkpoints
from calib_serve.fit.samples import Samples
from calib_serve.metrics import softmax
from calib_serve.model import Classifier, Progress

GAMMAS: tuple[float, ...] = tuple(i / 20 for i in range(21))
"""The paper's candidates: 0 to 1 in steps of 0.05 (section 3.3)."""

Floats = NDArray[np.floating[Any]]
Start = Literal["zero", "data", "random"]


def fit_neural_clamping(
    classifier: Classifier,
    inputs: Floats,
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
    """The shift delta and temperature T of least focal loss plus a penalty on delta (eq. 9).

    ``inputs`` (n, *input_shape) as the model takes them, ``labels`` (n,) class ids. ``gamma`` of the
    focal loss, ``penalty`` ("tenth" of the uncalibrated loss, the paper's rule, or lambda itself) and
    ``resolution`` (delta as r x r coefficients a channel, enlarged; None is full size, "auto" tries 4
    and full size where folds judge images) may each be a list: then ``judge`` chooses, by held-out
    NLL over ``folds``, which also give T and the reference bins, or by the calibration set's own ECE
    as the paper does, with the T that was fitted along with delta. ``start`` is the first
    delta: zero, the ``data``-driven one of Theorem 3.2 within ``input_range``, or ``random``.
    ``normalisation`` (mean, std) of the preprocessing puts delta behind it; ``clip`` keeps shifted
    inputs in a range. ``solver`` defaults to ``QuasiNewton()``; the schedule as the paper prints it is
    ``fit_neural_clamping_paper``. There gamma is 1 by default; here 0, the cross-entropy, as the
    probabilities of least focal loss are not the true ones.
    ``checkpoints`` is a folder to resume a killed fit from. Raises ShapeError and
    InputError for data that does not fit the model, FitError where no temperature is best.
    """
    y = checked(classifier, inputs, labels)
    if resolution == "auto":
        resolution = _resolutions(classifier.input_shape, judge)
    settings = candidates(gamma, penalty, resolution)
    solve = solver or QuasiNewton(progress=progress)
    base = Objective(
        classifier,
        inputs,
        y,
        power=norm_power,
        scale=unit_of_delta(normalisation, classifier.input_shape),
        clip=clip,
        checkpoints=None if checkpoints is None else Checkpoints(Path(checkpoints)),
    )
    begin = _Begin(start, input_range, seed)
    logits = classifier.logits(inputs)
    chosen = choose(base, logits, settings, solve, begin, judge=judge, folds=folds, seed=seed)
    objective, found = solved(base, logits, [chosen.setting], solve, begin)[0]
    temperature = chosen.temperature or found.temperature
    shifted = Samples.of(found.logits if chosen.logits is None else chosen.logits, y, outputs="logits")
    artifact = complete(
        [objective.shift(found.coefficients), LogitMap.temperature(temperature)],
        shifted,
        method="neural-clamping",
        fit={
            "temperature": temperature,
            **search_facts(chosen.setting, objective, found, logits),
            "place": "input" if normalisation is None else "after normalisation",
            "start": start,
            "solver": type(solve).__name__,
            "judge": judge,
            "candidates": chosen.scores,
            "held_out_nll_of_temperature_alone": held_out_nll_of_temperature(
                logits, y, folds=folds, seed=seed
            ),
            "seed": seed,
        },
        data={"inputs_sha256": data_fingerprint(np.asarray(inputs))},
        model=classifier.facts(),
        class_names=class_names,
        packages=("torch", "scipy"),
    )
    if chosen.logits is None:
        return artifact
    held_out = held_out_probs(chosen.logits, y, folds=folds, seed=seed)
    facts = facts_of_probabilities(softmax(logits), held_out, shifted, class_names=class_names, seed=seed)
    return measured_on_folds(artifact, facts, folds=folds, samples=len(y))


def _resolutions(shape: tuple[int, ...], judge: Judge) -> tuple[int | None, ...]:
    """Full size, and 4 x 4 for images: on few samples of many pixels a full-size delta overfits."""
    image = len(shape) == 3 and min(shape[1:]) >= 8
    return (4, None) if image and judge == "folds" else (None,)


@dataclass(frozen=True)
class _Begin:
    """Delta's first coefficients."""

    start: Start
    input_range: tuple[float, float] | None
    seed: int

    def __call__(self, objective: Objective, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        size = int(np.prod(objective.shape))
        if self.start == "zero":
            return np.zeros(size)
        if self.start == "random":
            return np.random.default_rng(self.seed).normal(0, PAPER.spread, size)
        if self.start != "data":
            raise InputError(f"start must be 'zero', 'data' or 'random', got {self.start!r}")
        t = best_temperature(logits, objective.labels, objective.gamma)
        found = entropy_shift(
            objective.classifier, objective.inputs, temperature=t, input_range=self.input_range
        )
        return objective.coefficients(found.delta)
