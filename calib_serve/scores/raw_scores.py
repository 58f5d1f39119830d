"""Raw scores, of arrays or of the columns of a table, with labels, weights, groups and ids beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import as_array
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import shown
from calib_serve.scores.classes import is_missing, plain_label
from calib_serve.scores.kinds import Outputs
from calib_serve.scores.table import LISTS, TAKEN, Roles, by_pattern, check_plausible, lists_first, roles_of

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class RawScores:
    """Values (n, K), and labels, weights, groups and ids or None; ``first`` numbers the first row."""

    values: Floats
    labels: Any = None
    class_names: tuple[str, ...] = ()
    outputs: Outputs | None = None
    weights: Any = None
    groups: Any = None
    ids: Any = None
    remarks: tuple[str, ...] = ()
    name: str = "the scores"
    first: int = 0
    calibrated_by: str = ""

    def take(self, kept: NDArray[np.bool_]) -> RawScores:
        """Some of the samples, by mask."""
        parts: dict[str, Any] = {
            name: None if getattr(self, name) is None else np.asarray(getattr(self, name))[kept]
            for name in ("labels", "weights", "groups", "ids")
        }
        return replace(self, values=self.values[kept], **parts)


def of_arrays(values: NDArray[Any], *, label: Any, weight: Any, group: Any, id: Any) -> RawScores:
    """Read an array (n, K), (n,), or of more axes: its samples are then pixels, a picture a group."""
    given = {"labels": label, "weights": weight, "groups": group, "ids": id}
    if text := next((what for what, value in given.items() if isinstance(value, str)), None):
        raise InputError(
            f"{text} name a column, {shown(given[text])}, and the scores are an array without any"
        )
    values = _numbers(values)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim > 2:
        return _of_pictures(values, given)
    if values.ndim != 2 or not values.shape[1]:
        raise ShapeError(f"scores must be (n, K), or (n,) for one a sample, got {values.shape}")
    return RawScores(values, **given)


def _of_pictures(values: Floats, given: dict[str, Any]) -> RawScores:
    """Scores (n, K, ...) or (n, ..., K) as (n * ..., K), by the shape of their labels (n, ...)."""
    if given["labels"] is None:
        raise ShapeError(
            f"scores of shape {values.shape} need labels of the same shape without the classes' axis"
        )
    labels = as_array(given["labels"], "labels", missing=True)
    axes = [a for a in {1, values.ndim - 1} if values.shape[:a] + values.shape[a + 1 :] == labels.shape]
    if len(axes) != 1:
        raise ShapeError(
            f"scores {values.shape} and labels {labels.shape} do not say which axis holds the classes: make "
            "the scores (n, K, ...) or (n, ..., K), and the labels (n, ...)"
        )
    n, each = len(values), int(np.prod(labels.shape[1:]))
    flat = np.moveaxis(values, axes[0], -1).reshape(n * each, -1)
    beside: dict[str, Any] = {
        name: None if value is None else np.broadcast_to(_over(value, labels), labels.shape).reshape(-1)
        for name, value in given.items()
        if name != "labels"
    }
    said: tuple[str, ...] = ()
    if beside["groups"] is None and n > 1:
        beside["groups"] = np.repeat(np.arange(n), each)
        said = (f"the {each:,} places of each of {n:,} samples are taken as one group",)
    return RawScores(flat, labels=labels.reshape(-1), remarks=said, **beside)


def _over(value: Any, labels: NDArray[Any]) -> NDArray[Any]:
    """One value for each picture, or for each pixel, to be broadcast to labels (n, ...)."""
    found = as_array(value)
    return found.reshape(-1, *[1] * (labels.ndim - 1)) if found.ndim == 1 else found


def of_columns(
    table: Mapping[str, NDArray[Any]],
    *,
    columns: Sequence[str] | None = None,
    index: Sequence[str] = (),
    first: int = 0,
    label: Any = None,
    weight: Any = None,
    group: Any = None,
    id: Any = None,
) -> RawScores:
    """Read columns by name; ``label``, ``weight``, ``group`` and ``id``: a column's name, or an array."""
    beside = {"label": label, "weight": weight, "group": group, "id": id}
    named = {what: value for what, value in beside.items() if isinstance(value, str)}
    others = {what: value for what, value in beside.items() if value is not None and what not in named}
    roles = roles_of(list(table), columns=columns, index=index, **named)
    return of_roles(roles, table, others, first=first)


