"""What a Redis ledger does to the keys of its versions and writers, and what it says when Redis fails."""

from __future__ import annotations

import json
import math
import time
from contextlib import closing

import pytest
import redis
from ledgers import entries, make_label

from calib_serve.errors import LedgerError, UnknownFate
from calib_serve.watch.ledger import Key, noted, redis_sums
from calib_serve.watch.ledger.entries import Mark
from calib_serve.watch.ledger.redis import RedisLedger
from calib_serve.watch.ledger.sums import Sums

ROOT = "{a}"
FIRST, SECOND = ("m", "1"), ("m", "2")
SPAN = 300  # seconds, of what was predicted within two days


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis, decode_responses=True) as client:
        yield client


@pytest.fixture
def ledger(empty_redis):
    with closing(RedisLedger(empty_redis, prefix="a", writer="w")) as found:
        found.accept([])
        yield found


@pytest.fixture
def now():
    return int(time.time())


def count(ledger, *numbers, version="1", when=None, **more):
    labels = [make_label(n, version=version, when=when or time.time()) for n in numbers]
    return ledger.accept(entries(labels), **more)


# --- versions ------------------------------------------------------------------------------------------


def test_a_version_is_dropped_with_all_its_sums_and_nothing_of_others(ledger, server, now):
    start = now // SPAN * SPAN
    for version in ("1", "2"):
        assert count(ledger, int(version), version=version, when=now) == ["counted"]
        ledger.mark_published("prometheus", {("m", version): Sums.served([0.9])})
    ledger.store("another", b"kept")
    server.set('{b}:state:published/["prometheus", "m", "1"]', "kept")
    ledger.sweep(now)
    assert count(ledger, 3, when=now) == ["counted"]
    assert server.llen(f"{ROOT}:journal") == 1
    epochs = sorted(server.scan_iter(f"{ROOT}:epoch:*"))

    ledger.drop(FIRST)
    names = [["w", "m", "2", "class", "1"], ["w", "m", "2", "segment", ""]]
    spans = [["m", "2", "class", "1", start, 300.0], ["m", "2", "segment", "", start, 300.0]]
    assert sorted(map(json.loads, server.smembers(f"{ROOT}:totals"))) == names
    assert sorted(map(json.loads, server.zrange(f"{ROOT}:spans", 0, -1))) == spans
    for kind, kept in (("total", names), ("span", spans)):
        keys = [key.removeprefix(f"{ROOT}:{kind}:") for key in server.scan_iter(f"{ROOT}:{kind}:*")]
        assert sorted(map(json.loads, keys)) == kept
    assert server.llen(f"{ROOT}:journal") == 0
    assert sorted(server.scan_iter(f"{ROOT}:state:*")) == [
        f"{ROOT}:state:another",
        f'{ROOT}:state:published/["prometheus", "m", "2"]',
    ]
    assert list(server.scan_iter(f"{ROOT}:waiting:*")) == [f'{ROOT}:waiting:["m", "2"]']
    assert server.exists('{b}:state:published/["prometheus", "m", "1"]')
    assert sorted(server.scan_iter(f"{ROOT}:epoch:*")) == epochs
    assert count(ledger, 1, when=now) == ["duplicate"]


def test_a_version_of_which_nothing_is_known_is_dropped_and_nothing_changes(ledger, server):
    count(ledger, 1)
    ledger.sweep(0)
    before = {key: server.type(key) for key in server.scan_iter("*")}
    ledger.drop(SECOND)
    assert {key: server.type(key) for key in server.scan_iter("*")} == before


def test_what_waits_is_looked_at_oldest_first_and_stays(ledger, server, now):
    count(ledger, 1, 2, 3, when=now - 60)
    count(ledger, 4, when=now - 120)
    count(ledger, 5, when=now - 30)
    count(ledger, 6, version="2", when=now - 300)

    def look(**more):
        rows = ledger.look_at_waiting(FIRST, **more)
        return [int.from_bytes(row.nonce, "big") for row in rows]

    assert look(until=math.inf, most=10) == [4, 1, 2, 3, 5]
    assert look(until=now - 60, most=10) == [4]
    assert look(until=now - 59, most=3) == [4, 1, 2]
    assert server.zcard(f'{ROOT}:waiting:["m", "1"]') == 5


def test_what_is_published_is_known_of_the_versions_of_this_writer(ledger, empty_redis):
    ledger.add({Key(*FIRST): Sums.served([0.9])}, time=time.time())
    with closing(RedisLedger(empty_redis, prefix="a", writer="v")) as other:
        other.add({Key(*SECOND): Sums.served([0.9])}, time=time.time())
        mark = Sums.served([0.7])
        ledger.mark_published("prometheus", {FIRST: mark, SECOND: mark})
        assert set(ledger.published("prometheus")) == {FIRST}
        assert set(other.published("prometheus")) == {SECOND}
        assert set(ledger.published("prometheus", [FIRST, SECOND, ("m", "3")])) == {FIRST, SECOND}
        assert ledger.published("prometheus")[FIRST].vector.tolist() == mark.vector.tolist()
        assert ledger.published("torchserve") == {}
        assert set(ledger.slices()) == {Key(*FIRST), Key(*SECOND)}
        assert set(ledger.slices(own=True)) == {Key(*FIRST)}


# --- labels that are marked, taken back, folded ----------------------------------------------------------


