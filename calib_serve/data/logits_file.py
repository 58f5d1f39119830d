"""Logits and labels from one file: npz, npy, csv, parquet or safetensors.

Array files (npz, safetensors) hold ``SPLIT_logits`` and ``SPLIT_labels``, or plain ``logits`` and
``labels``; ``probs`` or ``log_probs`` may replace ``logits``; a single column of them is class 1 of a binary
model. ``label_logits`` or ``label_probs`` (n, L) are of a multi-label model; ``labels`` (n, L) are then 0 or
1. An npy file holds only logits and is memory-mapped; a second npy file holds its labels. Tables (csv,
parquet) have a column ``label``, optionally a column ``split``, and one column of logits per class; those of
a multi-label model a column ``NAME`` of scores and a column ``label.NAME``, 0 or 1, for each label. Folders
and patterns of parquet files, and tables of a database, are read as ``table_logits`` says.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from calib_serve.data.table_logits import LISTS, from_lists, is_list, read_table
from calib_serve.errors import InputError, ShapeError
from calib_serve.files import ZIP_ERRORS, check_header, map_npy, open_parquet, read_npz
from calib_serve.names import Naming
from calib_serve.scores import LABELS, PROBABILITIES, Outputs, as_logits, exact

__all__ = ["LogitsFile", "holds_files", "read_logits", "read_npy"]

_SCORES: dict[str, Outputs | None] = {
    "logits": None,
    "log_probs": "log_probs",
    "probs": "probabilities",
    "label_logits": "label_logits",
    "label_probs": "label_probabilities",
}
_OF_LABEL = "label."  # and the label's name: a column of truths
_SUM = 1e-2  # how far a row of half-precision probabilities may be from 1
_OF_INPUTS = "fit, or report, with --model MODEL --data FILE (calibrate_model)"
_ENDINGS = (".npz", ".npy", ".csv", ".parquet", ".safetensors")


@dataclass(frozen=True, eq=False)
class LogitsFile:
    """Scores as they are in the file, class ids (n,) or None where it has none, and class names or ().

    ``outputs`` is what the scores are; None where neither the file nor the caller says.
    """

    scores: NDArray[np.floating[Any]]
    labels: NDArray[Any] | None
    class_names: tuple[str, ...] = ()
    outputs: Outputs | None = None

    @property
    def logits(self) -> NDArray[np.floating[Any]]:
        """The scores as logits (n, K); InputError for probabilities of which nobody said that they are."""
        return as_logits(self.scores, self.outputs)[0]


def read_logits(
    path: str | Path,
    *,
    split: str | None = None,
    labels: str | Path | None = None,
    outputs: Outputs | None = None,
    engine: str | None = None,
    password_file: str | Path | None = None,
) -> LogitsFile:
    """Read one split of a file of logits; ``labels`` names a second npy file that holds the labels.

    ``outputs`` says what the scores are, where the name of their array does not. ``path`` may also be a
    folder or pattern of parquet files, or, with the address of an ``engine``, a table in it (``read_table``).
    Raises InputError where the file cannot be read or has no such split; the message lists what it has.
    """
    found = _read(path, split, engine, password_file)
    path = Path(path)
    if labels is not None:
        if engine is not None or holds_files(path):
            raise InputError(
                f"the rows of {path} come in any order, so labels cannot lie in a file of their own "
                "(--labels, labels=): put them into its column label"
            )
        found = replace(found, labels=read_npy(Path(labels)))
    if found.outputs is not None and outputs not in (None, found.outputs, exact(found.outputs, 1)):
        raise InputError(f"{path}: its array is named for {found.outputs}, and --outputs says {outputs}")
    found = replace(found, outputs=outputs or found.outputs)
    _check(path, found)
    return found


def holds_files(path: Path) -> bool:
    """Whether this is a folder, or a pattern, of files; their rows come in any order."""
    return path.is_dir() or (not path.is_file() and any(c in str(path) for c in "*?["))


def _read(
    where: str | Path, split: str | None, engine: str | None, password_file: str | Path | None
) -> LogitsFile:
    path = Path(where)
    if engine is not None or holds_files(path):
        return _read_table(str(where), split, engine, password_file)
    if path.suffix not in _ENDINGS:
        raise InputError(
            f"logits are read from {', '.join(_ENDINGS)} files, got {path.name!r}; write them with "
            'np.savez("logits.npz", logits=logits, labels=labels)'
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        return _READERS[path.suffix](path, split)
    except InputError:
        raise
    except (*ZIP_ERRORS, SafetensorError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {str(error) or type(error).__name__}") from error


def _read_table(
    table: str, split: str | None, engine: str | None, password_file: str | Path | None
) -> LogitsFile:
    found = read_table(table, split=split, engine=engine, password_file=password_file)
    return _named_columns(Path(table), found.scores, found.names, found.labels, _SCORES[found.scores_are])


def _check(path: Path, found: LogitsFile) -> None:
    scores = found.scores
    if scores.dtype.kind not in "fiub":
        raise InputError(f"{path}: logits are numbers, got {scores.dtype}")
    if scores.ndim == 2 and not scores.shape[1]:
        raise ShapeError(f"{path}: logits {scores.shape} are of no class")
    shape = None if found.labels is None else found.labels.shape
    wanted = scores.shape if found.outputs in LABELS else scores.shape[:1]
    if shape == scores.shape and len(shape) == 2 and shape[1] > 1 and found.outputs is None:
        if (np.asarray(found.labels).sum(axis=1) == 1).all():
            raise ShapeError(
                f"{path} has labels {shape}, one-hot: save class ids, labels.argmax(axis=1); of a "
                f"multi-label model say --outputs {' or '.join(LABELS)} (outputs=)"
            )
        raise ShapeError(
            f"{path} has labels {shape}, as many as scores: they are of a multi-label model; say --outputs "
            f"{' or '.join(LABELS)} (outputs=)"
        )
    if wanted[1:] == (1,) and shape == wanted[:1]:  # of one label
        shape = wanted
    if scores.ndim not in (1, 2) or shape not in (None, wanted):
        column = "; take labels[:, 0]" if shape == (*scores.shape[:1], 1) else ""
        raise ShapeError(f"{path}: logits {scores.shape} and labels {shape} are not (n, K) and (n,){column}")
    if found.outputs in PROBABILITIES:
        _check_probabilities(path, scores, sums=found.outputs == "probabilities")


def _check_probabilities(path: Path, probs: NDArray[Any], *, sums: bool) -> None:
    if probs.size and not (probs.min() >= 0 and probs.max() <= 1):
        raise InputError(f"{path}: probabilities must lie in [0, 1]; logits are named logits, not probs")
    many = sums and probs.ndim == 2 and probs.shape[1] > 1
    if many and probs.size and np.abs(probs.sum(axis=1, dtype=np.float64) - 1).max() > _SUM:
        raise InputError(
            f"{path}: each row of probs must sum to 1; logits are named logits, not probs, and those of "
            "labels, of which any number may be true, label_probs (--outputs label_probabilities)"
        )


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an npy file, memory-mapped; InputError where it is none."""
    try:
        return map_npy(path)
    except ValueError as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _read_npy(path: Path, split: str | None) -> LogitsFile:
    if split is not None:
        raise InputError(f"{path} holds one array, so there is no split {split!r}; leave the split out")
    return LogitsFile(read_npy(path), None)


