"""The columns of a table of scores: classes, label, weight, group and id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import as_array
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import shown
from calib_serve.scores.classes import is_missing, plain_label
from calib_serve.scores.kinds import Outputs, softmax

LISTS: Mapping[str, Outputs] = {"logits": "logits", "log_probs": "log_probs", "probs": "probabilities"}
"""Columns of lists, a row of scores each, and what they hold."""
OF_LABEL = "label."
"""And the name of a label: a column of whether it is true."""

_LABEL = ("target", "targets", "labels", "truth", "y", "y_true", "class", "ground_truth", "true_label")
_KNOWN = {
    "split": ("split",),
    "weight": ("weight", "weights", "sample_weight"),
    "group": ("group", "groups"),
    "id": ("id", "ids", "sample_id"),
}
TAKEN = {"weight": "weighs the rows", "group": "says which rows belong together"}
"""What a column of this name does, to be said."""
_INDEX = ("", "index", "level_0", "rownames", "row.names", "fold", "folds", "cv_fold")
"""Of row names and of folds: known to be no class, and of no use here. pandas calls others "Unnamed: 0"."""
# Columns that exports of predictions have beside the classes; a softmax over them would look like scores.
_NO_CLASS = (
    *("pred", "preds", "prediction", "predicted", "predicted_class", "predicted_label", "y_pred"),
    *("confidence", "conf", "max_prob", "p_max", "correct", "is_correct", "entropy", "margin", "loss", "nll"),
    *("time", "timestamp", "date", "datetime", "file", "filename", "path", "model", "version"),
    *("patient", "patient_id", "subject", "subject_id", "user", "user_id", "session", "session_id", "row"),
)
_MOST = 0.5  # of rows, in which a class without a label may be the largest
_FEW = 20  # rows; fewer may be whole numbers by chance
_SUM = 0.02
_SHOWN = 5


@dataclass(frozen=True)
class Roles:
    """Columns by role: ``scores`` in order, the other roles or None, and ``left_out`` columns.

    ``label_columns`` are the columns label.NAME of a multi-label model, in the order of the scores.
    """

    scores: tuple[str, ...]
    label: str | None = None
    split: str | None = None
    weight: str | None = None
    group: str | None = None
    id: str | None = None
    label_columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    asked: bool = field(default=False)
    """Whether the scores were named by the user."""

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that are read beside the scores."""
        named = (self.label, self.weight, self.group, self.id)
        return (*(name for name in named if name is not None), *self.label_columns)


def roles_of(
    names: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    index: Sequence[str] = (),
    label: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    id: str | None = None,
) -> Roles:
    """Find what each named column is; ``label``, ``weight``, ``group`` and ``id``: as the user calls them.

    ``columns``: the classes' columns, names or patterns such as ``p_*``; ``index``: row names, as the file
    says. InputError where a column is not there, and where several could be the label.

    >>> roles = roles_of(["id", "cat", "dog", "label", "Unnamed: 0"])
    >>> roles.scores, roles.label, roles.id, roles.left_out
    (('cat', 'dog'), 'label', 'id', ('Unnamed: 0',))
    """
    asked = {"label": label, "weight": weight, "group": group, "id": id}
    found: dict[str, Any] = {what: name for what, name in asked.items() if name is not None}
    for what, name in found.items():
        if name not in names:
            raise InputError(f"there is no column {name!r} for the {what}; there are {_listed(names)}")
    free = [name for name in names if name not in found.values()]
    low = {name: name.strip().lower() for name in free}
    for what, known in _KNOWN.items():
        if what not in found:
            found[what] = next((name for name in free if low[name] in known), None)
    of_labels = [name for name in free if name.startswith(OF_LABEL)]
    if "label" not in found:
        found["label"] = None if of_labels else _label(free, low, columns)
    rest = [name for name in free if name not in found.values() and name not in of_labels]
    if columns is not None:
        scores = _asked_for(columns, rest)
        return Roles(tuple(scores), **found, label_columns=_label_columns(of_labels, scores), asked=True)
    out = [n for n in rest if n in index or low[n] in _INDEX or low[n].startswith(("unnamed:", "__index"))]
    scores = [name for name in rest if name not in out]
    return Roles(tuple(scores), **found, label_columns=_label_columns(of_labels, scores), left_out=tuple(out))


def lists_first(roles: Roles, lists: Collection[str]) -> Roles:
    """Keep the column of lists alone, where one holds the scores; InputError where several could."""
    held = [name for name in roles.scores if name in lists]
    chosen = [name for name in held if name in LISTS] or held
    if len(chosen) > 1:
        raise InputError(
            f"there are the columns {' and '.join(chosen)} of lists: name one (--columns, columns=)"
        )
    return replace(roles, scores=tuple(chosen)) if chosen else roles


def _label(free: Sequence[str], low: Mapping[str, str], columns: Sequence[str] | None) -> str | None:
    if "label" in free:
        return "label"
    may_be = [name for name in free if low[name] == "label"] or [name for name in free if low[name] in _LABEL]
    if columns is not None:
        may_be = [name for name in may_be if not any(fnmatchcase(name, one) for one in columns)]
    if len(may_be) > 1:
        raise InputError(
            f"the label may be in {' or in '.join(map(repr, may_be))}; rename it to 'label', and name the "
            "classes' columns (--columns, columns=)"
        )
    return may_be[0] if may_be else None


