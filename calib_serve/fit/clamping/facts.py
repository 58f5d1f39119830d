"""What the fits of Neural Clamping check first, and what they tell of the search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError, ShapeError
from calib_serve.fit.clamping.choice import Candidate
from calib_serve.fit.clamping.objective import Objective, Solution, best_temperature, focal_loss
from calib_serve.fit.samples import Samples
from calib_serve.model import Classifier

Floats = NDArray[np.floating[Any]]


def checked(classifier: Classifier, inputs: Floats, labels: ArrayLike) -> NDArray[np.intp]:
    """The labels, after checking that they and the inputs' shape fit the model."""
    if inputs.shape[1:] != classifier.input_shape:
        raise ShapeError(f"the model takes inputs of {classifier.input_shape}, got {inputs.shape[1:]}")
    zeros = np.broadcast_to(np.float32(0), (len(inputs), classifier.classes))
    y = Samples.of(zeros, labels, outputs="logits").labels
    if (y == y[0]).all():
        raise InputError(f"all {len(y)} samples are of class {y[0]}; calibrate on every class that is served")
    return y


def search_facts(
    chosen: Candidate, objective: Objective, found: Solution, logits: NDArray[np.float32]
) -> dict[str, Any]:
    """Results of the search, and of temperature scaling alone."""
    y, gamma = objective.labels, objective.gamma
    alone = best_temperature(logits, y, gamma)
    return {
        "objective": "focal loss" if gamma else "nll",
        "gamma": gamma,
        "penalty": chosen.penalty,
        "lambda": objective.weight,
        "norm_power": objective.power,
        "resolution": chosen.resolution,
        "temperature_fitted": found.temperature,
        "temperature_alone": alone,
        "delta_norm": float(np.linalg.norm(found.coefficients)),
        "loss_before": focal_loss(logits, y, 1.0, gamma)[0],
        "loss_of_temperature_alone": focal_loss(logits, y, alone, gamma)[0],
        "loss": found.objective - objective.penalty(found.coefficients),
        "objective_value": found.objective,
        "passes": found.passes,
    }


def unit_of_delta(
    normalisation: tuple[ArrayLike, ArrayLike] | None, shape: tuple[int, ...]
) -> float | Floats:
    """Delta's unit in input space: the standard deviation of each channel, or 1 before normalisation."""
    if normalisation is None:
        return 1.0
    std = np.atleast_1d(np.asarray(normalisation[1], np.float64))
    if std.shape not in ((1,), (shape[0],)) or not (std > 0).all():
        raise InputError(f"normalisation's std must be {shape[0]} positive numbers, got {std.tolist()}")
    return np.broadcast_to(std.reshape(-1, *[1] * (len(shape) - 1)), shape)
