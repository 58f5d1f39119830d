"""Sums of a ledger by slice and span, kept in memory, so that a look reads what changed since the last one.

Each transaction that changes sums notes their places in ``span``, with a number that grows. A look reads
the places of numbers that it has not seen, whoever wrote them. Sums of a window are those of its days, in
their order, and a day's those of its spans: so they are the same to the last bit, kept or read anew.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, literal_column, select, text

from calib_serve.core.arrays import Floats
from calib_serve.ledger.database import Database
from calib_serve.ledger.entries import Bucket, WindowSums
from calib_serve.ledger.schema import COLUMNS, DELAY, EDITION, SPAN, TALLY, VERSION
from calib_serve.receipts import DAY, Key, Kind, Sums, Version

Place = tuple[float, float]
"""Start and width of a span."""

Fresh = Mapping[Bucket, Sums]
WHOLE: Place = (0.0, 0.0)  # all time
FAR = 1e15  # seconds: no prediction is that far from 1970
_COUNTED = ("calib_predictions_total", "calib_feedback_total")
_KEEP = DAY  # seconds after which a version is read anew, and what became too old for any window is let go


@dataclass(frozen=True, eq=False)
class _Leaf:
    """The sums of one span that are not 0, by their places ``at``; ``counts``: of the version (2, bins)."""

    at: NDArray[np.intp]
    values: Floats
    counts: Floats


class Spans:
    """Sums of a version, of one moment.

    Args:
        bins: Number of bins of confidence.
        keys: Slices, in the order of their sums.
        leaves: Sums by place.
        days: Sums of whole days that are known.
    """

    def __init__(
        self, bins: int, keys: tuple[Key, ...], leaves: Mapping[Place, _Leaf], days: dict[float, Floats]
    ) -> None:
        self.bins, self._keys, self._leaves, self._days = bins, keys, leaves, days
        self._segments = sorted((key, i) for i, key in enumerate(keys) if key.kind == "segment")
        self._length = _length(bins)
        self._by_day: dict[float, list[Place]] = {}
        for place in sorted(place for place in leaves if place[1]):
            self._by_day.setdefault(place[0] // DAY * DAY, []).append(place)
        self._known: dict[tuple[float, float, bool], Floats] = {}
        places = [place for of in self._by_day.values() for place in of]
        self._starts = np.array([start for start, _ in places])
        self._ends = np.array([start + width for start, width in places])
        self._counts = np.array([leaves[place].counts for place in places]).reshape(-1, 2, bins)

    def all_time(self, kind: Kind | None = None) -> dict[Key, Sums]:
        """The sums over all time by slice; ``kind``: of the slices, None: every kind."""
        return self._in(WHOLE, kind) if WHOLE in self._leaves else {}

    def slices(self, since: float, until: float, *, young: bool = False) -> dict[Key, Sums]:
        """The sums of spans that lie whole in [since, until), by slice.

        Args:
            since: Seconds since 1970.
            until: Seconds since 1970.
            young: Whether those of the other spans that begin at ``since`` or later are meant.
        """
        found = self._between(since, until, young)
        return self._sliced(found, np.flatnonzero(found.any(axis=1)), None)

    def whole(self, since: float, until: float, *, young: bool = False) -> Sums:
        """The sums of ``slices`` over the segments: those of the version.

        Args:
            since: Seconds since 1970.
            until: Seconds since 1970.
            young: As of ``slices``.
        """
        found = self._between(since, until, young)
        rows = [found[i] for _, i in self._segments]
        return Sums(self.bins, np.add.reduce(rows)) if rows else Sums.zeros(self.bins)

    def dated(self, since: float, until: float, kind: Kind | None = None) -> list[WindowSums]:
        """The sums by slice and span, oldest first, of spans that lie whole in [since, until).

        Args:
            since: Seconds since 1970.
            until: Seconds since 1970.
            kind: Kind of the slices; None: every kind.
        """
        return [
            WindowSums(key, start, width, sums)
            for start, width in (place for of in self._by_day.values() for place in of)
            if start >= since and start + width <= until
            for key, sums in self._in((start, width), kind).items()
        ]

    def steps(self, since: float, until: float, segment: str = "") -> list[tuple[float, float, Sums]]:
        """Start, width and sums of spans that lie whole in [since, until), oldest first.

        Args:
            since: Seconds since 1970.
            until: Seconds since 1970.
            segment: Name of the segment; empty: the sums of the version.
        """
        rows = [i for key, i in self._segments if segment in ("", key.name)]
        return [
            (start, width, Sums(self.bins, np.add.reduce(self._sum([(start, width)])[rows])))
            for start, width in (place for of in self._by_day.values() for place in of)
            if start >= since and start + width <= until
        ]

    def labelled_until(self, since: float, mature: float) -> float:
        """Find the time up to which all predictions later than ``mature`` have their labels.

        Not span by span: of spans of one prediction each, those whose label came soon would count alone.
        Where predictions are not counted, or fewer than labels, it is not known which labels are to come.

        Args:
            since: Begin of the first span, in seconds since 1970.
            mature: Seconds since 1970.
        """
        young = (self._starts >= since) & (self._ends > mature)
        if not young.any():
            return mature
        starts, where = np.unique(self._starts[young], return_inverse=True)
        missing = np.zeros((len(starts), self.bins))
        np.add.at(missing, where, self._counts[young, 0] - self._counts[young, 1])
        waiting = starts[np.abs(missing).max(axis=1) > 0.5]
        return max(float(waiting[0]) if len(waiting) else math.inf, mature)

    def served(self, since: float) -> tuple[Floats, Floats]:
        """Starts of spans from ``since`` on in which predictions were served, and how many (spans,)."""
        count = self._counts[:, 0].sum(axis=1)
        there = (self._starts >= since) & (count > 0)
        return self._starts[there], count[there]

    def _in(self, place: Place, kind: Kind | None) -> dict[Key, Sums]:
        """The sums of one place by slice, also those that are 0: their series must not end."""
        return self._sliced(self._sum([place]), np.unique(self._leaves[place].at // self._length), kind)

    def _sliced(self, found: Floats, there: NDArray[np.intp], kind: Kind | None) -> dict[Key, Sums]:
        keys = sorted((self._keys[i], i) for i in there.tolist())
        return {key: Sums(self.bins, found[i]) for key, i in keys if kind in (None, key.kind)}

    def _between(self, since: float, until: float, young: bool) -> Floats:
        if (known := self._known.get((since, until, young))) is not None:
            return known
        found = np.zeros((len(self._keys), self._length))
        for day, places in self._by_day.items():
            whole = day >= since and (day >= until if young else day + DAY <= until)
            if whole:
                more = self._day(day)
            elif day + DAY <= since or (day + DAY <= until if young else day >= until):
                continue
            else:
                more = self._sum([p for p in places if p[0] >= since and (p[0] + p[1] > until) == young])
            found[: len(more)] += more
        if len(self._known) > 32:  # windows move, where nothing comes
            self._known.clear()
        self._known[since, until, young] = found
        return found

    def _day(self, day: float) -> Floats:
        if day not in self._days:
            self._days[day] = self._sum(self._by_day[day])
        return self._days[day]

    def _sum(self, places: Iterable[Place]) -> Floats:
        """The sums over places (slices, sums)."""
        leaves = [self._leaves[place] for place in places]
        if not leaves:
            return np.zeros((len(self._keys), self._length))
        at, values = (np.concatenate([getattr(leaf, n) for leaf in leaves]) for n in ("at", "values"))
        found = np.bincount(at, values, minlength=len(self._keys) * self._length)
        return found.astype(np.float64).reshape(-1, self._length)


@dataclass
class _Kept:
    """What is kept of a version: leaves from ``since`` on, and of all time; ``stale`` ones are to be read.

    ``together``: of all spans, over the segments, as ``one``.
    """

    number: int
    one: bool = False
    since: float = math.inf
    keys: dict[Key, int] = field(default_factory=dict)
    leaves: dict[Place, _Leaf] = field(default_factory=dict)
    stale: set[Place] = field(default_factory=lambda: {WHOLE})
    days: dict[float, Floats] = field(default_factory=dict)
    fresh: Mapping[Place, _Leaf] = field(default_factory=dict)  # with labels that are in no tally yet
    spans: Spans | None = None
    born: float = field(default_factory=time.monotonic)
    together: _Kept | None = None

    def changed(self, place: Place) -> None:
        """Note that a place changed, and those in it, which may be merged into it."""
        start, width = place
        self.stale.add(place)
        self.stale.update(p for p in self.leaves if 0 < p[1] < width and start <= p[0] < start + width)
        if self.together is not None:
            self.together.changed(place)

    def forget_days(self, places: Iterable[Place]) -> None:
        """Forget the sums of the days of these places; ``Spans`` that others hold keep theirs."""
        gone = {start // DAY * DAY for start, _ in places}
        self.days = {day: sums for day, sums in self.days.items() if day not in gone}


class KeptSpans:
    """Sums of versions as they were read last; safe to use from threads.

    ``fresh`` reads the sums of labels that are in no tally yet.
    """

    def __init__(self, database: Database, bins: int, fresh: Callable[[Connection], Fresh]) -> None:
        self._database, self._bins, self._fresh = database, bins, fresh
        self._lock, self._mine = threading.Lock(), threading.local()
        self._versions: dict[Version, _Kept] = {}
        self._seen: tuple[object, ...] = ()
        self._mark = 0

    @contextmanager
    def moment(self, *, keep: bool = True) -> Iterator[Moment]:
        """Read sums as ``Ledger.moment`` says: of this thread's outer moment, or of its transaction."""
        if (outer := getattr(self._mine, "moment", None)) is not None:
            yield outer
        elif self._database.within or not keep:
            with self._database.reading() as connection:
                yield Moment(connection, self._bins, {}, self._fresh(connection))
        else:
            # The lock first: a snapshot older than what is kept would take it back.
            with self._lock, self._database.reading() as connection:
                self._look(connection)
                one = Moment(connection, self._bins, self._versions, self._fresh(connection))
                self._mine.moment = one
                try:
                    yield one
                finally:
                    self._mine.moment = None

    def _look(self, connection: Connection) -> None:
        """Note what changed; forget all where sums went down or another server answers."""
        mark = next_mark(self._database, connection)
        latest = select(EDITION.c.number, EDITION.c.began_at).order_by(EDITION.c.number.desc()).limit(1)
        server = None if self._database.lite else connection.scalar(text("select pg_postmaster_start_time()"))
        seen = (*(connection.execute(latest).first() or ()), self._database.timeline(connection), server)
        if seen != self._seen or mark < self._mark:
            self._versions.clear()
        old = time.monotonic() - _KEEP
        for version in [version for version, kept in self._versions.items() if kept.born < old]:
            del self._versions[version]
        numbers = {kept.number: kept for kept in self._versions.values()}
        places = select(SPAN.c.version_id, SPAN.c.start, SPAN.c.width).where(SPAN.c.changed >= self._mark)
        for number, start, width in connection.execute(places) if numbers else ():
            if number in numbers:
                numbers[number].changed((start, width))
        self._seen, self._mark = seen, mark


