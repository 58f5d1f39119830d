"""The lock of a Redis ledger: whoever dies or freezes inside keeps nobody out, and writes nothing later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from ledgers import NOW, accept, make_label, open_one
from processes import started
from sizes import sized

from calib_serve.errors import LedgerError

HOLDER = """
import sys, time
from calib_serve.errors import LedgerError
from calib_serve.watch.ledger.redis import RedisLedger

ledger = RedisLedger(sys.argv[1], prefix=sys.argv[2])
try:
    with ledger.transaction():
        rows = ledger.take_waiting(("m", "1"), until=4e9, most=10)
        ledger.store("who", b"first")
        print("inside", len(rows), flush=True)
        sys.stdin.readline()
    print("written")
except LedgerError as error:
    print("refused:", error)
"""


@pytest.fixture
def inside(redis_url: str, request: pytest.FixtureRequest):
    """A ledger with two labels that wait for the detector, and a process in a transaction of it."""
    place = (redis_url, request.node.name)
    ledger = open_one("redis", place)
    accept(ledger, [make_label(1), make_label(2)])
    command = [sys.executable, "-c", HOLDER, *place]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "inside 2\n"
        yield ledger, holder
    ledger.close()


def test_the_lock_of_a_process_that_died_inside_falls_and_nothing_of_it_is_written(inside) -> None:
    ledger, holder = inside
    holder.send_signal(signal.SIGKILL)
    with ledger.transaction():  # within its timeout of 10 s
        assert ledger.load("who") is None
        assert len(ledger.take_waiting(("m", "1"), until=NOW + 1, most=10)) == 2


def test_a_process_that_stood_still_inside_writes_nothing_under_a_lock_it_lost(inside) -> None:
    ledger, holder = inside
    os.kill(holder.pid, signal.SIGSTOP)
    with ledger.transaction():
        assert len(ledger.take_waiting(("m", "1"), until=NOW + 1, most=1)) == 1
        ledger.store("who", b"second")
    os.kill(holder.pid, signal.SIGCONT)
    told, _ = holder.communicate("\n", timeout=60)
    assert told.startswith("refused: this process stood still")
    assert ledger.load("who") == b"second"
    assert ledger.waiting() == {("m", "1"): 1}


def test_a_process_that_works_inside_for_longer_than_the_lock_lasts_keeps_it(inside) -> None:
    ledger, holder = inside
    ledger._lock._timeout = 0.2
    time.sleep(sized(2.5, 10))
    with pytest.raises(LedgerError, match="locked"), ledger.transaction():
        raise AssertionError("two transactions at once")
    told, _ = holder.communicate("\n", timeout=60)
    assert told == "written\n"
    assert ledger.load("who") == b"first"


def test_a_transaction_that_raises_writes_nothing_and_reads_what_it_stored(redis_url: str) -> None:
    ledger = open_one("redis", (redis_url, "raises"))
    accept(ledger, [make_label(1), make_label(2)])

    def fail() -> None:
        with ledger.transaction():
            ledger.store("key", b"value")
            assert ledger.load("key") == b"value"
            (first,) = ledger.take_waiting(("m", "1"), until=NOW + 1, most=1)
            (second,) = ledger.take_waiting(("m", "1"), until=NOW + 1, most=5)
            assert first.nonce != second.nonce
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ledger.load("key") is None
    assert ledger.waiting() == {("m", "1"): 2}
    ledger.close()
