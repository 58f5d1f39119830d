"""The monitor's sums of predictions by group and window, and the ranks of their confidences.

The sums are those that ``calib_serve.receipts.series`` declares, of columns. What needs the order of all
confidences, AUROC and the equal-mass ECE, is found by window functions: equal confidences are one row, so
ties count half in the one and share their correct answers in the other, as in ``calib_serve.metrics``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calib_serve.core.errors import InputError
from calib_serve.integrations.audit.expressions import FATES, LABELLED, SERVED, AuditQuery
from calib_serve.metrics import equal_mass_edges
from calib_serve.receipts import SUMS, Sums

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


def _place_of(row: Mapping[str, Any], asked: AuditQuery) -> Place:
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
        there = values.setdefault(_place_of(row, asked), defaultdict(float))
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
        places.setdefault(_place_of(row, asked), []).append(row)
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
