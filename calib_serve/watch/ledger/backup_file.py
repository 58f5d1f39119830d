"""The file that a backup of a ledger is: one line of JSON that says what follows, then the ledger's content.

Whether all of it is there, bit by bit, is known before anything is restored: the line holds the length and
the sha256 of the rest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from calib_serve.errors import LedgerError, of_a_newer
from calib_serve.files import written_whole

__all__ = ["Header", "Store", "read_header", "unpacked_content", "write_backup"]

Store = Literal["sqlite", "redis"]

_WHAT, _FORMAT = "calib-serve ledger backup", 1
_LONGEST = 1024  # bytes of the first line
_PIECE = 1 << 20


@dataclass(frozen=True)
class Header:
    """The ``store`` whose content follows, when it was ``taken``, seconds since 1970, and its bytes."""

    store: Store
    taken: float
    bytes: int
    sha256: str


def write_backup(file: Path, content: Path, *, store: Store, taken: float) -> Header:
    """Write a backup whole, for its owner alone; LedgerError where ``file`` is there and is no backup."""
    if file.exists():
        read_header(file)  # what is no backup is not overwritten
    try:
        with content.open("rb") as pieces:
            header = Header(store, taken, content.stat().st_size, _hashed(store, taken, pieces))
        line = json.dumps({"what": _WHAT, "format": _FORMAT, **asdict(header)})
        with written_whole(file, mode=0o600) as partial, partial.open("wb") as to, content.open("rb") as rest:
            to.write(line.encode() + b"\n")
            shutil.copyfileobj(rest, to, _PIECE)
    except OSError as error:
        raise LedgerError(f"cannot write the backup {file}: {error}") from error
    return header


def read_header(file: Path) -> Header:
    """What a backup says of itself; LedgerError for any other file."""
    with _opened(file) as (_, header):
        return header


def unpacked_content(file: Path, to: Path) -> Header:
    """Write a backup's content into ``to``, which is there; LedgerError where it is not what was taken."""
    with _opened(file) as (rest, header):
        with to.open("wb") as out:
            shutil.copyfileobj(rest, out, _PIECE)
        with to.open("rb") as pieces:
            found = to.stat().st_size, _hashed(header.store, header.taken, pieces)
    if found != (header.bytes, header.sha256):
        raise LedgerError(f"the backup {file} is damaged or cut off ({found[0]} bytes); restore another one")
    return header


def _hashed(store: Store, taken: float, content: BinaryIO) -> str:
    digest = hashlib.sha256(f"{store} {taken!r}\n".encode())
    while piece := content.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, Header]]:
    try:
        with file.open("rb") as opened:
            yield opened, _parsed(opened.readline(_LONGEST), file)
    except OSError as error:
        raise LedgerError(f"cannot use the backup {file}: {error}") from error


def _parsed(line: bytes, file: Path) -> Header:
    try:
        told = json.loads(line)
        if told["what"] != _WHAT:
            raise ValueError(told["what"])
        if told["format"] != _FORMAT:
            raise LedgerError(f"{file} is a backup {of_a_newer(told['format'], reads=_FORMAT)}")
        if told["store"] not in ("sqlite", "redis"):
            raise ValueError(told["store"])
        return Header(told["store"], float(told["taken"]), int(told["bytes"]), str(told["sha256"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise LedgerError(f"{file} is no backup of a ledger; make one: calib-serve ledger backup") from error