def test_what_became_of_a_batch_is_kept_under_its_mark_in_the_step_that_counts_it(ledger, server):
    mark = Mark("journal/w", "batch 1")
    assert count(ledger, 1, 2, 1, mark=mark) == ["counted", "counted", "duplicate"]
    assert server.get(f"{ROOT}:state:journal/w") == "batch 1 ccd"
    ledger.store(mark.given_up, b"batch 2")
    with pytest.raises(LedgerError, match="the batch was given up"):
        count(ledger, 3, mark=Mark("journal/w", "batch 2"))
    assert count(ledger, 3) == ["counted"]


def test_labels_that_are_still_in_the_journal_are_taken_back(ledger, server, now):
    labels = [make_label(n, when=now) for n in (1, 2)]
    ledger.sweep(now)
    ledger.accept(entries(labels))
    assert server.llen(f"{ROOT}:journal") == 2
    rows = [noted(one, writer="w") for one in entries(labels[:1])]
    assert ledger.take_back(rows, mark="mark", before=b"", after=b"after")
    assert server.llen(f"{ROOT}:journal") == 0
    assert server.get(f"{ROOT}:state:mark") == "after"
    assert ledger.sums()[FIRST].labels.sum() == 1
    assert server.zcard(f'{ROOT}:waiting:["m", "1"]') == 1


def test_labels_that_were_never_counted_are_not_taken_back(ledger, server, now):
    count(ledger, 1, when=now)
    rows = [noted(one, writer="another") for one in entries([make_label(1, when=now)])]
    with pytest.raises(LedgerError, match="were never counted in this ledger"):
        ledger.take_back(rows, mark="mark", before=b"", after=b"after")
    assert not server.exists(f"{ROOT}:state:mark")
    assert ledger.sums()[FIRST].labels.sum() == 1


def test_a_journal_that_has_grown_long_is_folded_by_whoever_counts(ledger, server, monkeypatch):
    monkeypatch.setattr(redis_sums, "_FOLD_AT", 3)
    ledger.sweep(0)
    for n, left in ((1, 1), (2, 2), (3, 3), (4, 0)):
        count(ledger, n)
        assert server.llen(f"{ROOT}:journal") == left
    monkeypatch.setattr(redis_sums, "_FOLD_AT", 10)
    count(ledger, 5, 6)
    monkeypatch.setattr(redis_sums, "_FOLD_AT", 1)
    ledger.add({Key(*FIRST): Sums.served([0.9])}, time=time.time())
    assert server.llen(f"{ROOT}:journal") == 0


def test_sweeping_moves_spans_that_have_grown_old_and_drops_none(ledger, server, now):
    day = 86_400
    old = float((now - 3 * day) // 3600 * 3600)
    for at, name in (
        (old, ["m", "1", "segment", "", old, 300.0]),
        (old, ["m", "1", "segment", "", old + 300, 300.0]),
    ):
        server.zadd(f"{ROOT}:spans", {json.dumps(name): at})
        server.hset(f"{ROOT}:span:{json.dumps(name)}", mapping={0: 2})
    assert ledger.sweep(now) == 0
    wider = json.dumps(["m", "1", "segment", "", old, 3600.0])
    assert server.zrange(f"{ROOT}:spans", 0, -1, withscores=True) == [(wider, old)]
    assert server.hgetall(f"{ROOT}:span:{wider}") == {"0": "4"}
    assert len(list(server.scan_iter(f"{ROOT}:span:*"))) == 1


# --- what it says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.TimeoutError("slow"), UnknownFate),
        (redis.ConnectionError("cut"), UnknownFate),
        (redis.BusyLoadingError("loading"), LedgerError),
        (redis.ResponseError("refused"), LedgerError),
    ],
)
def test_whether_a_batch_was_counted_is_unknown_only_where_it_was_sent(ledger, monkeypatch, error, kind):
    def fails(**_):
        raise error

    monkeypatch.setattr(ledger, "_accept", fails)
    with pytest.raises(LedgerError, match=str(error)) as raised:
        count(ledger, 1)
    assert type(raised.value) is kind


def test_of_a_batch_that_found_no_connection_nothing_was_counted(ledger, monkeypatch):
    def fails():
        raise redis.ConnectionError("cut")

    monkeypatch.setattr(ledger._redis.connection_pool, "get_connection", fails)
    with pytest.raises(LedgerError, match="send the batch again") as raised:
        count(ledger, 1)
    assert type(raised.value) is LedgerError


def test_a_ledger_says_which_redis_it_is_and_which_generation(ledger, server):
    assert ledger.identity() == server.info("server")["run_id"]
    assert ledger.generation() == 0
    began = int(time.time())
    number = ledger.new_generation("restore")
    assert began <= number == ledger.generation() <= time.time()
    assert ledger.new_generation("restore", above=number + 1000) == ledger.generation() == number + 1001
    assert (ledger.set_aside(), ledger.forget_set_aside()) == ([], 0)


def test_a_ledger_is_looked_after_under_its_own_name_and_its_redis_unless_it_may_be_lost(ledger, server):
    server.set(f"{ROOT}:evicted_at", int(time.time() * 1000))
    names = ["eviction", "evicted", "role", "store-clock", "store-writes"]
    assert [one.name for one in ledger.checks(volatile=True)] == names
    found = {one.name: one.run() for one in ledger.checks()}
    assert [*found] == [*names, "persistence"]
    assert found["evicted"].startswith("Redis evicted 0 keys")
