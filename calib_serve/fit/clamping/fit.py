"""Neural Clamping: one shift of every input and one temperature, fitted together (Tang 2024).

    artifact = fit_neural_clamping(load_model("model.pt2"), images, labels)

The paper takes gamma and T from the calibration set itself, which a full-size shift can overfit. Here every
setting is scored on samples that it was not fitted to, and the best T is that of those samples: a shift that
memorised its images is then at least not overconfident.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError
from calib_serve.fit.clamping.efficient import checked_inputs
from calib_serve.fit.clamping.objective import (
    Candidate,
    Objective,
    Penalty,
    QuasiNewton,
    Solution,
    best_temperature,
    candidates,
    clamped,
    unit_of_delta,
)
from calib_serve.fit.measure import facts_of_probabilities, measured_on_folds
from calib_serve.fit.samples import Samples
from calib_serve.models import Classifier, Progress
from calib_serve.scores import log_softmax, softmax

GAMMAS: tuple[float, ...] = tuple(i / 20 for i in range(21))
"""The paper's candidates: 0 to 1 in steps of 0.05 (section 3.3)."""
_FOLDS = 3


def fit_neural_clamping(
    classifier: Classifier,
    inputs: AnyFloats,
    labels: ArrayLike,
    *,
    gamma: float | Sequence[float] = 0.0,
    penalty: Penalty = "tenth",
    resolution: int | Sequence[int | None] | Literal["auto"] | None = "auto",
    normalisation: tuple[ArrayLike, ArrayLike] | None = None,
    solver: QuasiNewton | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """Fit the shift delta and temperature T of least focal loss plus a penalty on delta (eq. 9).

    ``gamma`` and ``resolution`` may each be a list: the setting of least held-out NLL over three folds is
    chosen. The folds also give T and the reference bins. The schedule as the paper prints it is
    ``fit_neural_clamping_paper``.

    Args:
        classifier: The model.
        inputs: (n, *input_shape), as it takes them.
        labels: Class ids (n,).
        gamma: Of the focal loss; 0, the cross-entropy, by default, where the paper has 1: the probabilities
            of least focal loss are not the true ones.
        penalty: "tenth" of the uncalibrated loss, the paper's rule, or lambda itself.
        resolution: Delta as r x r coefficients a channel, enlarged; None is full size, "auto" tries 4 and
            full size for images.
        normalisation: (mean, std) of the preprocessing, behind which delta then is.
        solver: ``QuasiNewton()`` by default.
        class_names: Names of the classes (K,).
        seed: Seed of the folds.
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
        resolution = (4, None) if image else None
    scale = unit_of_delta(normalisation, classifier.input_shape)
    base = Objective(classifier, inputs, y, scale=scale, unshifted=classifier.logits(inputs))
    solve, settings = solver or QuasiNewton(progress=progress), candidates(gamma, penalty, resolution)
    fold = _fold_of(len(y), seed)
    held_out = _held_out(base, settings, solve, fold)
    log_probs = {one: _held_out_log_probs(z, y, fold) for one, z in held_out.items()}
    scores = {one: _nll(found, y) for one, found in log_probs.items()}
    best = min(scores, key=scores.__getitem__)
    ((_, objective, found),) = _solved(base, [best], solve)
    logits = objective.unshifted
    assert logits is not None
    artifact = clamped(
        objective,
        best,
        found,
        uncalibrated=logits,
        facts={
            "place": "input" if normalisation is None else "after normalisation",
            "start": "zero",
            "solver": type(solve).__name__,
            "judge": "folds",
            "candidates": [{**vars(one), "score": score} for one, score in scores.items()],
            # Beside the scores, to see what delta adds to a temperature on the same folds.
            "held_out_nll_of_temperature_alone": _nll(_held_out_log_probs(logits, y, fold), y),
            "seed": seed,
        },
        class_names=class_names,
        # Of held-out logits: a T that was fitted along with a delta that overfits is too low.
        temperature=best_temperature(held_out[best], y, 0.0),
        logits=held_out[best],
    )
    samples, after = Samples(held_out[best], y), np.exp(log_probs[best])
    facts = facts_of_probabilities(softmax(logits), after, samples, class_names=class_names, seed=seed)
    return measured_on_folds(artifact, facts, folds=_FOLDS, samples=len(y))


def _solved(
    base: Objective, settings: Sequence[Candidate], solve: QuasiNewton
) -> Iterator[tuple[Candidate, Objective, Solution]]:
    """Solve each setting, from zero or its neighbour's end at the same resolution."""
    ends: dict[int | None, NDArray[np.float64]] = {}
    assert base.unshifted is not None
    for setting in settings:
        objective = setting.objective(base, base.unshifted)
        first = ends.get(setting.resolution)
        found = solve(objective, np.zeros(int(np.prod(objective.shape))) if first is None else first)
        ends[setting.resolution] = found.coefficients
        yield setting, objective, found


def _held_out(
    base: Objective, settings: Sequence[Candidate], solve: QuasiNewton, fold: NDArray[np.intp]
) -> dict[Candidate, NDArray[np.float32]]:
    """The logits (n, K) of every sample under each setting's shift fitted without the sample's fold."""
    assert base.unshifted is not None
    found = {one: np.empty_like(base.unshifted) for one in settings}
    for f in range(_FOLDS):
        part, rest = (
            replace(base, inputs=base.inputs[rows], labels=base.labels[rows], unshifted=base.unshifted[rows])
            for rows in (np.flatnonzero(fold != f), np.flatnonzero(fold == f))
        )
        for one, _, end in _solved(part, settings, solve):
            found[one][fold == f] = replace(rest, resolution=one.resolution).logits(end.coefficients)
    return found


def _held_out_log_probs(
    logits: NDArray[np.float32], labels: NDArray[np.intp], fold: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Log-probabilities (n, K) of held-out logits, each fold's at the T of least NLL for the others."""
    found = np.empty(logits.shape)
    for f in range(_FOLDS):
        held = fold == f
        found[held] = log_softmax(logits[held] / best_temperature(logits[~held], labels[~held], 0.0))
    return found


def _nll(log_probs: NDArray[np.float64], labels: NDArray[np.intp]) -> float:
    return -float(log_probs[np.arange(len(labels)), labels].mean())


def _fold_of(n: int, seed: int) -> NDArray[np.intp]:
    if n < 2 * _FOLDS:
        raise InputError(f"{n} samples are too few for {_FOLDS} folds")
    # Not stratified: the folds only rank settings, and every setting has the same folds.
    return np.random.default_rng(seed).permutation(n) % _FOLDS
