"""Incidents: one for each drift, however often the detector alarms while it lasts.

An alarm opens one, later alarms add to it, and it is closed by recovery or by a person. They are kept in
the ledger, with counts over all time, so that none is lost with a process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from calib_serve.errors import InputError
from calib_serve.watch.anew import note_anew
from calib_serve.watch.drift import Alarm
from calib_serve.watch.ledger import Ledger, Version

__all__ = ["Incident", "IncidentLog", "Trend"]

Trend = Literal["new", "growing", "steady", "receding", "over"]

_KEY = "watch/incidents"
_UNREAD = "watch/incidents/unread"
_MOST = 200
_RECOVERY = 3  # times the labels that alarms took; as many without another alarm may close an incident
_FADES = 0.8  # how much of the labels that an alarm took counts beside the next one's
_GONE = 0.5  # what is left of the gap where it is over
_AT_LEAST = 500  # labels
_PART = 0.25  # by which share the gap must have changed since the alarm to be growing or receding


@dataclass(frozen=True)
class Incident:
    """A drift of one model version, times in seconds since 1970.

    ``opened`` when the first alarm was raised, ``onset`` when the change began by its estimate (NaN where
    that is not known). ``direction``, ``bins`` and ``classes`` are the latest alarm's. ``took``: labels from
    one alarm to the next, the most that it took lately. ``labels`` since the onset and their ``excess``, the
    sum of confidence - correct; ``labels_since`` and ``excess_since`` since the latest alarm.
    ``closed_by``: "recovery", a person's name, or "".
    """

    id: int
    model: str
    version: str
    opened: float
    onset: float
    direction: str
    bins: tuple[dict[str, Any], ...]
    classes: tuple[dict[str, Any], ...] = ()
    alarms: int = 1
    latest: float = 0.0
    took: int = 1
    labels: int = 0
    excess: float = 0.0
    labels_since: int = 0
    excess_since: float = 0.0
    closed: float | None = None
    closed_by: str = ""
    note: str = ""

    @property
    def open(self) -> bool:
        """Whether it is not closed yet."""
        return self.closed is None

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy since the onset: its size so far."""
        return self.excess / self.labels if self.labels else math.nan

    @property
    def trend(self) -> Trend:
        """What the labels since the latest alarm say of it."""
        if not self.open:
            return "over"
        if self.labels_since < self.took:
            return "new" if self.alarms == 1 else "steady"
        was, now = map(abs, self._gaps())
        if now > (1 + _PART) * was:
            return "growing"
        return "receding" if now < (1 - _PART) * was else "steady"

    def _recovered(self) -> bool:
        """Whether such a drift would have raised another alarm by now, and its gap is gone.

        Where bins or classes moved against one another there was no gap, and the alarms alone speak.
        """
        if self.labels_since < max(_RECOVERY * self.took, _AT_LEAST):
            return False
        was, now = map(abs, self._gaps())
        noise = 1.5 / math.sqrt(
            max(self.labels - self.labels_since, 1)
        )  # three standard errors of a mean, at most
        return was < noise or now <= _GONE * was

    def _gaps(self) -> tuple[float, float]:
        """Mean confidence minus accuracy until the latest alarm, and since."""
        was = (self.excess - self.excess_since) / max(self.labels - self.labels_since, 1)
        return was, self.excess_since / max(self.labels_since, 1)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: its fields, ``gap`` and ``trend``; what is not known is null."""
        said = {**asdict(self), "gap": self.gap, "trend": self.trend}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in said.items()}


@dataclass
class _Kept:
    incidents: list[Incident] = field(default_factory=list)
    opened: dict[Version, int] = field(default_factory=dict)
    alarms: dict[Version, int] = field(default_factory=dict)


class IncidentLog:
    """The latest incidents of all versions in ``ledger``, and how many there were."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def latest(self, version: Version | None = None) -> list[Incident]:
        """Oldest first."""
        found = self._load().incidents
        return [one for one in found if version in (None, (one.model, one.version))]

    def counts(self) -> tuple[dict[Version, int], dict[Version, int]]:
        """Alarms and incidents of each version over all time."""
        kept = self._load()
        return kept.alarms, kept.opened

    def observe(
        self,
        version: Version,
        excess: Sequence[float],
        alarms: Sequence[Alarm],
        *,
        first: int,
        now: float,
    ) -> list[Incident]:
        """Take labels in the detector's order, as confidence - correct, and the ``alarms`` that they raised.

        Returns the incidents that these opened.
        ``first``: the detector's number of the first label. To be called in the transaction that stores the
        detector.
        """
        kept = self._read_or_begun(version, now=now)
        at = next((i for i, one in enumerate(kept.incidents) if one.open and _is(one, version)), None)
        if at is None and not alarms:
            return []
        done, opened = 0, []
        for alarm in alarms:
            end = min(max(alarm.label - first + 1, done), len(excess))
            if at is not None:
                kept.incidents[at] = _more(kept.incidents[at], excess[done:end])
                kept.incidents[at] = _alarmed(kept.incidents[at], alarm, now)
            else:
                kept.opened[version] = kept.opened.get(version, 0) + 1
                opened.append(_opened(sum(kept.opened.values()), version, alarm, now))
                kept.incidents.append(opened[-1])
                at = len(kept.incidents) - 1
            kept.alarms[version] = kept.alarms.get(version, 0) + 1
            done = end
        assert at is not None
        one = _more(kept.incidents[at], excess[done:])
        kept.incidents[at] = replace(one, closed=now, closed_by="recovery") if one._recovered() else one
        self._store(kept)
        return opened

    def close(self, number: int, *, by: str, note: str = "", now: float) -> Incident:
        """Close an open incident by hand; InputError if there is none of that number."""
        if not by or len(by) > 100 or len(note) > 1000:
            raise InputError("say who closes it, in at most 100 characters, with a note of at most 1,000")
        with self._ledger.transaction():
            kept = self._load()
            for i, one in enumerate(kept.incidents):
                if one.id == number and one.open:
                    kept.incidents[i] = replace(one, closed=now, closed_by=by, note=note)
                    self._store(kept)
                    return kept.incidents[i]
        raise InputError(f"there is no open incident {number}")

    def _read_or_begun(self, version: Version, *, now: float) -> _Kept:
        """The list; one that cannot be read is set aside, which is noted, and another begins."""
        try:
            return self._parsed(text := self._ledger.load(_KEY))
        except InputError as error:
            assert text is not None
            note_anew(self._ledger, version, "the list of incidents", error, now=now)
            self._ledger.store(_UNREAD, text)
            self._store(_Kept())
            return _Kept()

    def _load(self) -> _Kept:
        try:
            return self._parsed(self._ledger.load(_KEY))
        except InputError:
            return _Kept()  # set aside with the next labels, and said

    @staticmethod
    def _parsed(text: bytes | None) -> _Kept:
        if text is None:
            return _Kept()
        try:
            said = json.loads(text)
            return _Kept(
                [_read(one) for one in said["incidents"]],
                {(model, version): int(n) for model, version, n in said["opened"]},
                {(model, version): int(n) for model, version, n in said["alarms"]},
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"that of all versions cannot be read ({error!r})") from error

    def _store(self, kept: _Kept) -> None:
        closed = [one for one in kept.incidents if not one.open]
        gone = {one.id for one in closed[: max(len(kept.incidents) - _MOST, 0)]}
        said = {
            "incidents": [
                {**asdict(one), "onset": None if math.isnan(one.onset) else one.onset}
                for one in kept.incidents
                if one.id not in gone
            ],
            "opened": [[*version, n] for version, n in kept.opened.items()],
            "alarms": [[*version, n] for version, n in kept.alarms.items()],
        }
        self._ledger.store(_KEY, json.dumps(said).encode())


