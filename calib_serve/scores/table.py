"""The columns of a table of scores: classes, label, weight, group and id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.core.names import shown
from calib_serve.core.text import NAMED_IN_A_MESSAGE
from calib_serve.scores.kinds import Outputs, softmax
from calib_serve.scores.recognition import FEW, SUM_OF_DECIMALS

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
    if counts.any() and not counts.all() and len(values) >= FEW:
        return np.flatnonzero(counts).tolist()
    if len(columns) > 2 and len(values) >= FEW:
        top = np.sort(values, axis=1)[:, -2:]
        if (top[:, 0] == top[:, 1]).all():
            twice = [k for k, column in enumerate(columns) if (column == top[:, 1]).all()]
            return twice[:1]
        if inside.sum() == 1:
            confidence = softmax(values[:, ~inside]).max(axis=1)
            if np.allclose(columns[inside][0], confidence, atol=SUM_OF_DECIMALS):
                return np.flatnonzero(inside).tolist()
    return []


def _counts(column: NDArray[Any]) -> bool:
    """Whether a column holds whole numbers, and not all the same."""
    return bool((column == np.floor(column)).all() and (column != column[0]).any())


def _whole(sums: NDArray[Any]) -> bool:
    return any(bool((np.abs(sums - whole) <= SUM_OF_DECIMALS * whole).all()) for whole in (1.0, 100.0))


def _refuse(names: Sequence[str], wrong: Sequence[int], why: str) -> None:
    more = ", ..." if len(wrong) > NAMED_IN_A_MESSAGE else ""
    said = ", ".join(repr(names[k]) for k in wrong[:NAMED_IN_A_MESSAGE]) + more
    are = "is no class" if len(wrong) == 1 else "are no classes"
    raise InputError(
        f"{said} {are}, {why}: name the classes' columns alone ({by_pattern(names)}, columns=), or drop the "
        "others"
    )


def by_pattern(names: Sequence[str]) -> str:
    """The option that takes the columns with the commonest prefix, such as prob_0 and prob_1.

    >>> by_pattern(["image_id", "pred_label", "prob_0", "prob_1"]), by_pattern(["cat", "dog", "age"])
    ("--columns 'prob_*'", '--columns')
    """
    begins = Counter(name.partition("_")[0] for name in names if "_" in name)
    most, count = max(begins.items(), key=lambda item: item[1], default=("", 0))
    return f"--columns '{most}_*'" if 1 < count < len(names) else "--columns"


def _never_named(names: Sequence[str], values: NDArray[Any], labels: NDArray[Any] | None) -> str:
    """A remark on columns that no label names; InputError if these are largest in most rows."""
    if labels is None or labels.ndim != 1 or len(labels) < FEW:
        return ""
    distinct = labels if labels.dtype.kind == "O" else np.unique(labels)
    seen = {str(label).strip().removesuffix(".0") for label in distinct.tolist()}
    absent = [k for k, name in enumerate(names) if name not in seen]
    if len(absent) == len(names):
        absent = [k for k in range(len(names)) if str(k) not in seen]
    if not absent or len(absent) == len(names):
        return ""
    if np.isin(values.argmax(axis=1), absent).mean() > 0.5:
        _refuse(names, absent, "as no label is called so and most rows have them largest")
    return f"no label is called {_listed([names[k] for k in absent])}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:20])) + (", ..." if len(names) > 20 else "") or "none"
