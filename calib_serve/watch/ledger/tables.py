"""The tables of a SQLite ledger: each row has a checksum, and each table a digest of all its rows.

A checksum (CRC-32) is over the whole row, its key columns among it, so that rows that were changed, moved or
swapped show where they are read. A digest is the number of rows and the sum of their checksums, so that rows
that vanished show when a table is looked at whole.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DIGESTS", "FORMAT", "SCHEMA", "TABLES", "DamagedRow", "Row", "Rows", "Table", "Tables"]

FORMAT = 1
"""The number of this layout, which SQLite keeps as the file's ``user_version``."""

Row = tuple[Any, ...]


class DamagedRow(ValueError):
    """A row that is not as it was written."""

    def __init__(self, table: str, row: Row) -> None:
        super().__init__(
            f"a row of {table} is not as it was written: its key reads {TABLES[table].key_of(row)}"
        )
        self.table, self.row = table, row


@dataclass(frozen=True)
class Table:
    """A table and its columns with their types; a row is its key, then its checksum, then its values."""

    name: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    indexed: tuple[str, ...] = ()

    @property
    def columns(self) -> str:
        """Their names, for a statement."""
        return ", ".join(one.split()[0] for one in (*self.key, "crc", *self.values))

    @property
    def keys(self) -> str:
        """The same, of the key."""
        return ", ".join(one.split()[0] for one in self.key)

    def key_of(self, row: Row) -> Row:
        """The first columns."""
        return row[: len(self.key)]

    @property
    def schema(self) -> tuple[str, ...]:
        """The statements that make it."""
        columns = ", ".join((*self.key, "crc INTEGER NOT NULL", *(f"{one} NOT NULL" for one in self.values)))
        if self.key == ("id INTEGER",):
            made = f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}, PRIMARY KEY (id))"
        else:
            made = (
                f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}, PRIMARY KEY ({self.keys})) WITHOUT ROWID"
            )
        by = ", ".join(self.indexed)
        index = (
            f"CREATE INDEX IF NOT EXISTS {self.name}_{self.indexed[-1]} ON {self.name} ({by})" if by else ""
        )
        return (made, index) if index else (made,)

    @functools.cached_property
    def checksum(self) -> Callable[[Row], int]:
        """Of a row without its checksum; ValueError, TypeError or struct.error where its types are others."""
        types = [one.split()[1] for one in (*self.key, *self.values)]
        codes = {"REAL": "d", "INTEGER": "q"}
        pack = struct.Struct("<" + "".join(codes[one] for one in types if one in codes)).pack
        numbers = _picked([i for i, one in enumerate(types) if one in codes])
        texts = _picked([i for i, one in enumerate(types) if one == "TEXT"])
        blobs = [i for i, one in enumerate(types) if one == "BLOB"]
        of_texts, crc32 = (
            functools.lru_cache(maxsize=4096)(functools.partial(_of_texts, self.name)),
            zlib.crc32,
        )

        def checksum(row: Row) -> int:
            found = crc32(pack(*numbers(row)), of_texts(texts(row)))
            for i in blobs:
                found = crc32(row[i], found)
            return found

        return checksum

    def sealed(self, row: Row) -> Row:
        """The row with its checksum, as it is written."""
        at = len(self.key)
        return (*row[:at], self.checksum(row), *row[at:])

    def read(self, row: Row) -> Row:
        """The row without its checksum; DamagedRow where they do not fit together."""
        at = len(self.key)
        plain = (*row[:at], *row[at + 1 :])
        try:
            sound = self.checksum(plain) == row[at]
        except (ValueError, TypeError, OverflowError, struct.error):
            sound = False
        if not sound:
            raise DamagedRow(self.name, row)
        return plain


def _of_texts(table: str, texts: Row) -> int:
    return zlib.crc32("\0".join((table, *texts)).encode())


def _picked(places: Sequence[int]) -> Callable[[Row], Row]:
    if len(places) > 1:
        return operator.itemgetter(*places)
    return (lambda row: (row[places[0]],)) if places else (lambda row: ())


