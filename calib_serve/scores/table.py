"""Columns and arrays by role: scores of a kind that their names say, label, weight, group, id and split.

Nothing here looks at numbers: what a name does not say is refused, or left out and told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from typing import NamedTuple

from calib_serve.core.errors import InputError
from calib_serve.core.names import shown
from calib_serve.core.text import NAMED_IN_A_MESSAGE

OF_LABEL = "label."
"""And the name of a label: a column of whether it is true."""

OF_ROWS = "of rows, not of a class"
"""Why columns of row names and folds are left out."""
_KINDS = {
    **dict.fromkeys(("label_logit", "label_logits"), "label_logits"),
    **dict.fromkeys(("label_prob", "label_probs", "label_probabilities"), "label_probabilities"),
    **dict.fromkeys(("logprob", "logprobs", "log_prob", "log_probs", "log_proba", "log_probas"), "log_probs"),
    **dict.fromkeys(("log_probability", "log_probabilities"), "log_probs"),
    **dict.fromkeys(("logit", "logits"), "logits"),
    **dict.fromkeys(("prob", "probs", "proba", "probas", "probability", "probabilities"), "probabilities"),
    **dict.fromkeys(("percent", "pct"), "percent"),
}
"""What words in names of columns and arrays say of their numbers, longer ones before those they hold."""
_WORDS = "|".join(_KINDS)
_BEGINS = re.compile(rf"({_WORDS}|p)(?:_+(.+)|\(([^()]+)\)|(\d+))?", re.IGNORECASE)
_ENDS = re.compile(rf"(.+?)_+({'|'.join(w for w in _KINDS if not w.startswith('label'))})", re.IGNORECASE)
_OTHER_SCORES = re.compile(r"(^|_)(raw\w*|scores?|margins?|decision\w*|calibrated)(_|$)", re.IGNORECASE)
"""Names of scores that say no kind: beside one column that does, either may be meant."""

_ROLES = {
    "label": (
        *("label", "labels", "target", "targets", "truth", "y", "y_true", "class"),
        *("ground_truth", "true_label"),
    ),
    "split": ("split",),
    "weight": ("weight", "weights", "sample_weight"),
    "group": ("group", "groups"),
    "id": ("id", "ids", "sample_id"),
}
_OF_ROLES = {*chain(*_ROLES.values())}
TAKEN = {
    "weight": "weighs the rows",
    "group": "says which rows belong together",
    "id": "names the rows",
    "source": "says which source each row is of",
}
"""What a column of a role does, to be said."""
_NO_CLASS = ("", "index", "level_0", "rownames", "row.names", "fold", "folds", "cv_fold")
"""Names of rows and of folds, which are of no use here. pandas calls others "Unnamed: 0"."""

_OPTION = {
    "label": "--labels, labels=",
    "weight": "schema --sample-weight, sample_weight=",
    "group": "schema --groups, groups=",
}
"""The option that says which column is of a role."""


class NameSays(NamedTuple):
    """What a column's name says: the kind of its scores, and of which class, or an empty text."""

    kind: str
    of: str


def said_by(name: str) -> NameSays | None:
    """What a column's or an array's name says of its scores, if it does.

    >>> said_by("prob_cat"), said_by("y_pred_proba"), said_by("score")
    (NameSays(kind='probabilities', of='cat'), NameSays(kind='probabilities', of='y_pred'), None)
    >>> said_by("p1"), said_by("log-prob")
    (NameSays(kind='probabilities', of='1'), NameSays(kind='log_probs', of=''))
    """
    text = name.strip()
    plain = re.sub(r"[\s.:-]", "_", text)  # as long as the name, whose own letters are the class's
    if found := _BEGINS.fullmatch(plain):
        word, k = found[1], next((k for k in (2, 3, 4) if found[k]), 0)
        return NameSays(_KINDS.get(word.lower(), "probabilities"), text[slice(*found.span(k))] if k else "")
    found = _ENDS.fullmatch(plain)
    return NameSays(_KINDS[found[2].lower()], text[: found.end(1)]) if found else None


