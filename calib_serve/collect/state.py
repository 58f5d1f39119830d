"""What was read of which file, in a small SQLite file.

It may be lost: labels that come again are duplicates.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from calib_serve.errors import ServerError
from calib_serve.files import make_private

__all__ = ["Read", "State"]

_TABLE = "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, version TEXT, rows INTEGER, whole INTEGER)"


class Read(NamedTuple):
    """Of a file in this ``version``, so many ``rows`` are settled; ``whole``: all of them."""

    version: str
    rows: int
    whole: bool


class State:
    """What is settled of the files of a source, by their whole addresses, in the file at ``path``.

    ServerError where it cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            make_private(self.path)
            self._db = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(_TABLE)
            self._db.execute("SELECT version, rows, whole FROM files LIMIT 1")
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from error

    def of(self, path: str) -> Read | None:
        """What is settled of this file, in the version that was read last."""
        try:
            row = self._db.execute(
                "SELECT version, rows, whole FROM files WHERE path = ?", (path,)
            ).fetchone()
        except sqlite3.Error as error:
            raise self._error(error) from error
        return None if row is None else Read(str(row[0]), int(row[1]), bool(row[2]))

    def save(self, path: str, read: Read) -> None:
        """Remember that, for good on return."""
        try:
            self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", (path, *read))
        except sqlite3.Error as error:
            raise self._error(error) from error

    def keep(self, under: str, paths: Collection[str]) -> None:
        """Forget the files under an address that are not among these."""
        try:
            known = {row[0] for row in self._db.execute("SELECT path FROM files")}
            gone = [(one,) for one in known if one.startswith(under) and one not in paths]
            if gone:
                self._db.executemany("DELETE FROM files WHERE path = ?", gone)
        except sqlite3.Error as error:
            raise self._error(error) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _error(self, error: Exception) -> ServerError:
        return ServerError(
            f"{self.path}, which says what was read, cannot be used: {error}; remove it to read all files "
            "again, or name another by --state"
        )
