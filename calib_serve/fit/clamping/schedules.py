"""Schedules of Neural Clamping: as the paper prints it, and as its public toolkit runs it.

Both are stochastic gradient descent of a fixed length (``PAPER``, ``TOOLKIT``) on a full-size delta, and take
T as it was fitted with delta. ``fit_neural_clamping`` is this package's own way to the same objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
    Penalty,
    Solution,
    candidates,
    clamped,
    first_coefficients,
    solution,
)
from calib_serve.fit.facts import reference_bins
from calib_serve.models import Classifier, Progress
from calib_serve.scores import softmax

Vector = NDArray[np.float64]

Run = tuple[Candidate, Objective, Solution]


@dataclass(frozen=True)
class Schedule:
    """Settings of a descent; T begins at 1, the rate stays constant, and nothing stops it early.

    Args:
        rate: Learning rate.
        momentum: Of the descent.
        batch: Inputs of a step.
        epochs: Passes over the data.
        spread: Standard deviation of delta's first entries, drawn around 0.
        gamma: Of the focal loss, unless a fit has its own.
        penalty: Of delta: a number, or "tenth" of the loss where the descent begins; unless a fit has
            its own.
        augmented: Whether images vary.
    """

    rate: float
    momentum: float
    batch: int
    epochs: int
    spread: float
    gamma: float
    penalty: Penalty
    augmented: bool

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 <= self.momentum < 1 and self.batch >= 1 and self.epochs >= 1):
            raise InputError(f"a schedule has a rate above 0, momentum in 0..1, batches and epochs: {self}")


@dataclass(frozen=True, eq=False)
class Augmentation:
    """A crop after padding, a horizontal flip, and one square cut out of every image (n, C, H, W).

    ``padding`` pixels of ``black`` (C,) are put around; the crop is anywhere in that. The flip comes with
    probability ``flip``. The square of side ``cut`` has its centre anywhere in the image, so it may stick
    out, and becomes ``blank`` (C,).
    """

    padding: int
    cut: int
    black: NDArray[np.float32]
    blank: NDArray[np.float32]
    flip: float = 0.5

    @classmethod
    def of(cls, images: AnyFloats, mean: ArrayLike, *, flip: float = 0.5) -> Augmentation:
        """The toolkit's augmentation of CIFAR-100 (32 pixels: padding 4, square 4), scaled to other sizes.

        Padding is black, the least value of a channel; the square is blank, the ``mean`` (C,) of the
        normalisation. InputError for inputs that are not images (n, C, H, W).
        """
        if images.ndim != 4 or min(images.shape[2:]) < 2:
            raise InputError(
                f"crops and flips are of images (n, C, H, W), got inputs of {images.shape[1:]}; take "
                "the default schedule or the paper's"
            )
        side, channels = min(images.shape[2:]), images.shape[1]
        black = images.min(axis=(0, 2, 3)).astype(np.float32)
        blank = np.asarray(mean, np.float32).ravel()
        if blank.shape not in ((1,), (channels,)):
            raise InputError(f"normalisation's mean must be {channels} numbers, got {blank.tolist()}")
        return cls(
            max(1, side // 8), 2 * max(1, side // 16), black, np.broadcast_to(blank, (channels,)), flip
        )

    def __call__(self, images: AnyFloats, rng: np.random.Generator) -> NDArray[np.float32]:
        """Vary every image (n, C, H, W) once."""
        n, _, height, width = images.shape
        rows, columns = (self._moved(n, size, rng) for size in (height, width))
        flipped = rng.random(n) < self.flip
        columns[flipped] = columns[flipped, ::-1]
        # Pixels outside the image are read from its rim first, and blackened below.
        out = np.take_along_axis(images, np.clip(rows, 0, height - 1)[:, None, :, None], axis=2)
        out = np.take_along_axis(out, np.clip(columns, 0, width - 1)[:, None, None, :], axis=3)
        outside = (rows < 0) | (rows >= height), (columns < 0) | (columns >= width)
        out = _filled(out, outside[0][:, :, None] | outside[1][:, None, :], self.black)
        middle = rng.integers(height, size=(n, 1)), rng.integers(width, size=(n, 1))
        tall, wide = (
            (np.arange(size) >= m - self.cut // 2) & (np.arange(size) < m + self.cut // 2)
            for m, size in zip(middle, (height, width), strict=True)
        )
        return _filled(out, tall[:, :, None] & wide[:, None, :], self.blank)

    def _moved(self, n: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the pixel indices (n, size) of a crop of each image, some of them outside the image."""
        by = rng.integers(-self.padding, self.padding + 1, size=(n, 1))
        return np.asarray(np.arange(size) + by, np.int64)


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
    inputs: AnyFloats,
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
    """Fit delta and T by the paper's schedule (section 4.1, appendix A).

    Lists of ``gamma`` and ``penalty`` are tried in separate runs, and the one of least calibration ECE is
    taken. Where delta acts is not printed, nor is the power of the norm.

    Args:
        classifier: The model.
        inputs: (n, *input_shape), as it takes them.
        labels: Class ids (n,).
        gamma: Of the focal loss.
        penalty: "tenth" of the loss where the descent begins, or lambda itself.
        start: First delta: "random", drawn from N(0, 0.01), or "data", that of Theorem 3.2.
        norm_power: Power of the penalty's norm.
        normalisation: (mean, std) of the preprocessing, behind which delta then is; None: on the inputs.
        input_range: Feasible [a, b] of the inputs, for ``start``.
        schedule: Settings of the descent.
        checkpoints: Folder to resume a killed fit from.
        class_names: Names of the classes (K,).
        seed: Seed of the random draws.
        progress: Called with how many epochs are done, and of how many.

    Raises:
        InputError: For data that does not fit the model.
        ShapeError: For data of another shape.
        FitError: Where T falls to 0.
    """
    if start not in ("random", "data"):
        raise InputError(f"the paper's schedule starts 'random' or 'data', got {start!r}")
    y = checked_inputs(classifier, inputs, labels)
    base = Objective.of((classifier, inputs, y), normalisation, checkpoints, power=norm_power)
    first = first_coefficients(base, start, spread=schedule.spread, seed=seed, input_range=input_range)
    settings, solve = candidates(gamma, penalty, None), Descent(schedule, seed, progress=progress)
    runs = _runs(base, settings, first, solve)
    # Section 3.3: the calibration set's own ECE decides on gamma.
    ece = [reference_bins(softmax(found.logits / found.temperature), y).ece() for _, _, found in runs]
    tried = [
        {"gamma": one.gamma, "penalty": one.penalty, "score": score}
        for one, score in zip(settings, ece, strict=True)
    ]
    facts = {"start": start, "judge": "calibration-ece", "candidates": tried if len(tried) > 1 else []}
    return _artifact(runs[int(np.argmin(ece))], schedule, normalisation, class_names, {**facts, "seed": seed})