class Moment:
    """The sums of a ledger at one moment.

    ``kept``: by version, brought up to date here. ``fresh``: the sums of labels that are in no tally yet.
    """

    def __init__(self, connection: Connection, bins: int, kept: dict[Version, _Kept], fresh: Fresh) -> None:
        self._connection, self._bins, self._kept = connection, bins, kept
        rows = connection.execute(select(VERSION.c.id, VERSION.c.model, VERSION.c.version))
        self.numbers: Mapping[Version, int] = {(model, version): number for number, model, version in rows}
        self._fresh: dict[Version, dict[Place, list[tuple[Key, Sums]]]] = {}
        for (key, start, width), sums in fresh.items():
            self._fresh.setdefault(key.of, {}).setdefault((start, width), []).append((key, sums))

    def spans(self, version: Version, since: float = math.inf, kind: Kind | None = None) -> Spans:
        """The sums of a version over all time, and of spans that begin at ``since`` or later.

        Of -inf: all, the oldest of which are read anew each time, those of one ``kind`` alone if it is given.
        """
        kept = self._kept.get(version)
        if kept is None or kept.number < 0:
            kept = self._kept[version] = _Kept(self.numbers.get(version, -1))
        self._bring_up(kept, version, since)
        assert kept.spans is not None
        if math.isfinite(since) or since > 0:
            return kept.spans
        whole = _Kept(kept.number, keys=dict(kept.keys), leaves=dict(kept.leaves), stale=set())
        of = [] if kind is None else [kind]
        older = min(kept.since, FAR)
        self._load(whole, version, lambda c: [c.width > 0, c.start < older, *(c.kind == one for one in of)])
        return self._made(whole, version)

    def together(self, version: Version) -> Spans:
        """The sums of all spans of a version, over its segments, which have no name here."""
        self.spans(version)
        for other, kept in self._kept.items():  # of the latest one: a year of each would fill the memory
            kept.together = kept.together if other == version else None
        kept = self._kept[version]
        one = kept.together = kept.together or _Kept(kept.number, one=True)
        self._bring_up(one, version, -FAR)
        assert one.spans is not None
        return one.spans

    def _bring_up(self, kept: _Kept, version: Version, since: float) -> None:
        if -math.inf < since < kept.since:
            until = min(kept.since, FAR)
            self._load(kept, version, lambda c: [c.width > 0, c.start >= since, c.start < until])
            kept.since, kept.spans = since, None
        for start, width in kept.stale:
            kept.leaves.pop((start, width), None)
            if start >= kept.since or not width:
                self._load(kept, version, functools.partial(_at, (start, width)))
            kept.spans = None
        if kept.spans is None or version in self._fresh or kept.fresh:
            kept.forget_days([*kept.stale, *self._fresh.get(version, ()), *kept.fresh])
            kept.stale.clear()
            kept.spans = self._made(kept, version)

    def _made(self, kept: _Kept, version: Version) -> Spans:
        """Add the labels that are in no tally yet."""
        length, fresh = _length(self._bins), {}
        for place, rows in self._fresh.get(version, {}).items():
            parts = [(leaf.at, leaf.values) for leaf in [kept.leaves.get(place)] if leaf is not None]
            for key, sums in rows:
                at = np.flatnonzero(sums.vector)
                parts.append((kept.keys.setdefault(key, len(kept.keys)) * length + at, sums.vector[at]))
            fresh[place] = _leaf(parts, tuple(kept.keys), self._bins)
        kept.fresh = fresh
        return Spans(self._bins, tuple(kept.keys), {**kept.leaves, **fresh}, kept.days)

    def _load(self, kept: _Kept, version: Version, where: Callable[[Any], list[Any]]) -> None:
        """Read leaves: rows of ``tally`` and ``delay`` by place."""
        parts: dict[Place, list[tuple[NDArray[np.intp], Floats]]] = {}
        length, names = _length(self._bins), list(COLUMNS.values())
        offsets, slots = (
            np.arange(len(names)) * self._bins,
            {(k.kind, k.name): i for k, i in kept.keys.items()},
        )
        for table, columns in ((TALLY, ["bin", *names]), (DELAY, ["step", "labels"])):
            c, end = table.c, 0 if table is TALLY else len(names) * self._bins
            step, *values = (c[name] for name in columns)
            asked = select(c.start, c.width, c.kind, c.name, step, *values)
            if kept.one:
                asked = select(c.start, c.width, c.kind, literal_column("''"), step, *map(func.sum, values))
                asked = asked.where(c.kind == "segment").group_by(c.start, c.width, c.kind, step)
            of = asked.where(c.version_id == kept.number, *where(c)).order_by(c.start, c.width)
            for rows in self._connection.execute(of).partitions(50_000):
                slot = [slots.setdefault((kind, name), len(slots)) for _, _, kind, name, *_ in rows]
                found = np.array([row[4:] for row in rows], np.float64)
                at = np.array(slot)[:, None] * length + end + found[:, :1].astype(np.intp)
                at = at + offsets if table is TALLY else at
                there = found[:, 1:] != 0
                there[:, 0] = True  # a slice of zeros is there as well
                first = 0
                for place, some in itertools.groupby(rows, key=lambda row: (row[0], row[1])):
                    own = slice(first, first := first + sum(1 for _ in some))
                    parts.setdefault(place, []).append((at[own][there[own]], found[own, 1:][there[own]]))
        kept.keys = {Key(*version, name, kind): i for (kind, name), i in slots.items()}
        keys = tuple(kept.keys)
        kept.leaves.update((place, _leaf(of, keys, self._bins)) for place, of in parts.items())


