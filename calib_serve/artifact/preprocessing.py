"""Pictures prepared as a model was trained on them: by one declaration and one function.

``fit`` and the servers read pictures by the same ``read_picture``, so that a calibration holds for what is
served.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Union, get_args

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, MissingDependency, ShapeError
from calib_serve.core.options.base import MAX_PIXELS

if TYPE_CHECKING:
    from PIL.Image import Image

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
"""Pillow's filters; all but the nearest neighbour smooth when they shrink (antialias)."""


def is_picture_shape(shape: Sequence[int | None]) -> bool:
    """Whether one input is a picture of 1 or 3 channels, (C, H, W); H and W may be any size, None.

    >>> is_picture_shape((3, None, None)), is_picture_shape((32, 32, 3))
    (True, False)
    """
    return len(shape) == 3 and shape[0] in (1, 3)


@dataclass(frozen=True)
class Preprocessing:
    """The way of a picture to an input (C, H, W): resized, cropped, scaled to [0, 1], normalised.

    Without ``resize`` and ``crop`` a picture must have the model's size.

    Args:
        mean: Of a picture in [0, 1], a number for each channel or one for all: the input is (x - mean) / std.
        std: Likewise, above 0; mean 0 and std 1 say that the model takes [0, 1].
        resize: A whole number for the shorter edge, the longer one in proportion, or (H, W) whatever the
            proportions.
        crop: The (H, W) in the middle, with black around a smaller picture.
        interpolation: Filter of Pillow: "nearest", "bilinear", "bicubic" or "lanczos".
        channels: 1 for grey, 3 for RGB, None for as many as the model takes.

    Raises:
        InputError: For values that cannot be.

    >>> how = Preprocessing(mean=(0.5, 0.5, 0.4), std=(0.2, 0.2, 0.2), resize=256, crop=(224, 224))
    >>> how.size, how.channels
    ((224, 224), 3)
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: Union[int, tuple[int, int], None] = None
    crop: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    channels: Literal[1, 3] | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if not all(np.float32(std) > 0 for std in self.std):
            raise InputError(f"std of the pictures must be above 0, got {list(self.std)}")
        object.__setattr__(self, "channels", self._channels())
        if self.interpolation not in get_args(Interpolation):
            known = ", ".join(get_args(Interpolation))
            raise InputError(f"interpolation must be one of {known}, got {self.interpolation!r}")
        if self.resize is not None and type(self.resize) is not int:
            object.__setattr__(self, "resize", _pair("resize", self.resize))
        elif self.resize is not None:
            _pair("resize", self.resize)
        if self.crop is not None:
            object.__setattr__(self, "crop", _pair("crop", self.crop))
        if self.crop and self.resize:
            least = _pair("resize", self.resize)
            if self.crop[0] > least[0] or self.crop[1] > least[1]:
                raise InputError(
                    f"the crop {self.crop} is larger than what pictures are resized to, {self.resize}; "
                    "give a smaller crop, or resize to more"
                )

    def _channels(self) -> Literal[1, 3] | None:
        # A mean or std of one number is that of every channel.
        said = {len(stat) for stat in (self.mean, self.std) if len(stat) != 1}
        said |= set() if self.channels is None else {self.channels}
        if not said:
            return None
        if said == {1}:
            return 1
        if said == {3}:
            return 3
        raise InputError(
            f"mean {list(self.mean)} and std {list(self.std)} of pictures do not go together"
            + (f" with {self.channels} channels" if self.channels else "")
            + "; give one number, or one for each of 3 channels"
        )

    @classmethod
    def of(cls, given: Preprocessing | Mapping[str, Any]) -> Preprocessing:
        """Read a mapping of the same names, such as a file's; unknown names are refused.

        Args:
            given: Mapping of the fields, or a Preprocessing, which is returned.
        """
        if isinstance(given, Preprocessing):
            return given
        known = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping) or not {"mean", "std"} <= set(given) <= set(known):
            got = sorted(map(str, given)) if isinstance(given, Mapping) else repr(given)[:80]
            raise InputError(
                f"the preprocessing of pictures has mean and std, and may have {known[2:]}; got {got}"
            )
        return cls(**given)

    def as_dict(self) -> dict[str, Any]:
        """Return what differs from the defaults, in plain types, for a file."""
        held = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        return {name: list(value) if isinstance(value, tuple) else value for name, value in held.items()}

    @property
    def size(self) -> tuple[int, int] | None:
        """The (H, W) of every input; None where it depends on the picture."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def for_input(self, shape: Sequence[int | None]) -> Preprocessing:
        """Return the same, with a mean and std for each channel of a model's input.

        Args:
            shape: Shape of one input, (C, H, W); None for any size.

        Raises:
            ShapeError: Where pictures that are prepared so cannot be its inputs.

        >>> Preprocessing(mean=(0.5,), std=(0.2,)).for_input((3, 32, 32)).mean
        (0.5, 0.5, 0.5)
        """
        if not is_picture_shape(shape):
            raise ShapeError(
                f"one input of the model is of shape {tuple(shape)}, which is no picture (1 or 3, H, W): "
                "leave out how pictures are prepared"
            )
        channels = int(shape[0] or 0)
        if self.channels not in (None, channels):
            raise ShapeError(
                f"pictures are prepared with {self.channels} channels, the model takes {channels}; "
                f"give mean and std of {channels}, or of one number"
            )
        if self.size and any(want not in (None, got) for got, want in zip(self.size, shape[1:], strict=True)):
            raise ShapeError(
                f"pictures are resized or cropped to {self.size}, the model takes {tuple(shape[1:])}"
            )
        mean, std = (stat * channels if len(stat) == 1 else stat for stat in (self.mean, self.std))
        return replace(self, mean=mean, std=std, channels=3 if channels == 3 else 1)


