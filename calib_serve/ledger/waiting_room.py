"""Predictions and labels of versions that are not known yet, which wait in the ledger for a day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnClause, and_, delete, func, literal_column, select

from calib_serve.ledger.entries import Held
from calib_serve.ledger.schema import HELD
from calib_serve.ledger.store import Store
from calib_serve.receipts import DAY, Version


class WaitingRoom:
    """The predictions and labels of a ledger that wait until their version is known.

    Args:
        store: The ledger.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, rows: Sequence[Held]) -> None:
        """Store predictions and labels until their version is known, each once."""
        if not rows:
            return
        with self._store.transaction() as connection:
            made = self._store.database.insert(HELD).on_conflict_do_nothing()
            told = [{**row._asdict(), "model": row.version[0], "version": row.version[1]} for row in rows]
            connection.execute(made, sorted(told, key=lambda row: (row["kind"], row["name"])))
            self._store.hold_forgetting(connection)

    def counts(self) -> dict[Version, int]:
        """The number of predictions and labels that wait for each version."""
        asked = select(HELD.c.model, HELD.c.version, func.count()).group_by(HELD.c.model, HELD.c.version)
        with self._store.database.reading() as connection:
            return {(model, version): n for model, version, n in connection.execute(asked)}

    def take(self, version: Version, *, most: int) -> list[Held]:
        """Take waiting predictions and labels out, oldest first, in the transaction that counts them.

        Args:
            version: Model and version.
            most: Number of rows, at most.
        """
        return self._taken(and_(HELD.c.model == version[0], HELD.c.version == version[1]), most)

    def drop_old(self) -> list[Held]:
        """Take out predictions and labels that still wait for their version after a day."""
        return self._store.again(self._dropped)

    def _dropped(self) -> list[Held]:
        with self._store.transaction() as connection:
            return self._taken(HELD.c.came_at < self._store.time.advance(connection) - DAY)

    def _taken(self, where: Any, most: int | None = None) -> list[Held]:
        """Take out rows of ``held`` but those that another process is taking, oldest first."""
        row: ColumnClause[int] = literal_column("rowid" if self._store.database.lite else "ctid")
        order = (HELD.c.came_at, HELD.c.kind.desc(), HELD.c.name)  # predictions before their labels
        free = select(row).select_from(HELD).where(where).order_by(*order).limit(most)
        taken = delete(HELD).where(row.in_(free.with_for_update(skip_locked=True))).returning(HELD)
        with self._store.transaction() as connection:
            rows = [_held(one) for one in connection.execute(taken)]
        return sorted(rows, key=lambda one: (one.came_at, one.kind == "label", one.name))


def _held(row: Any) -> Held:
    return Held(row.kind, row.name, (row.model, row.version), row.content, row.source, row.came_at)
