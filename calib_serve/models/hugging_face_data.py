"""Labelled texts and pictures as the classifier in a Hugging Face folder takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import opened_picture
from calib_serve.core.errors import InputError, MissingDependency, ModelError
from calib_serve.models.dataset import PILLOW_PIXELS, Dataset, load_data
from calib_serve.models.hugging_face_folder import Folder, local, read_folder, transformers
from calib_serve.models.labelled import LabelledRequests, read_requests
from calib_serve.models.labelled_texts import read_texts
from calib_serve.models.tokenizer import read_words
from calib_serve.scores import LABELS, Outputs

_PIXELS = "pixel_values"


def _prepared(folder: Folder, files: Sequence[Path]) -> NDArray[np.float32]:
    """Read files as the model's pipeline does: turned as EXIF says, made RGB, then processed.

    Raises InputError for a file that is no picture, ModelError where the folder has no image processor or
    the model takes more than pixels.
    """
    process = local("the image processor", folder.path, transformers().AutoImageProcessor.from_pretrained)
    parts: list[NDArray[np.float32]] = []
    for start in range(0, len(files), 64):  # whole pictures are large
        made = process([_opened(path) for path in files[start : start + 64]], return_tensors="np")
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
        with opened_picture(path, PILLOW_PIXELS) as picture:
            from PIL import ImageOps  # noqa: PLC0415 - only pictures need it

            turned: Any = ImageOps.exif_transpose(picture)
            return turned.convert("RGB")
    except MissingDependency:
        raise
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, bomb errors and more
        raise InputError(f"cannot read the picture {path}: {error}") from error


def data_of(
    model: str | Path, data: str | Path, splits: Sequence[str | None], *, outputs: Outputs | None = None
) -> list[Dataset]:
    """Each of ``splits`` (None: all) of ``data`` as the classifier in the folder ``model`` takes it.

    Of texts: a table that ``read_texts`` reads, made token ids by the folder's tokenizer, (n, planes, length)
    with -1 behind a text's end. Of pictures: files that ``read_requests`` lists, or arrays of ``load_data``,
    which are taken for pixels that its image processor made. Labels are found by id or by the names of
    id2label. ``remarks`` say how many texts had to be truncated. Raises InputError for data that cannot be
    read or have other labels, ModelError for a folder that cannot be loaded.
    """
    folder = read_folder(Path(model), outputs)
    if folder.takes == "texts":
        return _texts(folder, data, splits)
    return [_pictures(folder, data, split) for split in splits]


def _texts(folder: Folder, data: str | Path, splits: Sequence[str | None]) -> list[Dataset]:
    read = [read_texts(data, split) for split in splits]
    # Labels first: they are wrong more often than texts, and quick to look at.
    labels = [
        _labels(folder, LabelledRequests(one.source, one.labels, rows=np.empty((len(one), 0))))
        for one in read
    ]
    words = read_words(folder)
    encoded = [words.encode(one) for one in read]
    length = max(row.shape[1] for rows, _ in encoded for row in rows)
    return [
        Dataset(
            words.padded(rows, length), y, folder.names, remarks=_said(cut, len(rows), words.limit, split)
        )
        for (rows, cut), y, split in zip(encoded, labels, splits, strict=True)
    ]


def _said(cut: int, texts: int, limit: int | None, split: str | None) -> tuple[str, ...]:
    if not cut:
        return ()
    of = f" of split {split}" if split else ""
    return (
        f"{cut} of {texts} texts{of} were truncated to the model's {limit} tokens; it is calibrated for "
        "texts that are truncated so",
    )


def _pictures(folder: Folder, data: str | Path, split: str | None) -> Dataset:
    path = Path(data)
    if (path.is_dir() and not any(path.glob("*.npy"))) or path.suffix == ".csv":
        read = read_requests(data, split)
        labels = _labels(folder, read)
        return Dataset(_prepared(folder, read.files), labels, folder.names)
    arrays = load_data(data, split)
    if arrays.class_names and arrays.class_names != folder.names:
        raise InputError(
            f"{data} names its classes {', '.join(arrays.class_names[:3])} ..., the model "
            f"{', '.join(folder.names[:3])} ... (id2label): which is which is not known; leave "
            "class_names out where the ids are the model's"
        )
    return Dataset(arrays.inputs, arrays.labels, folder.names)


def _labels(folder: Folder, given: LabelledRequests) -> NDArray[np.intp]:
    known = [[name] for name in folder.names]  # none of one logit
    if folder.returns in LABELS:
        return given.label_sets(folder.classes, known)
    for i, label in enumerate(given.labels):
        if not label.strip():
            raise InputError(f"{given.called(i)}: the label is missing; leave such rows out")
    return given.class_ids(folder.classes, known)
