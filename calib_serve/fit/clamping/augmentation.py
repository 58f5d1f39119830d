"""Pictures as the public toolkit of Neural Clamping varies them while it fits: crop, flip, cut-out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError

__all__ = ["Augmentation"]

Floats = NDArray[np.floating[Any]]


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
    def of(cls, images: Floats, mean: ArrayLike, *, flip: float = 0.5) -> Augmentation:
        """The toolkit's of CIFAR-100 (32 pixels: padding 4, square 4), in proportion for other sizes.

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

    def __call__(self, images: Floats, rng: np.random.Generator) -> NDArray[np.float32]:
        """Every image (n, C, H, W) varied once."""
        n, _, height, width = images.shape
        rows, columns = (self._moved(n, size, rng) for size in (height, width))
        flipped = rng.random(n) < self.flip
        columns[flipped] = columns[flipped, ::-1]
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
        """The places (n, size) that a crop of each image is read from, some of them outside."""
        by = rng.integers(-self.padding, self.padding + 1, size=(n, 1))
        return np.asarray(np.arange(size) + by, np.int64)


def _filled(images: Floats, where: NDArray[np.bool_], value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Images (n, C, H, W) with ``value`` (C,) where ``where`` (n, H, W) says."""
    return np.where(where[:, None], value[:, None, None], images).astype(np.float32)
