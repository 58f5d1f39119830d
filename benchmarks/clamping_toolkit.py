"""Neural Clamping as its public toolkit runs it: behind the normalisation, on images that vary."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from calib_serve.core.errors import InputError
from calib_serve.fit.clamping.schedules import Descent, Schedule, fit_neural_clamping_paper

TOOLKIT = Schedule(
    rate=0.01,
    momentum=0.9,
    batch=1000,
    epochs=100,
    spread=0.001,
    gamma=1.0,
    penalty=0.01,
)
"""The public toolkit's demonstration on CIFAR-100 (github.com/yungchentang/NCToolkit, demo.py)."""


@dataclass(frozen=True, eq=False)
class Augmentation:
    """A crop after padding, a horizontal flip, and one square cut out of every image (n, C, H, W).

    ``padding`` pixels of ``black`` (C,) are put around; the crop is anywhere in that. The flip comes with
    probability ``flip``. The square of side ``cut`` has its centre anywhere in the image, so it may stick
    out, and becomes ``blank`` (C,).
    """

    padding: int
    cut: int
    black: np.ndarray
    blank: np.ndarray
    flip: float = 0.5

    @classmethod
    def of(cls, images, mean, *, flip=0.5):
        """The toolkit's augmentation of CIFAR-100 (32 pixels: padding 4, square 4), scaled to other sizes.

        Padding is black, the least value of a channel; the square is blank, the ``mean`` (C,) of the
        normalisation. InputError for inputs that are not images (n, C, H, W).
        """
        if images.ndim != 4 or min(images.shape[2:]) < 2:
            raise InputError(f"crops and flips are of images (n, C, H, W), got inputs of {images.shape[1:]}")
        side, channels = min(images.shape[2:]), images.shape[1]
        black = images.min(axis=(0, 2, 3)).astype(np.float32)
        blank = np.asarray(mean, np.float32).ravel()
        if blank.shape not in ((1,), (channels,)):
            raise InputError(f"normalisation's mean must be {channels} numbers, got {blank.tolist()}")
        return cls(
            max(1, side // 8), 2 * max(1, side // 16), black, np.broadcast_to(blank, (channels,)), flip
        )

    def __call__(self, images, rng):
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

    def _moved(self, n, size, rng):
        """Draw the pixel indices (n, size) of a crop of each image, some of them outside the image."""
        by = rng.integers(-self.padding, self.padding + 1, size=(n, 1))
        return np.asarray(np.arange(size) + by, np.int64)


@dataclass(frozen=True)
class Varied(Descent):
    """A descent on images that vary from batch to batch."""

    vary: Augmentation = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def _gradient(self, objective, rows, theta, t):
        images = self.vary(objective.inputs[rows], self.rng)
        batch = replace(objective, inputs=images, labels=objective.labels[rows])
        return super()._gradient(batch, np.arange(len(rows)), theta, t)


def fit_neural_clamping_toolkit(model, inputs, labels, *, normalisation, schedule=TOOLKIT, augmented=True):
    """Fit delta and T by the toolkit's schedule; its focal loss cuts probabilities off at 1e-7."""
    solve = Descent(schedule)
    if augmented:
        solve = Varied(schedule, vary=Augmentation.of(inputs, normalisation[0]))
    how = {"gamma": schedule.gamma, "penalty": schedule.penalty, "schedule": schedule, "solver": solve}
    return fit_neural_clamping_paper(model, inputs, labels, normalisation=normalisation, **how)


def _filled(images, where, value):
    """Images (n, C, H, W) with ``value`` (C,) where ``where`` (n, H, W) says."""
    return np.where(where[:, None], value[:, None, None], images).astype(np.float32)
