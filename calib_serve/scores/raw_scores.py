"""Raw scores, of arrays or of the columns of a table, with labels, weights, groups and ids beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import as_array
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import shown
from calib_serve.scores.classes import distinct, is_missing, of_two, plain_label
from calib_serve.scores.kinds import Floats
from calib_serve.scores.named import is_nested, named_scores
from calib_serve.scores.places import Places
from calib_serve.scores.recognition import NUMBERED, CellNames, proves_probabilities
from calib_serve.scores.scales import scaled_kind
from calib_serve.scores.table import Asked, Roles, by_pattern, few, roles_of

_OF_ONE = ("", "1", "y", "y=1", "y_1", "pos", "positive", "event", "true", "yes", "y_pred", "pred", "class_1",
           "class1", "predicted", "prediction")  # fmt: skip
"""What the name of one column calls the class that it is of where that is class 1."""

_OF_LABELS = {"logits": "label_logits", "probabilities": "label_probabilities"}
"""Kinds where any number of labels is true."""
_NAMELESS = Roles(())
"""Of arrays in memory."""


@dataclass(frozen=True, eq=False)
class RawScores:
    """Values (n, K), and ``beside`` them label, weight, group, id and source of each row, those there are.

    ``place`` names the rows. ``gaps``: a score of NaN is that of a class which a row does not name.
    ``outputs``: the kind or scale that names say; ``roles``: the columns or arrays that they were read from;
    ``class_axis``: where the classes were among more axes; ``bounds``: of each row's confidence (n, 2).
    """

    values: Floats
    beside: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    outputs: str | None = None
    roles: Roles = _NAMELESS
    remarks: tuple[str, ...] = ()
    name: str = "the scores"
    place: CellNames = NUMBERED
    gaps: bool = False
    calibrated_by: str = ""
    class_axis: int | None = None
    bounds: Floats | None = None

    def take(self, kept: NDArray[np.bool_]) -> RawScores:
        """Some of the samples, by mask."""
        return replace(
            self,
            values=self.values[kept],
            beside={what: np.asarray(given)[kept] for what, given in self.beside.items()},
            place=self.place.take(kept),
            bounds=None if self.bounds is None else self.bounds[kept],
        )


def of_arrays(values: NDArray[Any], beside: Mapping[str, Any]) -> RawScores:
    """Read an array (n, K), (n,), or of more axes: its samples are then pixels, a picture a group."""
    if text := next((what for what, given in beside.items() if isinstance(given, str)), None):
        raise InputError(
            f"{text}s name a column, {shown(beside[text])}, and the scores are an array without any"
        )
    values = _numbers(values)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim > 2:
        return _of_pictures(values, beside)
    if values.ndim != 2 or not values.shape[1]:
        raise ShapeError(f"scores must be (n, K), or (n,) for one a sample, got {values.shape}")
    return RawScores(values, beside)


def _of_pictures(values: Floats, beside: Mapping[str, Any]) -> RawScores:
    """Scores (n, K, ...) or (n, ..., K) as (n * ..., K), by the shape of their labels (n, ...)."""
    if "label" not in beside:
        raise ShapeError(
            f"scores of shape {values.shape} need labels of the same shape without the classes' axis"
        )
    labels = as_array(beside["label"], "labels", missing=True)
    axes = [a for a in {1, values.ndim - 1} if values.shape[:a] + values.shape[a + 1 :] == labels.shape]
    if len(axes) != 1:
        raise ShapeError(
            f"scores {values.shape} and labels {labels.shape} do not say which axis holds the classes: make "
            "the scores (n, K, ...) or (n, ..., K), and the labels (n, ...)"
        )
    n, each = len(values), int(np.prod(labels.shape[1:]))
    places = Places(labels.shape, 1 if axes == [1] else -1)
    of_places: dict[str, Any] = {
        what: np.broadcast_to(_over(given, labels), labels.shape).reshape(-1)
        for what, given in beside.items()
        if what != "label"
    }
    of_places["label"] = labels.reshape(-1)
    said: tuple[str, ...] = ()
    if "group" not in beside and n > 1:
        of_places["group"] = np.repeat(np.arange(n), each)
        said = (f"the {each:,} places of each of {n:,} samples are taken as one group",)
    return RawScores(places.rows(values), of_places, remarks=said, class_axis=places.axis)


def _over(value: Any, labels: NDArray[Any]) -> NDArray[Any]:
    """One value for each picture, or for each pixel, to be broadcast to labels (n, ...)."""
    found = as_array(value)
    return found.reshape(-1, *[1] * (labels.ndim - 1)) if found.ndim == 1 else found


def of_columns(table: Mapping[str, NDArray[Any]], asked: Asked, beside: Mapping[str, Any]) -> RawScores:
    """Read columns by name; what is ``beside`` the scores is a column's name, or an array."""
    named = {what: given for what, given in beside.items() if isinstance(given, str)}
    others = {what: given for what, given in beside.items() if what not in named}
    labels = table.get(named["label"]) if "label" in named else others.get("label")
    roles = roles_of(list(table), replace(asked, beside=named), called=texts_in(labels))
    return of_roles(roles, table, asked, others)