def _at(place: Place, c: Any) -> list[Any]:
    return [c.start == place[0], c.width == place[1]]


def next_mark(database: Database, connection: Connection) -> int:
    """The number from which on changes may not be seen yet by this transaction.

    In SQLite, which has one writer, it is the next one; in PostgreSQL the oldest transaction in progress.
    """
    lite = "select coalesce(max(changed), 0) + 1 from span"
    asked = lite if database.lite else "select txid_snapshot_xmin(txid_current_snapshot())"
    return int(connection.scalar(text(asked)) or 0)


def note_changes(
    database: Database, connection: Connection, places: Iterable[tuple[int, float, float]]
) -> None:
    """Note that sums change in this transaction, by numbers of versions, starts and widths of spans."""
    lite = database.lite
    own = next_mark(database, connection) if lite else connection.scalar(text("select txid_current()"))
    names = ("version_id", "start", "width")
    rows = [{**dict(zip(names, place, strict=True)), "changed": own} for place in sorted(set(places))]
    if rows:
        made = database.insert(SPAN)
        raised = {"changed": made.excluded.changed}
        connection.execute(made.on_conflict_do_update(index_elements=names, set_=raised), rows)


def far(seconds: float) -> float:
    """A time that every database can compare with, also for one without end."""
    return min(max(seconds, -FAR), FAR)


@functools.cache
def _length(bins: int) -> int:
    return len(Sums.zeros(bins).vector)


def _leaf(parts: Sequence[tuple[NDArray[np.intp], Floats]], keys: tuple[Key, ...], bins: int) -> _Leaf:
    at, values = (np.concatenate(of) for of in zip(*parts, strict=True))
    slots, places = np.divmod(at, _length(bins))
    of_all = np.array([key.kind == "segment" for key in keys])[slots]
    rows = Sums(bins, np.bincount(places[of_all], values[of_all], minlength=_length(bins)).astype(np.float64))
    return _Leaf(at, values, np.array([rows[name] for name in _COUNTED]))
