"""The files of a SQLite ledger: a -wal that is taken away, and a ledger that is set aside halfway."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from injection import Fault, under
from ledgers import accept, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import SqliteLedger, quarantine

pytestmark = pytest.mark.store

PARTS = ("", "-wal", "-shm")


def count_until_told(path: str) -> None:
    """Count labels by the tens as it is told to, line by line; answer what was acknowledged."""
    ledger = SqliteLedger(path)
    acknowledged = 0
    for _ in sys.stdin:
        try:
            acknowledged += sum(accept(ledger, [make_label(acknowledged + i) for i in range(10)]))
            print(acknowledged, flush=True)
        except LedgerError as error:
            print("refused:", error, flush=True)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_wal_that_is_taken_away_is_noticed_and_nothing_acknowledged_is_lost(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "l.db"
    work = "import test_ledger_files as t, sys; t.count_until_told(sys.argv[1])"
    child = subprocess.Popen(
        [sys.executable, "-c", work, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    def tell() -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        return child.stdout.readline().strip()

    try:
        assert [tell() for _ in range(10)][-1] == "100"
        wal = path.with_name("l.db-wal")
        if how == "replaced":
            shutil.copy(wal, tmp_path / "copy")
        wal.unlink()
        if how == "replaced":
            (tmp_path / "copy").rename(wal)
        said = tell()
        assert said.startswith("refused:")
        assert f"-wal file of the ledger {path} was {how}" in said
        assert ("was saved" if how == "removed" else "may be missing") in said
        assert "restart" in said
        assert tell().startswith("refused:")
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    ledger = SqliteLedger(path)
    assert ledger.sums()["m", "1"].labels.sum() == 100
    assert accept(ledger, [make_label(i) for i in range(101)]) == [False] * 100 + [True]
    assert ledger.verify() == []
    ledger.close()


def leave_open(path: Path, labels: int) -> None:
    """A ledger as a process leaves it that is killed: with a -wal and a -shm."""
    ledger = SqliteLedger(path)
    accept(ledger, [make_label(i) for i in range(labels)])
    copies = path.parent / "open"
    copies.mkdir()
    for part in PARTS:
        shutil.copy(f"{path}{part}", copies)
    ledger.close()
    for one in copies.iterdir():
        one.rename(path.with_name(one.name))
    copies.rmdir()


def test_a_ledger_is_set_aside_with_its_journal_wherever_that_is_cut_short(tmp_path: Path) -> None:
    cut = 0
    for n in range(1, 6):
        path = tmp_path / str(n) / "l.db"
        path.parent.mkdir()
        leave_open(path, 20)
        was = {part: Path(f"{path}{part}").read_bytes() for part in PARTS}
        ended = under(Fault(kill_before=n), quarantine, str(path))
        cut += ended.signal != 0
        if not path.exists():
            fresh = SqliteLedger(path)
            assert fresh.sums() == {}, "a fresh ledger read a foreign journal"
            assert fresh.verify() == []
            fresh.close()
            aside = sorted(one.name for one in path.parent.iterdir())
            kept = [(path.parent / one).read_bytes() for one in aside if one != "l.db"]
            assert sorted(map(len, kept)) == sorted(map(len, was.values()))
            assert set(kept) == set(was.values()), "what was set aside is whole"
        else:
            whole = SqliteLedger(path)
            assert whole.sums()["m", "1"].labels.sum() == 20
            whole.close()
    assert cut == 3
