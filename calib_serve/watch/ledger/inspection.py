"""Looks a SQLite ledger through while it is in use: whole, or a slice at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from calib_serve.errors import LedgerError, of_a_newer
from calib_serve.watch.ledger import seen
from calib_serve.watch.ledger.tables import FORMAT, SCHEMA, TABLES, DamagedRow, Row, Tables

__all__ = [
    "Damage", "Inspection", "contain", "index_alone", "look", "set_aside", "set_aside_in", "stopped_after",
    "structure", "verify_file",
]  # fmt: skip

_CHUNK = 64  # rows that are looked at between two looks at the clock
_ANEW = ("detector/", "fed/", "watch/")  # state that may be begun anew: no label is counted by it


class Damage(NamedTuple):
    """What is not as it was written: a row, or, where ``row`` is None, rows of a table that are missing."""

    table: str
    row: Row | None
    what: str

    def __str__(self) -> str:
        return f"{self.table}: {self.what}"


def structure(db: sqlite3.Connection, *, made: bool) -> list[str]:
    """What is wrong with the file, and with the tables as they are ``made`` today; reads all of it."""
    found = [str(said) for (said,) in db.execute("PRAGMA integrity_check") if said != "ok"]
    if found or not made:
        return found
    kept = dict(db.execute("SELECT name, sql FROM sqlite_master"))
    return [f"{name}: not as it was made" for name, sql in _made().items() if kept.get(name) != sql]


def index_alone(wrong: Iterable[str]) -> bool:
    """Whether only indexes are wrong, which hold nothing of their own."""
    return all("index " in one and "***" not in one for one in wrong)


def _made() -> dict[str, str]:
    """Tables and indexes as they are in a sound ledger."""
    empty = sqlite3.connect(":memory:")
    try:
        for statement in SCHEMA:
            empty.execute(statement)
        return dict(empty.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    finally:
        empty.close()


def look(tables: Tables) -> Iterator[Damage | None]:
    """Every row, some at a time: what is damaged, and None after each step.

    It may be stopped at a None and go on later, in another transaction, while others write.
    """
    for name in TABLES:
        rows, after = tables[name], None
        whole = tables.whole(name)
        while chunk := rows.chunk(after, most=_CHUNK):
            for row in chunk:
                try:
                    rows.table.read(row)
                except DamagedRow as error:
                    yield Damage(name, row, str(error))
            after = rows.table.key_of(chunk[-1])
            yield None
        if not whole:
            yield Damage(name, None, "rows are missing, or there are others")
        yield None


def set_aside(tables: Tables) -> list[str]:
    """What was set aside so far, oldest first."""
    try:
        kept = tables["damaged"].select("ORDER BY id")
    except DamagedRow as error:
        return [f"damaged: {error}"]
    return [
        f"{place}: {what} (set aside {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(found))})"
        for _, found, place, what, _ in kept
    ]


def contain(tables: Tables, found: list[Damage], *, latest: float, now: float) -> list[Damage]:
    """Set what is damaged aside so that the rest counts on; what of it cannot be. Within a transaction.

    ``latest``: the time of the latest prediction whose label was counted. Receipts until then, whose epoch
    is not known, are refused from now on where some of these are lost; and so are batches of
    predictions until ``now``. Sums and labels that are lost are missing from then on.
    """
    left = [one for one in found if not _contained(tables, one, latest=latest, now=now)]
    if not left:
        for name in {one.table for one in found}:
            tables.recount(name)
    return left


def _contained(tables: Tables, one: Damage, *, latest: float, now: float) -> bool:
    if one.table not in ("epochs", "batches", "spans", "journal", "state"):
        return False
    rows = tables[one.table]
    if one.table == "state" and (one.row is None or not str(one.row[0]).startswith(_ANEW)):
        return False
    if one.row is not None:
        try:
            gone = rows.drop(one.row)
        except (sqlite3.Error, ValueError):  # a key that cannot be asked for
            gone = False
        if not gone:
            return False
    if one.table in ("epochs", "batches"):
        seen.doubt(tables["state"], receipts=latest, batches=now)
    kept = tables["damaged"]
    (last,) = tables.db.execute("SELECT coalesce(max(id), 0) FROM damaged").fetchone()
    kept.add([(last + 1, now, one.table, one.what, repr(one.row))])
    return True


class Inspection:
    """Goes through the ledger at ``path`` again and again, by a connection of its own that only reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looking: Iterator[Damage | None] = iter(())
        self._db: sqlite3.Connection | None = None

    def step(self, *, at_most: float) -> bool:
        """Look on for about ``at_most`` seconds; whether anything damaged was found."""
        until = time.monotonic() + at_most
        if self._db is None:
            self._db = _reader(self._path)
        found = False
        while time.monotonic() < until:
            one = next(self._looking, self)
            if isinstance(one, Inspection):
                self._looking = look(Tables(self._db))
                break
            found = found or one is not None
        return found

    def close(self) -> None:
        """Close its connection."""
        if self._db is not None:
            self._db.close()


def verify_file(path: str | Path) -> list[str]:
    """What is wrong with the SQLite ledger at ``path``, of one moment; empty if nothing is.

    What was set aside as damaged is not in it any more, see ``set_aside_in``. Reads all of it and changes
    nothing, also where it cannot be opened any more; others may write meanwhile.
    """
    try:
        with closing(_reader(Path(path))) as db:
            db.execute("BEGIN")
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if wrong := structure(db, made=found == FORMAT):
                return wrong
            if found > FORMAT:
                return [f"it is {of_a_newer(found, reads=FORMAT)}"]
            if found != FORMAT:
                return [f"it is no ledger of format {FORMAT}"]
            return [str(one) for one in look(Tables(db)) if one is not None]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [f"it cannot be read: {error}"]


def set_aside_in(path: str | Path) -> list[str]:
    """What was set aside as damaged in the SQLite ledger at ``path``, oldest first; LedgerError if unread."""
    try:
        with closing(_reader(Path(path))) as db:
            (found,) = db.execute("PRAGMA user_version").fetchone()
            return set_aside(Tables(db)) if found == FORMAT else []
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise LedgerError(f"the ledger {path} cannot be read: {error}") from error


def _reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )


@contextmanager
def stopped_after(db: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """What is read inside ends then, silently."""
    until = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > until, 100_000)
    try:
        yield
    except sqlite3.OperationalError as error:
        if "interrupt" not in str(error):
            raise
    finally:
        db.set_progress_handler(None, 0)
