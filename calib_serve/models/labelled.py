"""Requests with labels, as clients send them: files, or rows of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.models.dataset import listed, load_data, path_inside

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LabelledRequests:
    """Requests with labels, one a sample: files, or rows of numbers.

    Args:
        source: Where they came from, for errors.
        labels: Class names or ids, as they are written (n); of a multi-label model the true ones, with ";"
            between.
        files: Files whose bytes are sent (n); empty where there are rows.
        rows: Numbers (n, ...); None where there are files.
        names: Names of the classes, in the data's own order; empty: it has none.
    """

    source: str
    labels: tuple[str, ...]
    files: tuple[Path, ...] = ()
    rows: NDArray[Any] | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def called(self, i: int) -> str:
        """Name sample ``i`` for a person."""
        return str(self.files[i]) if self.rows is None else f"row {i} of {self.source}"

    def class_ids(self, classes: int, known: Sequence[Sequence[str]] = ()) -> NDArray[np.intp]:
        """The labels as class ids (n,).

        Args:
            classes: Number of classes of the model.
            known: Names of each of its classes; empty: the data's own order counts, that of ImageFolder for
                folders.

        Raises:
            InputError: Where a label is no class of the model, or may be two; it names the sample.
        """
        ids = _named(known) if any(known) else _in_order(self, classes)
        return np.array(self._each(lambda label: _id(label, ids, classes)), np.intp)

    def label_sets(self, labels: int, known: Sequence[Sequence[str]] = ()) -> NDArray[np.intp]:
        """Labels of a multi-label model (n, L): 1 where a label is true of the sample, else 0.

        Args:
            labels: Number of labels of the model.
            known: Names of each of its labels; empty: labels are ids.

        Raises:
            InputError: As ``class_ids``.
        """
        ids = _named(known)
        rows = self._each(
            lambda text: [_id(one.strip(), ids, labels) for one in text.split(";") if one.strip()]
        )
        labels01 = np.zeros((len(self), labels), np.intp)
        for i, row in enumerate(rows):
            labels01[i, row] = 1
        return labels01

    def _each(self, read: Callable[[str], T]) -> list[T]:
        """Read each sample's label by ``read``; its InputError names the sample."""
        # Labels repeat: each is read once.
        found: dict[str, T] = {}
        for i, label in enumerate(self.labels):
            if label not in found:
                try:
                    found[label] = read(label)
                except InputError as error:
                    raise InputError(f"{self.called(i)}: {error}") from None
        return [found[label] for label in self.labels]


def read_requests(spec: str | Path, split: str | None = None) -> LabelledRequests:
    """Read samples with labels, each to be sent as it is.

    Args:
        spec: A folder with ``labels.csv`` (columns file, label, and split), or such a file itself; a folder
            with one folder of files for each class, as torchvision's ImageFolder has it; or arrays that
            ``load_data`` reads (.npz, a folder of .npy files, ``file.py:name``).
        split: Name of the split; of folders that of the folder above the classes. None: the data have none.

    Raises:
        InputError: Where the data cannot be read.
    """
    path = Path(spec)
    if path.is_dir() and (path / "labels.csv").is_file():
        return _of_table(path / "labels.csv", split)
    if path.is_file() and path.suffix == ".csv":
        return _of_table(path, split)
    if path.is_dir() and not any(path.glob("*.npy")):
        return _of_folders(path if split is None else path / split)
    data = load_data(spec, split)
    names = data.class_names
    if names and data.labels.max() >= len(names):
        raise InputError(f"{path} has labels up to {data.labels.max()} and {len(names)} class names")
    labels = tuple(names[k] if names else str(k) for k in data.labels.tolist())
    return LabelledRequests(str(spec), labels, rows=data.inputs, names=names)


def _of_table(table: Path, split: str | None) -> LabelledRequests:
    rows = listed(table, split)
    files = tuple(path_inside(table.parent, row["file"]) for row in rows)
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{len(missing)} files of {table} are not there, such as {missing[0]}")
    # Of every split: one may lack a class.
    names = sorted({row["label"] for row in listed(table, None)})
    ids = all(name.isdecimal() for name in names)
    labels = tuple(row["label"] for row in rows)
    return LabelledRequests(str(table), labels, files, names=() if ids else tuple(names))


def _of_folders(folder: Path) -> LabelledRequests:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    names = tuple(one.name for one in _shown(folder) if one.is_dir())
    files: list[Path] = []
    labels: list[str] = []
    for name in names:
        inner = _shown(folder / name)
        if folders := [one for one in inner if one.is_dir()]:
            raise InputError(
                f"{folder / name} is to hold the files of one class, and holds the folder {folders[0].name}; "
                "if it is a split of the data, name it with --split"
            )
        files += [one.resolve() for one in inner]
        labels += [name] * len(inner)
    if not files:
        raise InputError(f"{folder} has no labels.csv, no arrays (.npy), and no folders of files by class")
    return LabelledRequests(str(folder), tuple(labels), tuple(files), names=names)


def _shown(folder: Path) -> list[Path]:
    """List the visible entries of a folder, sorted."""
    try:
        return sorted(one for one in folder.iterdir() if one.name[0] != ".")
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error}") from error


def _named(known: Sequence[Sequence[str]]) -> dict[str, set[int]]:
    # A class of ImageNet has several names, and two classes may share one, such as crane.
    found: dict[str, set[int]] = {}
    for k, names in enumerate(known):
        for name in names:
            found.setdefault(name, set()).add(k)
    return found


def _in_order(data: LabelledRequests, classes: int) -> dict[str, set[int]]:
    """The ids of the data's own class names, where the model has none."""
    names = data.names
    if not names:
        return {}
    if len(names) != classes:
        raise InputError(
            f"{data.source} has {len(names)} class names, such as {', '.join(names[:3])}, the model has "
            f"{classes} classes and no names (index_to_name.json): which is which is not known; give the ids "
            "in a labels.csv"
        )
    if set(names) == {str(k) for k in range(classes)} and names != tuple(map(str, range(classes))):
        raise InputError(
            f"{data.source} has classes of numbers: whether 10 is the id, or is sorted as text as "
            "ImageFolder does, is not known; give the ids in a labels.csv"
        )
    return {name: {k} for k, name in enumerate(names)}


def _id(label: str, ids: dict[str, set[int]], classes: int) -> int:
    # A label may be a name and the id of another class: then neither is taken.
    may_be = set(ids.get(label, ()))
    if label.isdecimal() and len(label) <= 18 and int(label) < classes:
        may_be.add(int(label))
    if len(may_be) == 1 and max(may_be) < classes:
        return may_be.pop()
    if len(may_be) > 1:
        raise InputError(f"the label {label!r} may be the classes {sorted(may_be)}; give ids")
    shown = ", ".join(list(ids)[:5]) + (", ..." if len(ids) > 5 else "")
    known = f"the model's classes are 0..{classes - 1}" + (f" and are called {shown}" if ids else "")
    raise InputError(f"the label {label[:40]!r} is no class of the model: {known}")
