"""The scripts that add sums in Redis, fold, merge and take them back, each by itself: what it leaves."""

from __future__ import annotations

import json

import pytest
import redis

from calib_serve.watch.ledger.redis_scripts import ADD, FOLD, MERGE, TAKE_BACK

ROOT = "{a}"
DAY = 86_400_000  # milliseconds


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis, decode_responses=True) as client:
        yield client


def add(server, rows=(), sums=(), **more):
    return server.eval(ADD, 1, ROOT, json.dumps({"rows": rows, "sums": sums} | more))


ROWS = [{"name": "all"}, {"name": "hour", "start": 3600}]


@pytest.mark.parametrize("copying", [False, True])
def test_sums_are_added_over_all_time_and_by_span(server, copying):
    if copying:
        server.set(f"{ROOT}:copying", "token")
    for _ in range(2):
        assert add(server, ROWS, [[[0, 0.1], [7, 2]], [[3, 0.5]]]) == 1
    found = {k: float(v) for k, v in server.hgetall(f"{ROOT}:total:all").items()}
    assert found == pytest.approx({"0": 0.2, "7": 4.0}, rel=1e-15)
    assert server.hgetall(f"{ROOT}:span:hour") == {"3": "1"}
    assert server.smembers(f"{ROOT}:totals") == {"all"}
    assert server.zrange(f"{ROOT}:spans", 0, -1, withscores=True) == [("hour", 3600)]
    both = {f"{ROOT}:total:all", f"{ROOT}:span:hour"}
    assert server.smembers(f"{ROOT}:touched") == (both if copying else set())


def test_a_batch_is_added_once_and_told_from_one_of_before(server):
    once = {"once": "aa", "earlier": "bb", "known": "what", "left": 86_400_000.4}
    assert add(server, ROWS[:1], [[[0, 1]]], **once) == 1
    assert add(server, ROWS[:1], [[[0, 1]]], **once | {"known": "other"}) == "what"
    assert 86_390_000 < server.pttl(f"{ROOT}:batch:aa") <= 86_400_000
    server.set(f"{ROOT}:nonce:dd", "")
    assert add(server, ROWS[:1], [[[0, 1]]], **once | {"once": "cc", "earlier": "dd"}) == ""
    assert not server.exists(f"{ROOT}:batch:cc")
    assert server.hgetall(f"{ROOT}:total:all") == {"0": "1"}


def test_a_journal_is_folded_into_sums_by_one_of_those_who_read_it(server):
    server.rpush(f"{ROOT}:journal", "r1", "r2", "r3")
    told = json.dumps({"rows": ROWS[:1], "sums": [[[0, 2]]]})
    assert [server.eval(FOLD, 1, ROOT, told, folds, 2) for folds in ("1", "0", "0")] == [0, 1, 0]
    assert server.hgetall(f"{ROOT}:total:all") == {"0": "2"}
    assert server.lrange(f"{ROOT}:journal", 0, -1) == ["r3"]
    assert server.get(f"{ROOT}:folds") == "1"
    assert server.eval(FOLD, 1, ROOT, told, "1", 1) == 2
    assert not server.exists(f"{ROOT}:journal")


@pytest.mark.parametrize("copying", [False, True])
@pytest.mark.parametrize("to", ["day", ""])
def test_a_span_goes_into_a_wider_one_or_is_dropped(server, to, copying):
    if copying:
        server.set(f"{ROOT}:copying", "token")
    server.hset(f"{ROOT}:span:hour", mapping={"3": "0.5", "4": "2"})
    server.hset(f"{ROOT}:span:day", mapping={"3": "1"})
    server.zadd(f"{ROOT}:spans", {"hour": 3600})
    assert server.eval(MERGE, 1, ROOT, "hour", to, 60) == 1
    assert not server.exists(f"{ROOT}:span:hour")
    assert server.hgetall(f"{ROOT}:span:day") == ({"3": "1.5", "4": "2"} if to else {"3": "1"})
    assert server.zrange(f"{ROOT}:spans", 0, -1, withscores=True) == ([("day", 60)] if to else [])
    assert server.smembers(f"{ROOT}:touched") == ({f"{ROOT}:span:day"} if copying and to else set())


# --- labels that are taken back ------------------------------------------------------------------------

# Of each of two bins, how many labels and the sum of their confidence; and 4, of all labels.
BINS, WHOLE = [[0, 2], [1, 3]], [4]


def row(*names, kind=":span:", old=False, labels=((0, 1),), sums=((0, 1), (2, 0.5), (4, 1))):
    return {"names": names, "kind": kind, "old": old, "labels": labels, "sums": sums}


