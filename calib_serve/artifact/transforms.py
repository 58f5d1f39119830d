"""Transforms of torchvision and timm, read as the preprocessing that they do."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Mapping
from typing import Any, Literal

from calib_serve.artifact.preprocessing import Preprocessing
from calib_serve.core.errors import InputError
from calib_serve.core.files import import_object

_ELSE = "such a model wants its own preprocess: a handler of your own, calib-serve pack --from"


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
        if isinstance(given, str):
            if ":" not in given:
                raise InputError(
                    f"transforms are named as package.module:name or file.py:name, got {given!r}"
                )
            given = import_object(given)
        return _read(given)
    except InputError:
        raise
    except Exception as error:  # what is given is foreign code
        raise InputError(
            f"cannot read transforms from {str(given)[:200]}: {type(error).__name__}: {error}; name them as "
            "package.module:name or file.py:name, or give mean, std, resize and crop"
        ) from error


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
