"""The tables of a ledger, opened: transactions, the numbers of versions, editions, and what is forgotten."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, func, insert, inspect, select, text, update

from calib_serve.core.errors import LedgerError
from calib_serve.ledger.clock import LedgerClock, steady_seconds
from calib_serve.ledger.database import Database
from calib_serve.ledger.schema import EDITION, LEDGER, METADATA, SCHEMA, VERSION, create_views
from calib_serve.ledger.spans import FAR
from calib_serve.ledger.upgrade import check_format
from calib_serve.receipts import DAY, Version

T = TypeVar("T")

_RETENTION = 30 * DAY  # of a new ledger


class Store:
    """What all that a ledger does needs of its database; safe to use from threads.

    The parameters and ``refused`` are those of ``Ledger``.
    """

    def __init__(
        self,
        where: str | Path,
        *,
        bins: int = 15,
        retention: float | None = None,
        timeout: float = 4.0,
        must_exist: bool = False,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady_seconds,
    ) -> None:
        self.bins, self._versions = bins, dict[Version, int]()
        self.refused = (-math.inf, "")
        self.database = Database(str(where), timeout=timeout, must_exist=must_exist)
        self.time = LedgerClock(self.database, clock, steady)
        try:
            self._make(retention, must_exist)
        except BaseException:
            self.close()
            raise

    def _make(self, retention: float | None, must_exist: bool) -> None:
        """Make the tables, where there are none, and keep the longest retention ever asked for."""
        with self.database.writing() as connection:
            if not self.database.lite:  # two processes that begin at once
                connection.execute(text("select pg_advisory_xact_lock(hashtext('calib-serve'))"))
            if not inspect(connection).has_table("ledger"):
                if must_exist:
                    raise LedgerError(f"there is no ledger in {self.database.name}")
                METADATA.create_all(connection)
                for view in create_views(lite=self.database.lite):
                    connection.exec_driver_sql(view)
                retention = _RETENTION if retention is None else retention
                row = {"id": 1, "uuid": str(uuid.uuid4()), "schema": SCHEMA, "bins": self.bins}
                row |= {"retention": retention, "forgotten_until": -FAR, "time": self.time.now()}
                connection.execute(insert(LEDGER).values(row))
                self.retention, self.uuid = retention, str(row["uuid"])
                next_edition(self, connection, "it began")
                return
            check_format(connection, self.database.name)
            known = connection.execute(select(LEDGER)).one()
            if known.bins != self.bins:
                raise LedgerError(
                    f"the ledger {self.database.name} is of {known.bins} bins, not of {self.bins}"
                )
            now = self.time.advance(connection)
            self.retention, self.uuid = max(retention or 0.0, known.retention), known.uuid
            if self.retention > known.retention:  # what the shorter one may have forgotten is refused
                until = max(known.forgotten_until, now - known.retention)
                connection.execute(update(LEDGER).values(retention=self.retention, forgotten_until=until))

    @contextmanager
    def transaction(self, *, patient: bool = False) -> Iterator[Connection]:
        """Do everything inside in one transaction, seen by others when it ends and undone where it fails.

        ``patient``: a statement may take long, as nobody waits for what is done.
        """
        try:
            begins = not self.database.within
            with self.database.writing(patient=patient) as connection:
                if begins:  # it may have been upgraded since it was opened
                    check_format(connection, self.database.name)
                yield connection
        except BaseException:
            self._versions.clear()  # some may be undone
            raise

    def again(self, work: Callable[[], T]) -> T:
        """Do ``work`` that writes, again where another came between; note a failure in ``refused``."""
        try:
            return self.database.again(work)
        except LedgerError as error:
            self.refused = time.monotonic(), str(error)
            raise

    def hold_forgetting(self, connection: Connection) -> float:
        """Lock the time until which labels are refused, and return it: nothing is forgotten meanwhile.

        It also has the commit wait for a synchronous standby where nothing is added: what an earlier
        transaction added, and nobody acknowledged, may be missing there.
        """
        asked = select(LEDGER.c.forgotten_until).with_for_update(read=True)
        return float(connection.execute(asked).scalar_one())

    def forget(self, until: float) -> None:
        """Refuse labels of predictions made until then."""
        with self.transaction() as connection:
            connection.execute(
                update(LEDGER).where(LEDGER.c.forgotten_until < until).values(forgotten_until=until)
            )

    def forgotten_until(self) -> float:
        """The time of predictions until which labels are refused as forgotten, in seconds since 1970."""
        with self.database.reading() as connection:
            return float(connection.execute(select(LEDGER.c.forgotten_until)).scalar_one())

    def versions(self) -> dict[Version, str]:
        """The facts of versions that were registered while programs ran."""
        with self.database.reading() as connection:
            rows = connection.execute(select(VERSION).where(VERSION.c.facts.is_not(None)))
            return {(row.model, row.version): row.facts for row in rows}

    def register_version(self, version: Version, facts: str) -> None:
        """Register the facts of a version, for all programs on this ledger.

        Args:
            version: Model and version.
            facts: The facts, in JSON.
        """
        with self.transaction() as connection:
            number = self.version_id(connection, version)
            connection.execute(update(VERSION).where(VERSION.c.id == number).values(facts=facts))

    def version_id(self, connection: Connection, version: Version) -> int:
        """The number of a version, a new one where it has none.

        Args:
            connection: Connection of a transaction.
            version: Model and version.
        """
        if version not in self._versions:
            if (known := known_version(connection, version)) < 0:
                model, name = version
                made = self.database.insert(VERSION).values(model=model, version=name)
                connection.execute(made.on_conflict_do_nothing())
                return known_version(connection, version)
            self._versions[version] = known  # another transaction's, so that no rollback takes it away
        return self._versions[version]

    def close(self) -> None:
        """Close files and connections."""
        self.database.close()


def next_edition(
    store: Store,
    connection: Connection,
    why: str,
    version: Version | None = None,
    *,
    by: str = "",
    labels: int = 0,
) -> None:
    """Begin an edition: sums went down, of a version or of all."""
    number = (connection.execute(select(func.max(EDITION.c.number))).scalar() or 0) + 1
    row = {"number": number, "began_at": store.time.now(), "why": why, "by": by, "labels": labels}
    row["version_id"] = None if version is None else known_version(connection, version)
    connection.execute(insert(EDITION).values(row))


def known_version(connection: Connection, version: Version) -> int:
    """The number of a version; -1 where it has none."""
    model, name = version
    asked = select(VERSION.c.id).where(VERSION.c.model == model, VERSION.c.version == name)
    # No row has the number -1: queries for an unknown version find nothing, and do not fail.
    return int(connection.execute(asked).scalar() or -1)


def version_names(connection: Connection) -> dict[int, Version]:
    """Versions by their numbers."""
    return {row.id: (row.model, row.version) for row in connection.execute(select(VERSION))}
