"""Pictures as the folder's own image processor prepares them, (n, channels, height, width)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError, MissingDependency, ModelError
from calib_serve.model.hugging_face.folder import Folder, local, transformers
from calib_serve.pictures.reading import check_picture

__all__ = ["prepared"]

_AT_ONCE = 64  # pictures
_PIXELS = "pixel_values"
_MAX_PIXELS = 89_478_485  # of one's own picture: what Pillow takes without a warning


def prepared(folder: Folder, files: Sequence[Path]) -> NDArray[np.float32]:
    """Files as the model's pipeline reads them: turned as EXIF says, made RGB, then its image processor.

    Raises InputError for a file that is no picture, ModelError where the folder has no image processor or
    the model takes more than pixels.
    """
    process = local("the image processor", folder.path, transformers().AutoImageProcessor.from_pretrained)
    parts: list[NDArray[np.float32]] = []
    for start in range(0, len(files), _AT_ONCE):
        made = process([_opened(path) for path in files[start : start + _AT_ONCE]], return_tensors="np")
        if set(made) != {_PIXELS}:
            raise ModelError(f"the model takes {', '.join(sorted(made))}, and pixels alone are supported")
        pixels = np.asarray(made[_PIXELS], np.float32)
        if pixels.ndim != 4 or (parts and pixels.shape[1:] != parts[0].shape[1:]):
            raise InputError(
                f"the image processor of {folder.path} makes pictures of several sizes, such as "
                f"{pixels.shape[1:]}; the model takes one"
            )
        parts.append(pixels)
    return np.concatenate(parts)


def _opened(path: Path) -> Any:
    try:
        from PIL import Image, ImageOps  # noqa: PLC0415 - only pictures need it
    except ImportError as error:
        raise MissingDependency("pillow") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                check_picture(picture, _MAX_PIXELS)
                turned: Any = ImageOps.exif_transpose(picture)
                return turned.convert("RGB")
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, bomb errors and more
        raise InputError(f"cannot read the picture {path}: {error}") from error
