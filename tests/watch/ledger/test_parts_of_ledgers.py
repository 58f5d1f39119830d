"""A SQLite ledger's own files and rows, each part by itself."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from calib_serve.errors import InputError
from calib_serve.watch.ledger.backup import restore_ledger
from calib_serve.watch.ledger.entries import Noted, Place, Shadowed, label_sums
from calib_serve.watch.ledger.files import Files, quarantine
from calib_serve.watch.ledger.sqlite_copy import used_bytes
from calib_serve.watch.ledger.sums import Key


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = Files(tmp_path / "ledger")
    for part in ("", "-wal", "-shm"):
        (tmp_path / f"ledger{part}").write_text(f"the first{part}")
    found.opened()
    return found


def gone(files: Files, *parts: str) -> None:
    for part in parts:
        files.path.with_name(f"ledger{part}").unlink()


def test_what_is_in_the_journal_can_be_saved_where_its_file_alone_is_missing(files: Files) -> None:
    assert not files.journal_only
    gone(files, "-wal")
    assert files.journal_only


@pytest.mark.parametrize("parts", [("",), ("-shm",), ("", "-wal"), ("-wal", "-shm")])
def test_else_it_cannot(files: Files, parts: tuple[str, ...]) -> None:
    gone(files, *parts)
    assert not files.journal_only


def test_nor_where_another_file_took_its_place(files: Files) -> None:
    wal = files.path.with_name("ledger-wal")
    wal.rename(wal.with_name("kept"))  # so that the other one is another file indeed
    wal.write_text("another")
    assert not files.journal_only


def test_a_damaged_ledger_and_its_journal_go_aside_together(files: Files) -> None:
    aside = quarantine(files.path, clock=lambda: 5.0)
    assert aside.name == "ledger.damaged-5"
    assert not list(files.path.parent.glob("ledger")) + list(files.path.parent.glob("ledger-*"))
    for part in ("", "-wal", "-shm"):
        assert aside.with_name(aside.name + part).read_text() == f"the first{part}"


@pytest.mark.parametrize(("bits", "sound"), [(0, True), (3, True), (4, False)])
def test_a_shadow_has_two_bits(bits: int, sound: bool) -> None:
    kept = struct.pack(">fB4s", 0.5, bits, bytes(4))
    if not sound:
        with pytest.raises(ValueError, match="a shadow of the journal reads"):
            Shadowed.unpacked(kept)
        return
    read = Shadowed.unpacked(kept)
    assert read is not None
    assert (read.correct, read.same) == (bool(bits & 1), bool(bits & 2))
    assert read.packed() == kept


def test_a_backup_is_not_restored_to_an_address_that_shows_a_password(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a password, which others could read"):
        restore_ledger(tmp_path / "backup", "redis://:s3cret@127.0.0.1:1/0")


def test_labels_over_all_time_are_a_writers_and_in_spans_nobodys() -> None:
    key, day = Key("m", "1"), 86400.0
    rows = [
        Noted("a", "m", "1", 1000.0, b"", 1100.0, 0.9, True, 0, 1.0, 0, (key,)),
        Noted("b", "m", "1", 1000.0, b"", 1200.0, 0.9, False, 0, 1.0, 0, (key,)),
        Noted("b", "m", "1", 1000.0, b"", 1000.0 + 500 * day, 0.9, True, 0, 1.0, 0, (key,)),  # of no span
    ]
    found = label_sums(rows, bins=10)
    counted = {where: sums["calib_feedback_total"].sum() for where, sums in found.items()}
    assert counted == {("a", Place(key)): 1, ("b", Place(key)): 2, ("", Place(key, 900.0, 300.0)): 2}


def test_the_pages_that_are_used_are_those_that_are_not_free(tmp_path: Path) -> None:
    path = tmp_path / "a ledger?.sqlite"  # a name that means something else in an address
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA page_size = 4096")
        db.execute("CREATE TABLE rows (content BLOB)")
        db.executemany("INSERT INTO rows VALUES (?)", [(bytes(4000),)] * 100)
    whole = used_bytes(path)
    assert whole == path.stat().st_size > 400_000
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM rows")
    assert used_bytes(path) <= 3 * 4096
    assert path.stat().st_size == whole
