"""Labels from files that are dropped into a folder or a bucket, through fsspec.

A file is read when it did not change for some seconds, and again when it has changed after that. What was
read of it is in ``SettledFiles``, so that a new start goes on where all before is settled.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from calib_serve.core.errors import InputError, MissingDependency, ServerError
from calib_serve.core.files import make_private
from calib_serve.integrations.collect.reading import USUAL, LabelFields, LabelRow
from calib_serve.integrations.collect.source import DeadLetter, Piece, Stream
from calib_serve.integrations.collect.tables import KINDS, read_label_rows

try:
    import fsspec
except ImportError as error:
    raise MissingDependency("fsspec", "files") from error

log = logging.getLogger(__name__)

_ROWS = 1000  # taken at once
_CONTENT = ("ETag", "etag", "md5Hash", "content_md5")
_CHANGED = ("ino", "mtime", "LastModified", "last_modified", "updated", "created")
_TABLE = "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, version TEXT, rows INTEGER, whole INTEGER)"
_TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".inprogress", "~")


class SettledFile(NamedTuple):
    """Settled ``rows`` of a file in this ``version``; ``whole``: all rows are."""

    version: str
    rows: int
    whole: bool


class SettledFiles:
    """Stores the settled rows of a source's files, by whole addresses, in the SQLite file at ``path``.

    It may be lost: labels that come again are duplicates. ServerError where it cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._usable():
            make_private(self.path)
            self._db = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(_TABLE)
            self._db.execute("SELECT version, rows, whole FROM files LIMIT 1")

    def of(self, path: str) -> SettledFile | None:
        """The settled rows of a file, in its version last read."""
        with self._usable():
            found = self._db.execute("SELECT version, rows, whole FROM files WHERE path = ?", (path,))
            row = found.fetchone()
        return None if row is None else SettledFile(str(row[0]), int(row[1]), bool(row[2]))

    def save(self, path: str, read: SettledFile) -> None:
        """Store a file's settled rows, durable on return."""
        with self._usable():
            self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", (path, *read))

    def keep(self, under: str, paths: Collection[str]) -> None:
        """Delete the entries under an address of files that are gone."""
        with self._usable():
            known = {row[0] for row in self._db.execute("SELECT path FROM files")}
            gone = [(one,) for one in known if one.startswith(under) and one not in paths]
            if gone:
                self._db.executemany("DELETE FROM files WHERE path = ?", gone)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise ServerError(
                f"{self.path}, which says what was read, cannot be used: {error}; remove it to read all "
                "files again, or name another by --state"
            ) from error


class _Reading:
    """A file in hand: its version, its rows, and the number settled."""

    def __init__(self, address: str, version: str, rows: Iterator[LabelRow], *, start: int) -> None:
        self.address, self.version, self.rows, self.at = address, version, rows, start
        self.stream, self.ended, self.saved = Stream(address, start), False, start