def _numbers(name: str, given: Any) -> tuple[float, ...]:
    """One or three finite numbers of float32, each as short as it is written."""
    values = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    right = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    with np.errstate(over="ignore"):
        if not right or len(values) not in (1, 3) or not np.isfinite(np.asarray(values, np.float32)).all():
            raise InputError(
                f"{name} of the pictures must be a number, or one for each of 3 channels, got "
                f"{repr(given)[:80]}"
            )
    return tuple(float(str(np.float32(value))) for value in values)


def _pair(name: str, given: Any) -> tuple[int, int]:
    sizes = (given, given) if type(given) is int else given
    if not (
        isinstance(sizes, Sequence)
        and len(sizes) == 2
        and all(type(size) is int and 1 <= size <= 65_535 for size in sizes)  # the most that a JPEG has
    ):
        raise InputError(
            f"{name} of the pictures must be a size or (height, width), of 1 to 65535 pixels; "
            f"got {repr(given)[:80]}"
        )
    return sizes[0], sizes[1]


def read_picture(
    file: BinaryIO,
    how: Preprocessing,
    *,
    shape: Sequence[int | None] = (None, None, None),
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.float32]:
    """Read a picture as one input (C, H, W).

    A picture of several frames is its first; EXIF orientation is ignored, as in torchvision.

    Args:
        file: Any that Pillow reads.
        how: Resizing, cropping and normalisation.
        shape: (C, H, W) to get; None is any size, and for C what ``how`` says, else what the picture has: 1
            for grey or 3.
        max_pixels: Largest number of pixels, width times height, of the file and once resized.

    Raises:
        InputError: Where it is no picture of 8 bits, has more pixels, or does not get the shape; the message
            may be shown to a client.
    """
    try:
        with opened_picture(file, max_pixels) as picture:
            whole = _converted(picture, shape[0] or how.channels)
            found = _cropped(_resized(whole, how, max_pixels), how)
    except (InputError, MissingDependency):
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, bomb errors and more
        raise InputError("the picture is cut off, damaged or of an unknown kind") from error
    _check_shape((found.height, found.width), shape[1:])
    pixels = np.asarray(found, np.float32)
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    scaled: NDArray[np.float32] = planes / np.float32(255)
    mean, std = (np.asarray(stat, np.float32)[:, None, None] for stat in (how.mean, how.std))
    return (scaled - mean) / std


@contextmanager
def opened_picture(file: BinaryIO | Path, max_pixels: int) -> Iterator[Image]:
    """Open a picture, not decoded yet; Pillow's errors for a damaged one are not wrapped.

    Args:
        file: Any that Pillow reads.
        max_pixels: Largest number of pixels, width times height.

    Raises:
        InputError: Where it has more pixels, or more than 8 bits a channel.
        MissingDependency: Where Pillow is not installed.
    """
    try:
        from PIL import Image  # noqa: PLC0415 (only pictures need it)
    except ImportError as error:
        raise MissingDependency("pillow") from error
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file) as picture:
            # Before it is decoded: a small file may unpack to gigabytes.
            _check_size("the picture has", picture.size, max_pixels)
            # Pillow cuts such pictures off at 255 where it makes them RGB.
            if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
                raise InputError("the picture has more than 8 bits a channel; send 8 bits, or an array")
            yield picture


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
    """Resize as torchvision's ``resize`` does: the longer edge is rounded down."""
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
    """Crop as torchvision's ``center_crop`` does: black around a picture that is smaller."""
    if how.crop is None:
        return picture
    height, width = how.crop
    left, top = _start(picture.width, width), _start(picture.height, height)
    return picture.crop((left, top, left + width, top + height))


def _start(have: int, want: int) -> int:
    return -((want - have) // 2) if want > have else round((have - want) / 2)
