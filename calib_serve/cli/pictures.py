"""Options that say how pictures are prepared for a model: the same in every command that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import parse
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.pictures import Preprocessing

__all__ = [
    "Crop",
    "ImageSize",
    "Interpolation",
    "Mean",
    "ResizeShorter",
    "Std",
    "Transforms",
    "preprocessing",
]

_PANEL = "How pictures are prepared"


def _option(name: str, help: str, parser: Any, metavar: str) -> Any:
    return typer.Option(name, help=help, parser=parser, metavar=metavar, rich_help_panel=_PANEL)


Transforms = Annotated[
    str | None,
    typer.Option(
        "--transforms",
        metavar="MODULE:NAME",
        help="Read all of it from torchvision's or timm's transforms, also as file.py:name; runs that code.",
        rich_help_panel=_PANEL,
    ),
]
Mean = Annotated[
    Any, _option("--mean", "Of pictures in [0, 1], by channel; 0: not normalised.", parse.floats, "NUMBERS")
]
Std = Annotated[
    Any, _option("--std", "Of pictures in [0, 1], by channel; 1: not normalised.", parse.floats, "NUMBERS")
]
ImageSize = Annotated[Any, _option("--image-size", "Resize to this height and width.", parse.whole, "H,W")]
ResizeShorter = Annotated[
    int | None,
    typer.Option("--resize-shorter", min=1, help="Resize the shorter edge to this.", rich_help_panel=_PANEL),
]
Crop = Annotated[Any, _option("--crop", "Then cut out the middle.", parse.whole, "H,W")]
Interpolation = Annotated[
    str | None,
    typer.Option(
        "--interpolation",
        metavar="NAME",
        help="nearest, bilinear (default), bicubic or lanczos.",
        rich_help_panel=_PANEL,
    ),
]


def preprocessing(
    *,
    transforms: str | None,
    mean: list[float] | None,
    std: list[float] | None,
    image_size: list[int] | None,
    resize_shorter: int | None,
    crop: list[int] | None,
    interpolation: str | None,
) -> Preprocessing | None:
    """What the options say together; None where none was given. Raises InputError for a half of it."""
    by_hand = {
        "--mean": mean,
        "--std": std,
        "--image-size": image_size,
        "--resize-shorter": resize_shorter,
        "--crop": crop,
        "--interpolation": interpolation,
    }
    given = [name for name, value in by_hand.items() if value is not None]
    from calib_serve.pictures import Preprocessing, preprocessing_of

    if transforms is not None:
        if given:
            raise InputError(f"--transforms says all of it: leave out {', '.join(given)}")
        return preprocessing_of(transforms)
    if not given:
        return None
    if mean is None or std is None:
        raise InputError(
            f"{', '.join(given)}: give --mean and --std, too; --mean 0 --std 1 says that the model takes "
            "[0, 1]"
        )
    if image_size is not None and resize_shorter is not None:
        raise InputError("give --image-size or --resize-shorter, not both")
    known: dict[str, Any] = {
        "mean": mean,
        "std": std,
        "resize": _size(image_size) if image_size else resize_shorter,
        "crop": _size(crop) if crop else None,
        **({"interpolation": interpolation} if interpolation else {}),
    }
    return Preprocessing.of(known)


def _size(sizes: list[int]) -> tuple[int, ...]:
    """H,W; one number stands for both."""
    return (*sizes, *sizes) if len(sizes) == 1 else tuple(sizes)
