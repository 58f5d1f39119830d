"""The monitor's sums of predictions by group and window.

The sums are those that ``calib_serve.receipts.series`` declares, of columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calib_serve.core.errors import InputError
from calib_serve.integrations.audit.expressions import FATES, LABELLED, SERVED, AuditQuery
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
