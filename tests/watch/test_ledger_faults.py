"""What disks, clocks and careless hands do to a ledger is said, and changes no count."""

import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import redis
from test_ledger_contract import FOREVER, accept, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import SqliteLedger, open_ledger, quarantine
from calib_serve.watch.redis_ledger import RedisLedger


@pytest.fixture
def ledger(tmp_path):
    ledger = SqliteLedger(tmp_path / "l.db")
    yield ledger
    ledger.close()


def test_a_writer_killed_before_its_commit_leaves_nothing_behind(tmp_path):
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_ledger_contract import *
ledger = SqliteLedger({str(tmp_path / "l.db")!r})
accept(ledger, [make_label(1)])
with ledger.transaction():
    accept(ledger, [make_label(2), make_label(3)])
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
    assert ledger._db.execute("SELECT count(*) FROM nonces").fetchone() == (1,)
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


def test_a_full_disk_is_said_and_counts_nothing(ledger):
    accept(ledger, [make_label(0)])
    (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite sees when a disk is full
    with pytest.raises(LedgerError, match=r"full.*free some space"):
        accept(ledger, [make_label(i) for i in range(1, 2000)])
    assert ledger.sums()["m", "1"].feedback.n == 1
    ledger._db.execute("PRAGMA max_page_count = 1000000")
    assert all(accept(ledger, [make_label(i) for i in range(1, 2000)]))


def test_a_full_redis_is_said_and_counts_nothing(redis_url):
    ledger = RedisLedger(redis_url, prefix=uuid.uuid4().hex)
    accept(ledger, [make_label(0)])
    server = redis.Redis.from_url(redis_url)
    server.config_set("maxmemory", 1)
    try:
        with pytest.raises(LedgerError, match="maxmemory"):
            accept(ledger, [make_label(1)])
        server.config_set("maxmemory", 10**10)
        server.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(LedgerError, match="set maxmemory-policy noeviction"):
            RedisLedger(redis_url)
    finally:
        server.config_set("maxmemory-policy", "noeviction")
        server.config_set("maxmemory", 0)
        server.close()
    assert accept(ledger, [make_label(0), make_label(1)]) == [False, True]
    assert ledger.sums()["m", "1"].feedback.n == 2
    ledger.close()


def test_a_redis_that_is_not_there_is_said():
    with pytest.raises(LedgerError, match="cannot be used"):
        open_ledger("redis://127.0.0.1:1/0")


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


def test_a_ledger_of_another_format_is_refused(tmp_path):
    SqliteLedger(tmp_path / "l.db").close()
    db = sqlite3.connect(tmp_path / "l.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(LedgerError, match="format 99"):
        SqliteLedger(tmp_path / "l.db")


def test_acknowledged_means_on_disk(ledger):
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert accept(ledger, [make_label(1)], expires=FOREVER) == [True]
    reader = sqlite3.connect(f"file:{ledger.path}?mode=ro", uri=True)
    assert reader.execute("SELECT count(*) FROM nonces").fetchone() == (1,)
    reader.close()
