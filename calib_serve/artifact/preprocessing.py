"""Pictures prepared as a model was trained on them: by one declaration and one function.

``fit`` and the servers read pictures by the same ``read_picture``, so that a calibration holds for what is
served. ``preprocessing_of`` reads what is done out of the transforms that a model was trained with.
"""

from __future__ import annotations

import functools
import math
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Union, get_args

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, MissingDependency, ShapeError
from calib_serve.core.files import import_object
from calib_serve.core.options.base import MAX_PIXELS

if TYPE_CHECKING:
    from PIL.Image import Image

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


_ELSE = "such a model wants its own preprocess: calib-serve pack --handler"


def preprocessing_of(given: Any) -> Preprocessing:
    """Return the preprocessing that transforms of torchvision or timm do.

    Args:
        given: A ``Compose`` of torchvision (v1 or v2) or of timm's ``create_transform``, the preset of
            torchvision's ``weights.transforms()``, timm's data config (a mapping with ``input_size``), a
            function without arguments that returns one of these, or the text ``package.module:name`` or
            ``path/to/file.py:name`` that names one, whose code is then run.

    Raises:
        InputError: For anything else, and for a transform that is not known.
    """
    try:
        return _read(_imported(given) if isinstance(given, str) else given)
    except InputError:
        raise
    except Exception as error:  # what is given is foreign code
        raise InputError(
            f"cannot read transforms from {str(given)[:200]}: {type(error).__name__}: {error}; name them as "
            "package.module:name or file.py:name, or give mean, std, resize and crop"
        ) from error


def _imported(spec: str) -> Any:
    if ":" not in spec:
        raise InputError(f"transforms are named as package.module:name or file.py:name, got {spec!r}")
    return import_object(spec)


def _read(given: Any) -> Preprocessing:
    if isinstance(given, (types.FunctionType, types.MethodType, functools.partial)):
        given = given()
    if isinstance(given, Mapping):
        return _of_timm(given)
    if type(given).__name__ == "ImageClassification":
        return _of_preset(given)
    if not isinstance(getattr(given, "transforms", None), (list, tuple)):
        raise InputError(
            f"a {type(given).__name__} is no Compose or preset of torchvision and no data config of timm; "
            f"{_ELSE}"
        )
    reader = _Reader()
    for transform in given.transforms:
        reader.take(transform)
    return reader.result()


def _of_preset(preset: Any) -> Preprocessing:
    return Preprocessing(
        mean=_floats(preset.mean),
        std=_floats(preset.std),
        resize=_size(preset.resize_size),
        crop=_square(preset.crop_size),
        interpolation=_interpolation(preset.interpolation),
        channels=3,
    )


def _of_timm(config: Mapping[str, Any]) -> Preprocessing:
    """Read a config as timm's ``transforms_imagenet_eval`` does."""
    wanted = ("input_size", "mean", "std", "interpolation", "crop_pct")
    if missing := [name for name in wanted if name not in config]:
        raise InputError(f"a data config of timm has {', '.join(wanted)}; {', '.join(missing)} is missing")
    channels, height, width = (int(size) for size in config["input_size"])
    mode = config.get("crop_mode") or "center"
    scaled = [math.floor(size / config["crop_pct"]) for size in (height, width)]
    if mode == "squash":
        resize: int | tuple[int, int] = (scaled[0], scaled[1])
    elif mode == "center" and height == width:
        resize = scaled[0]
    else:
        raise InputError(f"crop_mode {mode!r} of timm for {height} x {width} cannot be read; {_ELSE}")
    return Preprocessing(
        mean=_floats(config["mean"]),
        std=_floats(config["std"]),
        resize=resize,
        crop=(height, width),
        interpolation=_interpolation(config["interpolation"]),
        channels=3 if channels == 3 else 1,
    )