def of_roles(
    roles: Roles, table: Mapping[str, Any], others: Mapping[str, Any] | None = None, *, first: int = 0
) -> RawScores:
    """Read a table's columns by their roles; ``others`` are arrays, by role, that the table lacks."""
    if not roles.scores:
        raise InputError(f"there is no column of scores beside {', '.join(map(shown, table)) or 'none'}")
    found = {
        what: (others or {}).get(what, None if name is None else table[name])
        for what, name in (
            ("label", roles.label),
            ("weight", roles.weight),
            ("group", roles.group),
            ("id", roles.id),
        )
    }
    kind: Outputs | None = None
    names: tuple[str, ...] = ()
    roles = lists_first(roles, {name for name in roles.scores if table[name].ndim == 2})
    if table[roles.scores[0]].ndim == 2:
        values, kind = _numbers(table[roles.scores[0]]), LISTS.get(roles.scores[0])
    else:
        values, names = _stacked(roles.scores, table, first), roles.scores
    labels = None if found["label"] is None else as_array(found["label"], "labels", missing=True)
    if roles.label_columns:
        labels = np.stack([table[name] for name in roles.label_columns], axis=1)
    said = []
    if names and not roles.asked and not roles.label_columns:
        said.append(check_plausible(names, values, labels))
    if roles.left_out:
        said.append(f"left out, as no class: {', '.join(map(shown, roles.left_out))}")
    said += [f"{shown(name)} {does}" for what, does in TAKEN.items() if (name := getattr(roles, what))]
    names, prefix = _without_prefix(names, labels)
    said.append(prefix)
    return RawScores(
        values,
        labels=labels,
        class_names=names,
        outputs=kind,
        weights=found["weight"],
        groups=found["group"],
        ids=found["id"],
        remarks=tuple(line for line in said if line),
        first=first,
    )


def _stacked(names: Sequence[str], table: Mapping[str, NDArray[Any]], first: int) -> Floats:
    """The columns as values (n, K); InputError for a cell that holds no number, by row and name."""
    rows = len(table[names[0]])
    kinds = {np.asarray(table[name]).dtype for name in names}
    # float32 scores stay float32: float64 would take twice the memory for nothing.
    narrow = all(kind.kind == "f" and kind.itemsize <= 4 for kind in kinds)
    values = np.empty((rows, len(names)), np.float32 if narrow else np.float64)
    for k, name in enumerate(names):
        column = np.asarray(table[name])
        if column.dtype.kind not in "fiu":
            column = _as_numbers(column, name, first, names)
        values[:, k] = column
    return values


def _as_numbers(column: NDArray[Any], name: str, first: int, names: Sequence[str]) -> NDArray[np.float64]:
    for row, value in enumerate(column.tolist()):
        what = f"column {name!r}, row {row + first}"
        if isinstance(value, (bool, np.bool_)):
            raise InputError(
                f"column {name!r} holds booleans, which are no scores; leave it out by --columns"
            )
        if is_missing(plain_label(value)):
            raise InputError(f"{what}: the score is missing ({value}); leave such rows out, or fill them in")
        try:
            float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"{what} holds {shown(value)}, which is no score; name the columns of the classes alone "
                f"({by_pattern(names)}, columns=), or that of the labels 'label'"
            ) from None
    return column.astype(np.float64)


def _without_prefix(names: tuple[str, ...], labels: Any) -> tuple[tuple[str, ...], str]:
    """Class names without the columns' common prefix, such as p_ or logit., where labels lack it."""
    if len(names) < 2 or labels is None or np.asarray(labels).ndim != 1:
        return names, ""
    called = {str(label).strip() for label in np.unique(np.asarray(labels, object).astype(str))[:1000]}
    if called & set(names):
        return names, ""
    for mark in ("_", ".", "-", " ", ":"):
        begins = {name.partition(mark)[0] for name in names}
        short = tuple(name.partition(mark)[2] for name in names)
        if len(begins) == 1 and len(set(short)) == len(short) and called & set(short):
            return short, f"classes are called as the columns without {begins.pop() + mark!r}"
    return names, ""


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