def take_back(server, *rows, before="", **more):
    batch = {"rows": rows, "mark": "m", "before": before, "after": "taken", "bins": BINS, "whole": WHOLE}
    batch |= {"waiting": [], "taken_out": "out", "labels": 1}
    return server.eval(TAKE_BACK, 1, ROOT, json.dumps(batch | more))


def put(server, name, numbers):
    server.hset(f"{ROOT}{name}", mapping=numbers)


def held(server, name):
    return {int(k): float(v) for k, v in server.hgetall(f"{ROOT}{name}").items()}


@pytest.mark.parametrize("copying", [False, True])
def test_labels_are_taken_out_of_sums_and_bins_that_they_leave_are_emptied(server, copying):
    if copying:
        server.set(f"{ROOT}:copying", "token")
    put(server, ":span:a", {0: 3, 2: 2.5, 4: 7, 5: 9})  # the rest stays
    put(server, ":total:b", {0: 1, 1: 2, 2: 0.7, 3: 1.5, 4: 7, 5: 9})  # one bin of two is emptied
    put(server, ":span:c", {0: 1, 2: 0.7, 4: 7, 5: 9})  # no label is left
    assert take_back(server, row("a"), row("b", kind=":total:"), row("c")) == 1
    assert held(server, ":span:a") == {0: 2, 2: 2, 4: 6, 5: 9}
    assert held(server, ":total:b") == {1: 2, 3: 1.5, 4: 6, 5: 9}
    assert held(server, ":span:c") == {5: 9}
    all_of_them = {f"{ROOT}{name}" for name in (":span:a", ":total:b", ":span:c")}
    assert server.smembers(f"{ROOT}:touched") == (all_of_them if copying else set())


def test_labels_are_taken_out_of_the_first_sums_that_have_them_all(server):
    for name, count in (("hour", 1), ("day", 2), ("month", 9)):
        put(server, f":span:{name}", {0: count, 1: 9, 4: 10})
    wanted = row("none", "hour", "day", "month", labels=[[0, 2], [1, 1]], sums=[[0, 2], [1, 1]])
    assert take_back(server, wanted) == 1
    assert held(server, ":span:hour") == {0: 1, 1: 9, 4: 10}
    assert held(server, ":span:day") == {1: 8, 4: 10}
    assert held(server, ":span:month") == {0: 9, 1: 9, 4: 10}


def test_nothing_at_all_is_taken_back_where_a_part_is_not_there(server):
    put(server, ":span:a", {0: 3, 4: 3})
    put(server, ":span:b", {0: 3, 1: 1, 4: 3})
    server.zadd(f"{ROOT}:waiting:v", {"r": 1})
    several = row("b", labels=[[0, 1], [1, 2]])  # too few in its second bin alone
    for short in (several, row("none"), row("a", labels=[[0, 4]])):
        assert take_back(server, row("a"), short, waiting=[["v", "r"]]) == -1
    assert held(server, ":span:a") == {0: 3, 4: 3}
    assert held(server, ":span:b") == {0: 3, 1: 1, 4: 3}
    assert server.zrange(f"{ROOT}:waiting:v", 0, -1) == ["r"]
    assert not server.keys(f"{ROOT}:state:*")


def test_sums_that_were_dropped_as_too_old_keep_nothing_from_being_taken_back(server):
    put(server, ":span:a", {0: 3, 4: 3})
    assert take_back(server, row("gone", old=True), row("a", old=True)) == 1
    assert held(server, ":span:a") == {0: 2, 2: -0.5, 4: 2}
    assert sorted(server.keys()) == [f"{ROOT}:span:a", f"{ROOT}:state:m", f"{ROOT}:state:out"]


def test_labels_are_taken_back_once_and_wait_no_more(server):
    put(server, ":span:a", {0: 3, 4: 3})
    server.zadd(f"{ROOT}:waiting:v", {"r1": 1, "r2": 2})
    server.zadd(f"{ROOT}:waiting:w", {"r1": 1})
    once = {"waiting": [["v", "r1"], ["w", "none"]], "labels": 5}
    assert take_back(server, row("a"), **once) == 1
    assert take_back(server, row("a"), **once) == 0
    assert held(server, ":span:a")[0] == 2
    assert server.zrange(f"{ROOT}:waiting:v", 0, -1) == ["r2"]
    assert server.zrange(f"{ROOT}:waiting:w", 0, -1) == ["r1"]
    assert [server.get(f"{ROOT}:state:{key}") for key in ("m", "out")] == ["taken", "5"]
    assert take_back(server, row("a"), before="taken", after="more") == 1
    assert [server.get(f"{ROOT}:state:{key}") for key in ("m", "out")] == ["more", "6"]
