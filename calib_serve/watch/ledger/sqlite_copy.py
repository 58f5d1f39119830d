"""Copies of a SQLite ledger: taken while it is in use, and put in its place while it is not."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger.sqlite import SqliteLedger

__all__ = [
    "as_it_is", "compact", "copied", "is_there", "needed", "put_in_place", "unused", "used_bytes",
]  # fmt: skip

_PAGES = 1024  # of one step, between which others have their turn
_PARTS = ("-wal", "-shm")
_WAIT = 10.0  # seconds for whoever is about to leave


def copied(path: Path, to: Path, *, clock: Callable[[], float] = time.time) -> float:
    """Copy the ledger of one moment to ``to`` while others read and write; when that moment was."""
    try:
        with (
            closing(sqlite3.connect(_address(path), uri=True, timeout=_WAIT, isolation_level=None)) as source,
            closing(sqlite3.connect(to, isolation_level=None)) as target,
        ):
            # What is read within one transaction is of one moment, in which writers go on: without it, SQLite
            # begins again whenever one writes.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            taken = clock()
            source.backup(target, pages=_PAGES)
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"cannot copy the ledger {path}: {error}; verify it, or see its rights") from error
    return taken


def as_it_is(path: Path) -> SqliteLedger:
    """Open a ledger that is there, in its own bins and with its own retention."""
    try:
        with closing(sqlite3.connect(_address(path), uri=True, timeout=_WAIT)) as db:
            row = db.execute("SELECT value FROM state WHERE key = 'ledger/bins'").fetchone()
            bins = 15 if row is None else int(row[0])
    except (sqlite3.Error, ValueError, TypeError, OSError) as error:
        raise LedgerError(f"{path} is no ledger, or a damaged one: {error}") from error
    return SqliteLedger(path, bins=bins, retention=0.0)


def needed(path: Path) -> Path:
    """``path``, or LedgerError where no file is."""
    if not path.is_file():  # SQLite's own message names none
        raise LedgerError(f"there is no ledger {path}" + (": it is a folder" if path.is_dir() else ""))
    return path


def _address(path: Path) -> str:
    return f"{needed(path).absolute().as_uri()}?mode=ro"


def used_bytes(path: Path) -> int:
    """What the ledger's pages take that are not free."""
    try:
        with closing(sqlite3.connect(_address(path), uri=True, timeout=_WAIT)) as db:
            pages, free, size = (
                int(db.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"{path} is no ledger, or a damaged one: {error}") from error
    return (pages - free) * size


@contextmanager
def unused(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Keep others out of the ledger at ``path``; LedgerError while a process has it open.

    None where there is none, or one so damaged that nobody can know.
    """
    with ExitStack() as stack:
        yield _alone(path, stack) if path.exists() else None


def _alone(path: Path, stack: ExitStack) -> sqlite3.Connection | None:
    try:
        db = stack.enter_context(closing(sqlite3.connect(path, timeout=1.0, isolation_level=None)))
        # Only whoever is alone may leave the write-ahead log, which is then empty and gone.
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise LedgerError(f"a process uses the ledger {path}; stop it first") from error
        if any(said in str(error) for said in ("malformed", "not a database", "disk I/O")):
            stack.close()
            return None
        raise LedgerError(f"the ledger {path} cannot be used: {error}") from error
    stack.callback(lambda: db.in_transaction and db.execute("ROLLBACK"))
    return db


def is_there(path: Path) -> bool:
    """Whether a ledger is at ``path``, or a log of one, which SQLite would take for the next one's."""
    log = path.with_name(f"{path.name}-wal")
    return path.exists() or (log.exists() and log.stat().st_size > 0)


def put_in_place(ready: Path, path: Path, *, clock: Callable[[], float] = time.time) -> Path | None:
    """Make ``ready`` the ledger at ``path``; where what was there has been set aside.

    At every moment the old one or the new one is there, whole.
    """
    aside = None
    try:
        with ready.open("rb") as file:
            os.fsync(file.fileno())
        if is_there(path):
            aside = _free(path.with_name(f"{path.name}.replaced-{int(clock())}"))
            if path.exists():
                was = path.stat()
                with suppress(PermissionError):  # whose it was, where we may
                    os.chown(ready, was.st_uid, was.st_gid)
                ready.chmod(was.st_mode & 0o777)
                os.link(path, aside)
            for suffix in _PARTS:
                with suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
            ready.replace(path)
        else:
            os.link(ready, path)  # fails where a server has begun one meanwhile
    except OSError as error:
        raise LedgerError(f"cannot put the ledger {path} in its place: {error}") from error
    return aside


def compact(path: Path) -> bool:
    """Give free pages back to the file system; False while a process has the ledger open."""
    try:
        with unused(path) as db:
            if db is not None:
                db.execute("ROLLBACK")  # VACUUM is a transaction of its own
                db.execute("VACUUM")
    except sqlite3.Error as error:
        raise LedgerError(f"cannot compact the ledger {path}: {error}") from error
    except LedgerError as error:
        if "uses the ledger" not in str(error):
            raise
        return False
    return True


def _free(path: Path) -> Path:
    no, free = 1, path
    while free.exists():
        no += 1
        free = path.with_name(f"{path.name}-{no}")
    return free
