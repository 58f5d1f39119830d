"""One picture to one input: the only code that does so, for calibration sets and for requests.

The same steps on the same library, Pillow, as torchvision's and timm's evaluation transforms on a Pillow
image.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError, MissingDependency, ShapeError
from calib_serve.pictures.preprocessing import Preprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MAX_PIXELS", "check_picture", "read_picture"]

MAX_PIXELS = 25_000_000
"""The most pixels of a picture, before and after it is resized, unless told otherwise."""


def read_picture(
    file: BinaryIO,
    how: Preprocessing,
    *,
    shape: Sequence[int | None] = (None, None, None),
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.float32]:
    """The picture in ``file``, any that Pillow reads, as one input (C, H, W) of ``shape``.

    None in ``shape`` is any size, and for C what ``how`` says, else what the picture has: 1 for grey or 3. A
    picture of several frames is its first; EXIF orientation is ignored, as in torchvision. Raises InputError
    for files that are no picture of 8 bits, or of more than ``max_pixels``, and for pictures that do not get
    the shape; its message may be shown to a client.
    """
    try:
        from PIL import Image  # noqa: PLC0415 (only pictures need it)
    except ImportError as error:
        raise MissingDependency("pillow") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as picture:
                check_picture(picture, max_pixels)
                whole = _converted(picture, shape[0] or how.channels)
                found = _cropped(_resized(whole, how, max_pixels), how)
    except InputError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, bomb errors and more
        raise InputError("the picture is cut off, damaged or of an unknown kind") from error
    _check_shape((found.height, found.width), shape[1:])
    pixels = np.asarray(found, np.float32)
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    scaled: NDArray[np.float32] = planes / np.float32(255)
    mean, std = (np.asarray(stat, np.float32)[:, None, None] for stat in (how.mean, how.std))
    return (scaled - mean) / std


def check_picture(picture: Image, max_pixels: int) -> None:
    """InputError for a picture of more than ``max_pixels``, or of more than 8 bits a channel."""
    _check_size("the picture has", picture.size, max_pixels)
    # Pillow cuts such pictures off at 255 where it makes them RGB.
    if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
        raise InputError("the picture has more than 8 bits a channel; send 8 bits, or an array")


def _check_size(what: str, size: tuple[int, int], max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels:
        raise InputError(f"{what} {size[0]} x {size[1]} pixels, more than the {max_pixels} allowed")


def _check_shape(found: tuple[int, int], wanted: Sequence[int | None]) -> None:
    if any(want not in (None, got) for got, want in zip(found, wanted, strict=True)):
        raise ShapeError(
            f"the picture makes an input of height and width {found}, the model takes {tuple(wanted)}; send "
            "it in that size, or let the model's owner say how pictures are resized and cropped"
        )


def _converted(picture: Image, channels: int | None) -> Image:
    if channels is None:
        channels = 1 if picture.mode == "L" else 3
    return picture.convert("L" if channels == 1 else "RGB")


def _resized(picture: Image, how: Preprocessing, max_pixels: int) -> Image:
    """As torchvision's ``resize``: the longer edge is rounded down."""
    if how.resize is None:
        return picture
    if isinstance(how.resize, int):
        width, height = picture.size
        longer = how.resize * max(width, height) // min(width, height)
        size = (how.resize, longer) if width <= height else (longer, how.resize)
    else:
        size = (how.resize[1], how.resize[0])
    if size == picture.size:
        return picture
    _check_size("resized, the picture would have", size, max(max_pixels, MAX_PIXELS))
    from PIL import Image  # noqa: PLC0415

    return picture.resize(size, Image.Resampling[how.interpolation.upper()])


def _cropped(picture: Image, how: Preprocessing) -> Image:
    """As torchvision's ``center_crop``: black around a picture that is smaller."""
    if how.crop is None:
        return picture
    height, width = how.crop
    left, top = _start(picture.width, width), _start(picture.height, height)
    return picture.crop((left, top, left + width, top + height))


def _start(have: int, want: int) -> int:
    return -((want - have) // 2) if want > have else round((have - want) / 2)
