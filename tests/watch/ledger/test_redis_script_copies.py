"""The scripts of Redis' locks, leases, backups and restores, each by itself: what it leaves and answers."""

from __future__ import annotations

import json

import pytest
import redis

from calib_serve.watch.ledger.redis_scripts import (
    LOCK,
    RENEW,
    SNAPSHOT,
    SWITCH,
    TAKE_LEASE,
    UNLEASE,
    UNLOCK,
)

ROOT, STAGE, ASIDE = "{a}", "{a}.new", "{a}.old"


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis, decode_responses=True) as client:
        yield client


# --- the lock and leases -------------------------------------------------------------------------------


def test_a_lock_is_taken_renewed_and_given_back_by_its_holder_alone(server):
    take = lambda who: server.eval(LOCK, 2, "lock", "fence", who, 60_000)  # noqa: E731
    assert [take("a"), take("b"), take("a")] == [1, 0, 0]
    assert 59_000 < server.pttl("lock") <= 60_000
    assert [server.eval(RENEW, 1, "lock", who, 90_000) for who in "ba"] == [0, 1]
    assert 89_000 < server.pttl("lock") <= 90_000
    assert [server.eval(UNLOCK, 1, "lock", who) for who in "baa"] == [0, 1, 0]
    assert [server.eval(RENEW, 1, "lock", "a", 90_000), server.exists("lock")] == [0, 0]
    assert [take("b"), server.get("lock"), server.get("fence")] == [2, "b", "2"]


def lease(server, who, milliseconds=60_000):
    return server.eval(TAKE_LEASE, 1, "lease", who, json.dumps({"id": who}), milliseconds)


def test_a_lease_is_taken_renewed_and_given_back_by_its_holder_alone(server):
    assert lease(server, "a") is None
    assert lease(server, "a", 90_000) is None
    held, left = lease(server, "b")
    assert (held, 89_000 < left <= 90_000) == ('{"id": "a"}', True)
    assert server.get("lease") == held
    assert 89_000 < server.pttl("lease") <= 90_000
    assert [server.eval(UNLEASE, 1, "lease", who) for who in "baa"] == [0, 1, 0]
    assert lease(server, "b") is None
    assert server.get("lease") == '{"id": "b"}'


@pytest.mark.parametrize(("kept", "left", "free"), [("{", 60_000, False), ('{"id": "a"}', None, True)])
def test_a_lease_that_cannot_be_read_is_of_another_and_one_without_an_end_of_nobody(server, kept, left, free):
    server.set("lease", kept, px=left)
    assert server.eval(UNLEASE, 1, "lease", "b") == 0
    found = lease(server, "b")
    assert (found is None) == free
    assert server.get("lease") == ('{"id": "b"}' if free else kept)
    assert 59_000 < server.pttl("lease") <= 60_000


# --- what a backup reads -------------------------------------------------------------------------------


def snapshot(server, token="t", **known):
    return server.eval(
        SNAPSHOT, 1, ROOT, f"{ROOT}:*", json.dumps({f"{ROOT}:{k}": n for k, n in known.items()}), token
    )


def kept(server):
    server.set(f"{ROOT}:text", "x", px=60_000)
    server.hset(f"{ROOT}:hash", "f", "1")
    server.rpush(f"{ROOT}:list", "p", "q", "p")
    server.sadd(f"{ROOT}:set", "m")
    server.zadd(f"{ROOT}:zset", {"m": 2.5, "n": 3})
    server.xadd(f"{ROOT}:stream", {"no": "ledger's"})
    server.set(f"{ROOT}:lock", "held")
    server.set("{b}:text", "another's")
    server.set(f"{ROOT}:copying", "t")
    server.sadd(f"{ROOT}:touched", "something")
    return {
        "hash": ("hash", ["f", "1"]), "list": ("list", ["p", "q", "p"]), "set": ("set", ["m"]),
        "text": ("string", "x"), "zset": ("zset", ["m", "2.5", "n", "3"]),
    }  # fmt: skip


def test_a_backup_reads_each_key_of_its_ledger_and_how_long_it_stays(server):
    wanted = kept(server)
    (seconds, _), told = snapshot(server)
    assert abs(int(seconds) - server.time()[0]) <= 60
    assert {key.removeprefix(f"{ROOT}:"): (kind, content) for key, kind, _, content in told} == wanted
    left = {key: left for key, _, left, _ in told}
    assert 59_000 < left.pop(f"{ROOT}:text") <= 60_000
    assert set(left.values()) == {-1}
    assert not server.exists(f"{ROOT}:copying", f"{ROOT}:touched")
    assert server.get(f"{ROOT}:lock") == "held"


