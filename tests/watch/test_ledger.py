"""A label is counted once, whatever happens to the process, the clock, the disk or the file."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from calib_serve.errors import InputError, LedgerError
from calib_serve.receipts import Label, Receipt
from calib_serve.watch.ledger import SqliteLedger, quarantine
from calib_serve.watch.sums import Sums

FOREVER = 4e9


def make_label(i, *, confidence=0.9, label=1, model="m", version="1", when=1000.0):
    return Label(Receipt("k", model, version, when, i.to_bytes(12, "big"), 1, confidence), label)


def accept(ledger, labels, expires=FOREVER):
    return ledger.accept(labels, expires=[expires] * len(labels))


@pytest.fixture
def ledger(tmp_path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


def test_a_label_is_counted_once_even_within_one_batch(ledger):
    assert accept(ledger, [make_label(1), make_label(1), make_label(2, label=0)]) == [True, False, True]
    assert accept(ledger, [make_label(2)]) == [False]
    sums = ledger.sums()["m", "1"]
    assert sums == Sums.labelled([0.9, 0.9], [1, 0])


def test_sums_equal_numpy_over_many_batches_and_versions(ledger):
    rng = np.random.default_rng(0)
    c, y = rng.random(500), rng.integers(0, 2, 500)
    labels = [make_label(i, confidence=c[i], label=int(y[i]), version=str(i % 2)) for i in range(500)]
    for at in range(0, 500, 37):
        accept(ledger, labels[at : at + 37])
    for version in (0, 1):
        got, want = ledger.sums()["m", str(version)], Sums.labelled(c[version::2], y[version::2])
        np.testing.assert_allclose(got.feedback.confidence, want.feedback.confidence, rtol=1e-12)
        np.testing.assert_array_equal(got.feedback.correct, want.feedback.correct)
        assert got.confidence_squared == pytest.approx(want.confidence_squared, rel=1e-12)


def test_a_second_process_on_the_same_file_sees_and_shares_everything(tmp_path):
    one, two = SqliteLedger(tmp_path / "l.db"), SqliteLedger(tmp_path / "l.db")
    assert accept(one, [make_label(1)]) == [True]
    assert accept(two, [make_label(1), make_label(2)]) == [False, True]
    assert one.sums() == two.sums()
    assert one.sums()["m", "1"].feedback.n == 2
    one.close(), two.close()


def _writer(path, start):
    ledger = SqliteLedger(path, timeout=60)
    for at in range(start, start + 200, 10):
        accept(ledger, [make_label(i) for i in range(at, at + 10)])
    ledger.close()


def test_concurrent_writers_with_overlapping_labels_lose_and_double_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_writer, args=(tmp_path / "l.db", 100 * k)) for k in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    ledger = SqliteLedger(tmp_path / "l.db")
    assert ledger.sums()["m", "1"].feedback.n == 400
    ledger.close()


def test_a_writer_killed_before_its_commit_leaves_nothing_behind(tmp_path):
    script = f"""
import os, signal
from calib_serve.receipts import Label, Receipt
from calib_serve.watch.ledger import SqliteLedger
label = lambda i: Label(Receipt("k", "m", "1", 1000.0, i.to_bytes(12, "big"), 1, 0.9), 1)
ledger = SqliteLedger({str(tmp_path / "l.db")!r})
ledger.accept([label(1)], expires=[{FOREVER}])
with ledger.transaction():
    ledger.accept([label(2), label(3)], expires=[{FOREVER}] * 2)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    ledger = SqliteLedger(tmp_path / "l.db")
    assert ledger.sums()["m", "1"].feedback.n == 1
    assert accept(ledger, [make_label(i) for i in (1, 2, 3)]) == [False, True, True]
    ledger.close()


def test_a_failed_transaction_counts_nothing(ledger):
    def fail_halfway():
        with ledger.transaction():
            accept(ledger, [make_label(1)])
            ledger.store("key", b"value")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert ledger.sums() == {}
    assert ledger.load("key") is None
    assert accept(ledger, [make_label(1)]) == [True]