def texts_in(labels: Any) -> set[str]:
    """The texts among labels, which are names of classes."""
    found = None if labels is None else as_array(labels, "labels", missing=True)
    if found is None or found.ndim != 1 or found.dtype.kind not in "OUS":
        return set()
    if found.dtype.kind != "O":
        return {label for label in np.unique(found).tolist() if isinstance(label, str)}
    return {label for label in found.tolist() if isinstance(label, str)}


def of_roles(
    roles: Roles,
    table: Mapping[str, Any],
    asked: Asked,
    others: Mapping[str, Any],
    place: CellNames = NUMBERED,
) -> RawScores:
    """Read a table's columns by their roles; ``others`` are arrays, by role, that the table lacks."""
    roles = _without_texts(roles, table)
    if not roles.scores:
        raise InputError(
            f"there is no column of scores beside {few(list(table))}: say which (--columns, columns=)"
        )
    beside = {**{what: table[name] for what, name in roles.beside.items()}, **others}
    if roles.label_columns:
        beside["label"] = np.stack([table[name] for name in roles.label_columns], axis=1)
    elif "label" in beside:
        beside["label"] = as_array(beside["label"], "labels", missing=True)
    labels = beside.get("label")
    said = [f"left out: {few(list(roles.left_out))}"] if roles.left_out else []
    held = table[roles.scores[0]]
    names: tuple[str, ...] = ()
    values: Floats
    gaps = False
    if len(roles.scores) == 1 and held.dtype.kind == "O" and is_nested(held):
        names, values = named_scores(roles.scores[0], held.tolist(), place, asked.classes)
        said += [f"classes by name from {shown(roles.scores[0])}"]
        gaps = bool(np.isnan(values).any())
    elif held.ndim > 1:
        values = _numbers(held)
        if values.ndim > 2 or not values.size:
            raise ShapeError(f"column {roles.scores[0]!r} holds {values.shape[1:]} numbers a row, not (K,)")
    else:
        values = _stacked(roles.scores, table, place)
        names, prefix = _without_prefix(_names_of(roles, labels), labels)
        said += [prefix] if prefix else []
        _check_classes(roles, names, values, labels, told=asked.told)
    return RawScores(
        values,
        beside,
        class_names=names,
        roles=roles,
        outputs=_OF_LABELS.get(roles.kind, roles.kind) if roles.label_columns and roles.kind else roles.kind,
        remarks=tuple(said),
        place=place,
        gaps=gaps,
    )


def _names_of(roles: Roles, labels: Any) -> tuple[str, ...]:
    """The classes' names: what the columns' say beside the kind, unless labels are called as columns."""
    called = set() if labels is None or labels.ndim != 1 else set(map(str, distinct(labels)[0]))
    short = roles.classes
    clear = "" not in short and len({*short}) == len(roles.scores)
    return short if clear and not called & {*roles.scores} else roles.scores


def _without_texts(roles: Roles, table: Mapping[str, Any]) -> Roles:
    """Leave out columns without a number, and those beside one of lists, unless they are known as scores."""
    if roles.asked or roles.kind is not None:
        return roles
    lists = [name for name in roles.scores if is_nested(table[name])]
    if len(lists) > 1:
        raise InputError(f"the columns {few(lists)} hold lists: say which (--columns, columns=)")
    kept = lists or [name for name in roles.scores if _holds_numbers(table[name])]
    why = "beside lists of scores" if lists else "it holds no numbers"
    out = {name: why for name in roles.scores if name not in kept}
    return replace(roles, scores=tuple(kept), left_out={**roles.left_out, **out})


def _holds_numbers(column: NDArray[Any]) -> bool:
    return column.dtype.kind in "fiub" or not len(column) or any(map(_is_score, column.tolist()))


def _is_score(value: Any) -> bool:
    if not isinstance(value, str):
        return not is_missing(plain_label(value))
    try:
        return math.isfinite(float(value.replace(",", ".")))
    except ValueError:
        return False


