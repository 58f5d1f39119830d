"""Logits and labels from one file: npz, npy, csv, parquet or safetensors.

Array files (npz, safetensors) hold ``SPLIT_logits`` and ``SPLIT_labels``, or plain ``logits`` and
``labels``; ``probs`` or ``log_probs`` may replace ``logits``; a single column of them is class 1 of a binary
model. An npy file holds only logits and is memory-mapped; a second npy file holds its labels. Tables (csv,
parquet) have a column ``label``, optionally a column ``split``, and one column of logits per class.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from calib_serve.errors import InputError, MissingDependency, ShapeError
from calib_serve.metrics import log_probs
from calib_serve.npz import ZIP_ERRORS, map_npy, read_npz

__all__ = ["LogitsFile", "read_logits", "read_npy"]

_SCORES = ("logits", "log_probs", "probs")
_ENDINGS = (".npz", ".npy", ".csv", ".parquet", ".safetensors")


@dataclass(frozen=True, eq=False)
class LogitsFile:
    """Logits (n, K), class ids (n,) or None where the file has none, and class names or ()."""

    logits: NDArray[np.floating[Any]]
    labels: NDArray[Any] | None
    class_names: tuple[str, ...] = ()


def read_logits(
    path: str | Path, *, split: str | None = None, labels: str | Path | None = None
) -> LogitsFile:
    """Read one split of a file of logits; ``labels`` names a second npy file that holds the labels.

    Probabilities become their logarithm, with 0 as float32's least normal number (``log_probs``). Raises
    InputError where the file cannot be read or has no such split; the message lists what it has.
    """
    path = Path(path)
    if path.suffix not in _ENDINGS:
        raise InputError(f"logits are read from {', '.join(_ENDINGS)} files, got {path.name!r}")
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        found = _READERS[path.suffix](path, split)
    except InputError:
        raise
    except (*ZIP_ERRORS, SafetensorError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {str(error) or type(error).__name__}") from error
    if labels is not None:
        found = LogitsFile(found.logits, read_npy(Path(labels)), found.class_names)
    _check(path, found)
    return found


def _check(path: Path, found: LogitsFile) -> None:
    if found.logits.dtype.kind not in "fiub":
        raise InputError(f"{path}: logits are numbers, got {found.logits.dtype}")
    if found.logits.ndim == 2 and not found.logits.shape[1]:
        raise ShapeError(f"{path}: logits {found.logits.shape} are of no class")
    shape = None if found.labels is None else found.labels.shape
    if found.logits.ndim not in (1, 2) or shape not in (None, (len(found.logits),)):
        raise ShapeError(f"{path}: logits {found.logits.shape} and labels {shape} are not (n, K) and (n,)")


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
    scores = next((score for score in _SCORES if _named(score, split) in names), None)
    if scores is None:
        raise InputError(
            f"{path} has no array {_named('logits', split)}; it has {', '.join(sorted(names)) or 'none'}"
            + (f", so name a split: {', '.join(_splits(names))}" if split is None and _splits(names) else "")
        )
    labels = get(_named("labels", split)) if _named("labels", split) in names else None
    class_names = tuple(map(str, get("class_names"))) if "class_names" in names else ()
    values = get(_named(scores, split))
    if scores != "logits" and (values.ndim == 1 or values.shape[1:] == (1,)):
        values = _both_classes(values, scores)
    return LogitsFile(_log(values) if scores == "probs" else values, labels, class_names)


def _named(what: str, split: str | None) -> str:
    return what if split is None else f"{split}_{what}"


def _splits(names: Collection[str]) -> list[str]:
    return sorted(n.removesuffix(f"_{score}") for n in names for score in _SCORES if n.endswith(f"_{score}"))


def _both_classes(values: NDArray[Any], scores: str) -> NDArray[Any]:
    """Add class 0 to a single column of class 1: probabilities or their logarithms."""
    one = values.reshape(-1, 1)
    if scores == "probs":
        return np.concatenate([1 - one, one], axis=1)
    return np.concatenate([log_probs(-np.expm1(one)), one], axis=1)


def _log(probs: NDArray[Any]) -> NDArray[np.floating[Any]]:
    if probs.dtype.kind not in "fiub":
        raise InputError(f"probabilities are numbers, got {probs.dtype}")
    if probs.size and not (probs.min() >= 0 and probs.max() <= 1):
        raise InputError("probabilities must lie in [0, 1]; logits are named logits, not probs")
    if probs.ndim == 2 and probs.size and np.abs(probs.sum(axis=1, dtype=np.float64) - 1).max() > 1e-2:
        raise InputError("each row of probs must sum to 1; logits are named logits, not probs")
    return log_probs(probs)


def _read_csv(path: Path, split: str | None) -> LogitsFile:
    with path.open(newline="") as file:
        header = next(csv.reader(file), [])
        text = ["split"] if "split" in header else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # for a file without rows, refused below
            rows = np.loadtxt(file, delimiter=",", dtype=str, ndmin=2, quotechar='"', comments=None)
    if set(header) <= {"label", "split"}:
        raise InputError(f"{path} has no column of logits beside label and split")
    if not rows.size:
        raise InputError(f"{path} has column names but no rows")
    if rows.shape[1] != len(header):
        raise InputError(f"{path} has {len(header)} column names but {rows.shape[1]} columns")
    columns = dict(zip(header, rows.reshape(-1, len(header)).T, strict=True))
    return _from_table(path, {k: v if k in text else v.astype(np.float64) for k, v in columns.items()}, split)


def _read_parquet(path: Path, split: str | None) -> LogitsFile:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra that few need
    except ImportError as error:
        raise MissingDependency("pyarrow", "fit") from error
    try:
        table = parquet.read_table(path)
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except ArrowException as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return _from_table(path, columns, split)


def _from_table(path: Path, columns: dict[str, NDArray[Any]], split: str | None) -> LogitsFile:
    of = columns.pop("split", None)
    labels = columns.pop("label", None)
    if not columns:
        raise InputError(f"{path} has no column of logits beside label and split")
    if split is not None and of is None:
        raise InputError(f"{path} has no column split, so there is no split {split!r}; leave the split out")
    if of is not None:
        known = sorted(set(map(str, of.tolist())))
        if split not in known:
            raise InputError(f"{path} has the splits {', '.join(known)}, got {split!r}")
        columns = {name: values[of == split] for name, values in columns.items()}
        labels = None if labels is None else labels[of == split]
    # Class by class, to make only one copy of all columns.
    logits = np.empty((len(next(iter(columns.values()))), len(columns)))
    for k, values in enumerate(columns.values()):
        logits[:, k] = values
    # A single column is a binary logit: its name is not a class name.
    return LogitsFile(logits, labels, tuple(columns) if len(columns) > 1 else ())


_READERS = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
}
