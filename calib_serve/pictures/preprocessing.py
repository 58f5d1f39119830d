"""What is done to a picture before a model sees it, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Union, get_args

import numpy as np

from calib_serve.errors import InputError, ShapeError

__all__ = ["Interpolation", "Preprocessing", "is_picture_shape"]

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
"""Pillow's filters; all but the nearest neighbour smooth when they shrink (antialias)."""

_LONGEST = 65_535  # pixels of an edge: the most that a JPEG has
_ONCE_FOR_ALL = 1  # a mean or std of one number is that of every channel


def is_picture_shape(shape: Sequence[int | None]) -> bool:
    """Whether one input is a picture of 1 or 3 channels, (C, H, W); H and W may be any size, None.

    >>> is_picture_shape((3, None, None)), is_picture_shape((32, 32, 3))
    (True, False)
    """
    return len(shape) == 3 and shape[0] in (1, 3)


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes an input (C, H, W): resized, cropped, scaled to [0, 1], normalised by channel.

    ``mean`` and ``std`` of a picture in [0, 1], a number for each channel or one for all: the input is
    (x - mean) / std; 0 and 1 say that the model takes [0, 1]. ``resize``: a whole number for the shorter
    edge, the longer one in proportion, or (H, W) whatever the proportions; ``crop``: the (H, W) in the
    middle, with black around a smaller picture. Without either a picture must have the model's size.
    ``channels``: 1 for grey, 3 for RGB, None for as many as the model takes. Raises InputError for values
    that cannot be.

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
        said = {len(stat) for stat in (self.mean, self.std) if len(stat) != _ONCE_FOR_ALL}
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
        """From a mapping of the same names, such as a file's; unknown names are refused."""
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
        """For a file: what differs from the defaults, in plain types."""
        held = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        return {name: list(value) if isinstance(value, tuple) else value for name, value in held.items()}

    @property
    def size(self) -> tuple[int, int] | None:
        """The (H, W) of every input; None where that is up to the picture."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def for_input(self, shape: Sequence[int | None]) -> Preprocessing:
        """The same, with a mean and std for each channel of a model whose one input is of ``shape``.

        Raises ShapeError where pictures that are prepared so cannot be its inputs.

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
        mean, std = (
            stat * channels if len(stat) == _ONCE_FOR_ALL else stat for stat in (self.mean, self.std)
        )
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
        and all(type(size) is int and 1 <= size <= _LONGEST for size in sizes)
    ):
        raise InputError(
            f"{name} of the pictures must be a size or (height, width), of 1 to {_LONGEST} pixels; "
            f"got {repr(given)[:80]}"
        )
    return sizes[0], sizes[1]