def _read_npz(path: Path, split: str | None) -> LogitsFile:
    wanted = {"class_names", *(_named(name, split) for name in ("labels", *_SCORES))}
    arrays, names = read_npz(path, wanted=wanted.__contains__)
    return _from_arrays(path, names, arrays.__getitem__, split)


def _read_safetensors(path: Path, split: str | None) -> LogitsFile:
    with safe_open(path, framework="numpy") as arrays:
        return _from_arrays(path, list(arrays.keys()), arrays.get_tensor, split)


def _from_arrays(
    path: Path, names: Collection[str], get: Callable[[str], NDArray[Any]], split: str | None
) -> LogitsFile:
    named = next((score for score in _SCORES if _named(score, split) in names), None)
    if named is None:
        inputs = [name for name in names if name.endswith(("inputs", "images"))]
        raise InputError(
            f"{path} has no array {_named('logits', split)}; it has {', '.join(sorted(names)) or 'none'}"
            + (f", so name a split: {', '.join(_splits(names))} (--split, split=)" if _splits(names) else "")
            + (f"; {inputs[0]} need their model: {_OF_INPUTS}" if inputs else "")
            + ("" if inputs or _splits(names) else f"; name the scores one of {', '.join(_SCORES)}")
        )
    labels = get(_named("labels", split)) if _named("labels", split) in names else None
    class_names = tuple(map(str, get("class_names"))) if "class_names" in names else ()
    return LogitsFile(get(_named(named, split)), labels, class_names, _SCORES[named])


def _named(what: str, split: str | None) -> str:
    return what if split is None else f"{split}_{what}"


def _splits(names: Collection[str]) -> list[str]:
    # Longest first: cal_label_logits is of the split cal.
    endings = sorted((f"_{score}" for score in _SCORES), key=len, reverse=True)
    found = ((n, next((e for e in endings if n.endswith(e)), None)) for n in names)
    return sorted({n.removesuffix(e) for n, e in found if e})


