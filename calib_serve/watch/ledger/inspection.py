"""Looks a SQLite ledger through while it is in use: whole, or a slice at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from calib_serve.errors import LedgerError, of_a_newer
from calib_serve.watch.ledger.damage import Damage, look, set_aside, structure
from calib_serve.watch.ledger.rows import Tables
from calib_serve.watch.ledger.tables import FORMAT

__all__ = ["Inspection", "set_aside_in", "stopped_after", "verify_file"]


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
