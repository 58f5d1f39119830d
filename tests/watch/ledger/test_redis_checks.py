"""What the checks of a Redis say of its settings and states: its own words where it can be brought there."""

from __future__ import annotations

import logging
import time

import pytest
import redis
from real_servers import Redis

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import redis_checks as module
from calib_serve.watch.ledger.redis_checks import (
    _clock,
    _evicted,
    _eviction,
    _Facts,
    _persistence,
    _role,
    _writes,
    redis_checks,
)

DAY = 86_400


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A Redis whose settings the tests change."""
    with (
        Redis(tmp_path_factory.mktemp("own")) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        yield client


def said(client, **more):
    return {one.name: one.run() for one in redis_checks(client, "r", **{"volatile": False} | more)}


def test_each_check_has_a_name_and_what_it_keeps_from_counting(own):
    assert [(one.name, one.level) for one in redis_checks(own, "r", volatile=False)] == [
        ("eviction", "refusing"),
        ("evicted", "degraded"),
        ("role", "refusing"),
        ("store-clock", "degraded"),
        ("store-writes", "degraded"),
        ("persistence", "refusing"),
    ]
    assert "persistence" not in said(own, volatile=True)


def test_a_redis_that_saves_is_well_and_one_that_keeps_nothing_is_not(own):
    keeps_nothing = (
        "Redis keeps nothing when it restarts (appendonly no, save ''): acknowledged labels would be lost; "
        "set appendonly yes, or allow it with --allow-volatile"
    )
    others = ("eviction", "evicted", "role", "store-clock", "store-writes")
    assert said(own) == dict.fromkeys(others) | {"persistence": keeps_nothing}
    own.config_set("save", "3600 1")
    assert said(own) == dict.fromkeys((*others, "persistence"))
    own.config_set("save", "")
    own.config_set("appendonly", "yes")
    assert said(own) == dict.fromkeys((*others, "persistence"))
    own.config_set("appendonly", "no")


def test_what_redis_was_set_to_is_said(own):
    own.set("r:evicted_at", int(time.time() * 1000))
    own.config_set("maxmemory", "200mb")
    own.config_set("maxmemory-policy", "volatile-lru")
    own.config_set("min-replicas-to-write", 2)
    found = said(own, volatile=True)
    own.config_set("maxmemory", 0)
    own.config_set("min-replicas-to-write", 0)
    own.delete("r:evicted_at")
    assert found.pop("evicted").startswith(
        "Redis evicted 0 keys: labels of predictions made before are refused"
    )
    assert found == {
        "eviction": "Redis may evict receipts (maxmemory-policy volatile-lru); "
        "set maxmemory-policy noeviction",
        "role": "Redis takes no writes: 0 of 2 replicas (min-replicas-to-write) are connected",
        "store-clock": None,
        "store-writes": None,
    }
    assert said(own, volatile=True)["eviction"] is None  # without a limit nothing is evicted


def test_a_redis_is_asked_once_a_round_and_again_in_the_next(own, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    facts = _Facts(own, "r", time.time)
    asked = lambda: own.info("commandstats")["cmdstat_time"]["calls"]  # noqa: E731
    before = asked()
    first = facts()
    now[0] += 1.0
    assert facts() is first
    assert asked() == before + 1
    now[0] += 0.01
    assert facts() is not first
    assert asked() == before + 2


def test_a_redis_that_is_gone_does_not_answer_and_is_well_when_it_is_back(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    server = Redis(tmp_path)
    with redis.Redis.from_url(server.url) as client:
        facts = _Facts(client, "r", time.time)
        with pytest.raises(LedgerError, match=r"Redis does not answer: .*refused"):
            facts()
        with server:
            with pytest.raises(LedgerError, match="does not answer"):
                facts()  # of this round
            now[0] += 1.5
            assert facts()["role"] == "master"


def test_how_far_the_clocks_are_apart_is_measured_from_the_middle_of_the_question(own):
    times = iter([1000.0, 1004.0])
    before = time.time()
    found = _Facts(own, "r", lambda: next(times))()
    assert found["took"] == 4.0
    assert before - 0.001 <= found["now"] <= time.time() + 0.001
    assert found["ahead"] == found["now"] - 1002.0


def test_a_user_who_may_not_ask_for_settings_is_told_once_and_counts(own, caplog):
    own.execute_command("ACL", "SETUSER", "few", "on", "nopass", "~*", "+@all", "-config")
    kwargs = {"username": "few", "password": "any", "decode_responses": True}
    with redis.Redis(port=own.connection_pool.connection_kwargs["port"], **kwargs) as client:
        facts = _Facts(client, "r", time.time)
        with caplog.at_level(logging.WARNING, "calib_serve.watch.ledger.redis_checks"):
            for _ in range(2):
                facts._at = float("-inf")
                assert "save" not in facts()
                (told,) = caplog.records
                assert told.getMessage().startswith("Redis does not tell whether it saves snapshots (")


class Earlier(redis.Redis):
    """It knows a setting by its earlier name alone."""

    def config_get(self, name):
        return super().config_get("no such setting" if name == "min-replicas-to-write" else name)


def test_a_redis_that_knows_no_replicas_to_write_waits_for_none(own):
    with Earlier(port=own.connection_pool.connection_kwargs["port"]) as client:
        assert said(client, volatile=True)["role"] is None


# --- states that no test can bring a Redis to soon -----------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        ({}, False),
        ({"maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, False),
        ({"maxmemory": 1, "maxmemory_policy": "noeviction"}, False),
        ({"maxmemory": 1}, False),
        ({"maxmemory_policy": "allkeys-lru"}, False),
        ({"maxmemory": 1, "maxmemory_policy": "allkeys-lru"}, True),
    ],
)
def test_redis_may_evict_with_a_limit_and_another_policy(facts, wrong):
    assert (_eviction(facts) is not None) == wrong


@pytest.mark.parametrize(("ago", "wrong"), [(0, True), (DAY, True), (DAY + 0.5, False)])
def test_an_eviction_in_redis_is_said_for_a_day(ago, wrong):
    facts = {"now": 2e9, "evicted_at": str((2_000_000_000 - ago) * 1000), "evicted_keys": 7}
    told = _evicted(facts)
    assert (told is not None) == wrong
    assert told is None or told.startswith("Redis evicted 7 keys:")
    assert _evicted({"now": 2e9, "evicted_at": None}) is None


def test_a_redis_of_which_nothing_is_known_is_taken_to_keep_what_it_holds():
    assert _persistence({}) is None
    assert _persistence({"aof_enabled": 1, "save": ""}) is None
    assert _persistence({"aof_enabled": 0, "save": "60 1"}) is None
    assert _persistence({"aof_enabled": 0, "save": ""}) is not None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("aof_last_write_status", "its append-only file"),
        ("aof_last_bgrewrite_status", "its append-only file anew"),
        ("rdb_last_bgsave_status", "its last snapshot"),
    ],
)
def test_a_write_of_redis_that_failed_is_said(name, what):
    assert _writes({}) is _writes({name: "ok"}) is None
    assert _writes({name: "err"}) == f"Redis could not write {what} ({name}:err); see its log"


def test_of_several_writes_of_redis_that_failed_the_one_that_loses_most_is_said():
    failed = dict.fromkeys(
        ["rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"], "err"
    )
    for name in reversed(list(failed)):
        assert f"({name}:err)" in _writes(failed)
        failed.pop(name)


def test_a_redis_takes_writes_unless_it_is_a_replica_to_read_or_has_too_few():
    assert _role({}) is _role({"role": "master", "slave_read_only": 1}) is None
    assert _role({"role": "slave", "slave_read_only": 0}) is None
    for facts in ({"role": "slave"}, {"role": "slave", "slave_read_only": 1}):
        assert _role(facts) == "this Redis is a read-only replica: nothing can be counted; name the primary"
    assert _role({"min_replicas": 2, "min_slaves_good_slaves": 2}) is None
    assert "1 of 2 replicas" in _role({"min_replicas": 2, "min_slaves_good_slaves": 1})
    assert "0 of 1 replicas" in _role({"min_replicas": 1})


@pytest.mark.parametrize(
    ("ahead", "took", "said_of_it"),
    [
        (60, 0, None),
        (61, 0, "61 s behind"),
        (-61, 0, "61 s ahead of"),
        (64, 5, None),
        (-66, 5, "66 s ahead of"),
    ],
)
def test_clocks_of_redis_and_this_host_are_apart_beyond_a_minute_and_the_time_it_took_to_ask(
    ahead, took, said_of_it
):
    told = _clock({"ahead": ahead, "took": took})
    assert told == (said_of_it and f"this host's clock is {said_of_it} that of Redis; set both by NTP")
