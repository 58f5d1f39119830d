"""The calibration set: inputs as the deployed model takes them, and class ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Preprocessing, read_picture
from calib_serve.core.data_files import map_npy, read_npz
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.files import import_object, open_regular
from calib_serve.core.names import check_names
from calib_serve.models.input_shapes import check_input_shape
from calib_serve.scores import class_ids, few, labels01, read_rows

_INPUTS = ("inputs", "images", "x")
_LABELS = ("labels", "y")
_TABLE = "; a table of logits needs no --model"
_OTHERS = {
    **dict.fromkeys((".csv", ".parquet"), _TABLE),
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".pt", ".pth", ".h5", ".hdf5", ".npy"), ""),
}
"""Files that people have, by their ending, and what else may be done with them."""
PILLOW_PIXELS = 89_478_485
"""Pixels that one's own picture may have: what Pillow takes without a warning."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs of a model with their labels.

    Args:
        inputs: Numbers (n, ...); may be memory-mapped.
        labels: Class ids (n,); (n, L) of 0 and 1 for a multi-label model.
        class_names: Name of each class; empty: not known.
        pictures: How pictures became the inputs; None where there were none.
        remarks: Sentences for the user.

    >>> len(Dataset(np.zeros((3, 8)), np.array([0, 1, 0])))
    3
    """

    inputs: NDArray[Any]
    labels: NDArray[np.intp]
    class_names: tuple[str, ...] = ()
    pictures: Preprocessing | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.inputs.ndim < 2:
            raise ShapeError(f"inputs must be (n, ...), got {self.inputs.shape}")
        if not self.inputs.size:
            raise InputError(f"there is no sample in the data: inputs are {self.inputs.shape}")
        y, n = np.asarray(self.labels), len(self.inputs)
        if y.shape == (n, 1) and not np.isin(y, (0, 1)).all():
            raise ShapeError(f"labels must be ({n},) class ids, got {y.shape}; take labels[:, 0]")
        y = labels01(y, (n, *y.shape[1:])) if y.ndim == 2 else _class_ids(y, n)
        object.__setattr__(self, "labels", y)
        object.__setattr__(self, "class_names", tuple(map(str, self.class_names)))
        check_names(self.class_names)
        if self.inputs.dtype.kind not in "fiu":
            raise InputError(f"inputs must be numbers, got {self.inputs.dtype}")

    def __len__(self) -> int:
        return len(self.labels)

    def check(self, input_shape: tuple[int, ...], classes: int, *, multilabel: bool = False) -> None:
        """Check that the data fit a model.

        Checks labels and shapes only; input values are checked batch by batch.

        Args:
            input_shape: Shape of one input.
            classes: Number of classes, or of labels.
            multilabel: Whether the model is of labels.

        Raises:
            InputError: Where a label is no class, or all are of one.
            ShapeError: Where shapes do not fit.
        """
        check_input_shape(self.inputs.shape[1:], input_shape)
        if multilabel != (self.labels.ndim == 2):
            how = "labels[:, 0]" if self.labels.shape[1:] == (1,) else "labels.argmax(axis=1) of one-hot ones"
            ids = f"(n,) class ids (take {how})"
            wanted = f"(n, {classes}) of 0 and 1" if multilabel else ids
            raise ShapeError(
                f"labels must be {wanted}, got {self.labels.shape}; of a multi-label model say --outputs "
                "label_logits or label_probabilities (outputs=)"
            )
        if multilabel and self.labels.shape[1] != classes:
            raise ShapeError(f"the model has {classes} labels, the data {self.labels.shape[1]}")
        if self.class_names and len(self.class_names) != classes:
            raise ShapeError(f"the model has {classes} classes, the data names {len(self.class_names)}")
        if multilabel:
            return
        if self.labels.max() >= classes:
            from_one = self.labels.min() == 1 and self.labels.max() == classes
            raise InputError(
                f"labels go up to {self.labels.max()}, the model has classes 0..{classes - 1}"
                + ("; these seem to begin at 1: take 1 off each" if from_one else "")
            )
        if self.labels.min() == self.labels.max():
            raise InputError(
                f"all {len(self)} samples are of class {self.labels[0]}; calibrate on every class served"
            )


def in_order_of(classifier: Any, data: Dataset) -> Dataset:
    """Return the data with their class ids in the model's own order, by names, where both have some.

    Args:
        classifier: The model; one that has names has ``class_names``.
        data: The data, whose ids without names are in the model's order already.

    Raises:
        InputError: Where they name other classes; both orders are shown.
    """
    names: tuple[str, ...] = tuple(getattr(classifier, "class_names", ()))
    said, labels = data.class_names, data.labels
    told = [*data.remarks, *getattr(classifier, "remarks", ())]
    if said and sorted(names) == sorted(map(str, range(len(said)))):
        names = tuple(said[int(name)] for name in names)
    numbers = bool(names) and all(name.isdecimal() for name in names)
    if not said and numbers and labels.ndim == 1:
        labels, _, _ = class_ids(labels, len(names), names)
    elif said and names and set(said) == set(names):
        if said != names and labels.max() < len(names):
            told.append(f"class ids are put into the model's own order, by names: {few(names)}")
            ids = np.array([names.index(name) for name in said])
            labels = ids[labels] if labels.ndim == 1 else labels[:, np.argsort(ids)]
    elif said and names and not numbers and sorted(said) != sorted(map(str, range(len(said)))):
        raise InputError(
            f"the data name the classes {few(said)}, the model {few(names)}: which is which is not known; "
            "name them as the model does (class_names), or leave the names out where the ids are the model's"
        )
    elif names and not numbers:
        told.append(f"class ids are taken in the model's own order: {few(names)}")
    shown = said if numbers and said else names or said
    return replace(data, labels=labels, class_names=shown, remarks=tuple(told))


def load_data(
    spec: str | Path,
    split: str | None = None,
    *,
    pictures: Preprocessing | Mapping[str, Any] | None = None,
) -> Dataset:
    """Load inputs and labels, as the deployed model takes them.

    Args:
        spec: An .npz file, or a folder of .npy files, which are memory-mapped, with ``inputs`` (or
            ``images``, ``x``), ``labels`` (or ``y``) and optionally ``class_names``. Or a folder of pictures
            with ``labels.csv`` (columns file, label, and split if requested); labels that are not numbers are
            class names, in alphabetical order. Or ``package.module:name`` or ``file.py:name``: a function of
            the split that yields batches (inputs, labels); its code is run.
        split: Which split to read: "cal" reads ``cal_inputs`` and ``cal_labels``.
        pictures: How pictures are prepared; needed for a folder of them, and for nothing else.

    Raises:
        InputError: For data that cannot be read.
    """
    path = Path(spec)
    if path.is_dir():
        if (path / "labels.csv").is_file():
            return _pictures(path, split, pictures)
    elif not path.is_file() and ":" not in str(spec):
        raise InputError(f"there is no data at {path}")
    if pictures is not None:
        raise InputError(
            f"{spec} holds inputs as the model takes them: how to prepare pictures, such as mean "
            "and std, belongs to a folder of pictures with labels.csv"
        )
    if path.is_dir():
        if not (arrays := _mapped(path)):
            raise InputError(
                f"{path} holds neither .npy files nor labels.csv; a folder of pictures has one, with the "
                "columns file and label, a line a picture, and split if it holds several"
            )
        return _of_arrays(arrays, split, path)
    return _of_npz(path, split) if path.is_file() else _called(str(spec), split)


def _of_npz(path: Path, split: str | None) -> Dataset:
    if path.suffix in _OTHERS:
        raise InputError(
            f"inputs are not read from {path.suffix} files, got {path}: write them with "
            f'np.savez("data.npz", inputs=inputs, labels=labels){_OTHERS[path.suffix]}'
        )
    try:
        arrays, names = read_npz(path, wanted=lambda name: _wanted(name, split))
    except ValueError as error:
        raise InputError(
            f"cannot read {path}: {error}; save inputs and labels together with np.savez, without pickles"
        ) from error
    return _of_arrays(arrays, split, path, seen=names)


def _pictures(folder: Path, split: str | None, pictures: Preprocessing | Mapping[str, Any] | None) -> Dataset:
    if pictures is None:
        raise InputError(
            f"how are the pictures of {folder} prepared for the model? Give --pictures mean= and std= "
            "(pictures=); mean=0 and std=1 say that it takes [0, 1]; "
            "an artifact that was fitted on pictures says it by itself"
        )
    # Never guessed: pictures prepared in another way give other logits, and nothing would show it.
    how = Preprocessing.of(pictures)
    rows = listed(folder / "labels.csv", split)
    given = [row["label"] for row in rows]
    # Alphabetical, as ImageFolder numbers classes: ids are then those of a model trained so.
    names = () if all(label.isdecimal() for label in given) else tuple(sorted(set(given)))
    index = {name: k for k, name in enumerate(names)}
    labels = [index[label] if names else _class_id(label, folder) for label in given]
    images = [_picture(folder, row["file"], how) for row in rows]
    sizes = {image.shape for image in images}
    if len(sizes) != 1:
        raise InputError(
            f"the pictures of {folder} have {len(sizes)} sizes, such as {sorted(sizes)[:2]}; say how they "
            "become one size (resize, crop), as the model's preprocessing does, or give a function that "
            "yields batches"
        )
    inputs = np.stack(images)
    return Dataset(inputs, np.array(labels), names, how.for_input(inputs.shape[1:]))


def _class_id(label: str, folder: Path) -> int:
    if len(label) > 18:
        raise InputError(f"the label {label[:18]}... of {folder} is no class id")
    return int(label)


def listed(table: Path, split: str | None) -> list[dict[str, str]]:
    """The rows of a labels.csv (file, label, and split if requested) in ``split``."""
    names, rows = read_rows(table, ())
    wanted = {"file", "label"} | ({"split"} if split else set())
    if names is None or not wanted <= set(names):
        raise InputError(f"{table} must have columns {sorted(wanted)}, it has {list(names or ())}")
    found = [dict(row) for row in rows if split is None or row["split"] == split]
    if not found:
        raise InputError(f"{table} lists no file{f' of split {split!r}' if split else ''}")
    return found


def path_inside(folder: Path, name: str) -> Path:
    """The file ``name`` below ``folder``, absolute; InputError where it would lie elsewhere."""
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # before Python 3.13 links in a circle are the last
        raise InputError(f"{name!r} is no name of a file: {error}") from error
    # A table comes with the data: it must not name files of the host beyond its folder.
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{name!r} lies outside of {folder}")
    return path


def _picture(folder: Path, name: str, how: Preprocessing) -> NDArray[np.float32]:
    path = path_inside(folder, name)
    try:
        with open_regular(path) as file:
            return read_picture(file, how, max_pixels=PILLOW_PIXELS)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the picture {path}: {error}") from error


def _called(spec: str, split: str | None) -> Dataset:
    try:
        batches = [(np.asarray(x), np.asarray(y)) for x, y in import_object(spec)(split)]
        inputs, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    except Exception as error:  # the function is foreign code
        raise InputError(
            f"{spec} gave no data: {type(error).__name__}: {error}; it is called with the split and "
            "must yield batches (inputs, labels)"
        ) from error
    return Dataset(inputs, labels)


def _wanted(name: str, split: str | None) -> bool:
    return name == "class_names" or name.removeprefix(f"{split}_" if split else "") in (*_INPUTS, *_LABELS)


def _mapped(folder: Path) -> dict[str, NDArray[Any]]:
    # Mapped, not read: inputs may be larger than memory.
    arrays: dict[str, NDArray[Any]] = {}
    for file in sorted(folder.glob("*.npy")):
        try:
            arrays[file.stem] = map_npy(file)
        except ValueError as error:
            raise InputError(f"cannot read {file}: {error}") from error
    return arrays


def _of_arrays(
    arrays: Mapping[str, NDArray[Any]], split: str | None, path: Path, seen: Sequence[str] = ()
) -> Dataset:
    prefix = f"{split}_" if split else ""

    def one_of(names: Sequence[str]) -> NDArray[Any]:
        found = [arrays[prefix + name] for name in names if prefix + name in arrays]
        if len(found) != 1:
            wanted, held = " or ".join(prefix + name for name in names), sorted(seen or arrays)
            scores = [name for name in held if name.removeprefix(prefix) in ("logits", "probs", "log_probs")]
            raise InputError(
                f"{path} must hold one of {wanted}, it holds {', '.join(held) or 'none'}"
                + (f"; {scores[0]} need no model: leave out --model" if scores else "")
                + _splits(held, names)
            )
        return found[0]

    names = arrays.get("class_names", np.array([], str))
    if names.ndim != 1:
        raise ShapeError(f"class_names must be (classes,), got {names.shape}")
    return Dataset(one_of(_INPUTS), one_of(_LABELS), tuple(str(name) for name in names.tolist()))


def _splits(held: Sequence[str], names: Sequence[str]) -> str:
    """A hint with the splits of the file, for an error about a missing one."""
    ends = tuple(f"_{name}" for name in names)
    found = sorted({name.rpartition("_")[0] for name in held if name.endswith(ends)})
    return f"; name a split: {', '.join(found)} (--split, split=)" if found else ""


def _class_ids(labels: NDArray[Any], n: int) -> NDArray[np.intp]:
    y = np.asarray(labels)
    if y.shape != (n,):
        raise ShapeError(
            f"labels must be ({n},) class ids, one for each input, or (n, L) of 0 and 1 of labels; got "
            f"{y.shape}"
        )
    if y.dtype.kind not in "iu":
        names = y.dtype.kind in "OUS"
        how = "np.unique(labels, return_inverse=True) numbers names" if names else "take labels.astype(int)"
        raise InputError(f"labels must be class ids (whole numbers), got {y.dtype}; {how}")
    if y.min() < 0:
        raise InputError(f"labels must not be negative, got {y.min()}")
    return y.astype(np.intp)
