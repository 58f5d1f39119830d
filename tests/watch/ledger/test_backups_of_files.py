"""Backups of SQLite ledgers: whose they are, when they were taken, and what is said where they cannot be."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import entries, make_label

from calib_serve.errors import InputError, LedgerError
from calib_serve.watch.ledger import (
    Pruned,
    SqliteLedger,
    backup_ledger,
    existing_ledger,
    open_ledger,
    prune_ledger,
    restore_ledger,
    set_aside_rows,
    verify_ledger,
)
from calib_serve.watch.ledger.backup import read_header, unpacked_content, write_backup
from calib_serve.watch.ledger.generations import read_taken_out
from calib_serve.watch.ledger.sqlite_copy import as_it_is, compact, unused, used_bytes

pytestmark = pytest.mark.store


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "kept.db"
    with closing(SqliteLedger(path, bins=10, retention=1000.0, clock=lambda: 5000.0)) as ledger:
        ledger.accept(entries([make_label(i << 16, when=4500.0) for i in range(20)]))
    return path


@pytest.fixture
def for_others() -> Iterator[None]:
    """Files are made for everybody to read, unless they say otherwise."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("for_others")
def test_a_backup_is_its_owners_alone_and_says_when_it_was_taken(kept: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "backup"
    header = backup_ledger(str(kept), file, clock=lambda: 6000.0)
    assert (header.store, header.taken) == ("sqlite", 6000.0)
    assert read_header(file) == header
    assert rights(file) == 0o600
    assert sorted(one.name for one in file.parent.iterdir()) == ["backup"]
    first = json.loads(file.read_bytes().split(b"\n")[0])
    assert first == {
        "what": "calib-serve ledger backup", "format": 1, "store": "sqlite", "taken": 6000.0,
        "bytes": header.bytes, "sha256": header.sha256,
    }  # fmt: skip
    restored = restore_ledger(file, str(tmp_path / "again.db"), clock=lambda: 7000.0)
    assert (restored.taken, restored.aside, restored.forgotten_until) == (6000.0, None, 7300.0)
    assert rights(tmp_path / "again.db") == 0o600
    with closing(existing_ledger(str(tmp_path / "again.db"))) as ledger:
        assert (ledger.bins, ledger.retention) == (10, 1000.0)
        assert ledger.sums()["m", "1"].labels.sum() == 20
        assert ledger.accept(entries([make_label(1, when=7300.0)])) == ["forgotten"]
        assert ledger.accept(entries([make_label(2, when=7300.5)])) == ["counted"]
    later = restore_ledger(
        file, str(tmp_path / "again.db"), replace=True, clock_skew=5.0, clock=lambda: 8000.0
    )
    assert later.aside == str(tmp_path / "again.db.replaced-8000")
    assert later.forgotten_until == 8005.0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_ledger_that_is_replaced_stays_its_owners(kept: Path, tmp_path: Path) -> None:
    backup_ledger(str(kept), tmp_path / "backup")
    os.chown(kept, 101, 202)
    restore_ledger(tmp_path / "backup", str(kept), replace=True)
    assert (kept.stat().st_uid, kept.stat().st_gid) == (101, 202)


def test_what_is_damaged_is_not_backed_up(kept: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(kept)) as db, db:
        db.execute("UPDATE totals SET sums = x'00'")
    with pytest.raises(LedgerError, match=r"the ledger [^ ]*/kept\.db is not sound: totals: a row"):
        backup_ledger(str(kept), tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    (tmp_path / "text").write_text("no backup")
    with pytest.raises(LedgerError, match="text is no backup of a ledger"):
        backup_ledger(str(kept), tmp_path / "text")
    assert (tmp_path / "text").read_text() == "no backup"
    with pytest.raises(LedgerError, match=r"there is no ledger .*nowhere"):
        backup_ledger(str(tmp_path / "nowhere"), tmp_path / "backup")


def test_a_ledger_whose_rows_are_sound_but_say_nothing_is_not_backed_up(kept: Path, tmp_path: Path) -> None:
    with closing(as_it_is(kept)) as ledger:
        ledger.store("ledger/bins", b"many")
    assert verify_ledger(str(kept)) == []
    with pytest.raises(LedgerError, match=r"the ledger [^ ]*/kept\.db is not sound: .*'many'"):
        backup_ledger(str(kept), tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_where_no_file_can_be_nothing_is_written(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"cannot write beside .*file/backup"):
        backup_ledger(str(kept), tmp_path / "file" / "backup")
    with pytest.raises(LedgerError, match=r"cannot (write|use) the backup .*file/backup"):
        write_backup(tmp_path / "file" / "backup", kept, store="sqlite", taken=0.0)
    with pytest.raises(LedgerError, match=r"there is no ledger .*: it is a folder"):
        backup_ledger(str(tmp_path), tmp_path / "backup")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told | {"what": "something else"}, "is no backup of a ledger"),
        (lambda told: told | {"format": 2}, "is a backup .*2"),
        (lambda told: told | {"store": "postgres"}, "is no backup of a ledger"),
        (lambda told: told | {"taken": "soon"}, "is no backup of a ledger"),
        (lambda told: told | {"taken": 1.0}, "is damaged or cut off"),
        (lambda told: told | {"store": "redis"}, "is damaged or cut off"),
        (lambda told: told | {"bytes": 0}, "is damaged or cut off"),
        (lambda told: told | {"sha256": "0" * 64}, "is damaged or cut off"),
        (lambda told: {key: one for key, one in told.items() if key != "sha256"}, "is no backup of a ledger"),
    ],
)
def test_a_head_that_says_something_else_is_refused(
    change: Callable[[dict[str, object]], dict[str, object]], said: str, kept: Path, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    backup_ledger(str(kept), file)
    head, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(json.dumps(change(json.loads(head))).encode() + b"\n" + rest)
    with pytest.raises(LedgerError, match=rf"(?s)backup {said}|backup.*{said}"):
        unpacked_content(file, tmp_path / "content")


@pytest.mark.parametrize("use", [existing_ledger, verify_ledger, set_aside_rows, prune_ledger])
def test_an_address_that_shows_a_password_is_refused_by_all(use: Callable[[str], object]) -> None:
    with pytest.raises(InputError, match="holds a password"):
        use("redis://:s3cret@127.0.0.1:1/0")


def test_what_is_no_ledger_is_said_by_all(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no ledger, but a text of some length" * 100)
    with pytest.raises(LedgerError, match="text is no ledger, or a damaged one"):
        as_it_is(tmp_path / "text")
    assert verify_ledger(str(tmp_path / "text"))[0].startswith("it cannot be read")
    with pytest.raises(LedgerError, match="text cannot be read"):
        set_aside_rows(str(tmp_path / "text"))
    for use in (existing_ledger, verify_ledger, set_aside_rows, prune_ledger):
        with pytest.raises(LedgerError, match=r"there is no ledger .*: it is a folder"):
            use(str(tmp_path))
    with pytest.raises(LedgerError, match="cannot be used: unable to open"), unused(tmp_path):
        pass
    with pytest.raises(LedgerError, match="cannot be used: unable to open"):
        compact(tmp_path)


def test_pruning_says_what_went(kept: Path) -> None:
    where = str(kept)
    with pytest.raises(InputError, match="one at a time"):
        prune_ledger(where, before=1.0, version=("m", "1"))
    with pytest.raises(InputError, match="--compact is for files"):
        prune_ledger("redis://127.0.0.1:1/0", compact=True)
    assert prune_ledger(where, clock=lambda: 5000.0) == Pruned(0, 0.0, 0, 0, None)
    assert prune_ledger(where, before=4499.0) == Pruned(0, 0.0, 0, 0, None)
    assert prune_ledger(where, before=4500.5).forgotten == 20
    taken = prune_ledger(where, version=("m", "1"), compact=True)
    assert (taken.forgotten, taken.labels, taken.set_aside, taken.compacted) == (0, 20.0, 0, True)
    assert prune_ledger(where, version=("m", "2")).labels == 0
    with closing(existing_ledger(where)) as ledger:
        assert read_taken_out(ledger) == 20
        assert ledger.sums() == {}
        assert prune_ledger(where, compact=True).compacted is False  # it is open here
        ledger.store("detector/m/1", b"15")
    with closing(sqlite3.connect(kept)) as db, db:
        db.execute("UPDATE state SET value = x'00' WHERE key = 'detector/m/1'")
    SqliteLedger(kept, bins=10).close()
    assert len(set_aside_rows(where)) == 1
    assert prune_ledger(where).set_aside == 0
    assert prune_ledger(where, set_aside=True).set_aside == 1
    assert set_aside_rows(where) == []


def test_a_file_that_cannot_be_compacted_is_said(kept: Path) -> None:
    with closing(SqliteLedger(kept, bins=10)) as ledger:
        for i in range(100):
            ledger.store(f"some/{i}", bytes(20_000))
    size = used_bytes(kept)
    content = bytearray(kept.read_bytes())
    content[size // 2 : size // 2 + 3 * 8192] = b"\xff" * (3 * 8192)
    kept.write_bytes(content)
    with pytest.raises(LedgerError, match=r"cannot compact the ledger .*kept\.db"):
        compact(kept)
    assert kept.stat().st_size == len(content)


def test_labels_that_were_never_counted_are_not_taken_out(kept: Path) -> None:
    with closing(existing_ledger(str(kept))) as ledger:
        with ledger.transaction():
            rows = ledger.look_at_waiting(("m", "1"), until=math.inf, most=5)
            other = [row._replace(confidence=0.1) for row in rows]
        assert not ledger.take_back(rows, mark="m", before=b"another", after=b"x")
        with pytest.raises(LedgerError, match="were never counted in this ledger"):
            ledger.take_back(other, mark="m", before=b"", after=b"x")
        assert ledger.load("m") is None
        assert ledger.take_back(rows, mark="m", before=b"", after=b"x")
        assert ledger.sums()["m", "1"].labels.sum() == 15
        assert sum(one.sums.labels.sum() for one in ledger.dated(0, 1e10, kind="segment")) == 15
        assert ledger.waiting() == {("m", "1"): 15}
        assert read_taken_out(ledger) == 5
        assert ledger.load("m") == b"x"
        assert ledger.accept(entries([make_label(0, when=4500.0)])) == ["duplicate"]


def test_pages_that_became_free_are_told(tmp_path: Path) -> None:
    where = f"{tmp_path / 'kept.db'}?parts=2"
    with closing(open_ledger(where)) as ledger:
        for part in ledger.parts:
            with part.transaction():
                part._tables["epochs"].add(
                    [(i.to_bytes(8, "big"), 10.0, -math.inf, b"") for i in range(20_000)]
                )
    files = [tmp_path / f"kept.db.{i}" for i in (1, 2)]
    before = sum(used_bytes(file) for file in files)
    with closing(SqliteLedger(files[1])):
        pruned = prune_ledger(where, clock=lambda: 5000.0, compact=True)
    assert pruned.forgotten == 40_000
    assert pruned.freed == before - sum(used_bytes(file) for file in files) > 1_000_000
    assert pruned.compacted is False, "one of them was in use"
    assert files[0].stat().st_size < files[1].stat().st_size
    assert prune_ledger(where, clock=lambda: 5000.0, compact=True).compacted is True


def test_labels_are_their_writers_whoever_makes_sums_of_them(kept: Path) -> None:
    options = {"bins": 10, "retention": 1000.0, "clock": lambda: 5000.0}
    with (
        closing(SqliteLedger(kept, writer="a", **options)) as a,
        closing(SqliteLedger(kept, writer="b", **options)) as b,
    ):
        a.accept(entries([make_label(100 + i, when=4500.0) for i in range(3)]))
        b.accept(entries([make_label(200 + i, when=4500.0) for i in range(4)]))
        a.accept(entries([make_label(300, when=4500.0)]))
        rows = [row for row in b.look_at_waiting(("m", "1"), until=math.inf, most=99) if row.writer == "a"]
        with b.emission("scrape") as found:
            assert found.counted["m", "1"].labels.sum() == 4
        assert [one.sums(own=True)["m", "1"].labels.sum() for one in (a, b)] == [4, 4]
        assert b.take_back(rows[:1], mark="m", before=b"", after=b"x")
        assert [one.sums(own=True)["m", "1"].labels.sum() for one in (a, b)] == [3, 4]
        assert a.sums()["m", "1"].labels.sum() == 20 + 7
