"""A SQLite ledger and its files: damage, other processes, journals that are taken away, copies."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from ledgers import entries, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import (
    SqliteLedger,
    backup_ledger,
    open_ledger,
    restore_ledger,
    sqlite_store,
)
from calib_serve.watch.ledger.backup import read_header
from calib_serve.watch.ledger.sqlite_copy import compact, unused

pytestmark = pytest.mark.store

DAY = 86_400.0


class Clock:
    now = 5000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(tmp_path / "kept.db", clock=clock, timeout=0.1)) as found:
        yield found


def test_state_of_its_own_is_read_once_until_another_process_writes(ledger: SqliteLedger) -> None:
    statements: list[str] = []

    def read(key: str) -> int:
        statements.clear()
        ledger.load(key)
        return sum("FROM state" in one for one in statements)

    ledger._db.set_trace_callback(statements.append)
    ledger.store("ledger/of-its-own", b"1")
    assert [read("ledger/of-its-own") for _ in range(3)] == [0, 0, 0]
    assert [read("others") for _ in range(2)] == [1, 1]
    with closing(SqliteLedger(ledger.path)) as other:
        other.store("ledger/of-its-own", b"2")
    assert ledger.load("ledger/of-its-own") == b"2"
    assert [read("ledger/of-its-own") for _ in range(2)] == [0, 0]
    with suppress(KeyboardInterrupt), ledger.transaction():
        ledger.store("ledger/of-its-own", b"3")
        raise KeyboardInterrupt
    assert ledger.load("ledger/of-its-own") == b"2"


def test_a_ledger_of_today_does_not_forget_what_its_first_format_had(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with closing(SqliteLedger(path, retention=DAY, clock=lambda: 5 * DAY)) as ledger:
        ledger.store("ledger/pruned_through", repr(5 * DAY).encode())
    with closing(SqliteLedger(path, retention=0.0, clock=lambda: 5 * DAY)) as ledger:
        assert ledger.accept(entries([make_label(1, when=4.5 * DAY)])) == ["counted"]


def test_its_checks_have_names_and_levels(ledger: SqliteLedger) -> None:
    assert [(one.name, one.level, one.run()) for one in ledger.checks()] == [
        ("file", "refusing", None), ("disk", "degraded", None), ("journal", "degraded", None),
        ("damage", "degraded", None),
    ]  # fmt: skip


def test_partitions_have_a_backup_each(tmp_path: Path) -> None:
    where = f"{tmp_path / 'kept.db'}?parts=2"
    some = [make_label((i << 16) + i) for i in range(20)]
    with closing(open_ledger(where)) as ledger:
        ledger.accept(entries(some))
    header = backup_ledger(where, tmp_path / "backup")
    files = sorted(tmp_path.glob("backup*"))
    assert [file.name for file in files] == ["backup.1", "backup.2"]
    assert header.bytes == sum(read_header(file).bytes for file in files)
    with pytest.raises(LedgerError, match=r"there is a ledger .*kept\.db\.1, or what is left of one"):
        restore_ledger(tmp_path / "backup", where)
    restored = restore_ledger(tmp_path / "backup", where, replace=True, recount=True)
    assert str(restored.aside).count("replaced-") == 2
    assert restored.forgotten_until == -math.inf
    with closing(open_ledger(where)) as ledger:
        assert ledger.accept(entries(some)) == ["duplicate"] * 20
        assert ledger.sums()["m", "1"].labels.sum() == 20


def test_where_no_ledger_can_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"the ledger .*file/kept\.db cannot be made: .*Not a directory"):
        SqliteLedger(tmp_path / "file" / "kept.db")


def test_one_partition_is_a_ledger_like_any_other(tmp_path: Path) -> None:
    with closing(open_ledger(f"{tmp_path / 'one.db'}?parts=1")) as ledger:
        assert isinstance(ledger, SqliteLedger)
    open_ledger(f"{tmp_path / 'two.db'}?parts=2").close()
    with pytest.raises(LedgerError, match=r"two\.db\.1 is partition 1 of 2 of a ledger; name the whole one"):
        open_ledger(str(tmp_path / "two.db.1"))
    assert compact(tmp_path / "two.db.1"), "it is not kept open"


def test_what_is_not_looked_at_in_time_is_looked_at_later(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.accept(entries([make_label(1)]))
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("UPDATE epochs SET expires = 0")
    ledger.close()
    for seconds, damaged in ((-1.0, 0), (10.0, 1)):
        monkeypatch.setattr(sqlite_store, "_LOOK_AT_START", seconds)
        with closing(SqliteLedger(ledger.path)) as again:
            assert len(again.set_aside()) == damaged


def test_nobody_can_know_who_uses_a_ledger_whose_first_page_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    SqliteLedger(path).close()
    content = bytearray(path.read_bytes())
    content[100:8192] = bytes(8092)  # all but the file's head
    path.write_bytes(content)
    with unused(path) as alone:
        assert alone is None
