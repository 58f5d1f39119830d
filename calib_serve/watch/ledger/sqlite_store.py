"""A SQLite file that several processes share: transactions, state by key, and what is done about damage."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from calib_serve.errors import LedgerError, of_a_newer
from calib_serve.files import make_private
from calib_serve.watch.ledger import inspection
from calib_serve.watch.ledger.inspection import set_aside_in, stopped_after, verify_file
from calib_serve.watch.ledger.tables import FORMAT, DamagedRow, Tables

__all__ = ["LATEST", "Files", "SqliteStore", "quarantine"]

logger = logging.getLogger(__name__)

LATEST = "ledger/latest"
"""The key of the time of the latest prediction whose label was counted."""

_PAGE = 8192  # bytes: the list of an epoch of which one receipt in 100 is counted needs no page of its own
_LOOK_AT_START = 10.0  # seconds for which a ledger is looked through before it is used; the rest follows
_MEND = "set it aside with calib_serve.watch.ledger.quarantine(path), or restore a copy"
_PARTS = ("", "-wal", "-shm")


class SqliteStore:
    """What the ledger in the file at ``path`` stands on; it is created if it is missing.

    What is damaged is set aside where the rest can count on without it; else nothing is read or written any
    more (LedgerError).
    """

    def __init__(self, path: str | Path, *, timeout: float, clock: Callable[[], float]) -> None:
        self.path, self._clock = Path(path), clock
        self._lock = threading.RLock()
        self._depth = 0
        self._suspect = False
        self._refused = ""
        self._files = Files(self.path)
        set_leftovers_aside(self.path, clock=clock)
        try:
            make_private(self.path)  # SQLite gives its journals the same mode
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} cannot be made: {error}") from error
        with self._errors():
            self._db = sqlite3.connect(
                self.path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
            self._tables = Tables(self._db)
            try:
                # Of a new file alone.
                self._db.execute(f"PRAGMA page_size = {_PAGE}")
                self._db.execute("PRAGMA journal_mode = WAL")
                # FULL: a label that was acknowledged survives a power cut, not only a crash.
                self._db.execute("PRAGMA synchronous = FULL")
            except sqlite3.Error:
                self._db.close()
                raise

    def _format(self) -> int:
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise LedgerError(f"{self.path} is a ledger {of_a_newer(found, reads=FORMAT)}")
        if found < 0:
            raise self._damaged(f"no format has the number {found}")
        if found == 0 and self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise self._damaged("it has tables, and no number of its format")
        return int(found)

    def _look_at_start(self, *, indexed: bool = False) -> None:
        """Look the ledger through, as far as it goes in time; the next write sets aside what is damaged."""
        until = time.monotonic() + _LOOK_AT_START
        wrong: list[str] = []
        with self._reading(), stopped_after(self._db, _LOOK_AT_START):
            found = self._format()
            wrong = inspection.structure(self._db, made=found == FORMAT)
            if wrong and (indexed or not inspection.index_alone(wrong)):
                raise self._damaged("; ".join(wrong[:3]))
            for one in inspection.look(self._tables) if found == FORMAT else ():
                self._suspect = self._suspect or one is not None
                if self._suspect or time.monotonic() > until:
                    break
        if wrong:
            with self.transaction():
                self._db.execute("REINDEX")
            self._look_at_start(indexed=True)

    def _contain(self) -> None:
        """Set aside what is damaged, so that the rest counts on; refuse everything if that cannot be."""
        self._suspect = False
        try:
            with self.transaction():
                found = [one for one in inspection.look(self._tables) if one is not None]
                left = found and self._set_aside(found)
                if left:
                    self._refused = "; ".join(str(one) for one in left[:3])
                    raise self._damaged(self._refused)
        except LedgerError:
            self._suspect = not self._refused
            raise
        for one in found:
            logger.error("the ledger %s is damaged: %s; that is set aside, the rest counts", self.path, one)

    def _set_aside(self, found: list[inspection.Damage]) -> list[inspection.Damage]:
        now = self._clock()
        try:
            return inspection.contain(self._tables, found, latest=self._known(LATEST, now), now=now)
        except (DamagedRow, LedgerError):
            return found

    def verify(self) -> list[str]:
        """What is wrong with it, as of one moment; empty if nothing is. Reads all, and changes nothing."""
        return verify_file(self.path)

    def set_aside(self) -> list[str]:
        """What was damaged and set aside, so that the rest counts on; oldest first."""
        return set_aside_in(self.path)

    def forget_set_aside(self) -> int:
        """Delete what was set aside as damaged; how many rows."""
        with self.transaction():
            rows = self._tables["damaged"].select("ORDER BY id")
            self._tables["damaged"].delete_all(rows)
        return len(rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is written together, or not at all; may be nested."""
        with self._lock, self._errors():
            if self._depth == 0:
                self._begin()
            self._depth += 1
            try:
                if self._depth == 1:
                    self._tables.begin()
                yield
                if self._depth == 1:
                    self._tables.flush()
                    self._db.execute("COMMIT")
                    if self._files.changed("-wal"):
                        self._save_journal()
            except BaseException:
                if self._depth == 1:
                    self._tables.forget()
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def _begin(self) -> None:
        # SQLite would go on writing to a deleted file, and all that is lost when the process ends.
        if self._files.changed():
            self._save_journal()
            raise self._files.error(saved=True)
        self._refuse()
        if self._suspect:
            self._contain()
        self._db.execute("BEGIN IMMEDIATE")

    def _refuse(self) -> None:
        if self._refused:
            raise self._damaged(self._refused)

    def _save_journal(self) -> None:
        """Write what was acknowledged into the ledger, where its -wal file was removed: it is open still."""
        if self._files.journal_only:
            busy, *_ = self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            if not busy:
                return
        raise self._files.error()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Everything read inside is of one moment."""
        with self._lock, self._errors():
            if self._depth:
                yield
                return
            self._refuse()
            self._db.execute("BEGIN")
            try:
                self._tables.begin()
                yield
            finally:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DamagedRow as error:
            self._suspect = True
            raise self._damaged(error) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where a message quotes damage
            hint = "free some space" if "full" in str(error) else "retry if it was locked; otherwise " + _MEND
            raise LedgerError(f"the ledger {self.path} cannot be used: {error}; {hint}") from error

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""
        with self._lock, self._errors():
            if self._depth == 0:
                self._tables.begin()
            row = self._tables["state"].get(key)
        return None if row is None else bytes(row[1])

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, durable on return."""
        with self.transaction():
            self._tables["state"].put(key, value)

    def _known(self, key: str, default: float) -> float:
        kept = self.load(key)
        return default if kept is None else self._number(kept)

    def _number(self, text: bytes) -> float:
        try:
            number = float(text)
        except ValueError as error:
            raise self._damaged(error) from error
        if math.isnan(number):
            raise self._damaged("a time is not a number")
        return number

    def _damaged(self, why: object) -> LedgerError:
        return LedgerError(f"the ledger {self.path} is damaged ({why}); {_MEND}")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


