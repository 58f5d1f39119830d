"""Corruptions of images after Hendrycks and Dietterich 2019, of severity 1 (slight) to 5 (heavy)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, ShapeError

Pixels = NDArray[np.uint8]

_QUALITY = (80, 65, 50, 30, 15)
_SIGMA = (4, 8, 12, 18, 26)  # of 255
_RADIUS = (0.4, 0.6, 0.8, 1.1, 1.5)  # pixels
_LIFT = (15, 30, 50, 75, 105)  # of 255


def _jpeg(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=_QUALITY[severity - 1])
    with Image.open(file) as decoded:
        return np.asarray(decoded)


def _noise(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    noisy = image + rng.normal(0, _SIGMA[severity - 1], image.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def _blur(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    from PIL import Image, ImageFilter

    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(_RADIUS[severity - 1])))


def _brightness(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    return np.clip(image.astype(np.int16) + _LIFT[severity - 1], 0, 255).astype(np.uint8)


CORRUPTIONS: Mapping[str, Callable[[Pixels, int, np.random.Generator], Pixels]] = MappingProxyType(
    {"jpeg": _jpeg, "noise": _noise, "blur": _blur, "brightness": _brightness}
)


def corrupt(images: NDArray[Any], name: str, severity: int, *, seed: int = 0) -> NDArray[Any]:
    """Corrupted images in the dtype and layout that they came in.

    ``images`` are (n, C, H, W), (n, H, W, C) with 1 or 3 channels, or (n, H, W); uint8, or floats in
    [0, 1]. Corrupt before any normalisation. Raises ShapeError or InputError otherwise.
    """
    if name not in CORRUPTIONS or severity not in range(1, 6):
        raise InputError(f"there is {', '.join(CORRUPTIONS)} of severity 1 to 5, got {name!r} {severity!r}")
    pixels, channels_first = _as_pixels(images)
    rng = np.random.default_rng(seed)
    done: NDArray[Any] = np.stack([CORRUPTIONS[name](image, severity, rng) for image in pixels])
    if channels_first:
        done = np.moveaxis(done.reshape(len(done), *done.shape[1:3], -1), -1, 1)
    done = done.reshape(images.shape)
    return done if images.dtype == np.uint8 else (done / 255).astype(images.dtype)


def _as_pixels(images: NDArray[Any]) -> tuple[Pixels, bool]:
    """Convert images to uint8 (n, H, W) or (n, H, W, 3), and tell whether channels came first."""
    if images.dtype == np.uint8:
        pixels: NDArray[Any] = np.asarray(images, np.uint8)
    elif images.dtype.kind == "f" and images.size and images.min() >= 0 and images.max() <= 1:
        pixels = np.rint(images.astype(np.float64) * 255).astype(np.uint8)
    else:
        raise InputError(
            f"images must be uint8 or floats in [0, 1], got {images.dtype}; corrupt before normalising"
        )
    first = images.ndim == 4 and images.shape[1] in (1, 3)
    if images.ndim not in (3, 4) or (images.ndim == 4 and not first and images.shape[3] not in (1, 3)):
        raise ShapeError(f"images must be (n, C, H, W), (n, H, W, C) or (n, H, W), got {images.shape}")
    if first:
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.ndim == 4 and pixels.shape[3] == 1:
        pixels = pixels[..., 0]
    return np.ascontiguousarray(pixels), first
