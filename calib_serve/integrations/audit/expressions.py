"""Queries of the monitor's sums: predictions joined with their labels, grouped, and ranked.

Each prediction has one fate. The sums are those that ``calib_serve.receipts.series`` declares, of columns.
What needs the order of all confidences, AUROC and the equal-mass ECE, is found by window functions: equal
confidences are one row, so ties count half in the one and share their correct answers in the other, as in
``calib_serve.metrics``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from calib_serve.core.bins import check_binning
from calib_serve.core.errors import InputError
from calib_serve.metrics import equal_mass_edges
from calib_serve.receipts import SUMS, Sums

FATES = ("labelled", "unlabelled", "conflicting", "repeated", "id", "class", "confidence", "weight", "time")
"""What becomes of a prediction; a number in expressions.

``labelled`` ones are measured. ``conflicting`` labels of one id that differ count as none, and so do several
predictions of one id that differ, ``repeated``. The others are refused for a column that holds no value, or
one that cannot be.
"""
LABELLED, SERVED, REFUSED = 0, (0, 1, 2), (3, 4, 5, 6, 7, 8)
_CONFLICTING, _REPEATED = 2, 3

_KINDS = {"integer": "is_integer", "text": "is_string", "boolean": "is_boolean"}
_LATEST = 1e11  # seconds, in the year 5138; milliseconds since 1970 are beyond it


@dataclass(frozen=True)
class Columns:
    """The name of each column in the user's tables.

    Args:
        id: Id of the prediction, of predictions and labels.
        predicted: Predicted class.
        confidence: Top-1 confidence, in [0, 1].
        label: True class, of labels.
        model: Name of the model; it may be missing.
        version: Its version; it may be missing.
        time: When it was predicted; it may be missing.
        weight: One over the chance with which the label was asked for, at least 1; it may be missing.

    >>> Columns(confidence="score").confidence, Columns().label
    ('score', 'label')
    """

    id: str = "id"
    predicted: str = "predicted"
    confidence: str = "confidence"
    label: str = "label"
    model: str = "model"
    version: str = "version"
    time: str = "time"
    weight: str = "weight"

    def __post_init__(self) -> None:
        for one in fields(self):
            if not isinstance(getattr(self, one.name), str) or not getattr(self, one.name):
                raise InputError(
                    f"the column of the {one.name} must have a name, got {getattr(self, one.name)!r}"
                )


def check_columns(table: Any, names: Sequence[str], *, what: str, where: str) -> None:
    """Raise InputError unless the table has all these columns."""
    if missing := [name for name in names if name not in table.columns]:
        have = ", ".join(table.columns[:20])
        # Of a name that the user gave there is nothing more to say.
        own = next((name for name in missing if name in vars(Columns())), None)
        hint = f". If it is called otherwise, say --column {own}=NAME" if own else ""
        raise InputError(f"{what} {where}: no column {', '.join(missing)}; it has {have}{hint}")


def check_alike(one: Any, other: Any, *, what: str) -> None:
    """Raise InputError where two columns hold values that are never equal, such as text and numbers."""
    if _kind(one) != _kind(other):
        raise InputError(
            f"{what} cannot be compared: {one.get_name()} is {one.type()}, {other.get_name()} is "
            f"{other.type()}; cast one of them to the type of the other"
        )
    if "float" in _kind(one):
        raise InputError(f"{what} must be integers, text or booleans, got {one.type()}; cast them")


def _kind(column: Any) -> str:
    kind = column.type()
    if kind.is_decimal() and not kind.scale:  # how some warehouses call integers
        return "integer"
    return next((name for name, is_it in _KINDS.items() if getattr(kind, is_it)()), str(kind))


def _number(column: Any, *, what: str) -> Any:
    """The column in float64; InputError where it holds no numbers."""
    kind = column.type()
    if not kind.is_numeric() or kind.is_boolean():
        raise InputError(f"{what} must be numbers, got {column.get_name()} of type {kind}")
    return column if kind.is_float64() and kind.nullable else column.cast("float64")


def seconds(column: Any) -> Any:
    """Convert a time with its zone, or a number of seconds, to whole seconds since 1970 in UTC.

    InputError for a time without a zone: which moment it was is not known.
    """
    kind = column.type()
    if kind.is_numeric() and not kind.is_boolean():
        moment = column.cast("float64")
        # Milliseconds taken for seconds would lie in the year 50000, and be counted nowhere.
        known = ((moment > -_LATEST) & (moment < _LATEST) & ~moment.isnan()).fill_null(False)
        return known.ifelse(moment, None).floor().cast("int64")
    if not kind.is_timestamp():
        raise InputError(
            f"the time of predictions must be a timestamp with a zone, or seconds since 1970, got "
            f"{column.get_name()} of type {kind}"
        )
    if kind.timezone is None:
        raise InputError(
            f"the times in {column.get_name()} have no zone, so which moment they are is not known; write "
            "them as UTC (timestamp with time zone), or as seconds since 1970"
        )
    return column.epoch_seconds().cast("float64").floor().cast("int64")


@dataclass(frozen=True)
class AuditQuery:
    """A query of the logs: by which columns ``by``, from ``since`` until before ``until``, in windows.

    Times are whole seconds since 1970 in UTC; None is without an end, or one window. ``unique``: nobody looks
    whether ids are repeated.
    """

    columns: Columns
    by: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    every: int | None = None
    bins: int = 15
    unique: bool = False

    def __post_init__(self) -> None:
        check_binning(self.bins, "right")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InputError("since must lie before until: no prediction is between them")
        if self.every is not None and self.every < 1:
            raise InputError(f"windows are of whole seconds, at least 1, got {self.every}")
        if len(set(self.by)) < len(self.by):
            raise InputError(f"a column is named twice to group by: {', '.join(self.by)}")

    @property
    def timed(self) -> bool:
        """Whether the query reads times."""
        return not (self.since is None and self.until is None and self.every is None)

    @property
    def start(self) -> int:
        """The start of the first window, or of one a whole number of windows from it."""
        return self.since or 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of an expression that name a prediction's group and window."""
        return (*by_name(self.by), *(("at",) if self.every else ()))


