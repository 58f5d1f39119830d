"""A backup is of one moment, a restore is whole, and what is sent again after it counts at most once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ledgers import NOW, accept, counted, labels_of, make_label, open_one, remembered
from processes import started
from sizes import sized

from calib_serve.errors import LedgerError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger import (
    Key,
    Once,
    SqliteLedger,
    Sums,
    backup_ledger,
    prune_ledger,
    restore_ledger,
    verify_ledger,
)

pytestmark = pytest.mark.store

ROOT = "calib-serve"


@pytest.fixture(params=["sqlite", "redis"])
def place(request, tmp_path):
    """(kind, where ``open_one`` opens it, its address)."""
    if request.param == "sqlite":
        yield "sqlite", str(tmp_path / "ledger.db"), str(tmp_path / "ledger.db")
        return
    url = request.getfixturevalue("empty_redis")
    yield "redis", (url, ROOT), url


WRITER = """
from ledgers import *
ledger = open_one(*{place!r})
at = {start}
while True:
    accept(ledger, [make_label(i) for i in range(at, at + 10)])
    ledger.add({{Key("m", "1"): Sums.served([.9])}}, time=NOW)
    at += 10
    print(at, flush=True)
"""


def writing(place, start=0):
    script = WRITER.format(place=place, start=start).replace(
        "ledger = ", "from calib_serve.watch.ledger import Sums\nledger = ", 1
    )
    support = str(Path(__file__).parents[2] / "support")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])}
    return started([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env)


def test_a_backup_under_load_is_of_one_moment_and_keeps_nobody_waiting(place, tmp_path: Path) -> None:
    kind, where, address = place
    file = tmp_path / "ledger.backup"
    with writing((kind, where)) as one, writing((kind, where), 30_000) as two:
        acknowledged = [int(p.stdout.readline()) for p in (one, two) for _ in range(20)]
        for _ in range(sized(2, 20)):
            header = backup_ledger(address, file)
        assert [one.poll(), two.poll()] == [None, None]
    assert file.stat().st_mode & 0o777 == 0o600
    assert header.store == kind
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    assert verify_ledger(address) == []
    after = labels_of(kind, where)
    done = restore_ledger(file, address, replace=True)
    assert done.taken == header.taken
    restored = labels_of(kind, where)  # and it is asserted there that bits equal sums
    assert acknowledged[19] + acknowledged[39] - 30_000 <= restored <= after
    ledger = open_one(kind, where)
    # A batch of labels and its predictions are two steps, of two writers.
    assert 0 <= restored / 10 - ledger.sums()["m", "1"].predictions.sum() <= 2
    ledger.close()


def test_labels_sent_again_after_a_restore_count_at_most_once(place, tmp_path: Path) -> None:
    kind, where, address = place
    file, labels = tmp_path / "b", [make_label(i) for i in range(9)]
    assert counted(kind, where, labels[:3]) == [3, 0, 0]
    backup_ledger(address, file)
    assert counted(kind, where, labels[3:6]) == [3, 0, 0]  # and published, and lost
    done = restore_ledger(file, address, replace=True)
    assert counted(kind, where, labels) == [0, 0, 9]
    later = [make_label(i, when=done.forgotten_until + 1) for i in range(20, 23)]
    assert counted(kind, where, later) == [3, 0, 0]
    assert labels_of(kind, where) == 6


def test_lost_labels_that_are_sent_again_count_where_that_was_said(place, tmp_path: Path) -> None:
    kind, where, address = place
    file, labels = tmp_path / "b", [make_label(i) for i in range(9)]
    counted(kind, where, labels[:3])
    backup_ledger(address, file)
    counted(kind, where, labels[3:6])
    restore_ledger(file, address, replace=True, recount=True)
    assert counted(kind, where, labels) == [6, 3, 0]
    assert labels_of(kind, where) == 9


def test_everything_is_restored_as_it_was(place, tmp_path: Path) -> None:
    kind, where, address = place
    options = {"bins": 10, "writer": "w", "retention": 40 * DAY}
    ledger = open_one(kind, where, **options)
    accept(ledger, [make_label(i, when=NOW - i * DAY, inclusion=0.5, group=i) for i in range(20)])
    batch = Once.of(b"b", b"content", time=NOW)
    ledger.add({Key("m", "1", "north"): Sums.served([0.3], bins=10)}, time=NOW, once=batch)
    with ledger.emission("one"):
        pass
    accept(ledger, [make_label(70, label=0)])
    ledger.store("any/\xe9", bytes(range(256)))
    before = everything(ledger)
    ledger.close()
    backup_ledger(address, tmp_path / "b")
    restore_ledger(tmp_path / "b", address, replace=True)
    ledger = open_one(kind, where, **options)
    assert everything(ledger) == before
    assert not ledger.add({}, time=NOW, once=batch)
    assert ledger.known(batch)[:3] == batch[:3]
    with ledger.emission("one") as (fresh, _):
        assert fresh["m", "1"].labels.sum() == 1
    ledger.close()


def everything(ledger):
    dated = {one[:3]: one.sums.vector.tolist() for one in ledger.dated(0, 1e11)}
    slices = {
        key: one.vector.tolist() for kind in ("segment", "class") for key, one in ledger.slices(kind).items()
    }
    return dated, slices, ledger.waiting(), ledger.load("any/\xe9"), remembered(ledger), ledger.retention


def test_a_ledger_that_is_there_or_in_use_is_not_replaced(place, tmp_path: Path) -> None:
    kind, where, address = place
    counted(kind, where, [make_label(1)])
    backup_ledger(address, tmp_path / "b")
    with pytest.raises(LedgerError, match="--replace"):
        restore_ledger(tmp_path / "b", address)
    ledger = open_one(kind, where)
    with pytest.raises(LedgerError, match="a process uses"):
        restore_ledger(tmp_path / "b", address, replace=True)
    assert accept(ledger, [make_label(2)]) == [True]
    ledger.close()
    aside = restore_ledger(tmp_path / "b", address, replace=True).aside
    assert labels_of(kind, where) == 1
    assert labels_of(kind, aside if kind == "sqlite" else (address, aside)) == 2


def test_a_ledger_that_is_gone_is_restored(place, tmp_path: Path) -> None:
    kind, where, address = place
    counted(kind, where, [make_label(1)])
    backup_ledger(address, tmp_path / "b")
    if kind == "sqlite":
        Path(where).unlink()
    else:
        import redis

        redis.Redis.from_url(address).flushdb()
    assert restore_ledger(tmp_path / "b", address).aside is None
    assert labels_of(kind, where) == 1


def test_what_another_ledger_left_behind_does_not_get_into_a_restored_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    counted("sqlite", path, [make_label(1)])
    backup_ledger(str(path), tmp_path / "b")
    ledger = SqliteLedger(path)
    accept(ledger, [make_label(i) for i in range(2, 50)])
    wal = Path(f"{path}-wal").read_bytes()
    ledger.close()
    path.unlink()
    Path(f"{path}-wal").write_bytes(wal)
    with pytest.raises(LedgerError, match="what is left of one"):
        restore_ledger(tmp_path / "b", str(path))
    aside = restore_ledger(tmp_path / "b", str(path), replace=True).aside
    assert labels_of("sqlite", path) == 1
    assert Path(f"{aside}-wal").read_bytes() == wal


def test_a_damaged_ledger_is_replaced_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    counted("sqlite", path, [make_label(1)])
    backup_ledger(str(path), tmp_path / "b")
    path.write_bytes(b"no database at all" * 1000)
    assert verify_ledger(str(path))
    with pytest.raises(LedgerError):
        backup_ledger(str(path), tmp_path / "b")  # and the one before stays
    aside = restore_ledger(tmp_path / "b", str(path), replace=True).aside
    assert Path(aside).read_bytes().startswith(b"no database at all")
    assert labels_of("sqlite", path) == 1


# --- hostile files ---------------------------------------------------------------------------------


HEAD = b'{"what": "calib-serve ledger backup", "format": 1, '


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is no backup of a ledger"),
        (b"\n", "is no backup of a ledger"),
        (b"SQLite format 3\0" + bytes(4000), "is no backup of a ledger"),
        (b"{" * 100_000, "is no backup of a ledger"),
        (
            b'{"what": "calib-serve ledger backup", "format": 9}\n',
            "of format 9, which a newer calib-serve wrote; this one reads 1",
        ),
        (HEAD + b'"store": "x", "taken": 1, "bytes": 0}\n', "is no backup of a ledger"),
        (HEAD + b'"store": "sqlite", "bytes": 1e999}\n', "is no backup of a ledger"),
        (b"[1]\n", "is no backup of a ledger"),
        (b"\xff\xfe\n", "is no backup of a ledger"),
    ],
)
def test_a_file_that_is_no_backup_is_refused_and_not_overwritten(
    tmp_path: Path, content: bytes, told: str
) -> None:
    path, file = tmp_path / "ledger.db", tmp_path / "b"
    counted("sqlite", path, [make_label(1)])
    file.write_bytes(content)
    with pytest.raises(LedgerError, match=told):
        restore_ledger(file, str(path), replace=True)
    with pytest.raises(LedgerError):
        backup_ledger(str(path), file)
    assert (file.read_bytes(), labels_of("sqlite", path)) == (content, 1)


def test_a_backup_that_is_cut_off_or_changed_anywhere_is_refused(place, tmp_path: Path) -> None:
    kind, where, address = place
    counted(kind, where, [make_label(i) for i in range(50)])
    backup_ledger(address, tmp_path / "b")
    whole, bad = (tmp_path / "b").read_bytes(), tmp_path / "bad"
    for at in range(0, len(whole), max(len(whole) // sized(20, 500), 1)):
        for changed in (
            whole[:at],
            whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            whole[:at] + b"x" + whole[at:],
        ):
            bad.write_bytes(changed)
            with pytest.raises(LedgerError):
                restore_ledger(bad, address, replace=True)
    assert labels_of(kind, where) == 50


def test_a_backup_of_one_store_is_not_restored_to_the_other(tmp_path: Path, redis_url: str) -> None:
    path = tmp_path / "ledger.db"
    counted("sqlite", path, [make_label(1)])
    backup_ledger(str(path), tmp_path / "b")
    with pytest.raises(LedgerError, match="a backup of a sqlite ledger"):
        restore_ledger(tmp_path / "b", redis_url)


# --- prune -----------------------------------------------------------------------------------------


def test_a_retired_version_is_taken_out_and_its_labels_never_count_again(place) -> None:
    kind, where, address = place
    both = [make_label(1), make_label(2, version="2")]
    counted(kind, where, both)
    done = prune_ledger(address, version=("m", "2"))
    assert (done.forgotten, done.labels) == (0, 1)
    ledger = open_one(kind, where)
    assert set(ledger.sums()) == {("m", "1")}
    assert {one.key.version for one in ledger.dated(0, 1e11)} == {"1"}
    assert ledger.waiting() == {("m", "1"): 1}
    assert accept(ledger, both) == [False, False]
    assert remembered(ledger) == 2
    ledger.close()
    assert verify_ledger(address) == []


def test_receipts_before_a_date_are_forgotten_and_refused(place) -> None:
    kind, where, address = place
    old, new = make_label(1, when=NOW - 9 * DAY), make_label(70_000, when=NOW)
    counted(kind, where, [old, new])
    assert prune_ledger(address, before=NOW - 5 * DAY).forgotten == 1
    assert counted(kind, where, [old, make_label(3, when=NOW - 6 * DAY), new]) == [0, 1, 2]
    ledger = open_one(kind, where)
    assert remembered(ledger) == 1
    ledger.close()


def test_a_ledger_at_rest_forgets_what_expired_in_one_go(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    # An epoch each, and no server since the last.
    labels = [make_label(i << 16, when=NOW - (60 - i) * DAY) for i in range(60)]
    counted("sqlite", path, labels, clock=lambda: NOW - 59 * DAY)
    ledger = SqliteLedger(path)
    for content in (bytes(400_000), b""):  # what is taken out leaves free pages
        ledger.store("state of a program", content)
    ledger.close()
    before = Path(path).stat().st_size
    done = prune_ledger(path, compact=True)
    assert done.forgotten >= 29
    assert done.compacted
    assert Path(path).stat().st_size < before - 300_000
    ledger = SqliteLedger(path)
    assert not prune_ledger(path, compact=True).compacted
    ledger.close()
