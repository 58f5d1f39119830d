"""The data that a deployed model is calibrated or measured on, as it takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calib_serve.data import Dataset, load_data
from calib_serve.errors import InputError
from calib_serve.model.hugging_face import data_of, is_folder
from calib_serve.pictures import Preprocessing

__all__ = ["model_data"]


def model_data(
    model: str | Path,
    data: str | Path,
    splits: Sequence[str | None],
    *,
    pictures: Preprocessing | None = None,
) -> list[Dataset]:
    """Each of ``splits`` (None: what has no splits) of ``data``, as ``model`` takes it.

    By ``load_data``, with ``pictures``; of a Hugging Face folder by its own tokenizer or image processor, so
    there ``pictures`` are refused. Raises InputError for data that cannot be read, ModelError for a folder
    that cannot be loaded.
    """
    if not is_folder(model):
        return [load_data(data, split, pictures=pictures) for split in splits]
    if pictures is not None:
        raise InputError(
            f"the image processor in {model} says how pictures are prepared; leave out --mean, --std, "
            "--transforms and their like (pictures=)"
        )
    return data_of(model, data, splits)
