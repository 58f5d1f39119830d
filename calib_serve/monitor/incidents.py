"""Incidents: one for each drift, however often the detector alarms while it lasts.

An alarm opens one, later alarms add to it, and it is closed by recovery or by a person. They are rows of the
ledger, so that none is lost with a process.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sqlalchemy import Connection, and_, or_, select

from calib_serve.core.arrays import finite
from calib_serve.core.errors import InputError
from calib_serve.ledger import INCIDENT, VERSION, Ledger
from calib_serve.monitor.drift.detector import Alarm
from calib_serve.receipts import Version

log = logging.getLogger(__name__)

_MOST = 200

_ALL = select(INCIDENT, VERSION.c.model, VERSION.c.version).join(
    VERSION, VERSION.c.id == INCIDENT.c.version_id
)
_LISTS = ("bins", "classes")


@dataclass(frozen=True)
class Incident:
    """A drift of one model version.

    Args:
        id: Number in the ledger.
        model: Name of the model.
        version: Its version.
        opened: When the first alarm was raised, in seconds since 1970.
        onset: When the change began, by its estimate, in seconds since 1970; NaN where not known.
        direction: Direction of the latest alarm.
        bins: Its bins, as plain values.
        classes: Its predicted classes, as plain values.
        alarms: Number of alarms.
        latest: When the latest was raised, in seconds since 1970.
        took: Number of labels from one alarm to the next, the most that it took lately.
        labels: Number of labels since the onset.
        excess: Sum of confidence - correct over these.
        labels_since: Number of labels since the latest alarm.
        excess_since: Sum of confidence - correct over these.
        closed: When it was closed, in seconds since 1970; None while it is open.
        closed_by: "recovery", or a person's name; empty while it is open.
        note: That person's note.
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
        """Whether the incident is not closed yet."""
        return self.closed is None

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy since the onset: its size so far."""
        return self.excess / self.labels if self.labels else math.nan

    def _recovered(self) -> bool:
        """Whether a lasting drift would have raised another alarm by now, and the gap is gone.

        Where bins or classes moved against one another there was no gap, and the alarms alone speak.
        """
        # Three times the labels that alarms took.
        if self.labels_since < max(3 * self.took, 500):
            return False
        was = (self.excess - self.excess_since) / max(self.labels - self.labels_since, 1)
        now = self.excess_since / self.labels_since
        # Three standard errors of a mean, at most.
        noise = 1.5 / math.sqrt(max(self.labels - self.labels_since, 1))
        return abs(was) < noise or abs(now) <= 0.5 * abs(was)

    def as_dict(self) -> dict[str, Any]:
        """Fields and ``gap`` as plain values for JSON; unknown values are null."""
        return {name: finite(value) for name, value in {**asdict(self), "gap": self.gap}.items()}


class IncidentLog:
    """The incidents of all versions in ``ledger``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def latest(self) -> list[Incident]:
        """The open incidents, and the last 200 of all, oldest first."""
        last = select(INCIDENT.c.id).order_by(INCIDENT.c.id.desc()).limit(_MOST)
        asked = _ALL.where(or_(INCIDENT.c.closed.is_(None), INCIDENT.c.id.in_(last)))
        with self._ledger.database.reading() as connection:
            return [_read(row) for row in connection.execute(asked.order_by(INCIDENT.c.id))]

    def observe(
        self,
        version: Version,
        excess: Sequence[float],
        alarms: Sequence[Alarm],
        *,
        first: int,
        now: float,
    ) -> list[Incident]:
        """Count labels in the detector's order, as confidence - correct, and the ``alarms`` they raised.

        Returns the incidents that these opened.
        ``first``: the detector's number of the first label. To be called in the transaction that stores the
        detector.
        """
        with self._ledger.transaction() as connection:
            # Locked: a person may close it at the same moment.
            still = _ALL.where(_is(version), INCIDENT.c.closed.is_(None)).with_for_update(of=INCIDENT)
            row = connection.execute(still).first()
            one = None if row is None else _read(row)
            if one is None and not alarms:
                return []
            done, opened = 0, []
            for alarm in alarms:
                end = min(max(alarm.label - first + 1, done), len(excess))
                if one is None:
                    one = _opened(version, alarm, now)
                    made = connection.execute(INCIDENT.insert().values(self._row(one, connection)))
                    (number,) = made.inserted_primary_key or (0,)
                    one = replace(one, id=number)
                    opened.append(one)
                else:
                    one = _alarmed(_more(one, excess[done:end]), alarm, now)
                done = end
            assert one is not None
            one = _more(one, excess[done:])
            one = replace(one, closed=now, closed_by="recovery") if one._recovered() else one
            connection.execute(
                INCIDENT.update().where(INCIDENT.c.id == one.id).values(self._row(one, connection))
            )
        if not one.open:
            _log_closed(one)
        return opened

    def close(self, number: int, *, by: str, note: str = "", now: float) -> Incident:
        """Close an open incident by hand; InputError if there is none of that number."""
        if not by or len(by) > 100 or len(note) > 1000:
            raise InputError("say who closes it, in at most 100 characters, with a note of at most 1,000")
        with self._ledger.transaction() as connection:
            still = (INCIDENT.c.id == number, INCIDENT.c.closed.is_(None))
            closed = {"closed": now, "closed_by": by, "note": note}
            update = INCIDENT.update().where(*still).values(closed)
            if not (0 < number < 2**63 and connection.execute(update).rowcount):
                raise InputError(f"there is no open incident {number}")
            one = _read(connection.execute(_ALL.where(INCIDENT.c.id == number)).one())
        _log_closed(one)
        return one

    def _row(self, one: Incident, connection: Connection) -> dict[str, Any]:
        """The columns of an incident without its number."""
        said = {name: value for name, value in asdict(one).items() if name not in ("id", "model", "version")}
        said |= {name: json.dumps(said[name]) for name in _LISTS}
        said["onset"] = finite(one.onset)
        return {**said, "version_id": self._ledger.version_id(connection, (one.model, one.version))}


def _log_closed(one: Incident) -> None:
    log.warning("%s %s: incident %d is closed by %s", one.model, one.version, one.id, one.closed_by)


def _is(version: Version) -> Any:
    return and_(VERSION.c.model == version[0], VERSION.c.version == version[1])


def _read(row: Any) -> Incident:
    said = {one.name: getattr(row, one.name) for one in fields(Incident)}
    said |= {name: tuple(json.loads(said[name])) for name in _LISTS}
    return Incident(**said | {"onset": math.nan if row.onset is None else row.onset})


def _opened(version: Version, alarm: Alarm, now: float) -> Incident:
    model, name = version
    labels = alarm.label - alarm.since_label + 1
    return Incident(
        id=0,
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
        took=max(one.labels_since, round(0.8 * one.took)),  # what an alarm took fades with the next one
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
