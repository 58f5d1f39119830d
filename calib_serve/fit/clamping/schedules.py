"""Neural Clamping as its paper prints it, and as its public toolkit runs it.

Both are stochastic gradient descent of a fixed length (``PAPER``, ``TOOLKIT``) on a full-size delta, and take
T as it was fitted with delta. ``fit_neural_clamping`` is this package's own way to the same objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.errors import InputError
from calib_serve.fit.checkpoint import Checkpoints
from calib_serve.fit.clamping.augmentation import Augmentation
from calib_serve.fit.clamping.choice import Candidate, Penalty, candidates
from calib_serve.fit.clamping.descent import Descent, Schedule
from calib_serve.fit.clamping.entropy_shift import entropy_shift
from calib_serve.fit.clamping.facts import checked, search_facts, unit_of_delta
from calib_serve.fit.clamping.objective import Objective, focal_loss
from calib_serve.fit.clamping.solve import Solution
from calib_serve.fit.facts import complete, data_fingerprint, reference_bins
from calib_serve.fit.samples import Samples
from calib_serve.metrics import softmax
from calib_serve.model import Classifier, Progress

__all__ = ["PAPER", "TOOLKIT", "fit_neural_clamping_paper", "fit_neural_clamping_toolkit"]

Floats = NDArray[np.floating[Any]]

PAPER = Schedule(
    rate=0.001,
    momentum=0.0,
    batch=512,
    epochs=100,
    spread=0.1,  # a variance of 0.01
    gamma=1.0,
    penalty="tenth",
    augmented=False,
)
"""Tang 2024, section 4.1 and appendix A."""

TOOLKIT = Schedule(
    rate=0.01,
    momentum=0.9,
    batch=1000,
    epochs=100,
    spread=0.001,
    gamma=1.0,
    penalty=0.01,
    augmented=True,
)
"""The public toolkit's demonstration on CIFAR-100 (github.com/yungchentang/NCToolkit, demo.py)."""


