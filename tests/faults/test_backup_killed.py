"""A backup or a restore that is killed, or has no room or rights, leaves the old or the new, whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from injection import Fault, killed_everywhere, under
from ledgers import counted, labels_of, make_label
from sizes import sized

from calib_serve.watch.ledger import backup_ledger, restore_ledger
from calib_serve.watch.ledger.backup import read_header

pytestmark = pytest.mark.store


def test_a_backup_that_is_killed_anywhere_leaves_the_one_before_or_the_next_one(tmp_path: Path) -> None:
    path, file = tmp_path / "ledger.db", tmp_path / "b"
    counted("sqlite", path, [make_label(1)])
    backup_ledger(str(path), file)
    counted("sqlite", path, [make_label(2)])
    for _, _ended in killed_everywhere(backup_ledger, str(path), str(file), each=sized(3, 1)):
        assert read_header(file).bytes + len(file.read_bytes().split(b"\n", 1)[0]) + 1 == file.stat().st_size
        assert labels_of("sqlite", path) == 2
    restore_ledger(file, str(path), replace=True)
    assert labels_of("sqlite", path) == 2


def test_a_restore_that_is_killed_anywhere_leaves_the_old_ledger_or_the_restored_one(tmp_path: Path) -> None:
    path, file = tmp_path / "ledger.db", tmp_path / "b"
    counted("sqlite", path, [make_label(1)])
    backup_ledger(str(path), file)
    counted("sqlite", path, [make_label(i) for i in range(2, 10)])
    found = set()
    for _, _ended in killed_everywhere(restored, str(file), str(path), each=sized(3, 1)):
        n = labels_of("sqlite", path)
        found.add(n)
        assert counted("sqlite", path, [make_label(1)]) == ([0, 1, 0] if n == 9 else [0, 0, 1])
    assert found <= {1, 9}
    assert labels_of("sqlite", path) == 1


def restored(file, where):
    restore_ledger(file, where, replace=True)


@pytest.mark.parametrize("limit", sized([100, 20_000], [0, 100, 5000, 20_000, 60_000]))
def test_without_room_nothing_is_half(tmp_path: Path, limit: int) -> None:
    path, file = tmp_path / "ledger.db", tmp_path / "b"
    counted("sqlite", path, [make_label(i) for i in range(1, 500)])
    backup_ledger(str(path), file)
    before = file.read_bytes()
    for work in (backed_up, restored):
        ended = under(Fault(no_room_after=limit), work, str(file), str(path))
        assert ended.ours, ended
        assert (file.read_bytes(), labels_of("sqlite", path)) == (before, 499)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def backed_up(file, where):
    backup_ledger(where, file)


def test_without_rights_it_is_said(tmp_path: Path) -> None:
    path, closed = tmp_path / "ledger.db", tmp_path / "closed"
    counted("sqlite", path, [make_label(1)])
    backup_ledger(str(path), tmp_path / "b")
    closed.mkdir(mode=0o500)
    for work, args in ((backed_up, (closed / "b", path)), (restored, (tmp_path / "b", closed / "ledger.db"))):
        ended = under(Fault(powerless=True), work, *map(str, args))
        assert ended.ours, ended
        assert "closed" in ended.said
