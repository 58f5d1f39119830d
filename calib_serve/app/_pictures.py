"""The option that says how pictures are prepared for a model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calib_serve.app._command import pairs
from calib_serve.errors import InputError
from calib_serve.options.base import check

if TYPE_CHECKING:
    from calib_serve.pictures import Preprocessing

__all__ = ["PictureOptions", "preprocessing"]

_KEYS = ("transforms", "mean", "std", "image_size", "resize_shorter", "crop", "interpolation")


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """How pictures are prepared."""

    pictures: list[str] = field(default_factory=list)
    """How pictures are prepared: transforms=MODULE:NAME, or mean=, std=, image_size=, crop=, ... each."""


def preprocessing(given: Sequence[str]) -> "Preprocessing | None":
    """Return what ``--pictures`` says; None where it is not given. Raises InputError for a half of it."""
    from calib_serve.pictures import Preprocessing, preprocessing_of

    if not given:
        return None
    known = pairs(given, "--pictures")
    unknown = [key for key in known if key not in _KEYS]
    check(not unknown, "pictures", f"has the keys {', '.join(_KEYS)}, not {', '.join(unknown)}")
    transforms = known.pop("transforms", None)
    if transforms is not None:
        check(not known, "pictures", f"transforms says all of it: leave out {', '.join(known)}")
        return preprocessing_of(str(transforms))
    if not {"mean", "std"} <= set(known):
        raise InputError(
            f"--pictures {', '.join(known)}: give mean and std, too; mean=0 and std=1 say that the model "
            "takes [0, 1]"
        )
    check(
        not {"image_size", "resize_shorter"} <= set(known),
        "pictures",
        "takes image_size or resize_shorter, not both",
    )
    image_size, crop = known.get("image_size"), known.get("crop")
    made: dict[str, Any] = {
        "mean": _several(known["mean"]),
        "std": _several(known["std"]),
        "resize": known.get("resize_shorter") if image_size is None else _size(image_size),
        "crop": None if crop is None else _size(crop),
    }
    if "interpolation" in known:
        made["interpolation"] = known["interpolation"]
    return Preprocessing.of(made)


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list) else [given]


def _size(given: Any) -> tuple[Any, ...]:
    """Return (H, W); one number stands for both."""
    sizes = _several(given)
    return (*sizes, *sizes) if len(sizes) == 1 else tuple(sizes)
