"""The tables of a SQLite ledger: each row has a checksum, and each table a digest of all its rows.

A checksum (CRC-32) is over the whole row, its key columns among it, so that rows that were changed, moved or
swapped show where they are read. A digest is the number of rows and the sum of their checksums, so that rows
that vanished show when a table is looked at whole.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FORMAT", "SCHEMA", "TABLES", "DamagedRow", "Row", "Table"]

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