@dataclass(frozen=True)
class Roles:
    """Columns by role: ``scores`` in order, the other roles or None, and ``left_out`` ones with the reason.

    ``kind``: what the names of the scores say, or None; ``classes``: what they are called in these names;
    ``label_columns``: the columns label.NAME of a multi-label model; ``asked``: the user named the scores.
    """

    scores: tuple[str, ...]
    label: str | None = None
    split: str | None = None
    weight: str | None = None
    group: str | None = None
    id: str | None = None
    source: str | None = None
    label_columns: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    asked: bool = False
    kind: str | None = None
    classes: tuple[str, ...] = ()

    @property
    def beside(self) -> dict[str, str]:
        """The columns of one value a row that belong to the scores, by what they are."""
        kinds = ("label", "weight", "group", "id", "source")
        named = {what: getattr(self, what) for what in kinds}
        return {what: name for what, name in named.items() if name is not None}

    @property
    def read(self) -> list[str]:
        """The columns that are read of a file: those of a role, and of rows, whose name may be a class's."""
        rows = (name for name, why in self.left_out.items() if why == OF_ROWS)
        split = () if self.split is None else (self.split,)
        return [*self.scores, *self.beside.values(), *self.label_columns, *split, *rows]


@dataclass(frozen=True)
class Asked:
    """What is asked of a table, or known of it before.

    ``columns``: those of the classes, names or patterns such as ``p_*``; ``beside``: the names of label,
    weight, group, id and source, as the user calls them; ``expected``: an artifact's columns, and
    ``classes``: names of all classes, which are the scores where all are there; ``told``: whether the kind
    of the scores is.
    """

    columns: Sequence[str] | None = None
    beside: Mapping[str, str] = field(default_factory=dict)
    expected: Sequence[str] = ()
    classes: Sequence[str] = ()
    told: bool = False


def roles_of(
    names: Sequence[str],
    asked: Asked,
    *,
    called: Collection[str] = (),
    index: Sequence[str] = (),
) -> Roles:
    """Find what each named column is.

    ``called``: names that labels have, which are no roles; ``index``: row names, as the file says. InputError
    where a column is not there, and where several could be the label.

    >>> roles = roles_of(["id", "prob_cat", "prob_dog", "age", "label", "Unnamed: 0"], Asked())
    >>> roles.scores, roles.kind, roles.classes, roles.label, roles.id, roles.left_out["age"]
    (('prob_cat', 'prob_dog'), 'probabilities', ('cat', 'dog'), 'label', 'id', 'says no probabilities')
    """
    columns = asked.columns
    found: dict[str, str | None] = {**asked.beside}
    for what, name in found.items():
        if name not in names:
            raise InputError(f"there is no column {name!r} for the {what}; there are {few(names)}")
    taken = [name for name in names if name in found.values()]
    for known in (asked.expected, asked.classes):
        if columns is None and known and {*known} <= {*names} - {*taken}:
            columns = known
    chosen = None if columns is None else _asked_for(columns, [name for name in names if name not in taken])
    free = [n for n in names if n not in {*taken, *(chosen or ()), *asked.classes, *called}]
    of_labels = [name for name in free if name.startswith(OF_LABEL)]
    for what, known in _ROLES.items():
        may_be = [name for name in free if name.strip().lower() in known]
        if what not in found and not (what == "label" and of_labels):
            if len(may_be) > 1:
                raise InputError(
                    f"the {what} may be in {' or in '.join(map(repr, may_be))}: say which "
                    f"({_OPTION.get(what, '--columns, columns=')})"
                )
            found[what] = may_be[0] if may_be else None
    rest = [name for name in names if name not in found.values() and name not in of_labels]
    left_out = {n: OF_ROWS for n in rest if n in free and _of_rows(n, index)}
    if chosen is None:
        chosen = [name for name in rest if name not in left_out]
        if of_labels:
            chosen = [name for name in chosen if {OF_LABEL + name, OF_LABEL + _class_of(name)} & {*of_labels}]
            left_out |= {n: "no label has its name" for n in rest if n not in (*chosen, *left_out)}
        elif families := _families(chosen):
            if len(families) > 1:
                ways = " or ".join(f"{kind} {few(held)}" for kind, held in families.items())
                raise InputError(f"the scores may be the {ways}: say which (--columns, columns=)")
            ((kind, chosen),) = families.items()
            others = [n for n in rest if n not in (*chosen, *left_out) and _OTHER_SCORES.search(n)]
            if len(chosen) == 1 and others:
                raise InputError(
                    f"the scores may be in {' or in '.join(map(repr, [*chosen, *others]))}: say which "
                    "(--columns, columns=)"
                )
            left_out |= {n: f"says no {kind}" for n in rest if n not in (*chosen, *left_out)}
    left_out |= {n: "not asked for" for n in rest if n not in (*chosen, *left_out)}
    said = [said_by(name) for name in chosen]
    kinds = {one.kind for one in said if one is not None} if None not in said else set()
    return Roles(
        tuple(chosen),
        **found,
        label_columns=_label_columns(of_labels, chosen) if of_labels else (),
        left_out=left_out,
        asked=columns is not None,
        kind=kinds.pop() if len(kinds) == 1 else None,
        classes=tuple(one.of for one in said if one is not None) if None not in said else (),
    )


