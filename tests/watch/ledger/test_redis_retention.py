"""For how long a Redis ledger remembers receipts: longer retentions, forgetting, processes that die."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pytest
import redis
from ledgers import entries, make_label
from real_servers import Redis

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger.redis import RedisLedger

ROOT = "{a}"
DAY, DAY_MS = 86_400, 86_400_000
SLOW = 60_000  # milliseconds that a test may take


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis, decode_responses=True) as client:
        yield client


@pytest.fixture
def opened(empty_redis):
    """Opens a ledger until the test ends."""
    ledgers = []

    def open_ledger(days, **more):
        ledgers.append(RedisLedger(empty_redis, prefix="a", retention=days * DAY, **more))
        return ledgers[-1]

    yield open_ledger
    for ledger in ledgers:
        ledger.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A Redis whose settings the tests change."""
    with (
        Redis(tmp_path_factory.mktemp("own")) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        yield server.url, client


@pytest.fixture
def now():
    return int(time.time())


def fate(ledger, number, *, ago, now=None):
    when = (time.time() if now is None else now) - ago
    (one,) = ledger.accept(entries([make_label(number, when=when)]))
    return one


def about(milliseconds):
    return pytest.approx(milliseconds, abs=SLOW)


# --- eviction ------------------------------------------------------------------------------------------


def test_a_ledger_is_not_opened_in_a_redis_that_may_evict_and_nothing_is_written(own):
    url, client = own
    client.flushall()
    client.config_set("maxmemory", "200mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(LedgerError, match=r"may evict receipts \(maxmemory-policy allkeys-lru\)"):
        RedisLedger(url)
    assert client.dbsize() == 0
    client.config_set("maxmemory-policy", "noeviction")
    RedisLedger(url).close()
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "allkeys-lru")
    RedisLedger(url).close()


def test_what_redis_evicted_before_a_ledger_began_is_noted_once(own):
    url, client = own
    client.flushall()
    client.config_set("maxmemory", "2mb")
    client.config_set("maxmemory-policy", "allkeys-random")
    with client.pipeline(transaction=False) as pipe:
        for i in range(3000):
            pipe.set(f"x{i}", "x" * 1000)
        pipe.execute()
    client.flushall()
    client.config_set("maxmemory", 0)
    evicted = client.info("stats")["evicted_keys"]
    assert evicted > 0
    with closing(RedisLedger(url, prefix="a")) as ledger:
        assert client.get(f"{ROOT}:evicted") == str(evicted)
        assert fate(ledger, 1, ago=60) == "counted"
    client.set(f"{ROOT}:evicted", 7)
    RedisLedger(url, prefix="a").close()
    assert client.get(f"{ROOT}:evicted") == "7"


# --- a longer retention --------------------------------------------------------------------------------


def test_a_longer_retention_holds_for_what_is_remembered_and_for_nothing_else(server, opened, now):
    short = opened(10)
    assert fate(short, 1, ago=DAY) == "counted"
    (epoch,) = server.scan_iter(f"{ROOT}:epoch:*")
    assert server.pttl(epoch) == about(9 * DAY_MS)
    server.set(f"{ROOT}:nonce:old", "", px=4 * DAY_MS)
    server.set(f"{ROOT}:nonce:always", "")
    server.set("{b}:nonce:of another", "", px=4 * DAY_MS)
    server.set("{b}:epoch:of another", "", px=4 * DAY_MS)
    (score,) = dict(server.zrange(f"{ROOT}:epochs", 0, -1, withscores=True)).values()
    assert score == about((now + 9 * DAY) * 1000)

    assert opened(60).retention == 60 * DAY
    assert server.pttl(epoch) == about(59 * DAY_MS)
    assert server.pttl(f"{ROOT}:nonce:old") == about(54 * DAY_MS)
    assert server.pttl(f"{ROOT}:nonce:always") == -1
    assert server.pttl("{b}:nonce:of another") == about(4 * DAY_MS)
    assert server.pttl("{b}:epoch:of another") == about(4 * DAY_MS)
    assert server.zrange(f"{ROOT}:epochs", 0, -1, withscores=True)[0][1] == score + 50 * DAY_MS
    assert server.get(f"{ROOT}:retention") == str(60 * DAY_MS)
    assert not server.exists(f"{ROOT}:prolonging")
    assert int(server.get(f"{ROOT}:forgotten")) == about((now - 10 * DAY) * 1000)


def test_receipts_that_a_shorter_retention_may_have_forgotten_stay_refused(opened):
    short = opened(10)
    longer = opened(60)
    for ledger in (short, longer):  # by the retention of the Redis, not their own
        assert [fate(ledger, n, ago=10 * DAY + 3600) for n in (1, 2)] == ["forgotten", "forgotten"]
    assert fate(short, 3, ago=10 * DAY - 3600) == "counted"
    assert fate(longer, 3, ago=10 * DAY - 3600) == "duplicate"


def test_what_was_forgotten_for_longer_stays_so(server, opened, now):
    opened(10).forget(now - 2 * DAY)
    assert server.get(f"{ROOT}:forgotten") == str((now - 2 * DAY) * 1000)
    opened(60)
    assert server.get(f"{ROOT}:forgotten") == str((now - 2 * DAY) * 1000)


@pytest.mark.parametrize("days", [5, 10])
def test_a_retention_that_is_not_longer_changes_nothing(server, opened, days):
    assert fate(opened(10), 1, ago=DAY) == "counted"
    (epoch,) = server.scan_iter(f"{ROOT}:epoch:*")
    ledger = opened(days)
    assert ledger.retention == 10 * DAY
    assert server.pttl(epoch) == about(9 * DAY_MS)
    assert server.get(f"{ROOT}:retention") == str(10 * DAY_MS)
    assert not server.exists(f"{ROOT}:forgotten", f"{ROOT}:prolonging")


# --- a process that dies while it prolongs a retention -----------------------------------------------


@pytest.fixture
def died(server, opened, monkeypatch, now):
    """A process began to prolong 10 days to 60 an hour ago, and died before it came to the receipts.

    Gives the ledger of another process, which goes on.
    """
    ledger = opened(10)
    server.set(f"{ROOT}:nonce:old", "", px=4 * DAY_MS)

    dead = []

    def die(client, *_):
        dead.append(client)
        raise redis.ConnectionError("died")

    with monkeypatch.context() as patch:
        patch.setattr(redis.Redis, "pttl", die)
        with pytest.raises(LedgerError, match="died"):
            opened(60)
    dead[0].close()
    assert server.get(f"{ROOT}:retention") == str(60 * DAY_MS)
    assert server.get(f"{ROOT}:prolonging") == str(50 * DAY_MS)
    assert int(server.get(f"{ROOT}:forgotten")) == about((now - 10 * DAY) * 1000)
    assert server.pttl(f"{ROOT}:nonce:old") == about(4 * DAY_MS)
    server.decrby(f"{ROOT}:forgotten", 3_600_000)
    return ledger


@pytest.mark.parametrize("days", [10, 60, 90])
def test_all_that_a_process_did_not_prolong_is_prolonged_by_the_next(server, opened, died, days):
    opened(days)
    longest = max(days, 60)
    assert server.pttl(f"{ROOT}:nonce:old") == about((4 + longest - 10) * DAY_MS)
    assert server.get(f"{ROOT}:retention") == str(longest * DAY_MS)
    assert not server.exists(f"{ROOT}:prolonging")


def test_receipts_that_expired_before_they_were_prolonged_are_not_counted_again(server, opened, died, now):
    """They expired within the hour since, and nobody knows whether they were counted."""
    assert fate(died, 1, ago=10 * DAY + 1800) == "forgotten"
    next_one = opened(60)
    assert fate(next_one, 1, ago=10 * DAY + 1800) == "forgotten"
    assert int(server.get(f"{ROOT}:forgotten")) == about((now - 10 * DAY) * 1000)
    assert fate(next_one, 2, ago=10 * DAY - 1800) == "counted"
    assert fate(died, 2, ago=10 * DAY - 1800) == "duplicate"


def test_receipts_that_expire_while_others_are_prolonged_are_not_counted_again(
    server, opened, monkeypatch, now
):
    """An hour passes, by the clock of Redis, between the first and the last step."""
    clock = iter([now, now + 3600])
    ledger = opened(10)
    with monkeypatch.context() as patch:
        patch.setattr(RedisLedger, "_redis_time", lambda _: next(clock))
        opened(60)
    assert server.get(f"{ROOT}:forgotten") == str((now + 3600 - 10 * DAY) * 1000)
    assert fate(ledger, 1, ago=10 * DAY - 3600, now=now) == "forgotten"
    assert fate(ledger, 2, ago=10 * DAY - 3601, now=now) == "counted"


def test_what_is_counted_while_a_retention_is_prolonged_is_remembered_for_the_longer_one(server, died):
    assert fate(died, 1, ago=DAY) == "counted"
    (epoch,) = server.scan_iter(f"{ROOT}:epoch:*")
    assert server.pttl(epoch) == about(59 * DAY_MS)


# --- a label, and forgetting -----------------------------------------------------------------------------


def test_a_receipt_is_remembered_also_where_redis_does_not_know_the_retention(server, opened):
    ledger = opened(10)
    server.delete(f"{ROOT}:retention")
    assert fate(ledger, 1, ago=DAY) == "counted"
    (epoch,) = server.scan_iter(f"{ROOT}:epoch:*")
    assert server.pttl(epoch) == about(9 * DAY_MS)
    assert fate(ledger, 2, ago=11 * DAY) == "forgotten"


def test_forgetting_refuses_what_was_predicted_until_then_and_never_less(server, opened, now):
    ledger = opened(10)
    assert ledger.forget(now - 3600.0004) == 0
    assert server.get(f"{ROOT}:forgotten") == str((now - 3600) * 1000)  # the millisecond begun is refused
    assert [fate(ledger, n, ago=ago, now=now) for n, ago in ((1, 3600), (2, 3599))] == [
        "forgotten",
        "counted",
    ]
    ledger.forget(now - 7200)
    assert server.get(f"{ROOT}:forgotten") == str((now - 3600) * 1000)


def test_forgetting_drops_the_epochs_that_end_before_and_no_other_keys(server, opened, now):
    ledger = opened(10)
    for days in (6, 8):
        server.set(f"{ROOT}:epoch:{days}", "", px=days * DAY_MS)
        server.set(f"{ROOT}:nonce:{days}", "", px=days * DAY_MS)
        server.set(f"{{b}}:epoch:{days}", "", px=days * DAY_MS)
    server.set(f"{ROOT}:epoch:always", "")
    until = now - 3 * DAY  # predictions until then are remembered for 7 days yet
    assert ledger.forget(until) == 0
    assert ledger.forget(until, drop=True) == 1
    assert sorted(server.scan_iter("*:epoch:*")) == [
        "{a}:epoch:8",
        "{a}:epoch:always",
        "{b}:epoch:6",
        "{b}:epoch:8",
    ]
    assert sorted(server.scan_iter("*:nonce:*")) == ["{a}:nonce:6", "{a}:nonce:8"]


# --- format 1 ------------------------------------------------------------------------------------------


def test_nothing_of_format_1_is_left_once_it_is_taken_over(server, opened):
    place, other = json.dumps(["w", "m", "1", "north"]), json.dumps(["torchserve", "m", "1"])
    server.sadd(f"{ROOT}:places", place)
    server.hset(f"{ROOT}:sums:{place}", mapping={30: 2, 45: 1.5, 60: 1})
    server.set(f"{ROOT}:state:emitted/{other}", bytes(8 * 77))
    server.set("{b}:state:emitted/" + other, "kept")
    opened(10)
    left = {key.removeprefix(ROOT).partition("[")[0] for key in server.scan_iter(f"{ROOT}:*")}
    assert left == {
        ":bins", ":evicted", ":fence", ":retention", ":state:published/", ":total:", ":totals",
    }  # fmt: skip
    assert server.get("{b}:state:emitted/" + other) == "kept"
