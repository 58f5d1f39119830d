"""Labels as class ids: names, digits, booleans, ids that begin elsewhere; missing and void labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import NAMED_IN_A_MESSAGE
from calib_serve.scores.recognition import NUMBERED, CellNames
from calib_serve.scores.table import few

Ids = NDArray[np.intp]

MISSING = ("", "na", "nan", "n/a", "null", "none", "<na>", "nat")
"""Texts, in small letters, that stand for no label, unless a class is called so."""

_NEGATIVE = ("false", "no", "f", "n", "negative", "neg", "0")
_POSITIVE = ("true", "yes", "t", "y", "positive", "pos", "1")


def class_ids(
    labels: NDArray[Any],
    classes: int,
    names: Sequence[str] = (),
    *,
    column: str = "",
    place: CellNames = NUMBERED,
) -> tuple[Ids, tuple[str, ...], str]:
    """Class ids (n,) of labels (n,) of any type, class names if known by now, and a remark.

    Args:
        labels: Labels, names, ids, booleans or texts (n,).
        classes: Number of classes, K.
        names: The classes' own names (K,).
        column: Name of the only column of a binary model.
        place: How rows are named in messages.

    Raises:
        InputError: For a label that is missing, that is no class, or that may be two.

    >>> ids, names, remark = class_ids(np.array(["no", "yes"]), 2)
    >>> ids.tolist(), names, remark
    ([0, 1], ('no', 'yes'), '')
    """
    found, at = distinct(labels)
    gone = [k for k, label in enumerate(found) if is_missing(label) and label not in names]
    if gone:
        rows = np.flatnonzero(np.isin(at, gone))
        raise InputError(
            f"the label of {place.row(int(rows[0]))} is missing, {len(rows)} in all; leave such rows out, or "
            "say schema --ignore-label NA (ignore_label=)"
        )
    ids, known, remark = _mapped(found, classes, tuple(names), column)
    return np.array(ids, np.intp)[at], known, remark


def is_missing(label: Any) -> bool:
    """Whether a label, as ``distinct`` gives it, is a missing one."""
    return label is None or (isinstance(label, str) and label.lower() in MISSING)


def without(labels: NDArray[Any], ignored: Sequence[Any], names: Sequence[str] = ()) -> NDArray[np.bool_]:
    """Tell which rows (n,) have a label that is not ``ignored``; NA and NaN stand for a missing one.

    ``names`` are those of classes, which are never missing.

    >>> without(np.array([0, 255, 1]), [255]).tolist()
    [True, False, True]
    """
    wanted = {plain_label(label) for label in ignored}
    no_label = any(is_missing(label) for label in wanted)
    texts = {str(label) for label in wanted if not is_missing(label)}
    found, at = distinct(labels)
    out = [str(label) in texts or (no_label and is_missing(label) and label not in names) for label in found]
    kept = ~np.array(out, bool)[at]
    return kept if labels.ndim == 1 else np.asarray(kept.reshape(labels.shape).all(axis=1))


def distinct(labels: NDArray[Any]) -> tuple[list[Any], NDArray[np.intp]]:
    """The distinct labels, as plain values or None, and the index of each row's label among them."""
    if labels.dtype.kind in "iu" and labels.size and np.ptp(labels) < 1 << 16:  # counted, not sorted
        low = labels.min()
        place = np.subtract(labels.ravel(), low, dtype=np.intp, casting="unsafe")
        there = np.bincount(place) > 0
        given = [int(value) for value in np.flatnonzero(there) + int(low)]
        return given, place if there.all() else (np.cumsum(there) - 1)[place]
    if labels.dtype.kind in "iubfUS":
        values, at = np.unique(labels.ravel(), return_inverse=True)
        given = [plain_label(value) for value in values.tolist()]
    else:
        codes: dict[Any, int] = {}
        given, at = [], np.empty(labels.size, np.intp)
        for row, value in enumerate(labels.ravel().tolist()):
            label = plain_label(value)
            at[row] = codes.setdefault(_key(label), len(codes))
            if len(codes) > len(given):
                given.append(label)
    # "1 " and "1" are one label.
    index = {key: k for k, key in reversed(list(enumerate(map(_key, given))))}
    order = {k: i for i, k in enumerate(sorted(set(index.values())))}
    again = np.array([order[index[_key(value)]] for value in given], np.intp)
    return [given[k] for k in order], again[at.ravel()]


def _key(label: Any) -> Any:
    return type(label), label


