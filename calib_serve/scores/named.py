"""Cells that hold all scores of a row: {class: score}, and lists of {label, score}.

Names decide the order of the classes. What a row's cell does not name is unknown, and never 0 in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.core.names import shown
from calib_serve.scores.recognition import NUMBERED, CellNames
from calib_serve.scores.table import few

_SCORE = {"score", "prob", "probability"}


def is_nested(column: NDArray[Any]) -> bool:
    """Whether a column's cells are lists or mappings."""
    cells = column if column.dtype.kind == "O" else ()
    first = next((cell for cell in cells if cell is not None), None)
    return column.ndim > 1 or isinstance(first, Mapping) or _is_list(first)


def named_scores(
    name: str, cells: Sequence[Any], place: CellNames = NUMBERED, classes: Sequence[str] = ()
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The classes (K,) and scores (n, K) of cells, NaN where one does not name a class.

    ``classes``: the names of all in order, where they are known; else numbers go by value, texts by letter.
    InputError for another cell, by row.

    >>> names, values = named_scores("p", [{"dog": 0.75, "cat": 0.25}, [{"label": "cat", "prob": 1.0}]])
    >>> names, values.tolist()
    (('cat', 'dog'), [[0.25, 0.75], [1.0, nan]])
    """
    known: dict[Any, int] = {}
    parts: list[tuple[NDArray[np.int32], NDArray[np.float64]]] = []
    before: tuple[Any, ...] = ()
    for row, cell in enumerate(cells):
        try:
            keys, scores = _pairs(cell)
            layout = (*keys, *map(type, keys))  # 1, 1.0 and True are equal
            at = parts[-1][0] if layout == before else _places(keys, known)
            before = layout
            if not {*map(type, scores)} <= {float, int} or math.isnan(sum(scores)):
                scores = [_number(key, score) for key, score in zip(keys, scores, strict=True)]
            parts.append((at, np.array(scores, np.float64)))
        except (ValueError, TypeError, OverflowError) as error:
            hint = "name other columns (--columns, columns=)"
            if isinstance(cell, Mapping) and {"type", "values"} <= {*cell}:
                hint = "write a vector of Spark as a list, by vector_to_array"
            if "choices" in (name, *(cell if isinstance(cell, dict) else ())):
                hint = "answers of a language model are read by --outputs answers:FILE.yaml (outputs=)"
            raise InputError(
                f"column {name!r}, {place.row(row)} holds {shown(cell)}, which are no scores by class: "
                f"{error}; {hint}"
            ) from None
    names = [str(int(key) if isinstance(key, float) else key) for key in known]
    order = _order(name, names, classes)
    column = {one: k for k, one in enumerate(order)}
    placed = np.array([column[one] for one in names])
    values = np.full((len(parts), len(order)), np.nan)
    for row, (at, numbers) in enumerate(parts):
        values[row, placed[at]] = numbers
    return tuple(order), values


def _order(name: str, names: list[str], classes: Sequence[str]) -> Sequence[str]:
    """Put names in order: that of the known classes, else of numbers, else of letters."""
    numbered = all(one.removeprefix("-").isdecimal() for one in names)
    own = sorted(names, key=int) if numbered else sorted(names)
    strange = [one for one in own if one not in classes]
    if classes and not strange:
        return own if [*classes[1:]] == own and len(own) == 1 else classes  # the event of two classes
    if classes and own != [str(k) for k in range(len(classes))]:  # ids, whose names are given in order
        raise InputError(
            f"column {name!r} names the class {few(strange)}, and the classes are {few(classes)}: name "
            "them as the column does (schema --class-names, class_names=)"
        )
    return own


def _places(keys: Sequence[Any], known: dict[Any, int]) -> NDArray[np.int32]:
    """The columns of a row's names; ``known`` takes those that are new."""
    if len({*keys}) < len(keys):
        raise ValueError(f"it names {shown(next(key for key in keys if keys.count(key) > 1))} twice")
    for key in keys:
        if not (isinstance(key, (str, int)) or (isinstance(key, float) and key.is_integer())):
            raise ValueError(f"{shown(key)} is no name of a class")
    kinds = {type(key): key for key in (*known, *keys)}
    if len(kinds) > 1:
        said = " and ".join(f"{kind.__name__} {shown(key)}" for kind, key in kinds.items())
        raise ValueError(f"names of classes are of one type, and there are {said}")
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int32)


def _number(key: Any, score: Any) -> float:
    number = isinstance(score, (int, float, Decimal, np.number)) and not isinstance(score, bool)
    if not number or math.isnan(score):
        what = "missing" if number or score is None else shown(score)
        raise ValueError(f"the score of {shown(key)} is {what}")
    return float(score)


def _is_list(cell: Any) -> bool:
    return isinstance(cell, (list, tuple, np.ndarray))


def _pairs(cell: Any) -> tuple[list[Any], list[Any]]:
    """The names and scores of a cell: a mapping, also as pairs or alone in a list, or {label, score} each."""
    if _is_list(cell) and len(cell) == 1 and not isinstance(cell[0], tuple) and not _labelled(cell[0]):
        cell = cell[0]
    if isinstance(cell, Mapping):
        cell = [cell] if _labelled(cell) else list(cell.items())
    found = [one if isinstance(one, tuple) else _labelled(one) for one in cell] if _is_list(cell) else []
    if not found or not all(one is not None and len(one) == 2 for one in found):
        raise ValueError("scores are {class: score}, or a list of {label, score} (or prob)")
    return [one[0] for one in found if one], [one[1] for one in found if one]


def _labelled(one: Any) -> tuple[Any, ...] | None:
    """The name and score of an entry {label, score}."""
    fields = {str(key).lower(): value for key, value in one.items()} if isinstance(one, Mapping) else {}
    held = _SCORE & {*fields}
    return (fields["label"], fields[held.pop()]) if "label" in fields and len(held) == 1 else None