class _Reader:
    """Reads the transforms of a Compose in order; refuses one at a place where it means something else."""

    def __init__(self) -> None:
        self.pixels: Literal["picture", "bytes", "scaled", "normalised"] = "picture"
        self.found: dict[str, Any] = {}

    def take(self, transform: Any) -> None:
        name, package = type(transform).__name__, type(transform).__module__.partition(".")[0]
        read = getattr(self, f"_{name}", None) if package in ("torchvision", "timm") else None
        if read is None:
            raise InputError(f"what the transform {_shown(transform)} does cannot be written down; {_ELSE}")
        if self.pixels == "normalised" and name != "ToPureTensor":
            raise _misplaced(transform, "after Normalize")
        read(transform)

    def result(self) -> Preprocessing:
        if self.pixels in ("picture", "bytes"):
            raise InputError(f"the transforms never scale pictures to [0, 1], as ToTensor does; {_ELSE}")
        return Preprocessing(**{"mean": (0.0,), "std": (1.0,), **self.found})

    def _Resize(self, t: Any) -> None:
        if self.found.keys() & {"resize", "crop"}:
            raise _misplaced(t, "after a Resize or CenterCrop")
        if getattr(t, "max_size", None) is not None or t.size is None:
            raise InputError(f"max_size of {_shown(t)} cannot be written down; {_ELSE}")
        mode = _interpolation(t.interpolation)
        if self.pixels != "picture" and not _like_pillow(t, mode, self.pixels):
            raise InputError(
                f"{_shown(t)} resizes a tensor, and not as it resizes a picture: put it before "
                f"ToTensor or ToImage; or {_ELSE}"
            )
        self.found |= {"resize": _size(t.size), "interpolation": mode}

    def _CenterCrop(self, t: Any) -> None:
        if "crop" in self.found:
            raise _misplaced(t, "after a CenterCrop")
        self.found["crop"] = _square(t.size)

    def _Grayscale(self, t: Any) -> None:
        if t.num_output_channels != 1:
            raise InputError(f"{_shown(t)} makes grey pictures of 3 channels; {_ELSE}")
        if self.found.get("interpolation") in ("bicubic", "lanczos"):
            raise _misplaced(t, "after a Resize that cuts off each colour")
        self.found["channels"] = 1

    def _RGB(self, _: Any) -> None:
        self.found["channels"] = 3

    def _ToTensor(self, t: Any) -> None:
        if self.pixels != "picture":
            raise _misplaced(t, "after the picture became a tensor")
        self.pixels = "scaled"

    _MaybeToTensor = _ToTensor

    def _ToImage(self, _: Any) -> None:
        if self.pixels == "picture":
            self.pixels = "bytes"

    _PILToTensor = _MaybePILToTensor = _ToImage

    def _ToPureTensor(self, _: Any) -> None:
        pass

    def _ToDtype(self, t: Any) -> None:
        kind = str(t.dtype)
        if kind == "torch.uint8" and self.pixels == "bytes":
            return
        if kind != "torch.float32" or not getattr(t, "scale", True) or self.pixels == "picture":
            raise InputError(f"{_shown(t)} does not scale pictures to float32 in [0, 1]; {_ELSE}")
        self.pixels = "scaled"

    _ConvertImageDtype = _ToDtype

    def _Normalize(self, t: Any) -> None:
        if self.pixels != "scaled":
            raise _misplaced(t, "before the picture is scaled to [0, 1]")
        self.found |= {"mean": _floats(t.mean), "std": _floats(t.std)}
        self.pixels = "normalised"


def _like_pillow(resize: Any, mode: str, pixels: str) -> bool:
    """Whether a tensor is resized as Pillow resizes the picture, but for rounding.

    Neighbours are others where two are as near; bicubic leaves [0, 255] where bytes do not cut it off.
    """
    return bool(resize.antialias) and (mode == "bilinear" or (mode == "bicubic" and pixels == "bytes"))


def _interpolation(mode: Any) -> Any:
    name = str(getattr(mode, "value", mode))
    return {"nearest-exact": "nearest"}.get(name, name)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _size(size: Any) -> int | tuple[int, int]:
    sizes = [size] if isinstance(size, int) else list(size)
    return sizes[0] if len(sizes) == 1 else (sizes[0], sizes[1])


def _square(size: Any) -> tuple[int, int]:
    sizes = _size(size)
    return (sizes, sizes) if isinstance(sizes, int) else sizes


def _shown(transform: Any) -> str:
    return f"{type(transform).__name__}: {' '.join(repr(transform).split())[:120]}"


def _misplaced(transform: Any, where: str) -> InputError:
    return InputError(f"{_shown(transform)} stands {where}, which cannot be written down; {_ELSE}")
