"""The script that accepts labels in Redis, by itself: what it leaves there, and for how long."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import redis
from real_servers import Redis

from calib_serve.watch.ledger.redis_scripts import ACCEPT, ADD

ROOT = "{a}"
NOW = int(time.time())  # its tests may come long after it was read
MONTH = 2_592_000_000  # milliseconds
EPOCH = "00" * 8
SLOW = 2000  # milliseconds within one script, by Redis' clocks, where another program runs meanwhile


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis, decode_responses=True) as client:
        yield client


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A Redis whose settings the tests change."""
    with (
        Redis(tmp_path_factory.mktemp("own")) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        yield client


@pytest.fixture
def settings(own):
    """Sets them, until the test ends."""
    own.flushall()
    own.config_resetstat()
    yield lambda **more: [own.config_set(name.replace("_", "-"), value) for name, value in more.items()]
    own.config_set("maxmemory", 0)
    own.config_set("maxmemory-policy", "noeviction")


def bit(number, *, epoch=EPOCH, when=NOW, row="row", version="v"):
    return {"epoch": epoch, "bit": number, "time": when, "row": row, "version": version}


def named(nonce, *, when=NOW, row="row", version="v"):
    return {"nonce": nonce, "time": when, "row": row, "version": version}


def accept(server, *labels, retention=MONTH, **more):
    batch = {"labels": labels, "retention": retention, "detect": False} | more
    return server.eval(ACCEPT, 1, ROOT, json.dumps(batch))


def add(server, rows=(), sums=(), **more):
    return server.eval(ADD, 1, ROOT, json.dumps({"rows": rows, "sums": sums} | more))


def under(server, *, but=()):
    return sorted(
        key.removeprefix(ROOT) for key in server.scan_iter("*") if key.removeprefix(ROOT) not in but
    )


# --- receipts and when they are forgotten ----------------------------------------------------------


@pytest.mark.parametrize("stored", [None, MONTH // 2, 2 * MONTH])
def test_a_receipt_is_remembered_until_its_retention_is_over(server, stored):
    if stored:
        server.set(f"{ROOT}:retention", stored)
    ends = pytest.approx(NOW * 1000 + max(MONTH, stored or 0), abs=SLOW)
    assert accept(server, named("n0"), bit(0)) == ["counted", "counted"]
    kept = [server.pexpiretime(f"{ROOT}:{key}") for key in ("nonce:n0", f"epoch:{EPOCH}:few")]
    assert [*kept, server.zscore(f"{ROOT}:epochs", EPOCH)] == [ends] * 3
    assert accept(server, named("n0"), bit(0)) == ["duplicate", "duplicate"]


def test_an_epoch_is_remembered_as_long_as_its_latest_receipt(server):
    key = f"{ROOT}:epoch:{EPOCH}:few"
    for number, when, latest in (
        (1, NOW, NOW),
        (2, NOW - 5000, NOW),
        (3, NOW + 7, NOW + 7),
        (4, NOW, NOW + 7),
    ):
        assert accept(server, bit(number, when=when)) == ["counted"]
        ends = pytest.approx(latest * 1000 + MONTH, abs=SLOW)
        assert [server.pexpiretime(key), server.zscore(f"{ROOT}:epochs", EPOCH)] == [ends, ends]
    assert server.hgetall(f"{ROOT}:bits") == {EPOCH: "4"}


def test_a_receipt_is_refused_once_it_is_expired_or_was_made_until_what_is_forgotten(server):
    assert accept(server, named("a", when=NOW - 20), retention=10_000) == ["forgotten"]
    assert accept(server, named("a", when=NOW - 20), retention=MONTH) == ["counted"]
    server.set(f"{ROOT}:forgotten", NOW * 1000)
    many = [
        named("b", when=NOW),
        named("c", when=NOW - 1),
        named("d", when=NOW + 1),
        bit(1),
        bit(2, when=NOW + 1),
    ]
    assert accept(server, *many) == ["forgotten", "forgotten", "counted", "forgotten", "counted"]
    assert under(server, but=(":forgotten",)) == [
        ":bits", f":epoch:{EPOCH}:few", ":epochs", ":journal", ":nonce:a", ":nonce:d",
    ]  # fmt: skip


def test_a_receipt_that_expires_within_this_millisecond_is_forgotten_and_no_error(server):
    """Redis remembers nothing for 0 milliseconds: it refuses to, or deletes the whole epoch."""
    for part in (0, 0.25):
        found = []
        for attempt in range(100):  # until the first came in time, also on a busy machine
            server.flushdb()
            seconds, micro = server.time()
            ends = seconds * 1000 + micro // 1000 + 8 + attempt
            found = [["forgotten", "forgotten"]]
            for i in range(10_000):
                one = named(f"{i}", when=0), bit(i, epoch=f"{i:016x}", when=0)
                found.append(accept(server, *one, retention=ends + part))
                if found[-20:] == 20 * [["forgotten", "forgotten"]]:
                    break
            if ["counted", "counted"] in found:
                break
        assert found[1] == ["counted", "counted"]
        assert found[-1] == ["forgotten", "forgotten"]
        assert all(one in (found[1], found[-1]) for one in found)


def test_what_expired_is_cleared_away_and_nothing_else_a_thousand_at_a_time(server):
    old = [f"{i:016x}" for i in range(1, 1002)]
    server.zadd(
        f"{ROOT}:epochs", {one: 1000 + i for i, one in enumerate(old)} | {"later": NOW * 1000 + MONTH}
    )
    server.hset(f"{ROOT}:bits", mapping=dict.fromkeys([*old, "later"], 3))
    accept(server)
    assert server.zrange(f"{ROOT}:epochs", 0, -1) == [*old[1000:], "later"]
    assert sorted(server.hkeys(f"{ROOT}:bits")) == [*old[1000:], "later"]
    accept(server)
    assert server.zrange(f"{ROOT}:epochs", 0, -1) == server.hkeys(f"{ROOT}:bits") == ["later"]


@pytest.mark.parametrize(
    ("counted", "looked_for"),
    [([0x0102, 0x0304], 0x2E2E), ([0x0102, 0x0304], 0x4125), ([0x012E, 0x2E02, 0x0304], 0x2E2E)],
)
def test_a_receipt_whose_number_would_be_a_pattern_is_counted(server, counted, looked_for):
    """In patterns, a dot stands for anything, and a percent sign at the end is an error."""
    assert accept(server, *map(bit, counted)) == ["counted"] * len(counted)
    assert accept(server, bit(looked_for), bit(looked_for)) == ["counted", "duplicate"]


def test_the_bit_with_which_a_list_becomes_a_bitmap_is_counted_once_and_its_time_goes_on(server, empty_redis):
    key, few = f"{ROOT}:epoch:{EPOCH}", f"{ROOT}:epoch:{EPOCH}:few"
    chosen = [0, 1, 7, 8, 255, 256, 0xFFFF, *range(1000, 3723)]
    assert len(chosen) == 2730
    server.set(few, np.array(chosen, ">u2").tobytes(), pxat=NOW * 1000 + MONTH + 60_000)
    server.hset(f"{ROOT}:bits", EPOCH, 2730)
    assert accept(server, bit(0xFFFE), bit(0xFFFE), bit(0), bit(0xFFFF)) == ["counted", *["duplicate"] * 3]
    assert not server.exists(few)
    assert server.pexpiretime(key) == pytest.approx(NOW * 1000 + MONTH + 60_000, abs=SLOW)
    with redis.Redis.from_url(empty_redis) as raw:
        held = np.unpackbits(np.frombuffer(raw.get(key), np.uint8))
    assert np.flatnonzero(held).tolist() == sorted([*chosen, 0xFFFE])
    assert accept(server, bit(9), bit(9), bit(7)) == ["counted", "duplicate", "duplicate"]
    assert server.pexpiretime(key) == pytest.approx(NOW * 1000 + MONTH + 60_000, abs=SLOW)


def test_labels_of_an_epoch_whose_bits_were_lost_are_forgotten_for_good(server):
    server.hset(f"{ROOT}:bits", EPOCH, 2)
    for number in (1, 2, 3):
        assert accept(server, bit(number)) == ["forgotten"]
    assert int(server.hget(f"{ROOT}:bits", EPOCH)) < -1_000_000
    assert not server.exists(f"{ROOT}:journal")


# --- what is kept with a label ---------------------------------------------------------------------


@pytest.mark.parametrize("detect", [False, True])
def test_only_labels_that_count_come_into_the_journal_and_wait(server, detect):
    some = [
        named("a", row="r1"),
        named("a", row="r2"),
        bit(5, when=NOW - 3, row="r3", version="w"),
        named("o", when=9),
    ]
    assert accept(server, *some, detect=detect) == ["counted", "duplicate", "counted", "forgotten"]
    assert server.lrange(f"{ROOT}:journal", 0, -1) == ["r1", "r3"]
    assert server.smembers(f"{ROOT}:waiting") == ({"v", "w"} if detect else set())
    found = [server.zrange(f"{ROOT}:waiting:{v}", 0, -1, withscores=True) for v in "vw"]
    assert found == ([[("r1", NOW)], [("r3", NOW - 3)]] if detect else [[], []])
    assert not server.keys(f"{ROOT}:state:*")


def test_what_became_of_a_batch_is_kept_under_its_mark_unless_it_was_given_up(server):
    marked = {"mark": "mark", "given_up": "given", "named": "b7"}
    server.set(f"{ROOT}:state:given", "b6")
    some = [named("a"), named("a"), named("o", when=9)]
    assert accept(server, *some, **marked) == ["counted", "duplicate", "forgotten"]
    assert server.get(f"{ROOT}:state:mark") == "b7 cdf"
    server.set(f"{ROOT}:state:given", "b7")
    with pytest.raises(redis.ResponseError, match="the batch was given up"):
        accept(server, named("c"), **marked)
    assert accept(server, named("c")) == ["counted"]


# --- eviction ------------------------------------------------------------------------------------------


def test_a_redis_that_may_evict_counts_nothing(own, settings):
    counts = (lambda: accept(own, named("a")), lambda: add(own, [{"name": "n"}], [[[1, 1]]]))
    settings(maxmemory="200mb", maxmemory_policy="allkeys-lru")
    for count in counts:
        with pytest.raises(redis.ResponseError, match=r"EVICTS .*allkeys-lru"):
            count()
    assert own.dbsize() == 0
    for allowed in ({"maxmemory_policy": "noeviction"}, {"maxmemory": 0, "maxmemory_policy": "allkeys-lru"}):
        own.flushall()
        settings(**allowed)
        assert [count() for count in counts] == [["counted"], 1]


def evict(own, settings):
    """How many keys were evicted; nothing is left."""
    settings(maxmemory="2mb", maxmemory_policy="allkeys-random")
    with own.pipeline(transaction=False) as pipe:
        for i in range(3000):
            pipe.set(f"x{i}", "x" * 1000)
        pipe.execute()
    own.flushall()
    settings(maxmemory=0)
    evicted = own.info("stats")["evicted_keys"]
    assert evicted > 0
    return evicted


def test_after_an_eviction_what_was_predicted_until_then_is_forgotten(own, settings):
    evicted = evict(own, settings)
    before = time.time_ns() // 1_000_000
    assert accept(own, named("a", when=NOW), named("b", when=NOW + 10**6)) == ["forgotten", "counted"]
    after = time.time_ns() // 1_000_000
    at = own.get(f"{ROOT}:forgotten")
    assert before <= int(at) <= after
    assert own.get(f"{ROOT}:evicted_at") == at
    assert own.get(f"{ROOT}:evicted") == str(evicted)
    own.set(f"{ROOT}:forgotten", 5)  # once for each time
    assert accept(own, named("a", when=NOW)) == ["counted"]
    assert own.get(f"{ROOT}:forgotten") == "5"


def test_as_many_evictions_again_after_a_restart_are_evictions(own, settings):
    own.set(f"{ROOT}:evicted", evict(own, settings))
    assert accept(own, named("a")) == ["counted"]
    own.config_resetstat()  # as a restart does
    assert accept(own, named("b")) == ["counted"]
    assert own.get(f"{ROOT}:evicted") == "0"
    assert not own.exists(f"{ROOT}:forgotten", f"{ROOT}:evicted_at")


def test_where_nothing_was_evicted_nothing_is_forgotten(own, settings):
    assert accept(own, named("a")) == ["counted"]
    assert under(own) == [":journal", ":nonce:a"]