def test_a_backup_into_which_another_came_reads_nothing(server):
    kept(server)
    assert snapshot(server, "another") is None
    assert server.get(f"{ROOT}:copying") == "t"
    assert server.smembers(f"{ROOT}:touched") == {"something"}


def test_a_backup_reads_again_what_has_changed_since_and_nothing_else(server):
    server.set(f"{ROOT}:copying", "t")
    for name in ("same", "more"):
        server.setbit(f"{ROOT}:{name}", 9, 1)
        server.setbit(f"{ROOT}:{name}", 3, 1)
        server.set(f"{ROOT}:{name}:few", "abcd")
        server.hset(f"{ROOT}:sums_{name}", "f", "1")
    server.sadd(f"{ROOT}:touched", f"{ROOT}:sums_more")
    known = {"same": 2, "more": 1, "same:few": 2, "more:few": 1, "sums_same": 0, "sums_more": 0}
    _, told = snapshot(server, **known)
    assert {key.removeprefix(f"{ROOT}:"): content for key, _, _, content in told} == {
        "same": None,
        "more": "\x10\x40",
        "same:few": None,
        "more:few": "abcd",
        "sums_same": None,
        "sums_more": ["f", "1"],
    }


def test_a_backup_reads_all_of_many_keys(server):
    server.mset({f"{ROOT}:state:{i}": i for i in range(3000)})
    server.set(f"{ROOT}:copying", "t")
    _, told = snapshot(server)
    assert sorted(int(content) for *_, content in told) == list(range(3000))


# --- what a restore puts in the place of another -------------------------------------------------------


def switch(server, replace=0):
    return server.eval(SWITCH, 1, ROOT, STAGE, ASIDE, f"{ROOT}:*", f"{STAGE}:*", replace)


def stage(server, **more):
    names = {":bins": "15", ":lasting": "l", ":ending": "e", ":noted": "n"} | more
    for name, value in names.items():
        server.set(STAGE + name, value, px=60_000)
    ends = server.time()[0] * 1000 + 5_000_000
    server.hset(
        f"{STAGE}.expires", mapping={":bins": 0, ":lasting": 0, ":ending": ends} | dict.fromkeys(more, 0)
    )
    server.set(f"{STAGE}:lock", "staged")
    return names, ends


def contents(server):
    return {key: server.get(key) for key in server.scan_iter("*") if server.type(key) == "string"}


def test_a_restored_ledger_takes_its_place_with_all_that_it_has_and_when_it_ends(server):
    names, ends = stage(server)
    assert switch(server) == "begun"
    assert contents(server) == {ROOT + name: value for name, value in names.items()}
    assert server.dbsize() == 4
    left = {name: server.pexpiretime(ROOT + name) for name in names}
    assert left == {":bins": -1, ":lasting": -1, ":noted": -1, ":ending": ends}


def test_a_ledger_is_replaced_only_where_that_was_said_and_goes_on_under_another_name(server):
    server.set(f"{ROOT}:bins", "10")
    server.set(f"{ROOT}:before", "b", px=60_000)
    server.set(f"{ROOT}:lock", "held")
    server.set("{b}:bins", "another's")
    names, _ = stage(server)
    all_before = contents(server)
    assert switch(server) == "there"
    assert contents(server) == all_before
    assert switch(server, 1) == "replaced"
    now = {ROOT + name: value for name, value in names.items()}
    assert contents(server) == now | {f"{ASIDE}:bins": "10", f"{ASIDE}:before": "b", "{b}:bins": "another's"}
    assert 59_000 < server.pttl(f"{ASIDE}:before") <= 60_000
    assert not server.exists(f"{STAGE}.expires")


@pytest.mark.parametrize("gone", [":bins", ".expires"])
def test_a_restore_whose_keys_are_gone_replaces_nothing(server, gone):
    server.set(f"{ROOT}:bins", "10")
    stage(server)
    server.delete(STAGE + gone)
    before = contents(server)
    assert switch(server, 1) == "gone"
    assert contents(server) == before


def test_a_ledger_of_many_keys_is_restored_and_set_aside_whole(server):
    server.mset({f"{ROOT}:old:{i}": i for i in range(2500)})
    many = {f":state:{i}": str(i) for i in range(2500)}
    with server.pipeline(transaction=False) as pipe:
        pipe.mset({STAGE + name: value for name, value in many.items()})
        pipe.hset(f"{STAGE}.expires", mapping=dict.fromkeys(many, 0))
        pipe.execute()
    stage(server)
    assert switch(server, 1) == "replaced"
    found = [key.rpartition(":")[0] for key in server.scan_iter("*", count=1000)]
    assert [found.count(f"{root}:{kind}") for root, kind in ((ROOT, "state"), (ASIDE, "old"))] == [2500, 2500]
    assert server.dbsize() == 5004