def _of_rows(name: str, index: Sequence[str]) -> bool:
    low = name.strip().lower()
    return name in index or low in _NO_CLASS or low.startswith(("unnamed:", "__index"))


def _class_of(name: str) -> str:
    said = said_by(name)
    return name if said is None else said.of


def _families(names: Sequence[str]) -> dict[str, list[str]]:
    """The columns whose names say a kind, by kind."""
    found: dict[str, list[str]] = {}
    for name in names:
        if (said := said_by(name)) is not None:
            found.setdefault(said.kind, []).append(name)
    return found


def _asked_for(columns: Sequence[str], rest: Sequence[str]) -> list[str]:
    found: list[str] = []
    # A column of a role is a class only by its own name: * means the others.
    free = [name for name in rest if name.strip().lower() not in _OF_ROLES]
    for one in columns:
        names = [one] if one in rest else [name for name in free if fnmatchcase(name, one)]
        if not names:
            raise InputError(f"there is no column {one!r} of scores (--columns); there are {few(rest)}")
        found += [name for name in names if name not in found]
    return found


def _label_columns(of_labels: Sequence[str], scores: Sequence[str]) -> tuple[str, ...]:
    """The columns of label values in the scores' order; InputError unless there is one for each label."""
    wanted = [OF_LABEL + (name if OF_LABEL + name in of_labels else _class_of(name)) for name in scores]
    if set(wanted) != set(of_labels):
        raise InputError(
            "each label needs a column of scores NAME and one of truths label.NAME, and nothing is called "
            f"label; there are {few([*scores, *of_labels])}"
        )
    return tuple(wanted)


def by_pattern(names: Sequence[str]) -> str:
    """The option that takes the columns with the commonest prefix, such as prob_0 and prob_1.

    >>> by_pattern(["image_id", "pred_label", "prob_0", "prob_1"]), by_pattern(["cat", "dog", "age"])
    ("--columns 'prob_*'", '--columns')
    """
    begins = Counter(name.partition("_")[0] for name in names if "_" in name)
    most, count = max(begins.items(), key=lambda item: item[1], default=("", 0))
    return f"--columns '{most}_*'" if 1 < count < len(names) else "--columns"


def few(names: Sequence[object]) -> str:
    """Names or labels in a sentence, the first of many."""
    first = ", ".join(map(shown, names[:NAMED_IN_A_MESSAGE]))
    return first + (", ..." if len(names) > NAMED_IN_A_MESSAGE else "") or "none"
