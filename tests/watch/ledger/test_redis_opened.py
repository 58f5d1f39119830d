"""A Redis ledger that a backup or a restore opens as it is, and whether somebody uses its Redis."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
import redis
from real_servers import Redis

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import redis_copy as module
from calib_serve.watch.ledger.address import Place
from calib_serve.watch.ledger.redis import RedisLedger
from calib_serve.watch.ledger.redis_copy import as_it_is, in_use, used_bytes

ROOT = "{calib-serve}"


@pytest.fixture
def place(empty_redis):
    return Place(empty_redis)


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis, decode_responses=True) as client:
        yield client


def test_a_ledger_in_redis_is_opened_as_it_is_or_not_at_all(place, server):
    with pytest.raises(LedgerError, match="there is no ledger in this Redis"):
        as_it_is(place)
    server.set(f"{ROOT}:bins", 7)
    server.set(f"{ROOT}:retention", 86_400_000)
    server.set("{b}:bins", 9)
    with closing(as_it_is(place)) as ledger, closing(as_it_is(place, root="{b}")) as other:
        assert (ledger.bins, ledger.retention, ledger.root) == (7, 86_400, ROOT)
        assert (other.bins, other.retention, other.root) == (9, 0, "{b}")
    assert server.get(f"{ROOT}:retention") == "86400000"


def test_a_redis_is_in_use_while_a_ledger_is_open_in_its_database(place, server, redis_url, monkeypatch):
    monkeypatch.setattr(module, "_LEAVING", 0.05)
    elsewhere = redis_url.removesuffix("/0") + "/5"
    with closing(RedisLedger(elsewhere, prefix="elsewhere")):
        assert not in_use(place)
        assert in_use(Place(elsewhere))
    with closing(RedisLedger(place.where, prefix="another")):
        assert in_use(place)
    assert not in_use(place)


def test_a_redis_whose_last_process_is_about_to_leave_is_waited_for(place):
    leaving = RedisLedger(place.where, prefix="leaving")
    timer = threading.Timer(0.1, leaving.close)
    timer.start()
    assert not in_use(place)
    timer.join()


def test_a_redis_is_in_use_at_the_address_of_its_first_database_also_without_its_number(
    redis_url, monkeypatch
):
    monkeypatch.setattr(module, "_LEAVING", 0.05)
    address = redis_url.removesuffix("/0")
    with closing(RedisLedger(address, prefix="first")) as ledger:
        assert in_use(Place(address))
        ledger._redis.delete(*ledger._redis.keys("{first}*"))


def test_a_redis_that_is_gone_or_wants_a_password_is_said_and_one_that_gets_it_is_opened(
    tmp_path, monkeypatch
):
    server = Redis(tmp_path)
    with pytest.raises(LedgerError, match="the Redis ledger cannot be used: "):
        used_bytes(Place(server.url))
    with server, redis.Redis.from_url(server.url) as client:
        client.set(f"{ROOT}:bins", 7)
        client.config_set("requirepass", "wanted")
        with pytest.raises(LedgerError, match="the Redis ledger cannot be used: "):
            used_bytes(Place(server.url))
        monkeypatch.setenv("CALIB_SERVE_REDIS_PASSWORD", "wanted")
        assert used_bytes(Place(server.url)) > 0
        with closing(as_it_is(Place(server.url))) as ledger:
            assert ledger.bins == 7


def test_the_memory_of_a_redis_is_what_it_says(place, server):
    assert abs(used_bytes(place) - server.info("memory")["used_memory"]) < 1_000_000