def _asked_for(columns: Sequence[str], rest: Sequence[str]) -> list[str]:
    found: list[str] = []
    for one in columns:
        names = [one] if one in rest else [name for name in rest if fnmatchcase(name, one)]
        if not names:
            raise InputError(f"there is no column {one!r} of scores; there are {_listed(rest)}")
        found += [name for name in names if name not in found]
    return found


def _label_columns(of_labels: Sequence[str], scores: Sequence[str]) -> tuple[str, ...]:
    """The columns of label values in the scores' order; InputError unless there is one for each label."""
    if not of_labels:
        return ()
    wanted = [OF_LABEL + name for name in scores]
    if set(wanted) != set(of_labels):
        raise InputError(
            "each label needs a column of scores NAME and one of truths label.NAME, and nothing is called "
            f"label; there are {_listed([*scores, *of_labels])}"
        )
    return tuple(wanted)


def check_plausible(names: Sequence[str], values: NDArray[Any], labels: NDArray[Any] | None) -> str:
    """Refuse columns (n, K) that are no classes, by name; return a remark on classes without a label.

    Rows that sum to 1, or 100, are probabilities of all columns, whatever these are called.

    >>> check_plausible(["cat", "dog", "age"], np.array([[0.2, 0.8, 53], [0.5, 0.5, 31]]), None)
    Traceback (most recent call last):
    calib_serve.core.errors.InputError: 'age' is no class, by its numbers: name the classes' columns ...
    """
    if values.shape[1] < 2 or _whole(values.sum(axis=1)):
        return ""
    low = [name.strip().lower() for name in names]
    wrong = [k for k, name in enumerate(low) if name in _NO_CLASS]
    if wrong:
        _refuse(names, wrong, "by its name")
    if wrong := _strange(values):
        _refuse(names, wrong, "by its numbers")
    return _never_named(names, values, labels)


def _strange(values: NDArray[Any]) -> list[int]:
    """Columns that are no class by their numbers: without them the rows sum to 1.

    Of logits those of whole numbers, and the others' confidence.
    """
    columns = values.T
    inside = np.array([bool(((c >= -1e-5) & (c <= 1 + 1e-5)).all()) for c in columns])
    total = values.sum(axis=1)
    if 2 <= inside.sum() < len(columns) and _whole(values[:, inside].sum(axis=1)):
        return np.flatnonzero(~inside).tolist()
    # A column that makes the sums wrong is found only where leaving it out alone mends them.
    if len(columns) > 2 and inside.all():
        alone = [k for k, column in enumerate(columns) if _whole(total - column)]
        if len(alone) == 1:
            return alone
    counts = np.array([_counts(column) for column in columns])
    if counts.any() and not counts.all() and len(values) >= _FEW:
        return np.flatnonzero(counts).tolist()
    if len(columns) > 2 and len(values) >= _FEW:
        top = np.sort(values, axis=1)[:, -2:]
        if (top[:, 0] == top[:, 1]).all():
            twice = [k for k, column in enumerate(columns) if (column == top[:, 1]).all()]
            return twice[:1]
        if inside.sum() == 1:
            confidence = softmax(values[:, ~inside]).max(axis=1)
            if np.allclose(columns[inside][0], confidence, atol=_SUM):
                return np.flatnonzero(inside).tolist()
    return []


def _counts(column: NDArray[Any]) -> bool:
    """Whether a column holds whole numbers, and not all the same."""
    return bool((column == np.floor(column)).all() and (column != column[0]).any())


def _whole(sums: NDArray[Any]) -> bool:
    return any(bool((np.abs(sums - whole) <= _SUM * whole).all()) for whole in (1.0, 100.0))


def _refuse(names: Sequence[str], wrong: Sequence[int], why: str) -> None:
    said = ", ".join(repr(names[k]) for k in wrong[:_SHOWN]) + (", ..." if len(wrong) > _SHOWN else "")
    are = "is no class" if len(wrong) == 1 else "are no classes"
    raise InputError(
        f"{said} {are}, {why}: name the classes' columns alone ({_by_pattern(names)}, columns=), or drop the "
        "others"
    )


def _by_pattern(names: Sequence[str]) -> str:
    """The option that takes the columns with the commonest prefix, such as prob_0 and prob_1.

    >>> _by_pattern(["image_id", "pred_label", "prob_0", "prob_1"]), _by_pattern(["cat", "dog", "age"])
    ("--columns 'prob_*'", '--columns')
    """
    begins = Counter(name.partition("_")[0] for name in names if "_" in name)
    most, count = max(begins.items(), key=lambda item: item[1], default=("", 0))
    return f"--columns '{most}_*'" if 1 < count < len(names) else "--columns"


def _never_named(names: Sequence[str], values: NDArray[Any], labels: NDArray[Any] | None) -> str:
    """A remark on columns that no label names; InputError if these are largest in most rows."""
    if labels is None or labels.ndim != 1 or len(labels) < _FEW:
        return ""
    distinct = labels if labels.dtype.kind == "O" else np.unique(labels)
    seen = {str(label).strip().removesuffix(".0") for label in distinct.tolist()}
    absent = [k for k, name in enumerate(names) if name not in seen]
    if len(absent) == len(names):
        absent = [k for k in range(len(names)) if str(k) not in seen]
    if not absent or len(absent) == len(names):
        return ""
    if np.isin(values.argmax(axis=1), absent).mean() > _MOST:
        _refuse(names, absent, "as no label is called so and most rows have them largest")
    return f"no label is called {_listed([names[k] for k in absent])}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:20])) + (", ..." if len(names) > 20 else "") or "none"


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
                f"({_by_pattern(names)}, columns=), or that of the labels 'label'"
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
