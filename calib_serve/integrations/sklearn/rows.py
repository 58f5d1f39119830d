"""Rows of scikit-learn's samples: columns that go together, and folds that keep groups whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, check_cv

from calib_serve.core.errors import InputError
from calib_serve.fit import FOLDS

Ints = NDArray[np.intp]


def check_same_rows(columns: Mapping[str, Any]) -> None:
    """Raise InputError where an index says that columns hold other rows, or the same in another order.

    scikit-learn goes by position, pandas by index: where both readings are possible neither is taken. An
    index from 0, which is what a new column gets, says nothing beside one of other rows.
    """
    known = {name: index for name, column in columns.items() if (index := _index(column)) is not None}
    for name, index in known.items():
        of, first = next(iter(known.items()))
        if index.equals(first) or len(index) != len(first):  # lengths are scikit-learn's to check
            continue
        if (_is_new(index) or _is_new(first)) and set(index) != set(first):
            continue
        row = next((i for i, (a, b) in enumerate(zip(index, first, strict=True)) if a != b), 0)
        raise InputError(
            f"the index of {name} is not that of {of}: in row {row} {index[row]!r} beside {first[row]!r}; "
            f"put both into one order, {name}.loc[{of}.index], or give {name}.to_numpy() where rows go "
            "together by position"
        )


def _index(column: Any) -> Any:
    found = getattr(column, "index", None)
    return found if hasattr(found, "equals") else None  # a list's index is a method


def _is_new(index: Any) -> bool:
    return np.array_equal(np.asarray(index), np.arange(len(index)))


def splits(
    cv: Any, X: Any, y: NDArray[Any], groups: Ints | None, params: dict[str, Any]
) -> Iterator[tuple[Ints, Ints]]:
    """Yield rows to train and to test on, by ``cv`` with ``params``; InputError where a group is parted."""
    if cv is None or (isinstance(cv, (int, np.integer)) and not isinstance(cv, bool)):
        cv = _folds(cv, y, groups)
        if groups is not None:
            cv, params = StratifiedGroupKFold(cv), {"groups": groups}
    for part in check_cv(cv, y, classifier=True).split(X, y, **params):
        train, test = map(np.asarray, part)
        if groups is not None and (parted := np.intersect1d(groups[train], groups[test])).size:
            row = int(np.flatnonzero(groups == parted[0])[0])
            raise InputError(
                f"cv parts the group of row {row} between training and test rows: give a splitter that keeps "
                "groups whole, such as GroupKFold or StratifiedGroupKFold, a number of folds, or no groups"
            )
        yield train, test


def _folds(asked: Any, y: NDArray[Any], groups: Ints | None) -> int:
    """The number of folds that is asked for; by default 5, or so many that every class is in each."""
    classes, ids = np.unique(y, return_inverse=True)
    units = np.arange(len(y)) if groups is None else groups
    counts = np.bincount(np.unique(np.stack([ids, units]), axis=1)[0])
    if counts.min() < 2:
        label = classes.tolist()[counts.argmin()]
        one = "has one sample" if groups is None else "is in one group"
        raise InputError(f"class {label!r} {one}; cross-validation needs two of every class")
    # A number that is asked for stays: scikit-learn warns where a class has fewer samples.
    folds = min(FOLDS, int(counts.min())) if asked is None else int(asked)
    if groups is not None and folds > (most := len(np.unique(groups))):
        raise InputError(f"cv is {folds} folds of {most} groups; give at most so many folds")
    return folds