def fit_neural_clamping_toolkit(
    classifier: Classifier,
    inputs: AnyFloats,
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
    """Fit delta and T as the public toolkit does: behind the normalisation, on images that vary.

    Its focal loss cuts probabilities off at 1e-7, where this one goes on.

    Args:
        classifier: The model.
        inputs: (n, C, H, W).
        labels: Class ids (n,).
        normalisation: (mean, std) that the model begins with; (0, 1) where the inputs are normalised already.
        gamma: Of the focal loss.
        penalty: Times the norm of delta.
        schedule: Settings of the descent.
        checkpoints: Folder to resume a killed fit from.
        class_names: Names of the classes (K,).
        seed: Seed of the random draws.
        progress: Called with how many epochs are done, and of how many.

    Raises:
        InputError: For data that does not fit the model or is no images.
        ShapeError: For data of another shape.
        FitError: Where T falls to 0.
    """
    y = checked_inputs(classifier, inputs, labels)
    chosen = candidates(gamma, penalty, None)
    if len(chosen) > 1 or chosen[0].penalty == "tenth":
        raise InputError("the toolkit chooses nothing: give one gamma and one penalty, a number")
    augmentation = Augmentation.of(inputs, normalisation[0]) if schedule.augmented else None
    base = Objective.of((classifier, inputs, y), normalisation, checkpoints)
    first = first_coefficients(base, "random", spread=schedule.spread, seed=seed)
    (run,) = _runs(base, chosen, first, Descent(schedule, seed, augmentation, progress))
    return _artifact(run, schedule, normalisation, class_names, {"start": "random", "seed": seed})


def _runs(base: Objective, settings: Sequence[Candidate], first: Vector, solve: Descent) -> list[Run]:
    """Descend under every setting, from the common start on."""
    # "Initial loss", of which the penalty is a tenth, is read as the one at the first delta, with T = 1.
    logits = base.logits(first)
    objectives = [one.objective(base, logits) for one in settings]
    return [(one, o, solve(o, first)) for one, o in zip(settings, objectives, strict=True)]


def _artifact(
    run: Run,
    schedule: Schedule,
    normalisation: tuple[ArrayLike, ArrayLike] | None,
    class_names: Sequence[str],
    facts: dict[str, Any],
) -> Artifact:
    one, objective, found = run
    place = "input" if normalisation is None else "after normalisation"
    return clamped(
        objective,
        one,
        found,
        uncalibrated=objective.classifier.logits(objective.inputs),
        facts={"place": place, "solver": "Descent", "schedule": asdict(schedule), **facts},
        class_names=class_names,
    )


@dataclass(frozen=True)
class Descent:
    """A solver: from first coefficients on, by a schedule; ``augmentation`` varies every batch's images."""

    schedule: Schedule
    seed: int = 0
    augmentation: Augmentation | None = None
    progress: Progress | None = None

    def __call__(self, objective: Objective, start: Vector) -> Solution:
        """Search to the last step; FitError where T falls to 0 or below."""
        rng, how = np.random.default_rng(self.seed), self.schedule
        theta, t = start.astype(np.float64).copy(), 1.0
        velocity = np.zeros(len(theta) + 1)
        n = len(objective.labels)
        for epoch in range(how.epochs):
            for drawn in np.split(rng.permutation(n), range(how.batch, n, how.batch)):
                gradient = self._gradient(objective, np.sort(drawn), theta, t, rng)
                velocity = how.momentum * velocity + gradient
                theta = theta - how.rate * velocity[:-1]
                # T itself descends and not log T, as in the paper, so that it can fall below 0.
                t -= how.rate * float(velocity[-1])
                if not t > 0:
                    raise FitError(
                        f"the schedule drove T to {t:.3g} in epoch {epoch + 1}; take the default schedule"
                    )
            if self.progress:
                self.progress(epoch + 1, how.epochs)
        return solution(objective, theta, t, objective.logits(theta), passes=how.epochs)

    def _gradient(
        self, objective: Objective, rows: NDArray[np.intp], theta: Vector, t: float, rng: np.random.Generator
    ) -> Vector:
        """The gradient of one batch with respect to delta and T."""
        # In order, so that memory-mapped inputs are read forwards.
        images = objective.inputs[rows]
        if self.augmentation is not None:
            images = self.augmentation(images, rng)
        part = replace(objective, inputs=images, labels=objective.labels[rows])
        gradient = part(np.append(theta, math.log(t)))[1].copy()
        gradient[-1] /= t  # the objective's is with respect to log T
        return gradient


def _filled(images: AnyFloats, where: NDArray[np.bool_], value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Images (n, C, H, W) with ``value`` (C,) where ``where`` (n, H, W) says."""
    return np.where(where[:, None], value[:, None, None], images).astype(np.float32)