def _is(one: Incident, version: Version) -> bool:
    return (one.model, one.version) == version


def _read(said: dict[str, Any]) -> Incident:
    read = {one.name: said[one.name] for one in fields(Incident)}
    read |= {name: tuple({**one} for one in said[name]) for name in ("bins", "classes")}
    read |= {name: int(said[name]) for name in ("id", "alarms", "took", "labels", "labels_since")}
    read |= {name: float(said[name]) for name in ("opened", "latest", "excess", "excess_since")}
    closed = said["closed"]
    return Incident(
        **read | {"onset": _number(said["onset"]), "closed": None if closed is None else float(closed)}
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _opened(number: int, version: Version, alarm: Alarm, now: float) -> Incident:
    model, name = version
    labels = alarm.label - alarm.since_label + 1
    return Incident(
        id=number,
        model=model,
        version=name,
        opened=now,
        onset=alarm.since_time,
        direction=alarm.direction,
        bins=tuple(asdict(one) for one in alarm.bins),
        classes=tuple(asdict(one) for one in alarm.classes),
        latest=now,
        took=labels,
        labels=labels,
        excess=alarm.gap * labels,
    )


def _alarmed(one: Incident, alarm: Alarm, now: float) -> Incident:
    return replace(
        one,
        direction=alarm.direction,
        bins=tuple(asdict(bin_) for bin_ in alarm.bins),
        classes=tuple(asdict(each) for each in alarm.classes),
        alarms=one.alarms + 1,
        latest=now,
        took=max(one.labels_since, round(_FADES * one.took)),
        labels_since=0,
        excess_since=0.0,
    )


def _more(one: Incident, excess: Sequence[float]) -> Incident:
    n, more = len(excess), float(sum(excess))
    return replace(
        one,
        labels=one.labels + n,
        excess=one.excess + more,
        labels_since=one.labels_since + n,
        excess_since=one.excess_since + more,
    )
