"""Followers of labels, such as the drift detector: the labels that wait for them, and what they keep."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import and_, delete, func, select, update

from calib_serve.core.arrays import finite
from calib_serve.ledger.entries import LabelRecord, Progress, State
from calib_serve.ledger.rows import mark_rows, stored_labels
from calib_serve.ledger.schema import LABEL, STATE, VERSION
from calib_serve.ledger.spans import far
from calib_serve.ledger.store import Store, known_version, version_names
from calib_serve.receipts import Version


class Followers:
    """The labels that wait for the drift detector of a ledger, and the states of all that follow labels.

    Args:
        store: The ledger.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def waiting(self, *, until: float = math.inf) -> dict[Version, int]:
        """The number of labels, of predictions before ``until``, that wait for the detector, by version."""
        due = (~LABEL.c.fed, LABEL.c.predicted_at < far(until))
        asked = select(LABEL.c.version_id, func.count()).where(*due).group_by(LABEL.c.version_id)
        with self._store.database.reading() as connection:
            names = version_names(connection)
            return {names[number]: labels for number, labels in connection.execute(asked)}

    def take(self, version: Version, *, until: float, most: int) -> list[LabelRecord]:
        """Take labels of predictions made before a time out, oldest first.

        To be called in a transaction in which followers keep their states. Empty where another process has
        begun one for the same version: it takes them.

        Args:
            version: Model and version.
            until: The time, in seconds since 1970.
            most: Number of rows, at most.
        """
        with self._store.transaction() as connection:
            number = known_version(connection, version)
            free = select(VERSION.c.id).where(VERSION.c.id == number).with_for_update(skip_locked=True)
            if connection.execute(free).first() is None:
                return []
            where = and_(~LABEL.c.fed, LABEL.c.predicted_at < far(until), LABEL.c.version_id == number)
            rows = stored_labels(self._store, connection, where, most=most, wait=True)
            mark_rows(self._store, connection, rows, "fed")
            return [row.record for row in rows]

    def progress(self) -> dict[Version, Progress]:
        """The progress of each version's detector."""
        with self._store.database.reading() as connection:
            return {(row.model, row.version): _progress(row) for row in connection.execute(select(VERSION))}

    def advance(
        self,
        version: Version,
        *,
        fed_until: float | None = None,
        evidence: tuple[float, float] | None = None,
        late: int = 0,
        alarms: int = 0,
        incidents: int = 0,
    ) -> None:
        """Note a detector's progress.

        Args:
            version: Model and version.
            fed_until: Prediction time up to which it was fed, in seconds since 1970; None: as it was.
            evidence: Natural logs of its statistic and threshold; None: as they were.
            late: Number of further labels that came too late.
            alarms: Number of further alarms.
            incidents: Number of further incidents.
        """
        more: dict[str, Any] = {
            "late": VERSION.c.late + late,
            "alarms": VERSION.c.alarms + alarms,
            "incidents": VERSION.c.incidents + incidents,
        }
        if fed_until is not None:
            more["fed_until"] = fed_until
        if evidence is not None:
            more["log_evidence"], more["log_threshold"] = map(finite, evidence)
        with self._store.transaction() as connection:
            number = self._store.version_id(connection, version)
            connection.execute(update(VERSION).where(VERSION.c.id == number).values(more))

    def states(self, kind: str, version: Version | None = None) -> list[State]:
        """The stored states of a kind; the latest changed comes last.

        Args:
            kind: Name of the follower.
            version: Model and version; None: all.
        """
        with self._store.database.reading() as connection:
            asked = select(STATE).where(STATE.c.kind == kind).order_by(STATE.c.changed_at, STATE.c.name)
            if version is not None:
                asked = asked.where(STATE.c.version_id == known_version(connection, version))
            names = version_names(connection)
            return [
                State(names[row.version_id], row.name, row.value, row.changed_at)
                for row in connection.execute(asked)
            ]

    def keep(self, kind: str, version: Version, name: str, value: bytes, *, now: float) -> None:
        """Store the state of a follower, in place of an earlier one of this name.

        Args:
            kind: Name of the follower.
            version: Model and version.
            name: Name of the state.
            value: Bytes, which are given back as they are.
            now: Seconds since 1970.
        """
        with self._store.transaction() as connection:
            row = {"version_id": self._store.version_id(connection, version), "kind": kind, "name": name}
            more = {"value": value, "changed_at": now}
            kept = self._store.database.insert(STATE).values(row | more)
            connection.execute(kept.on_conflict_do_update(index_elements=list(row), set_=more))

    def discard(self, kind: str, version: Version, name: str) -> None:
        """Delete the state of a follower.

        Args:
            kind: Name of the follower.
            version: Model and version.
            name: Name of the state.
        """
        with self._store.transaction() as connection:
            number = known_version(connection, version)
            connection.execute(
                delete(STATE).where(STATE.c.version_id == number, STATE.c.kind == kind, STATE.c.name == name)
            )


def _progress(row: Any) -> Progress:
    numbers = (row.fed_until, row.log_evidence, row.log_threshold)
    until, evidence, threshold = (math.nan if one is None else one for one in numbers)
    return Progress(
        -math.inf if math.isnan(until) else until, row.late, row.alarms, row.incidents, evidence, threshold
    )