_EXPIRING = ("expires",)
TABLES = {
    one.name: one
    for one in (
        Table("state", ("key TEXT",), ("value BLOB",)),
        Table(
            "totals", ("writer TEXT", "model TEXT", "version TEXT", "kind TEXT", "name TEXT"), ("sums BLOB",)
        ),
        Table("emitted", ("consumer TEXT", "model TEXT", "version TEXT"), ("sums BLOB",)),
        Table(
            "journal",
            ("id INTEGER",),
            (
                *("writer TEXT", "model TEXT", "version TEXT", "time REAL", "nonce BLOB", "arrived REAL"),
                *("confidence REAL", "correct INTEGER", "predicted INTEGER", "inclusion REAL"),
                *("grouped INTEGER", "slices TEXT", "detect INTEGER", "shadow BLOB"),
            ),
            indexed=("model", "version", "time"),
        ),
        Table("epochs", ("epoch BLOB",), ("expires REAL", "since REAL", "bits BLOB"), _EXPIRING),
        Table(
            "batches", ("name BLOB",), ("content BLOB", "time REAL", "expires REAL", "note BLOB"), _EXPIRING
        ),
        Table(
            "spans",
            ("model TEXT", "version TEXT", "kind TEXT", "start REAL", "width REAL", "name TEXT"),
            ("sums BLOB",),
        ),
        Table("damaged", ("id INTEGER",), ("found REAL", "place TEXT", "what TEXT", "row TEXT")),
    )
}
"""By name, in the order in which they are looked at: first those without which nothing can be counted."""

SCHEMA = tuple(itertools.chain.from_iterable(one.schema for one in TABLES.values()))


_NUMBERS = {name: i for i, name in enumerate(TABLES)}
_DIGESTS = struct.Struct(f"<{2 * len(TABLES)}q")  # of each table the number of rows, and the sum of checksums
DIGESTS = "ledger/digests"
_OWN = "ledger/"  # how the keys of small state begin that every batch asks for


class Tables:
    """The tables behind ``db``, by name.

    ``begin`` is to be called at the beginning of a transaction, ``flush`` before its COMMIT, and ``forget``
    where it is rolled back: digests and the ledger's own state are kept in memory meanwhile, and for as long
    as no other process writes.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._rows = {name: Rows(self, one) for name, one in TABLES.items()}
        self._version: int | None = None
        self._digests: list[int] | None = None
        self._changed = False
        self.own: dict[str, tuple[Row | None, int | None]] = {}

    def __getitem__(self, name: str) -> Rows:
        return self._rows[name]

    def begin(self) -> None:
        """Forget what another process may have changed."""
        (version,) = self.db.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self.forget()
            self._version = version

    def forget(self) -> None:
        """Read everything again when it is needed."""
        self._version, self._digests, self._changed = None, None, False
        self.own.clear()

    def flush(self) -> None:
        """Write the digests."""
        if self._changed and self._digests is not None:
            self["state"].put(DIGESTS, _DIGESTS.pack(*self._digests))
            self._changed = False

    def count(self, table: str, rows: int, crcs: int) -> None:
        """So many rows more, whose checksums sum up to this."""
        if self._digests is None:
            self._digests = self._kept() or [0] * (2 * len(TABLES))
        at = 2 * _NUMBERS[table]
        self._digests[at] += rows
        self._digests[at + 1] += crcs
        self._changed = True

    def _kept(self) -> list[int] | None:
        row = self["state"].get(DIGESTS)
        return None if row is None else list(_DIGESTS.unpack(row[1]))

    def whole(self, table: str) -> bool:
        """Whether its rows are those that were written, none missing."""
        self.flush()
        # One statement, so of one moment.
        packed, *found = self.db.execute(
            f"SELECT (SELECT value FROM state WHERE key = '{DIGESTS}'), {_counted(table)}"  # noqa: S608
        ).fetchone()
        at = 2 * _NUMBERS[table]
        try:
            return bool(list(_DIGESTS.unpack(packed)[at : at + 2]) == found)
        except (struct.error, TypeError):
            return False

    def recount(self, table: str) -> None:
        """Make a table's digest anew, of the rows that are there."""
        found = self.db.execute(f"SELECT {_counted(table)}").fetchone()
        was = self._kept() if self._digests is None else self._digests
        at = 2 * _NUMBERS[table]
        rows, crcs = (0, 0) if was is None else was[at : at + 2]
        self.count(table, found[0] - rows, found[1] - crcs)


def _counted(table: str) -> str:
    # The digests themselves are in none.
    where = f" WHERE key <> '{DIGESTS}'" if table == "state" else ""
    return f"count(*), coalesce(sum(crc), 0) FROM {table}{where}"