def _read_csv(path: Path, split: str | None) -> LogitsFile:
    with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark before the text
        header = next(csv.reader(file), [])
        text = {"split", "label"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # for a file without rows, refused below
            rows = np.loadtxt(file, delimiter=",", dtype=str, ndmin=2, quotechar='"', comments=None)
    if set(header) <= {"label", "split"}:
        raise InputError(f"{path} has no column of logits beside label and split")
    if not rows.size:
        raise InputError(f"{path} has column names but no rows")
    if rows.shape[1] != len(header):
        raise InputError(f"{path} has {len(header)} column names but {rows.shape[1]} columns")
    check_header(path, header)
    columns = dict(zip(header, rows.reshape(-1, len(header)).T, strict=True))
    numbers = {k: v if k in text else _numbers(path, k, v) for k, v in columns.items()}
    return _from_table(path, numbers, split)


def _numbers(path: Path, name: str, texts: NDArray[Any]) -> NDArray[np.float64]:
    try:
        return texts.astype(np.float64)
    except ValueError:
        odd = next(text for text in texts.tolist() if not _is_number(text))
        raise InputError(
            f"{path}: the column {name} holds {odd[:40]!r}, which is no logit: leave the column out, or name "
            "it label if it holds the classes"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path, split: str | None) -> LogitsFile:
    file = open_parquet(path)
    from pyarrow import ArrowException  # noqa: PLC0415 - an extra that few need

    try:
        with file:
            table = file.read()
            lists = [name for name in LISTS if name in table.column_names and is_list(table[name])]
            kept = [name for name in table.column_names if not lists or name in ("label", "split")]
            columns = {name: table[name].to_numpy() for name in kept}
    except ArrowException as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if not lists:
        return _from_table(path, columns, split)
    scores = from_lists(table, lists, str(path))
    columns |= {str(k): scores[:, k] for k in range(scores.shape[1])}
    return replace(_from_table(path, columns, split), class_names=(), outputs=_SCORES[lists[0]])


def _from_table(path: Path, columns: dict[str, NDArray[Any]], split: str | None) -> LogitsFile:
    of = columns.pop("split", None)
    labels = columns.pop("label", None)
    if any(name.startswith(_OF_LABEL) for name in columns):
        columns, labels = _of_labels(path, columns, labels)
    if not columns:
        raise InputError(f"{path} has no column of logits beside label and split")
    if split is not None and of is None:
        raise InputError(f"{path} has no column split, so there is no split {split!r}; leave the split out")
    if of is not None:
        known = sorted(set(map(str, of.tolist())))
        if split is None:
            raise InputError(f"{path} has the splits {', '.join(known)}; name one (--split, split=)")
        if split not in known:
            raise InputError(f"{path} has the splits {', '.join(known)}, got {split!r}")
        columns = {name: values[of == split] for name, values in columns.items()}
        labels = None if labels is None else labels[of == split]
    # Class by class, to make only one copy of all columns.
    scores = np.empty((len(next(iter(columns.values()))), len(columns)))
    for k, values in enumerate(columns.values()):
        scores[:, k] = values
    return _named_columns(path, scores, tuple(columns), labels)


def _named_columns(
    path: Path,
    scores: NDArray[Any],
    names: tuple[str, ...],
    labels: NDArray[Any] | None,
    outputs: Outputs | None = None,
) -> LogitsFile:
    """Scores (n, K) whose columns have these names, if any, and labels that are ids or such names."""
    classes = scores.shape[1]
    # A single column is a binary logit: its name is not a class name.
    names = names if classes > 1 else ()
    if labels is not None and labels.dtype.kind in "OUS":
        labels = _ids(path, labels, Naming(max(classes, 2), names))
    return LogitsFile(scores, labels, names, outputs)


def _ids(path: Path, labels: NDArray[Any], naming: Naming) -> NDArray[Any]:
    """The class ids of texts: names, or digits; floats such as "1.0" and "nan" as they are."""
    found: dict[str, float] = {}
    for text in dict.fromkeys(str(label).strip() for label in labels.tolist()):
        try:
            found[text] = naming.find(text)
        except InputError as error:
            try:
                found[text] = _number(text)
            except ValueError:
                raise InputError(
                    f"{path}: {error}; rename the columns, or save labels as numbers in an npz file"
                ) from None
    return np.array([found[str(label).strip()] for label in labels.tolist()], np.float64)


def _number(text: str) -> float:
    """A float that is not written as a whole number."""
    if text.isdecimal():
        raise ValueError
    return float(text)


def _of_labels(
    path: Path, columns: dict[str, NDArray[Any]], label: NDArray[Any] | None
) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """The columns of scores, and the truths (n, L) in the columns label.NAME, in the order of the scores."""
    scores = {name: values for name, values in columns.items() if not name.startswith(_OF_LABEL)}
    if (
        label is not None
        or len(scores) * 2 != len(columns)
        or any(_OF_LABEL + n not in columns for n in scores)
    ):
        raise InputError(
            f"{path} must have a column of scores NAME and one of truths label.NAME for each label, and no "
            f"column label; it has {', '.join(columns)[:200]}"
        )
    return scores, np.stack([columns[_OF_LABEL + name] for name in scores], axis=1)


_READERS = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
}