def _check_classes(
    roles: Roles, names: Sequence[str], values: Floats, labels: NDArray[Any] | None, *, told: bool
) -> None:
    """Raise InputError for columns of which nothing says that they, and no others, are the classes.

    Said they are by the user, by sums of 1, by labels that name each of them, and by numbers in their names.
    """
    if roles.asked or roles.label_columns or labels is None or labels.ndim != 1:
        return
    if len(names) == 1:
        _check_event(roles, labels)
        return
    proved = roles.kind is None and proves_probabilities(values)
    if roles.kind is None and not (told or proved):
        return  # refused by its kind
    called = [str(label) for label in distinct(labels)[0]]
    if not all(label.removesuffix(".0").lstrip("-").isdecimal() for label in called):
        strange = [column for column, name in zip(roles.scores, names, strict=True) if name not in called]
        if strange and roles.kind is None and not proved:
            raise InputError(
                f"no label is called {few(strange)}: say which columns are classes "
                f"({by_pattern(names)}, columns=)"
            )
    elif not (_numbered(names) or all(name.removesuffix(".0").isdecimal() for name in names)) and (
        of_two(list(names), "") != [0, 1]
    ):
        raise InputError(
            f"the labels are {few(called)}, and nothing says that the columns "
            f"{few(roles.scores)} are their classes, in this order: name the columns in the order of "
            "the ids (--columns, columns=)"
        )


def _numbered(names: Sequence[str]) -> bool:
    """Whether names are one word with the numbers 0, 1, ... or 1, 2, ..., in this order."""
    found = [re.fullmatch(r"(.*?)(\d+)", name) for name in names]
    if None in found or len({one[1] for one in found if one}) > 1:
        return False
    numbers = [int(one[2]) for one in found if one]
    return numbers in (list(range(len(names))), list(range(1, len(names) + 1)))


def _check_event(roles: Roles, labels: NDArray[Any]) -> None:
    """Raise InputError for one column that is of something else than the labels, by its name."""
    if roles.kind is None:
        return
    (of,) = roles.classes
    called = {str(label).lower() for label in distinct(labels)[0]}
    if of.lower() not in {*_OF_ONE, *called, (roles.label or "").lower()}:
        raise InputError(
            f"the column {roles.scores[0]!r} is of {of!r}, by its name, and the labels are "
            f"{few(sorted(called))}: if it is of label 1, say --outputs {scaled_kind(roles.kind, 1)} "
            "(outputs=), or name both classes, the other one first (schema --class-names, class_names=)"
        )


def _stacked(names: Sequence[str], table: Mapping[str, NDArray[Any]], place: CellNames) -> Floats:
    """The columns as values (n, K); InputError for a cell that holds no number, by row and name."""
    rows = len(table[names[0]])
    kinds = {np.asarray(table[name]).dtype for name in names}
    # float32 scores stay float32: float64 would take twice the memory for nothing.
    narrow = all(kind.kind == "f" and kind.itemsize <= 4 for kind in kinds)
    values = np.empty((rows, len(names)), np.float32 if narrow else np.float64)
    for k, name in enumerate(names):
        column = np.asarray(table[name])
        if column.dtype.kind not in "fiu":
            column = _as_numbers(column, name, place, names)
        values[:, k] = column
    return values


def _as_numbers(
    column: NDArray[Any], name: str, place: CellNames, names: Sequence[str]
) -> NDArray[np.float64]:
    numbers = np.empty(len(column))
    for row, value in enumerate(column.tolist()):
        if isinstance(value, (bool, np.bool_)):
            raise InputError(
                f"column {name!r} holds booleans, which are no scores; leave it out by --columns"
            )
        try:
            numbers[row] = np.nan if is_missing(plain_label(value)) else float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"column {name!r}, {place.row(row)} holds {shown(value)}, which is no score; name the "
                f"columns of the classes alone ({by_pattern(names)}, columns=), or that of the labels 'label'"
            ) from None
    return numbers


def _without_prefix(names: tuple[str, ...], labels: Any) -> tuple[tuple[str, ...], str]:
    """Class names without the columns' common beginning, such as p_ or sp, where labels lack it."""
    if len(names) < 2 or labels is None or np.asarray(labels).ndim != 1:
        return names, ""
    called = {str(label) for label in distinct(np.asarray(labels))[0]}
    begins, ends = _common(names), _common([name[::-1] for name in names])[::-1]
    for begin, end in ((re.sub(r"[^_.: -]*$", "", begins), ""), (begins, ""), (begins, ends)):
        short = tuple(name.removeprefix(begin).removesuffix(end) for name in names)
        if called & set(short) and len(set(short)) == len(names) and not called & set(names):
            # Where they count from 0, their order says the same.
            counted = list(short) == [str(k) for k in range(len(names))]
            said = f"classes are called as the columns without {begin + end!r}"
            return (names, "") if counted else (short, said)
    return names, ""


def _common(names: Sequence[str]) -> str:
    """What all names begin with."""
    same = takewhile(lambda letters: len({*letters}) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same)


def _numbers(values: NDArray[Any]) -> Floats:
    if values.dtype.kind == "b":
        raise InputError("scores are numbers, got booleans")
    if values.dtype.kind in "OUS":
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"scores are numbers: {error}") from None
    if values.dtype.kind not in "fiu":
        raise InputError(f"scores must be numbers, got dtype {values.dtype}")
    return values if values.dtype.kind == "f" else values.astype(np.float64)