class Files:
    """The ledger's file and the two that SQLite keeps beside it while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: list[tuple[str, str, tuple[int, int]]] = []
        self._found = _identity(path, "")

    def opened(self) -> None:
        """Remember them as they are: they stay the same while this process has the ledger open.

        LedgerError where the ledger was replaced while it was opened, by a restore.
        """
        if self._found and self._found != _identity(self.path, ""):
            self._opened = [("", str(self.path), self._found)]
            raise self.error()
        found = [(part, f"{self.path}{part}", _identity(self.path, part)) for part in _PARTS]
        self._opened = [(part, name, of) for part, name, of in found if of]

    def changed(self, part: str | None = None) -> bool:
        """Whether one of them, or this one, is not what was opened any more."""
        try:
            for of, name, was in self._opened:
                if part in (None, of):
                    found = os.stat(name)  # noqa: PTH116  at every batch
                    if (found.st_dev, found.st_ino) != was:
                        return True
        except OSError:
            return True
        return False

    def _gone(self) -> list[str]:
        return [part for part, _, was in self._opened if _identity(self.path, part) != was]

    def check(self) -> None:
        """LedgerError where one of them is not what was opened."""
        if self.changed():
            raise self.error()

    def error(self, *, saved: bool = False) -> LedgerError:
        """What to say of it; ``saved``: what was acknowledged was written into the ledger."""
        part = next(iter(self._gone()), "")
        there = _identity(self.path, part) is not None
        if part:
            lost = "was saved into the ledger" if saved else "may be missing in part"
            how = "replaced" if there else "removed"
            return LedgerError(
                f"the {part} file of the ledger {self.path} was {how} while in use; what was acknowledged "
                f"before {lost}; restart every process that uses it"
            )
        if there:
            return LedgerError(
                f"the ledger {self.path} was replaced by another file; restart to use that one"
            )
        return LedgerError(f"the ledger {self.path} is missing; restore it, or restart to begin another")

    @property
    def journal_only(self) -> bool:
        """Whether the -wal file alone is missing: what is in it can still be saved."""
        return self._gone() == ["-wal"] and _identity(self.path, "-wal") is None


def _identity(path: Path, part: str) -> tuple[int, int] | None:
    try:
        found = path.with_name(path.name + part).stat() if part else path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def set_leftovers_aside(path: Path, *, clock: Callable[[], float] = time.time) -> None:
    """Move a -wal and -shm aside that lie there without a ledger: they are another one's."""
    # The -wal first: whoever begins a ledger at this moment makes its file before.
    left = [part for part in _PARTS[1:] if _identity(path, part)]
    if left and _identity(path, "") is None:
        _move(path, _aside(path, clock), left)


def quarantine(path: str | Path, *, clock: Callable[[], float] = time.time) -> Path:
    """Move a damaged ledger and its journal aside, so that a fresh one can start; where it went.

    Receipts and sums go together: the fresh ledger counts from zero, and each label at most once. Where it
    is cut short, the rest is set aside by the ledger that is opened next.
    """
    path = Path(path)
    aside = _aside(path, clock)
    _move(path, aside, [part for part in _PARTS if _identity(path, part)])
    return aside


def _aside(path: Path, clock: Callable[[], float]) -> Path:
    name, n = f"{path.name}.damaged-{int(clock())}", 1
    aside = path.with_name(name)
    while any(_identity(aside, part) for part in _PARTS):
        n += 1
        aside = path.with_name(f"{name}-{n}")
    return aside


def _move(path: Path, aside: Path, parts: list[str]) -> None:
    # The ledger first: what is left without it is known to be another one's, and a ledger without its
    # -wal would have lost labels in silence.
    try:
        for part in parts:
            path.with_name(path.name + part).rename(aside.with_name(aside.name + part))
    except OSError as error:
        raise LedgerError(f"cannot set the damaged ledger {path} aside: {error}") from error
