"""A failover of PostgreSQL, or a restore of it: it goes on on another timeline, and labels may be missing.

The timeline is noted in the ledger: who starts later sees a failover as well, until somebody says that they
know of it. Of a standby that commits wait for nothing is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, func, select

from calib_serve.core.text import when
from calib_serve.ledger.schema import GIVEN, PROGRAM

if TYPE_CHECKING:
    from calib_serve.ledger.database import Database

LEDGER_ITSELF = "the ledger"
"""Where ``given`` has a program's name: what is noted of the ledger itself."""

_TIMELINE, _SINCE = "timeline", "missing since"


def note_timeline(database: Database, connection: Connection) -> str | None:
    """Note the timeline; a reason where it changed and nobody said so, in the transaction of a check.

    To be called before a program notes that it wrote: the last such note was seen on the old timeline.

    Args:
        database: The ledger's, in a transaction.
        connection: Connection of that transaction.
    """
    if not (now := database.timeline(connection)):
        return None
    rows = connection.execute(select(GIVEN.c.what, GIVEN.c.value).where(GIVEN.c.program == LEDGER_ITSELF))
    noted: dict[str, str] = dict(map(tuple, rows))
    if noted.get(_TIMELINE) != now:
        if noted:
            noted.setdefault(_SINCE, str(_last_written(connection)))
        noted[_TIMELINE] = now
        _write(database, connection, noted)
    if _SINCE not in noted:
        return None
    return (
        f"PostgreSQL went on on timeline {now}, as after a failover: labels acknowledged since "
        f"{when(float(noted[_SINCE]))} may be missing, unless commits waited for this standby; send them "
        "again (each counts once), then calib-serve ledger promoted; after a restore, ledger restored"
    )


def _last_written(connection: Connection) -> float:
    """The time at which programs wrote last, by the clock of the slowest of them."""
    # Programs that run beside each other wrote last within five minutes.
    latest = select(func.max(PROGRAM.c.wrote_at) - 300.0).scalar_subquery()
    asked = select(func.min(PROGRAM.c.wrote_at)).where(PROGRAM.c.wrote_at >= latest)
    return float(connection.execute(asked).scalar() or 0.0)


def _write(database: Database, connection: Connection, noted: dict[str, str]) -> None:
    rows = [{"program": LEDGER_ITSELF, "what": what, "value": noted[what]} for what in sorted(noted)]
    made = database.insert(GIVEN)
    kept = {"value": made.excluded.value}
    connection.execute(made.on_conflict_do_update(index_elements=["program", "what"], set_=kept), rows)


def accept_timeline(connection: Connection) -> None:
    """Forget that a failover was seen: somebody says that they know of it."""
    gone = (GIVEN.c.program == LEDGER_ITSELF, GIVEN.c.what == _SINCE)
    connection.execute(delete(GIVEN).where(*gone))
