"""Leases and the lock of a Redis ledger: who holds them, for how long, and what is written under the lock."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
import redis
from ledgers import open_one

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger.leases import Holder

ROOT = "{a}"
SLOW = 60_000  # milliseconds that a test may take


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis, decode_responses=True) as client:
        yield client


@pytest.fixture
def ledger(empty_redis):
    with closing(open_one("redis", (empty_redis, "a"), timeout=0.1)) as found:
        yield found


# --- leases --------------------------------------------------------------------------------------------


FIRST, SECOND = Holder("1", "here", 12, 5.0), Holder("2", "there", 13, 6.0)


def test_a_lease_is_a_key_of_its_ledger_that_expires(ledger, server):
    ledger.leases.seconds = 3600.0
    assert ledger.leases.look("w") is None
    assert ledger.leases.take("w", FIRST) is None
    assert server.get(f"{ROOT}:lease:w") == FIRST.packed()
    assert 3_600_000 - SLOW < server.pttl(f"{ROOT}:lease:w") <= 3_600_000
    for held in (ledger.leases.look("w"), ledger.leases.take("w", SECOND)):
        assert held.holder == FIRST
        assert 3600 - SLOW / 1000 < held.left <= 3600
    assert ledger.leases.look("v") is None


def test_a_lease_is_renewed_by_its_holder_and_released_by_no_other(ledger, server):
    ledger.leases.seconds = 3600.0
    ledger.leases.take("w", FIRST)
    server.pexpire(f"{ROOT}:lease:w", 120_000)
    ledger.leases.take("w", SECOND)
    assert server.pttl(f"{ROOT}:lease:w") <= 120_000
    ledger.leases.take("w", FIRST)
    assert server.pttl(f"{ROOT}:lease:w") > 3_600_000 - SLOW
    ledger.leases.release("w", SECOND)
    assert ledger.leases.look("w").holder == FIRST
    ledger.leases.release("w", FIRST)
    assert not server.exists(f"{ROOT}:lease:w")
    assert ledger.leases.take("w", SECOND) is None


def test_a_lease_without_an_end_holds_nobody_up(ledger, server):
    server.set(f"{ROOT}:lease:w", FIRST.packed())
    assert ledger.leases.look("w") is None
    assert ledger.leases.take("w", SECOND) is None
    assert ledger.leases.look("w").holder == SECOND


def test_a_note_is_kept_under_the_ledger_without_an_end(ledger, server):
    assert ledger.leases.recall("w") is None
    ledger.leases.remember("w", b"a note")
    assert server.get(f"{ROOT}:published-by:w") == "a note"
    assert server.pttl(f"{ROOT}:published-by:w") == -1
    assert ledger.leases.recall("w") == b"a note"
    assert ledger.leases.recall("v") is None


def test_leases_of_a_redis_that_does_not_answer_are_a_ledger_error(ledger, server, monkeypatch):
    def gone(*_, **__):
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(ledger._redis, "execute_command", gone)
    for ask in (
        lambda: ledger.leases.look("w"),
        lambda: ledger.leases.take("w", FIRST),
        lambda: ledger.leases.release("w", FIRST),
        lambda: ledger.leases.remember("w", b"note"),
        lambda: ledger.leases.recall("w"),
    ):
        with pytest.raises(LedgerError, match="cannot be used: gone"):
            ask()


# --- the lock --------------------------------------------------------------------------------------------


def test_the_lock_is_a_key_that_falls_in_two_seconds_and_each_holder_has_a_greater_number(ledger, server):
    before = int(server.get(f"{ROOT}:fence"))
    tokens = []
    for number in (1, 2):
        with ledger.transaction():
            tokens.append(server.get(f"{ROOT}:lock"))
            assert 0 < server.pttl(f"{ROOT}:lock") <= 2000
            assert server.get(f"{ROOT}:fence") == str(before + number)
        assert not server.exists(f"{ROOT}:lock")
    assert len(set(tokens)) == 2
    assert all(len(bytes.fromhex(token)) == 8 for token in tokens)


def test_a_lock_of_another_is_waited_for_and_left_alone(ledger, server):
    server.set(f"{ROOT}:lock", "another's")
    fence = server.get(f"{ROOT}:fence")
    with pytest.raises(LedgerError, match="was locked for 0 s; send the batch again"), ledger.transaction():
        raise AssertionError("two transactions at once")
    assert server.get(f"{ROOT}:lock") == "another's"
    assert server.get(f"{ROOT}:fence") == fence


@pytest.mark.parametrize("lost_by", ["lock", "fence"])
def test_nothing_is_written_by_whoever_lost_the_lock_or_is_not_its_latest_holder(ledger, server, lost_by):
    def write():
        with ledger.transaction():
            ledger.store("key", b"value")
            if lost_by == "lock":
                server.set(f"{ROOT}:lock", "another's")
            else:
                server.incr(f"{ROOT}:fence")

    with pytest.raises(LedgerError, match="stood still and lost the lock"):
        write()
    assert not server.exists(f"{ROOT}:state:key")
    assert server.get(f"{ROOT}:lock") == ("another's" if lost_by == "lock" else None)


def test_nothing_is_written_where_the_lock_is_lost_between_the_look_and_the_writing(ledger, server):
    def write():
        with ledger.transaction(), ledger._local.step() as pipe:
            server.incr(f"{ROOT}:fence")
            pipe.set(f"{ROOT}:state:key", b"value")

    with pytest.raises(LedgerError, match="stood still and lost the lock"):
        write()
    assert not server.exists(f"{ROOT}:state:key")


def test_a_lock_is_renewed_while_its_holder_works_and_only_then(ledger, server, monkeypatch):
    monkeypatch.setattr("calib_serve.watch.ledger.redis_lock._BEAT", 0.01)
    for _ in range(2):
        with ledger.transaction():
            server.pexpire(f"{ROOT}:lock", 600_000)
            assert soon(lambda: 0 < server.pttl(f"{ROOT}:lock") <= 2000)
            server.set(f"{ROOT}:lock", "another's", px=600_000)
            time.sleep(0.05)
            assert server.pttl(f"{ROOT}:lock") > 2000
        server.delete(f"{ROOT}:lock")


def test_a_transaction_within_another_is_part_of_it(ledger, server):
    with ledger.transaction():
        with ledger.transaction():
            ledger.store("key", b"value")
        assert not server.exists(f"{ROOT}:state:key")
        assert ledger.load("key") == b"value"
    assert server.get(f"{ROOT}:state:key") == "value"
    ledger.store("key", b"later")
    assert server.get(f"{ROOT}:state:key") == "later"


def test_the_heartbeat_ends_when_the_ledger_is_closed(empty_redis):
    ledger = open_one("redis", (empty_redis, "a"))
    with ledger.transaction():
        thread = ledger._lock._thread
        assert (thread.name, thread.daemon) == ("calib-lock", True)
        assert thread in threading.enumerate()
    ledger.close()
    assert soon(lambda: not thread.is_alive())


def soon(seen):
    """Whether it is seen within some seconds."""
    until = time.monotonic() + 10
    while not seen():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