def fit_neural_clamping_paper(
    classifier: Classifier,
    inputs: Floats,
    labels: ArrayLike,
    *,
    gamma: float | Sequence[float] = PAPER.gamma,
    penalty: Penalty | Sequence[Penalty] = PAPER.penalty,
    start: Literal["random", "data"] = "random",
    norm_power: Literal[1, 2] = 1,
    normalisation: tuple[ArrayLike, ArrayLike] | None = None,
    input_range: tuple[float, float] | None = None,
    schedule: Schedule = PAPER,
    checkpoints: str | Path | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """Delta and T by the paper's schedule (section 4.1, appendix A).

    ``inputs`` (n, *input_shape), ``labels`` (n,). Lists of ``gamma`` and ``penalty`` are tried in separate
    runs, and the one of least calibration ECE is taken. ``start`` draws delta from N(0, 0.01), or is the
    ``data``-driven shift of Theorem 3.2 within ``input_range``. Where delta acts is not printed: on the
    inputs, or behind their ``normalisation`` (mean, std). Nor is the power of the norm. Raises ShapeError and
    InputError for data that does not fit the model, FitError where T falls to 0.
    """
    y = checked(classifier, inputs, labels)
    base = _objective(classifier, inputs, y, normalisation, checkpoints, power=norm_power)
    first = _first(base, start, schedule, input_range, seed)
    runs = [
        _run(base, one, first, Descent(schedule, seed, progress=progress))
        for one in candidates(gamma, penalty, None)
    ]
    ece = [reference_bins(softmax(found.logits / found.temperature), y).ece() for _, _, found in runs]
    tried = [
        {"gamma": one.gamma, "penalty": one.penalty, "score": score}
        for (one, _, _), score in zip(runs, ece, strict=True)
    ]
    facts = {"start": start, "judge": "calibration-ece", "candidates": tried if len(tried) > 1 else []}
    return _artifact(runs[int(np.argmin(ece))], schedule, normalisation, class_names, {**facts, "seed": seed})


def fit_neural_clamping_toolkit(
    classifier: Classifier,
    inputs: Floats,
    labels: ArrayLike,
    *,
    normalisation: tuple[ArrayLike, ArrayLike],
    gamma: float = TOOLKIT.gamma,
    penalty: float = TOOLKIT.penalty,  # type: ignore[assignment]
    schedule: Schedule = TOOLKIT,
    checkpoints: str | Path | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """Delta and T as the public toolkit fits them: behind the normalisation, on images that vary.

    ``inputs`` (n, C, H, W) and the ``normalisation`` (mean, std) that the model begins with; (0, 1) where the
    inputs are normalised already. One ``gamma`` and one ``penalty``, times the norm of delta. Its focal loss
    cuts probabilities off at 1e-7, where this one goes on. Raises ShapeError and InputError for data that
    does not fit the model or is no images, FitError where T falls to 0.
    """
    y = checked(classifier, inputs, labels)
    chosen = candidates(gamma, penalty, None)
    if len(chosen) > 1 or chosen[0].penalty == "tenth":
        raise InputError("the toolkit chooses nothing: give one gamma and one penalty, a number")
    augmentation = Augmentation.of(inputs, normalisation[0]) if schedule.augmented else None
    base = _objective(classifier, inputs, y, normalisation, checkpoints)
    first = _first(base, "random", schedule, None, seed)
    run = _run(base, chosen[0], first, Descent(schedule, seed, augmentation, progress))
    return _artifact(run, schedule, normalisation, class_names, {"start": "random", "seed": seed})


Run = tuple[Candidate, Objective, Solution]


def _objective(
    classifier: Classifier,
    inputs: Floats,
    labels: NDArray[np.intp],
    normalisation: tuple[ArrayLike, ArrayLike] | None,
    checkpoints: str | Path | None,
    *,
    power: Literal[1, 2] = 1,
) -> Objective:
    return Objective(
        classifier,
        inputs,
        labels,
        power=power,
        scale=unit_of_delta(normalisation, classifier.input_shape),
        checkpoints=None if checkpoints is None else Checkpoints(Path(checkpoints)),
    )


def _first(
    base: Objective,
    start: Literal["random", "data"],
    schedule: Schedule,
    input_range: tuple[float, float] | None,
    seed: int,
) -> NDArray[np.float64]:
    """Delta's first entries."""
    if start == "random":
        if input_range is not None:
            raise InputError("input_range bounds the data-driven start; give start='data' with it")
        return np.random.default_rng(seed).normal(0, schedule.spread, int(np.prod(base.shape)))
    if start != "data":
        raise InputError(f"the paper's schedule starts 'random' or 'data', got {start!r}")
    return base.coefficients(entropy_shift(base.classifier, base.inputs, input_range=input_range).delta)


def _run(base: Objective, one: Candidate, first: NDArray[np.float64], solve: Descent) -> Run:
    """One setting from the common start on."""
    weight = one.penalty
    if weight == "tenth":
        # "Initial loss" is read as the loss where the descent begins: at the first delta, with T = 1.
        weight = focal_loss(base.logits(first), base.labels, 1.0, one.gamma)[0] / 10
    objective = replace(base, gamma=one.gamma, weight=float(weight))
    return one, objective, solve(objective, first)


def _artifact(
    run: Run,
    schedule: Schedule,
    normalisation: tuple[ArrayLike, ArrayLike] | None,
    class_names: Sequence[str],
    facts: dict[str, Any],
) -> Artifact:
    one, objective, found = run
    logits = objective.classifier.logits(objective.inputs)
    return complete(
        [objective.shift(found.coefficients), LogitMap.temperature(found.temperature)],
        Samples.of(found.logits, objective.labels),
        method="neural-clamping",
        fit={
            "temperature": found.temperature,
            **search_facts(one, objective, found, logits),
            "place": "input" if normalisation is None else "after normalisation",
            "solver": "Descent",
            "schedule": asdict(schedule),
            **facts,
        },
        data={"inputs_sha256": data_fingerprint(np.asarray(objective.inputs))},
        model=objective.classifier.facts(),
        class_names=class_names,
        packages=("torch",),
    )