def test_expired_nonces_are_forgotten_and_stay_refused_when_the_clock_jumps_back(tmp_path):
    now = 1000.0
    ledger = SqliteLedger(tmp_path / "l.db", clock=lambda: now)
    assert accept(ledger, [make_label(1)], expires=2000.0) == [True]
    now = 3000.0
    assert accept(ledger, [make_label(2)], expires=4000.0) == [True]
    rows = sqlite3.connect(tmp_path / "l.db").execute("SELECT count(*) FROM nonces").fetchone()
    assert rows == (1,)
    now = 1500.0  # the receipt of label 1 is young again, but it was counted
    assert accept(ledger, [make_label(1)], expires=2000.0) == [False]
    assert ledger.sums()["m", "1"].feedback.n == 2
    ledger.close()


def test_pruning_goes_in_bounded_sweeps(tmp_path):
    ledger = SqliteLedger(tmp_path / "l.db", clock=lambda: 0.0)
    ledger.accept([make_label(i) for i in range(100)], expires=[float(i) for i in range(1, 101)])
    assert ledger.prune(1000.0, at_most=30) == 30
    assert ledger.accept([make_label(0), make_label(29)], expires=[1.0, 30.0]) == [False, False]
    assert ledger.prune(1000.0) == 70
    assert ledger.prune(1000.0) == 0
    ledger.close()


def test_an_emitter_gets_each_label_once_over_restarts(tmp_path):
    ledger = SqliteLedger(tmp_path / "l.db")
    accept(ledger, [make_label(1), make_label(2)])
    with ledger.emission("torchserve") as fresh:
        assert fresh["m", "1"].feedback.n == 2
    ledger.close()
    ledger = SqliteLedger(tmp_path / "l.db")
    with ledger.emission("torchserve") as fresh:
        assert fresh == {}
    accept(ledger, [make_label(3)])
    with pytest.raises(OSError, match="pipe"), ledger.emission("torchserve") as fresh:
        raise OSError("broken pipe")
    with ledger.emission("torchserve") as fresh:
        assert fresh["m", "1"].feedback.n == 1
    with ledger.emission("another") as fresh:
        assert fresh["m", "1"].feedback.n == 3
    ledger.forget_emissions("torchserve")
    with ledger.emission("torchserve") as fresh:
        assert fresh["m", "1"].feedback.n == 3
    ledger.close()


def test_a_full_disk_is_said_and_counts_nothing(tmp_path):
    ledger = SqliteLedger(tmp_path / "l.db")
    accept(ledger, [make_label(0)])
    (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite sees when a disk is full
    with pytest.raises(LedgerError, match=r"full.*free some space"):
        accept(ledger, [make_label(i) for i in range(1, 2000)])
    assert ledger.sums()["m", "1"].feedback.n == 1
    ledger._db.execute("PRAGMA max_page_count = 1000000")
    assert all(accept(ledger, [make_label(i) for i in range(1, 2000)]))
    ledger.close()


def test_a_damaged_file_is_said_and_can_be_set_aside(tmp_path):
    path = tmp_path / "l.db"
    ledger = SqliteLedger(path)
    accept(ledger, [make_label(i) for i in range(500)])
    ledger.close()
    content = bytearray(path.read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=str(path)):
        SqliteLedger(path)
    aside = quarantine(path, clock=lambda: 7.0)
    assert aside.name == "l.db.damaged-7"
    assert aside.read_bytes() == bytes(content)
    fresh = SqliteLedger(path)
    assert fresh.sums() == {}
    fresh.close()


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "l.db"
    path.write_text("hello, I am a text file that somebody put here by mistake\n" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        SqliteLedger(path)


def test_a_locked_ledger_is_said_after_its_timeout(tmp_path):
    one = SqliteLedger(tmp_path / "l.db")
    two = SqliteLedger(tmp_path / "l.db", timeout=0.1)
    with one.transaction():
        began = time.monotonic()
        with pytest.raises(LedgerError, match="locked"):
            accept(two, [make_label(1)])
        assert time.monotonic() - began < 5
    assert accept(two, [make_label(1)]) == [True]
    one.close(), two.close()


def test_another_bin_count_or_format_is_refused(tmp_path):
    SqliteLedger(tmp_path / "l.db", bins=15).close()
    with pytest.raises(LedgerError, match="15 bins, not 10"):
        SqliteLedger(tmp_path / "l.db", bins=10)
    db = sqlite3.connect(tmp_path / "l.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(LedgerError, match="format 99"):
        SqliteLedger(tmp_path / "l.db")


def test_expiries_must_match_labels(ledger):
    with pytest.raises(InputError, match="got 1 and 0"):
        ledger.accept([make_label(1)], expires=[])