def by_name(by: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns to group by in expressions: the user's names may clash with ours."""
    return tuple(f"by{i}" for i in range(len(by)))


def prediction_rows(table: Any, asked: AuditQuery, *, where: str) -> Any:
    """Select the predictions in the window: id, predicted, confidence, weight, and where they count."""
    import ibis  # noqa: PLC0415

    names = asked.columns
    needed = [names.id, names.predicted, names.confidence, *asked.by, *([names.time] if asked.timed else [])]
    check_columns(table, needed, what="predictions", where=where)
    confidence = _number(table[names.confidence], what="confidences")
    # DuckDB knows the largest number of a Parquet file, NaN aside, and compares that.
    fits = ((confidence >= 0) & (confidence <= 1) & ~confidence.isnan()).fill_null(False)
    refused = [
        (table[names.id].isnull(), "id"),
        (table[names.predicted].isnull(), "class"),
        (~fits, "confidence"),
    ]
    made = {
        "id": table[names.id],
        "predicted": table[names.predicted],
        # A sum over what is refused is of no use, and in some engines an error.
        "confidence": fits.ifelse(confidence, 0.0),
        **{
            short: table[name].cast("string") for short, name in zip(by_name(asked.by), asked.by, strict=True)
        },
    }
    if names.weight in table.columns:
        weight = _number(table[names.weight], what="weights")
        weighs = ((weight >= 1) & ~weight.isinf() & ~weight.isnan()).fill_null(False)
        made["weight"] = weighs.ifelse(weight, 1.0)
        refused.append((~weighs, "weight"))
    if asked.timed:
        made["at"] = seconds(table[names.time])
        refused.append((made["at"].isnull(), "time"))
    made["refused"] = ibis.cases(*((case, FATES.index(name)) for case, name in refused), else_=0)
    rows = table.select(**made)
    if asked.since is not None:
        rows = rows.filter(rows["at"].isnull() | (rows["at"] >= asked.since))
    if asked.until is not None:
        rows = rows.filter(rows["at"].isnull() | (rows["at"] < asked.until))
    if asked.every:
        window = ((rows["at"] - asked.start).cast("float64") / float(asked.every)).floor().cast("int64")
        rows = rows.mutate(at=window)
    elif asked.timed:
        rows = rows.drop("at")
    return rows


def label_rows(table: Any, asked: AuditQuery, *, where: str) -> Any:
    """The labels that have an id and a value: ``id`` and ``label``."""
    names = asked.columns
    check_columns(table, [names.id, names.label], what="labels", where=where)
    rows = table.select(id=table[names.id], label=table[names.label])
    return rows.filter(rows["id"].notnull() & rows["label"].notnull())


def joined(predictions: Any, labels: Any, asked: AuditQuery, *, repeats: bool) -> Any:
    """Join each prediction with its ``fate``, whether it is ``correct``, its ``bin`` and its label count.

    ``repeats``: some ids have several predictions. Alike ones count once, and others as ``repeated``.
    """
    import ibis  # noqa: PLC0415

    check_alike(predictions["id"], labels["id"], what="ids of predictions and labels")
    check_alike(predictions["predicted"], labels["label"], what="predicted classes and labels")
    if repeats:
        predictions = _of_one_id(predictions)
    if not asked.unique:
        each = labels.group_by("id")
        # One pass tells the label, and whether several of one id differ.
        labels = each.agg(label=labels["label"].min(), other=labels["label"].max(), rows=labels.count())
    else:
        labels = labels.mutate(rows=1)
    labels = labels.rename(label_id="id")
    both = predictions.left_join(labels, predictions["id"] == labels["label_id"])
    fate = [(both["refused"] > 0, both["refused"]), (both["rows"].isnull(), 1)]
    if not asked.unique:
        fate.append((both["label"] != both["other"], _CONFLICTING))
    return both.mutate(
        fate=ibis.cases(*fate, else_=LABELLED).cast("int8"),
        correct=(both["predicted"] == both["label"]).ifelse(1, 0).cast("float64"),
        bin=_bin(both["confidence"], asked.bins),
        # Several predictions of one id share its labels.
        rows=both["rows"].fill_null(0) / both["alike"] if repeats else both["rows"].fill_null(0),
    )


def _of_one_id(predictions: Any) -> Any:
    """Each distinct prediction once, with the number ``alike`` that share its id.

    Several of one id are refused.
    """
    import ibis  # noqa: PLC0415

    rows = predictions.distinct()
    rows = rows.mutate(alike=rows["id"].count().over(ibis.window(group_by="id")))
    several = rows["alike"] > 1
    rows = rows.mutate(refused=several.ifelse(_REPEATED, rows["refused"]))
    return rows.mutate(alike=ibis.greatest(rows["alike"], 1))  # 0 without an id


def _bin(confidence: Any, bins: int) -> Any:
    """Return the right-closed bin of each confidence in [0, 1], as ``core.bins.bin_index`` has it.

    The same edges to the last bit: multiples of 1 / bins, which numpy's linspace makes too.
    """
    import ibis  # noqa: PLC0415

    # Of a text, as engines read a number with a point as a decimal, and round it.
    step = ibis.literal(repr(1 / bins)).cast("float64")
    below = (confidence * float(bins)).floor()
    index = below + (confidence > (below + 1).cast("float64") * step).ifelse(1, 0)
    # Multiplication rounds: a product that is one too high, on the edge itself, is put right as well.
    index = index - (confidence <= below.cast("float64") * step).ifelse(1, 0)
    return ibis.least(ibis.greatest(index, 0), bins - 1)


MOST = 2000
"""Groups and windows in all; more are no longer a report."""

Place = tuple[tuple[str, ...], int | None]
"""The values of the columns grouped by, and the number of the window."""


@dataclass(frozen=True)
class Term:
    """A column, or 1 where ``column`` is None: so that no engine is asked for w^0 or 1 * c.

    >>> (Term() * Term(0.5)).column, (Term(0.5) * (1 - Term(0.25))).column, (Term(0.5) ** 0).column
    (0.5, 0.375, None)
    """

    column: Any = None

    def __mul__(self, other: Any) -> Term:
        other = other if isinstance(other, Term) else Term(other)
        if self.column is None or other.column is None:
            return other if self.column is None else self
        return Term(self.column * other.column)

    def __sub__(self, other: Any) -> Term:
        return Term(self._value - (other._value if isinstance(other, Term) else other))

    def __rsub__(self, other: Any) -> Term:
        return Term(other - self._value)

    def __pow__(self, exponent: int) -> Term:
        return Term() if exponent == 0 else self if exponent == 1 else self * self ** (exponent - 1)

    @property
    def _value(self) -> Any:
        return 1.0 if self.column is None else self.column


def grouped(rows: Any, asked: AuditQuery) -> Any:
    """A row for each place, fate and bin: ``n`` predictions, ``label_rows``, and sums by name."""
    c, y = Term(rows["confidence"]), Term(rows["correct"])
    weight = Term(rows["weight"]) if "weight" in rows.columns else Term()
    sums = {}
    for one in SUMS:
        if one.per == "delay":  # a log of labels does not say when they came
            continue
        term = one.adds(c, y if one.of == "labels" else Term(0.0), weight if one.of == "labels" else Term())
        if term.column is not None:
            sums[one.name] = term.column.sum()
    keys = [*asked.keys, "fate", "bin"]
    return rows.group_by(keys).agg(n=rows.count(), label_rows=rows["rows"].sum(), **sums)


@dataclass(frozen=True)
class Counted:
    """The result of the group-by: ``sums`` of each place.

    By fate, predictions and the rows of their labels.
    """

    sums: dict[Place, Sums]
    fates: dict[str, int]
    label_rows: dict[str, int]


def place_of(row: Mapping[str, Any], asked: AuditQuery) -> Place:
    """The group and window of a row of ``grouped``; a missing value counts as ""."""
    keys = tuple("" if row[f"by{i}"] is None else str(row[f"by{i}"]) for i in range(len(asked.by)))
    return keys, row["at"] if asked.every else None


def counted(rows: Sequence[Mapping[str, Any]], asked: AuditQuery, *, most: int) -> Counted:
    """Read the monitor's sums from the rows of ``grouped``.

    Raises InputError for ``most`` rows or many groups.
    """
    fates: Counter[str] = Counter()
    labels: defaultdict[str, float] = defaultdict(float)
    values: dict[Place, dict[tuple[str, int], float]] = {}
    for row in rows:
        fate = int(row["fate"])
        fates[FATES[fate]] += int(row["n"])
        labels[FATES[fate]] += float(row["label_rows"])
        if fate not in SERVED:
            continue
        there = values.setdefault(place_of(row, asked), defaultdict(float))
        for one in SUMS:
            if one.per == "delay" or (one.of == "labels" and fate != LABELLED):
                continue
            at = int(row["bin"])
            there[one.name, at] += float(row.get(one.name, row["n"]))
    if len(values) > MOST or len(rows) >= most:
        raise InputError(
            f"more than {MOST} groups and windows; group by fewer columns (--by), or have longer windows "
            "(--every)"
        )
    sums = {place: Sums.zeros(asked.bins).with_values(v) for place, v in sorted(values.items())}
    return Counted(sums, {f: fates[f] for f in FATES}, {f: round(labels[f]) for f in FATES})


@dataclass(frozen=True)
class Ranks:
    """``auroc`` of confidence for right against wrong predictions, weighted; ``adaptive_ece``.

    NaN where it is not told: the AUROC if all are right or all wrong, the ECE of weighted predictions.
    """

    auroc: float
    adaptive_ece: float


def ranked(rows: Any, asked: AuditQuery) -> Any:
    """A row for each place and pair of equal-mass bins in which a confidence begins and ends.

    A pair of two different bins is of one confidence alone, as two cannot both lie over an edge.
    """
    import ibis  # noqa: PLC0415

    rows = rows.filter(rows["fate"] == LABELLED)
    keys = list(asked.keys)
    right, wrong = rows["correct"], 1.0 - rows["correct"]
    weight = rows["weight"] if "weight" in rows.columns else None
    steps = rows.group_by([*keys, "confidence"]).agg(
        n=rows.count(),
        right=right.sum(),
        heavy=(right if weight is None else weight * right).sum(),
        light=(wrong if weight is None else weight * wrong).sum(),
    )
    so_far = ibis.cumulative_window(group_by=keys or None, order_by="confidence")
    whole = ibis.window(group_by=keys or None)
    steps = steps.mutate(
        after=steps["n"].sum().over(so_far).cast("int64"),
        total=steps["n"].sum().over(whole).cast("int64"),
        below=steps["light"].sum().over(so_far) - steps["light"] / 2.0,
    )
    first = _bin_of_rank(steps["after"] - steps["n"], steps["total"], asked.bins)
    last = _bin_of_rank(steps["after"] - 1, steps["total"], asked.bins)
    steps = steps.mutate(first=first, last=last)
    return steps.group_by([*keys, "first", "last"]).agg(
        n=steps["n"].sum().cast("int64"),
        before=(steps["after"] - steps["n"]).min(),
        confidence=(steps["n"].cast("float64") * steps["confidence"]).sum(),
        right=steps["right"].sum(),
        heavy=steps["heavy"].sum(),
        light=steps["light"].sum(),
        pairs=(steps["heavy"] * steps["below"]).sum(),
    )


def _bin_of_rank(rank: Any, total: Any, bins: int) -> Any:
    """The equal-mass bin of a rank from 0, by the rule of ``equal_mass_edges``."""
    import ibis  # noqa: PLC0415

    size, longer = total // bins, total % bins
    in_longer = longer * (size + 1)
    small = longer + (rank - in_longer) // ibis.greatest(size, 1)
    return (rank < in_longer).ifelse(rank // (size + 1), small).cast("int64")


def ranks_of(rows: Iterable[Mapping[str, Any]], asked: AuditQuery, *, weighted: bool) -> dict[Place, Ranks]:
    """Read the metrics of each place from the rows of ``ranked``."""
    places: dict[Place, list[Mapping[str, Any]]] = {}
    for row in rows:
        places.setdefault(place_of(row, asked), []).append(row)
    return {
        place: Ranks(_auroc(found), math.nan if weighted else _adaptive_ece(found, asked.bins))
        for place, found in places.items()
    }


def _auroc(rows: Iterable[Mapping[str, Any]]) -> float:
    right, wrong, pairs = (
        math.fsum(float(row[name]) for row in rows) for name in ("heavy", "light", "pairs")
    )
    return pairs / right / wrong if right and wrong else math.nan


def _adaptive_ece(rows: Iterable[Mapping[str, Any]], bins: int) -> float:
    gaps, total = np.zeros(bins), sum(int(row["n"]) for row in rows)
    edges = equal_mass_edges(total, bins)
    for row in rows:
        n, before, gap = int(row["n"]), int(row["before"]), float(row["confidence"]) - float(row["right"])
        if row["first"] == row["last"]:
            gaps[int(row["first"])] += gap
        else:  # equal confidences over an edge: each bin has its share of them
            inside = np.minimum(edges[1:], before + n) - np.maximum(edges[:-1], before)
            gaps += np.maximum(inside, 0) / n * gap
    return float(np.abs(gaps).sum() / total)
