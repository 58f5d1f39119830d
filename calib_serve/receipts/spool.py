"""What waits for a watch, on disk: a SQLite file for each process, sent by the next one where that ended.

A file belongs to the process that holds the lock beside it, so that no two write into one. It is a help and
no condition: whatever the disk does, what is in memory goes on. A file, or a row, that is damaged is kept
under another name, and counted; one of a newer version is left to that.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from calib_serve.core.errors import InputError
from calib_serve.core.files import make_private, open_regular, own_folder
from calib_serve.core.process import around_forks
from calib_serve.receipts.destination import Batch

try:
    import fcntl
except ImportError:  # not on every platform: then no process takes over what another left
    fcntl = None  # type: ignore[assignment]

SPOOL_BYTES = 512 << 20
"""Bytes of all files of a folder, beyond which a process keeps what waits in its memory."""

_PAGE, _FORMAT = 4096, 1
# By number alone: without an index a damaged page costs what is on it, and no way to the others.
_MAKE = """CREATE TABLE waiting
    (number INTEGER PRIMARY KEY, name TEXT, predictions INTEGER, body BLOB, crc INTEGER)"""


class _Row(NamedTuple):
    path: Path
    number: int
    predictions: int


class Spool:
    """Batches in the files of a folder that this process owns: its own one, and those that ended ones left.

    ``failed`` counts, and logs, as ``Outbox`` does.
    """

    def __init__(self, folder: str | Path, failed: Callable[..., None]) -> None:
        self._given, self._failed = Path(folder).absolute(), failed
        self._lock = threading.RLock()
        self._files, self._unusable = dict[Path, int](), set[Path]()
        try:
            self._begin()
        except OSError as error:
            raise InputError(f"cannot keep what waits in {folder}: {error}") from error
        around_forks(self)

    def _begin(self) -> None:
        """Leave all files to the next process, and begin one of a new name."""
        while self._files:
            os.close(self._files.popitem()[1])
        self._damaged = set[Path]()
        self._rows, self._last = dict[str, _Row](), dict[str, Batch]()
        self._own = own_folder(self._given) / f"{secrets.token_hex(16)}.db"

    def __len__(self) -> int:
        """The number of predictions that are on disk alone."""
        with self._lock:
            return sum(row.predictions for name, row in self._rows.items() if name not in self._last)

    def let_go(self) -> None:
        """Leave what is here to the next process."""
        with self._lock, suppress(OSError):
            self._begin()

    def keep(self, ended: Sequence[Batch], growing: Sequence[Batch]) -> None:
        """Write batches, in place of those of the same names; OSError where that fails.

        Those that ``ended`` are on disk alone from now on; the others are written again as they grow.
        """
        with self._lock:
            if self._own in self._files and not self._own.exists():
                self._lose(self._own, "somebody removed it")
            if fresh := [one for one in (*ended, *growing) if self._last.get(one.name) != one]:
                try:
                    self._write(fresh)
                except (OSError, sqlite3.Error) as error:
                    if not isinstance(error, (OSError, sqlite3.OperationalError)):
                        self._lose(self._own, repr(error))
                    elif self._own in self._files and not self._has_rows(self._own):
                        self._remove(self._own)
                    raise OSError(str(error)) from error
                self._rows |= {one.name: _Row(self._own, _number(one), sum(one.counts)) for one in fresh}
            self._last = {one.name: one for one in growing}

    def names(self) -> list[str]:
        """The names of batches that are on disk alone, oldest first: of this process, and of ended ones."""
        with self._lock:
            for path in sorted(self._own.parent.glob("*.db")):
                if path not in self._files:
                    self._adopt(path)
            return [name for name in self._rows if name not in self._last]

    def read(self, name: str) -> Batch | None:
        """Read a batch; None where it is gone, or cannot be read now."""
        with self._lock:
            if (row := self._rows.get(name)) is None:
                return None
            path, n = row.path, row.predictions
            try:
                with _database(path) as database:
                    asked = "SELECT body, crc FROM waiting WHERE number = ?"
                    found = database.execute(asked, (row.number,)).fetchone()
                if found is None or zlib.crc32(found[0]) != found[1]:
                    raise ValueError("its checksum is another")
                return Batch.read(name, found[0])
            except FileNotFoundError:
                self._lose(path, "somebody removed it")
            except (OSError, sqlite3.OperationalError) as error:  # which may pass
                self._note_unusable(path, error)
            except (sqlite3.DatabaseError, ValueError, TypeError) as error:
                self._failed("spool", n, "%d predictions that waited in %s are damaged: %r", n, path, error)
                self._damaged.add(path)
                self._unlist(name)
            return None

    def delete(self, name: str) -> None:
        """Delete a batch; one that cannot be deleted comes again under its name, and counts once."""
        with self._lock:
            self._last.pop(name, None)
            if name not in self._rows:
                return
            path, number, _ = self._rows[name]
            # The last one goes with its file, unless that is kept for what is damaged in it.
            if path in self._damaged or sum(row.path == path for row in self._rows.values()) > 1:
                try:
                    with _database(path) as database:
                        database.execute("DELETE FROM waiting WHERE number = ?", (number,))
                except (OSError, sqlite3.Error) as error:
                    self._note_unusable(path, error)
            self._unlist(name)

    def _unlist(self, name: str) -> None:
        """Take a batch out of the list, and its file away with the last one."""
        path = self._rows.pop(name).path
        if not self._has_rows(path):
            self._remove(path)

    def _has_rows(self, path: Path) -> bool:
        return any(row.path == path for row in self._rows.values())

    def _remove(self, path: Path) -> None:
        """Remove a file, or set it aside where something in it is damaged."""
        with suppress(OSError):
            if path in self._damaged:
                path.replace(f"{path}.damaged")
            for ending in ("", "-journal", ".lock"):
                Path(f"{path}{ending}").unlink(missing_ok=True)
        self._unusable.discard(path)
        self._damaged.discard(path)
        os.close(self._files.pop(path))

    def _write(self, batches: Sequence[Batch]) -> None:
        if self._own not in self._files:
            own_folder(self._given)
            self._files[self._own] = _locked(self._own)
            make_private(self._own)
        with _database(self._own) as database:
            others = sum(one.stat().st_size for one in self._own.parent.glob("*.db") if one != self._own)
            # SQLite says that the disk is full beyond so many pages.
            database.execute(f"PRAGMA max_page_count = {max((SPOOL_BYTES - others) // _PAGE, 1)}")
            database.execute("BEGIN IMMEDIATE")
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                database.execute(_MAKE)
                database.execute(f"PRAGMA user_version = {_FORMAT}")
            for one in batches:
                row = (_number(one), one.name, sum(one.counts), body := one.json(), zlib.crc32(body))
                database.execute("REPLACE INTO waiting VALUES (?, ?, ?, ?, ?)", row)
            database.execute("COMMIT")

    def _adopt(self, path: Path) -> None:
        """Take over the file of a process that has ended."""
        try:
            self._files[path] = _locked(path, others=True)
        except BlockingIOError:  # its process lives
            return
        except OSError as error:
            self._note_unusable(path, error)
            return
        try:
            _lengthen(path)
            with _database(path) as database:
                sound, rows = _rows(database, path)
        except (OSError, sqlite3.OperationalError) as error:  # which may pass
            if path.exists():
                self._note_unusable(path, error)
                os.close(self._files.pop(path))
            else:
                self._remove(path)  # another process was first
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            self._lose(path, repr(error))
        else:
            self._rows |= rows
            if not sound:
                self._failed("spool", 1, "%s, where predictions wait, is damaged", path)
                self._damaged.add(path)
            if not rows:
                self._remove(path)

    def _lose(self, path: Path, why: str) -> None:
        """Count what was on disk alone in a file that is gone, or no database any more: it is set aside."""
        mine = {name: row for name, row in self._rows.items() if row.path == path}
        lost = sum(row.predictions for name, row in mine.items() if name not in self._last)
        self._failed("spool", lost or 1, "%d predictions that waited in %s are lost: %s", lost, path, why)
        self._rows = {name: row for name, row in self._rows.items() if name not in mine}
        self._damaged.add(path)
        self._remove(path)
        if path == self._own:
            self._own, self._last = path.with_name(f"{secrets.token_hex(16)}.db"), {}

    def _note_unusable(self, path: Path, error: Exception) -> None:
        """Count a file once that cannot be used now."""
        if path not in self._unusable:
            self._unusable.add(path)
            self._failed("spool", 1, "what waits in %s cannot be used now: %s", path, error)

    def before_fork(self) -> None:
        """Keep the lock over a fork, so that no child has half a transaction of a thread."""
        self._lock.acquire()

    def after_in_parent(self) -> None:
        """Release the lock in the parent."""
        self._lock.release()

    def after_in_child(self) -> None:
        """Begin anew: the parent sends what is here."""
        self._lock = threading.RLock()
        self.let_go()


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    # Opened each time: no connection is there to be shared by a fork, and a folder may be put back.
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError("it is no regular file")
    database = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=1.0, isolation_level=None)
    try:
        yield database
    finally:
        database.close()


def _lengthen(path: Path) -> None:
    """Make a file as long as it says it is: what is cut off costs what was there, and not the whole."""
    with open_regular(path) as file:
        header = file.read(32)
    size = int.from_bytes(header[16:18], "big") * int.from_bytes(header[28:32], "big")
    if header.startswith(b"SQLite format 3") and path.stat().st_size < size <= SPOOL_BYTES:
        os.truncate(path, size)


def _rows(database: sqlite3.Connection, path: Path) -> tuple[bool, dict[str, _Row]]:
    """Whether a file is sound, and its batches; OSError for another format."""
    (made,) = database.execute("PRAGMA user_version").fetchone()
    if made > _FORMAT:
        raise OSError(f"it is of a newer version, {made}")
    if not made and not database.execute("PRAGMA page_count").fetchone()[0]:
        return True, {}  # its process ended before the first batch was written
    found = dict[int, tuple[str, _Row]]()
    for order in ("", "DESC"):  # from both ends up to what is damaged
        with suppress(sqlite3.DatabaseError):
            for number, name, n in database.execute(
                f"SELECT number, name, predictions FROM waiting ORDER BY number {order}"  # noqa: S608
            ):
                found[number] = str(name), _Row(path, number, int(n))
    sound = database.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
    return sound, dict(found[number] for number in sorted(found))


def _number(batch: Batch) -> int:
    return int(batch.name.rpartition("-")[2])


def _locked(path: Path, *, others: bool = False) -> int:
    """A lock that ends with this process; BlockingIOError while another one has it."""
    if fcntl is None and others:
        raise BlockingIOError("there are no locks here")
    held = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held