def plain_label(value: Any) -> Any:
    """A label as a text without blanks around it, a whole number, a bool, a float, or None, also of NaN."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, float, np.number)):
        number = float(value)
        if math.isnan(number):
            return None
        whole = abs(number) < 2.0**62 and number == int(number)
        return int(value) if whole else number
    return str(value).strip()


def _mapped(
    found: list[Any], classes: int, names: tuple[str, ...], column: str
) -> tuple[list[int], tuple[str, ...], str]:
    if names and len(names) != classes:
        raise ShapeError(f"{classes} classes but {len(names)} class names")
    if names and (ids := _by_name(found, names)) is not None:
        return ids, names, ""
    if classes == 2 and column and not names and (event := _event(found, column)) is not None:
        return event
    numbers = [_number(label) for label in found]
    if None not in numbers and not any(isinstance(label, bool) for label in found):
        signs = sorted(map(str, numbers)) == ["-1.0", "1.0"]
        said = "labels -1 and 1 are read as classes 0 and 1" if signs else ""
        return _by_number([n for n in numbers if n is not None], classes, names), names, said
    if classes == 2 and (ids := of_two(found, column)) is not None:
        return ids, names or _two_names(found, ids), ""
    if names:
        raise InputError(
            f"no class is called {few(_strangers(found, names))}; the classes are {few(names)}: choose "
            "the classes' columns (--columns, columns=), or name them (schema --class-names, class_names=)"
        )
    if classes == 2 and column:
        raise InputError(
            f"labels are {few(found)}: of which of them is {column!r} the probability? Name both classes, "
            "the other one first (schema --class-names, class_names=)"
        )
    if len(found) == classes and all(isinstance(label, str) for label in found):
        order = sorted(found)
        return (
            [order.index(label) for label in found],
            tuple(order),
            f"classes are taken in the order of their names: {few(order)}",
        )
    raise InputError(
        f"labels are names, such as {few(found)}, and which column is which class is not known; name the "
        "classes in the order of the columns (schema --class-names, class_names=)"
    )


def _by_name(found: list[Any], names: tuple[str, ...]) -> list[int] | None:
    """The ids of labels that are all names; of numbers only where names are numbers, too."""
    index: dict[str, int] = {}
    for k, name in enumerate(names):
        if name in index:
            return None
        index[name] = k
    texts = [str(label) for label in found]
    if not all(text in index for text in texts):
        texts = [_as_whole(label) for label in found]  # "1.0", as pandas writes where some are missing
    if not all(text in index for text in texts):
        return None
    ids = [index[text] for text in texts]
    numbers = [_number(label) for label in found]
    if None not in numbers and ids != numbers and sorted(names) != [str(k) for k in range(len(names))]:
        clash = [n for n in numbers if n is not None and 0 <= n < len(names)]
        if any(isinstance(label, str) for label in found) or len(clash) < len(numbers):
            return ids
        if not all(_number(name) is not None for name in names):
            raise InputError(
                f"the labels {few(found)} are names of classes and ids of others; say which is meant, by "
                "names that are no numbers"
            )
    return ids


def _by_number(numbers: list[float], classes: int, names: tuple[str, ...]) -> list[int]:
    whole = [int(number) for number in numbers]
    if any(number != int(number) for number in numbers):
        odd = next(number for number in numbers if number != int(number))
        raise InputError(f"labels must be class ids or names, got {odd:g}")
    if classes == 2 and sorted(whole) == [-1, 1]:
        return [(k + 1) // 2 for k in whole]
    if min(whole) >= 0 and max(whole) < classes:
        places = sorted(names) == sorted(str(k) for k in range(len(names)))
        if names and not places and all(_number(name) is not None for name in names):
            raise InputError(
                f"the label {few(_strangers(whole, names))} is none of the classes {few(names)}; where "
                "labels count from 0, name the classes so (schema --class-names 0,1,..., class_names=)"
            )
        return whole
    hint = "classes count from 0 (schema --class-names, class_names=)"
    if min(whole) == 1 and max(whole) == classes:
        hint += (
            "; these seem to begin at 1: take 1 off each, or name the classes (schema --class-names, "
            "class_names=)"
        )
    elif min(whole) < 0 or max(whole) in (254, 255):
        none = min(whole) if min(whole) < 0 else max(whole)
        hint += f"; if {none} stands for none, say schema --ignore-label (ignore_label=)"
    else:
        hint += "; a label that stands for none is left out by schema --ignore-label (ignore_label=)"
    raise InputError(f"labels must lie in [0, {classes}), got {min(whole)} to {max(whole)}; {hint}")


def _event(found: list[Any], column: str) -> tuple[list[int], tuple[str, ...], str] | None:
    """Ids where one of two labels is called as the only column of scores, which is then of that one."""
    texts = [str(label).removesuffix(".0") for label in found]
    if len(texts) != 2 or texts.count(column) != 1:
        return None
    other = next(text for text in texts if text != column)
    said = "" if column == "1" else f"the scores are of the label {column!r}"
    return [int(text == column) for text in texts], (other, column), said


def of_two(found: list[Any], column: str) -> list[int] | None:
    """The ids of two classes, from common words for yes and no, or from the name of the scores' column."""
    texts = [str(label).lower() for label in found]
    words = [text for text in texts if text in (*_NEGATIVE, *_POSITIVE)]
    ids = [int(text in _POSITIVE) for text in words]
    # Two words for no, such as F and N, are two classes of which neither is the event.
    if len(words) == len(texts) and len(set(ids)) == len(texts):
        return ids
    if column and len(found) <= 2 and column in found:
        return [int(label == column) for label in found]
    return None


def _two_names(found: list[Any], ids: list[int]) -> tuple[str, ...]:
    if len(found) != 2 or not all(isinstance(label, str) for label in found):
        return ()
    return (str(found[ids.index(0)]), str(found[ids.index(1)]))


def _number(label: Any) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


def _as_whole(label: Any) -> str:
    number = _number(label)
    return str(int(number)) if number is not None and number == int(number) else str(label)


def _strangers(found: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [label for label in found if str(label) not in names][:NAMED_IN_A_MESSAGE]
