"""What a file or a caller gave, its kind not known yet: values (n, K), and what lies beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.arrays import as_array
from calib_serve.errors import InputError, ShapeError
from calib_serve.names import shown
from calib_serve.scores.kinds import Outputs
from calib_serve.scores.table import LISTS, TAKEN, Roles, check_plausible, roles_of

__all__ = ["Source", "of_arrays", "of_columns", "of_roles"]

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Source:
    """Values (n, K) of numbers, and each of the others or None; ``first`` is the number of its first row."""

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

    def take(self, kept: NDArray[np.bool_]) -> Source:
        """Some of the samples."""
        parts: dict[str, Any] = {
            name: None if getattr(self, name) is None else np.asarray(getattr(self, name))[kept]
            for name in ("labels", "weights", "groups", "ids")
        }
        return replace(self, values=self.values[kept], **parts)


def of_arrays(values: NDArray[Any], *, label: Any, weight: Any, group: Any, id: Any) -> Source:
    """Of an array (n, K), (n,), or of more axes, whose samples are pixels then, and each picture a group."""
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
    return Source(values, **given)


def _of_pictures(values: Floats, given: dict[str, Any]) -> Source:
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
    return Source(flat, labels=labels.reshape(-1), remarks=said, **beside)


def _over(value: Any, labels: NDArray[Any]) -> NDArray[Any]:
    """One for each picture, or for each place, to be broadcast to labels (n, ...)."""
    found = as_array(value)
    return found.reshape(-1, *[1] * (labels.ndim - 1)) if found.ndim == 1 else found


def of_columns(
    table: Mapping[str, NDArray[Any]],
    *,
    columns: Sequence[str] | None = None,
    index: Sequence[str] = (),
    first: int = 0,
    **beside: Any,
) -> Source:
    """Of columns by name; ``beside``: label, weight, group and id as a column's name, or as arrays."""
    named = {what: value for what, value in beside.items() if isinstance(value, str)}
    others = {what: value for what, value in beside.items() if value is not None and what not in named}
    roles = roles_of(list(table), columns=columns, index=index, **named)
    return of_roles(roles, table, first=first, **others)


def of_roles(roles: Roles, table: Mapping[str, Any], *, first: int = 0, **others: Any) -> Source:
    """Of the columns of a table whose roles are known; ``others`` are arrays that it has not."""
    if not roles.scores:
        raise InputError(f"there is no column of scores beside {', '.join(map(shown, table)) or 'none'}")
    found = {
        what: others.get(what, None if name is None else table[name])
        for what, name in (
            ("label", roles.label),
            ("weight", roles.weight),
            ("group", roles.group),
            ("id", roles.id),
        )
    }
    kind: Outputs | None = None
    names: tuple[str, ...] = ()
    lists = [name for name in roles.scores if table[name].ndim == 2]
    if lists:
        chosen = [name for name in lists if name in LISTS] or lists
        if len(chosen) > 1:
            raise InputError(f"there are the columns {' and '.join(chosen)} of lists: name one (--columns)")
        values, kind = _numbers(table[chosen[0]]), LISTS.get(chosen[0])
    else:
        values, names = _stacked(roles.scores, table, first), roles.scores
    labels = None if found["label"] is None else as_array(found["label"], "labels", missing=True)
    if roles.truths:
        labels = np.stack([table[name] for name in roles.truths], axis=1)
    said = []
    if names and not roles.asked and not roles.truths:
        said.append(check_plausible(names, values, labels))
    if roles.left_out:
        said.append(f"left out, as no class: {', '.join(map(shown, roles.left_out))}")
    said += [f"{shown(name)} {does}" for what, does in TAKEN.items() if (name := getattr(roles, what))]
    names, prefix = _without_prefix(names, labels)
    said.append(prefix)
    return Source(
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
    narrow = all(kind.kind == "f" and kind.itemsize <= 4 for kind in kinds)
    values = np.empty((rows, len(names)), np.float32 if narrow else np.float64)
    for k, name in enumerate(names):
        column = np.asarray(table[name])
        if column.dtype.kind not in "fiu":
            column = _as_numbers(column, name, first)
        values[:, k] = column
    return values


def _as_numbers(column: NDArray[Any], name: str, first: int) -> NDArray[np.float64]:
    for row, value in enumerate(column.tolist()):
        what = f"column {name!r}, row {row + first}"
        if isinstance(value, (bool, np.bool_)):
            raise InputError(
                f"column {name!r} holds booleans, which are no scores; leave it out by --columns"
            )
        if (
            value is None
            or type(value).__name__ == "NAType"
            or (isinstance(value, str) and not value.strip())
        ):
            raise InputError(f"{what}: the score is missing; leave such rows out, or fill them in")
        try:
            float(value)
        except (TypeError, ValueError):
            if isinstance(value, str) and value.strip().lower() in ("na", "n/a", "null", "none", "<na>"):
                raise InputError(
                    f"{what}: the score is missing ({value}); leave such rows out, or fill them in"
                ) from None
            raise InputError(
                f"{what} holds {shown(value)}, which is no score; name the columns of the classes alone "
                "(--columns, columns=), or that of the labels 'label'"
            ) from None
    return column.astype(np.float64)


def _without_prefix(names: tuple[str, ...], labels: Any) -> tuple[tuple[str, ...], str]:
    """Names as labels call them: without what all begin with, such as p_ or logit., where labels lack it."""
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