class Rows:
    """The rows of one table: every one that is read is as it was written, or DamagedRow."""

    def __init__(self, tables: Tables, table: Table) -> None:
        self._tables, self._db, self.table = tables, tables.db, table
        marks = ", ".join("?" * (len(table.key) + 1 + len(table.values)))
        self._at = len(table.key)
        self._select = f"SELECT {table.columns} FROM {table.name}"  # noqa: S608
        self._where_key = f" WHERE ({table.keys}) = ({', '.join('?' * len(table.key))})"
        self._get = self._select + self._where_key
        self._old = f"SELECT crc FROM {table.name}{self._where_key}"  # noqa: S608
        self._insert = f"INSERT INTO {table.name} VALUES ({marks})"  # noqa: S608
        self._replace = f"INSERT OR REPLACE INTO {table.name} VALUES ({marks})"  # noqa: S608
        self._delete = f"DELETE FROM {table.name}"  # noqa: S608

    def select(self, where: str = "", told: Sequence[Any] = ()) -> list[Row]:
        """The rows of a condition, without their checksums."""
        return [self.table.read(row) for row in self._db.execute(f"{self._select} {where}", told)]

    def each(self, where: str = "", told: Sequence[Any] = ()) -> Iterator[Row]:
        """The same, one by one."""
        read = self.table.read
        for row in self._db.execute(f"{self._select} {where}", told):
            yield read(row)

    def get(self, *key: Any) -> Row | None:
        """The row of this key."""
        return self.find(*key)[0]

    def find(self, *key: Any) -> tuple[Row | None, int | None]:
        """The same and its checksum, to ``replace`` it."""
        if self._is_own(key) and (known := self._tables.own.get(key[0])):
            return known
        row = self._db.execute(self._get, key).fetchone()
        found = (None, None) if row is None else (self.table.read(row), row[self._at])
        if self._is_own(key):
            self._tables.own[key[0]] = found
        return found

    def _is_own(self, key: Row) -> bool:
        return self.table.name == "state" and key[0].startswith(_OWN)

    def has(self, *key: Any) -> bool:
        """Whether there is a row of this key, sound or not."""
        return self._db.execute(self._old, key).fetchone() is not None

    def put(self, *row: Any) -> None:
        """Write a row, in place of that of its key if there is one."""
        if self._is_own(row):
            was = self.find(row[0])[1]
        else:
            found = self._db.execute(self._old, row[: self._at]).fetchone()
            was = None if found is None else found[0]
        self.replace(row, was)

    def replace(self, row: Row, was: int | None) -> None:
        """Write a row in place of that of its key, which has this checksum; None where there is none."""
        sealed = self.table.sealed(row)
        self._db.execute(self._replace, sealed)
        own = self._is_own(row)
        if own:
            self._tables.own[row[0]] = row, sealed[self._at]
        if not (own and row[0] == DIGESTS):
            self._tables.count(self.table.name, int(was is None), sealed[self._at] - (was or 0))

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows of keys that are not there."""
        checksum, at = self.table.checksum, self._at
        sealed = [(*row[:at], checksum(row), *row[at:]) for row in rows]
        if len(sealed) == 1:
            self._db.execute(self._insert, sealed[0])
        else:
            self._db.executemany(self._insert, sealed)
        self._tables.count(self.table.name, len(sealed), sum(row[self._at] for row in sealed))

    def delete(self, where: str, told: Sequence[Any] = ()) -> int:
        """Delete the rows of a condition; how many."""
        rows, crcs = self._db.execute(
            f"SELECT count(*), coalesce(sum(crc), 0) FROM {self.table.name} {where}",  # noqa: S608
            told,
        ).fetchone()
        if rows:
            self._db.execute(f"{self._delete} {where}", told)
            self._tables.count(self.table.name, -rows, -crcs)
        return int(rows)

    def delete_all(self, rows: Sequence[Row]) -> None:
        """Delete these rows, by their keys."""
        self._db.executemany(self._delete + self._where_key, [self.table.key_of(row) for row in rows])
        self._tables.count(self.table.name, -len(rows), -sum(self.table.checksum(row) for row in rows))

    def expire(self, before: float, *, at_most: int) -> list[Row]:
        """Delete so many that expired before, oldest first; which.

        Their whole rows are read: no index is believed about what may be forgotten.
        """
        old = self.select("WHERE expires < ? ORDER BY expires LIMIT ?", (before, at_most))
        self.delete_all(old)
        return old

    def drop(self, row: Row) -> bool:
        """Delete a damaged row; whether there was one of its key. The digest is to be made anew."""
        return self._db.execute(self._delete + self._where_key, self.table.key_of(row)).rowcount == 1

    def chunk(self, after: Row | None, *, most: int) -> list[Row]:
        """Some rows with their checksums, sound or not, in the order of their keys, after this key."""
        where = "" if after is None else f"WHERE ({self.table.keys}) > ({', '.join('?' * len(after))})"
        self._db.text_factory = _text
        try:
            return self._db.execute(
                f"{self._select} {where} ORDER BY {self.table.keys} LIMIT {most}", after or ()
            ).fetchall()
        finally:
            self._db.text_factory = str


def _text(raw: bytes) -> str:
    """Also of bytes that are no text any more."""
    return raw.decode(errors="surrogateescape")