class FileSource:
    """A ``Source`` over the files under ``address``: CSV, Parquet or JSON lines; others are ignored.

    ``settle``: seconds for which a file must not have changed; ``every``: seconds between two looks.
    ``skip``: an address below, whose files are left out. ``columns``: what they are called. InputError for an
    address that cannot be.
    """

    def __init__(
        self,
        address: str,
        state: SettledFiles,
        *,
        settle: float = 5.0,
        every: float = 5.0,
        skip: str = "",
        columns: LabelFields = USUAL,
    ) -> None:
        try:
            self._fs, self._root = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except (ImportError, ValueError, TypeError) as error:
            raise InputError(f"files cannot be read from {address!r}: {error}") from error
        if "file" in self._fs.protocol and not Path(self._root).exists():
            raise InputError(f"there is no folder {self._root}; make it, or check the address")
        self.failures, self._columns = 0, columns
        self._local = "file" in self._fs.protocol
        self._state, self._settle, self._every = state, settle, every
        self._skip = fsspec.core.url_to_fs(skip)[1] if skip else ""
        self._seen: dict[str, tuple[str, float]] = {}
        self._told: set[str] = set()
        self._ready: dict[str, str] = {}
        self._current: _Reading | None = None
        self._open: list[_Reading] = []
        self._looked, self._unsettled, self._lag = -float("inf"), True, 0
        self._scratch = tempfile.TemporaryDirectory(prefix="calib-collect-")

    def take(self, seconds: float) -> list[Piece]:
        """Take the next rows of the file in hand, or the first of the next one."""
        until = time.monotonic() + seconds
        while True:
            if self._current is None:
                self._look()
                self._begin()
            if self._current is not None and (pieces := self._rows(self._current)):
                return pieces
            if self._current is None and not self._ready:
                left = min(until, max(self._looked + self._every, time.monotonic())) - time.monotonic()
                if left <= 0:
                    return []
                time.sleep(left)
                if time.monotonic() >= until:
                    return []

    def alive(self) -> None:
        """Do nothing: no group waits for this process."""

    def _look(self) -> None:
        """List the files, and those that did not change for long enough."""
        now = time.monotonic()
        if now - self._looked < self._every:
            return
        self._looked = now
        try:
            found = self._listed()
        except Exception as error:  # what a client of a bucket raises is its own
            self._trouble(f"the files under {self._root} cannot be listed: {error}")
            self._unsettled = True
            return
        # What is gone is forgotten, or the state would grow with every file there ever was.
        self._state.keep(self._address(self._root), {self._address(path) for path in found})
        for one in self._open:
            if found.get(one.address) != one.version:
                self._give_up(one)  # it is another file by now, which is read when it is settled
        self._seen = {path: self._seen.get(path, (version, now)) for path, version in found.items()}
        reading = {one.address for one in self._open}
        self._unsettled, waiting = False, 0
        for path, version in sorted(found.items()):
            was, since = self._seen[path]
            if was != version:
                self._seen[path] = (version, since := now)
            read = self._state.of(self._address(path))
            if path in reading or (read is not None and read.version == version and read.whole):
                continue
            waiting += 1
            if now - since >= self._settle:
                self._ready[path] = version
            else:
                self._unsettled = True
                self._ready.pop(path, None)
        self._ready = {path: version for path, version in self._ready.items() if found.get(path) == version}
        self._lag = waiting + len(reading)

    def _listed(self) -> dict[str, str]:
        """The version of each file of labels."""
        self._fs.invalidate_cache()
        found: Mapping[str, Mapping[str, Any]] = self._fs.find(self._root, detail=True)
        return {
            path: _version(info)
            for path, info in found.items()
            if info.get("type", "file") == "file" and self._wanted(path)
        }

    def _wanted(self, path: str) -> bool:
        below = PurePosixPath(path.removeprefix(self._root).lstrip("/") or PurePosixPath(path).name)
        if any(part.startswith((".", "_")) for part in below.parts) or path.endswith(_TEMPORARY):
            return False  # of a writer that has not ended, or of Spark
        if self._skip and (path + "/").startswith(self._skip.rstrip("/") + "/"):
            return False
        if below.suffix.lower() not in KINDS:
            if path not in self._told:
                log.warning("%s is passed over: labels are in %s", path, ", ".join(KINDS))
                self._told.add(path)
            return False
        return True

    def _begin(self) -> None:
        """Begin with the next file that is ready."""
        while self._ready:
            path = next(iter(self._ready))
            version = self._ready.pop(path)
            try:
                local = self._copied(path)
                if self._now(path) != version:
                    self._trouble(f"{path} changed while it was opened")
                    self._looked, self._unsettled = -float("inf"), True
                    continue
            except Exception as error:  # what a client of a bucket raises is its own
                self._trouble(f"{path} cannot be read: {error}")
                continue
            read = self._state.of(self._address(path))
            start = read.rows if read is not None and read.version == version else 0
            rows = islice(_rows(local, path, self._columns), start, None)
            self._current = _Reading(path, version, rows, start=start)
            self._open.append(self._current)
            return

    def _copied(self, path: str) -> Path:
        """The path to read in this host: a bucket's file is copied here first."""
        if self._local:
            return Path(path)
        local = Path(self._scratch.name) / f"current{PurePosixPath(path).suffix.lower()}"
        self._fs.get_file(path, str(local))
        return local

    def _rows(self, one: _Reading) -> list[Piece]:
        pieces = []
        try:
            for where, labels, dead in islice(one.rows, _ROWS):
                pieces.append(Piece(one.stream, one.at, where, labels, dead))
                one.at += 1
        except OSError as error:
            self._trouble(f"{one.address} cannot be read: {error}")
            self._give_up(one)
            return []
        if len(pieces) < _ROWS:
            self._current, one.ended = None, True
        if self._changed(one):
            self._give_up(one)  # these may be rows of two versions, which are all read again
            return []
        return pieces

    def _changed(self, one: _Reading) -> bool:
        if not self._local:
            return False  # its copy is of one version
        try:
            return self._now(one.address) != one.version
        except OSError:
            return True

    def _now(self, path: str) -> str:
        """The file's version as a listing shows it: for single files, some stores give other times."""
        self._fs.invalidate_cache()
        info = self._fs.find(path, detail=True).get(path)
        return "" if info is None else _version(info)

    def _give_up(self, one: _Reading) -> None:
        one.stream.given_up = True
        if one is self._current:
            self._current = None
        if one in self._open:
            self._open.remove(one)
        self._looked, self._unsettled = -float("inf"), True

    def commit(self) -> None:
        """Note the settled rows of each file."""
        for one in list(self._open):
            whole = one.ended and one.stream.settled
            if whole or one.stream.next > one.saved:
                self._state.save(self._address(one.address), SettledFile(one.version, one.stream.next, whole))
                one.saved = one.stream.next
            if whole:
                self._open.remove(one)
                self._lag -= 1

    def _address(self, path: str) -> str:
        return str(self._fs.unstrip_protocol(path))

    def _trouble(self, why: str) -> None:
        self.failures += 1
        log.warning("%s; it is tried again", why)

    def lag(self) -> int:
        """The number of files not settled, as of the last look."""
        return max(self._lag, 0)

    def drained(self) -> bool:
        """Whether all files were read, and none is too young."""
        return not (self._unsettled or self._ready or self._current or self._open)

    def close(self) -> None:
        """Note the settled rows."""
        self.commit()
        self._scratch.cleanup()
        self._state.close()


def _rows(path: Path, name: str, columns: LabelFields) -> Iterator[LabelRow]:
    """Yield the rows of a file; a dead letter where it is no table of labels."""
    try:
        yield from read_label_rows(path, name, columns)
    except InputError as error:
        told = str(error).replace(str(path), name)
        yield LabelRow(name, [], [DeadLetter("unreadable", told, name, item={"file": name})])


def _version(info: Mapping[str, Any]) -> str:
    """The parts of a listing that change with a file's content, as far as its store tells."""
    # A content's digest alone, if there is one.
    names = [name for name in _CONTENT if info.get(name)] or _CHANGED
    return repr([(name, str(info[name])) for name in ("size", *names) if name in info])
