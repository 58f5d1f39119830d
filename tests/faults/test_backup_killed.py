"""A backup or a restore that is killed, or has no room or rights, leaves the old or the new, whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from injection import killed_everywhere
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
