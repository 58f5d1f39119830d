"""The format of a ledger: another one is refused, and an older one is upgraded when that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from calib_serve.core.errors import InputError, LedgerError
from calib_serve.ledger.database import Database
from calib_serve.ledger.schema import SCHEMA, STEPS, VIEWS, Step, create_views


def check_format(connection: Connection, name: str, *, newest: int | None = None) -> int:
    """The format of a ledger; LedgerError for another than this program's, or a newer one than ``newest``."""
    # Whatever else a later format changes, this column stays.
    found = int(connection.execute(text("select schema from ledger")).scalar_one())
    if found > (newest or SCHEMA):
        raise LedgerError(
            f"the ledger {name} is of format {found}, which a newer calib-serve wrote; this one reads "
            f"{newest or SCHEMA}: install that, or put the backup from before its upgrade in place"
        )
    if found < SCHEMA and newest is None:
        raise LedgerError(
            f"the ledger {name} is of format {found}, and this calib-serve writes {SCHEMA}: stop what counts "
            f"there, then run calib-serve ledger upgrade {name} BACKUP"
        )
    return found


def upgrade_ledger(where: str | Path, backup: str | Path, *, steps: Sequence[Step] = STEPS) -> int:
    """Bring a ledger to the newest format in one transaction; return its format before.

    Programs of the older format are refused from then on. Where there is nothing to do, nothing is written.

    Args:
        where: A file of SQLite, or ``postgresql://...``.
        backup: Of a file, the new file for a copy of it; of a PostgreSQL, the file that pg_dump wrote.
        steps: SQL from each format to the next.

    Raises:
        InputError: Where the copy's file is there, or that of pg_dump is not.
        LedgerError: Where there is no ledger, it is of a newer format, or a step fails: nothing is changed.
    """
    with closing(Database(str(where), must_exist=True)) as database, database.writing() as connection:
        if not inspect(connection).has_table("ledger"):
            raise LedgerError(f"there is no ledger in {database.name}")
        if not database.lite:  # whoever counts has looked at its format, and looks again after this
            connection.execute(text("lock table ledger in access exclusive mode"))
        newest = 1 + len(steps)
        before = check_format(connection, database.name, newest=newest)
        if before == newest:
            return before
        if database.lite:
            database.backup(backup)
        elif not Path(backup).is_file():
            raise InputError(f"there is no backup {backup}: make it by pg_dump, and name its file")
        statements = [one for step in steps[before - 1 :] for one in step[not database.lite]]
        views = create_views(lite=database.lite)
        for statement in [*(f"drop view if exists {view}" for view in VIEWS), *statements, *views]:
            connection.exec_driver_sql(statement)
        connection.execute(text("update ledger set schema = :newest"), {"newest": newest})
        return before
