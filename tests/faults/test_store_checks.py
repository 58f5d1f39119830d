"""A store that freezes, forgets, evicts or fills while a program counts in it: what is said then is true."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import publishers
import pytest
import redis
from injection import Fault, under
from ledgers import accept, make_label
from real_servers import Redis
from real_watch import RING, make_watch, talk_to

from calib_serve.errors import LedgerError
from calib_serve.watch.checks import Checks
from calib_serve.watch.drift import Detector
from calib_serve.watch.feed import DriftFeed, detector_key
from calib_serve.watch.intake import Classes
from calib_serve.watch.ledger import Key, Sums
from calib_serve.watch.ledger.redis import RedisLedger
from calib_serve.watch.ledger.redis_checks import redis_checks
from calib_serve.watch.service import Watch, Watched

ONE = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
V = ("m", "1")


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path, durable=True) as server:
        yield server


def ledger_in(server: Redis, **options: Any) -> RedisLedger:
    return RedisLedger(server.url, prefix=uuid.uuid4().hex, **options)


def watch_over(ledger: RedisLedger, **options: Any) -> Watch:
    return Watch(RING, ledger, models={V: Watched(Classes(3))}, **options)


def found(ledger: RedisLedger, **options: Any) -> dict[str, str | None]:
    checks = Checks(*ledger.checks(**options))
    checks.run()
    return {name: reason for name, reason in checks.reasons().items() if reason is not None}


def series(text: str, name: str) -> float:
    (line,) = [x for x in text.splitlines() if x.startswith(name + " ")]
    return float(line.split()[-1])


@contextlib.contextmanager
def frozen(server: Redis) -> Iterator[None]:
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


# --- a store that freezes ------------------------------------------------------------------------


def ask_while_frozen(server: Redis, ask: Callable[[], Any]) -> Any:
    """The answer that came while Redis was stopped."""
    with ThreadPoolExecutor(1) as pool, frozen(server):
        return pool.submit(ask).result(timeout=120)


def test_of_a_batch_that_a_frozen_redis_took_it_is_said_that_its_fate_is_unknown(own_redis: Redis) -> None:
    watch = watch_over(ledger_in(own_redis, timeout=0.5))
    with talk_to(watch) as client:

        def send(**headers: str) -> Any:
            return client.post("/v1/predictions", json=[ONE] * 10, headers=headers)

        assert send().status_code == 200
        keyed = ask_while_frozen(own_redis, lambda: send(**{"idempotency-key": "a"}))
        assert keyed.status_code == 503
        assert "not known whether the batch was counted" in keyed.json()["detail"]
        assert "same Idempotency-Key: it is counted once" in keyed.json()["detail"]
        again = [send(**{"idempotency-key": "a"}) for _ in range(2)]
        assert [one.status_code for one in again] == [200, 200]
        assert watch.ledger.sums()[V].predictions.sum() == 20

        plain = ask_while_frozen(own_redis, send)
        assert plain.status_code == 503
        assert "it had no Idempotency-Key" in plain.json()["detail"]
        assert "nothing was counted" not in keyed.text + plain.text

        labels = [{"receipt": one["receipt"], "label": 1} for one in again[0].json()["items"]]
        client.post("/v1/labels", json=labels[:1])  # over a connection of its own again
        refused = ask_while_frozen(own_redis, lambda: client.post("/v1/labels", json=labels))
        assert refused.status_code == 503
        assert "each is counted once" in refused.json()["detail"]
        client.post("/v1/labels", json=labels)
        assert watch.ledger.sums()[V].labels.sum() == 10
        text = client.get("/metrics").text
        for batch in ("predictions", "predictions_without_key", "labels"):
            assert series(text, f'calib_batches_unknown_total{{batch="{batch}"}}') == 1
    watch.ledger.close()


def test_of_a_batch_that_never_reached_redis_it_is_said_that_nothing_was_counted(own_redis: Redis) -> None:
    watch = watch_over(ledger_in(own_redis, timeout=0.5))
    with talk_to(watch) as client:
        client.post("/v1/predictions", json=[ONE])
        own_redis.kill()
        refused = client.post("/v1/predictions", json=[ONE])
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "nothing was counted" in refused.json()["detail"]
        assert series(client.get("/metrics").text, 'calib_batches_unknown_total{batch="predictions"}') == 0
        own_redis.start()
        assert client.post("/v1/predictions", json=[ONE]).status_code == 200
    assert watch.ledger.sums()[V].predictions.sum() == 2
    watch.ledger.close()


def test_labels_that_were_taken_out_for_a_detector_whose_state_was_not_kept_wait_again(
    own_redis: Redis,
) -> None:
    ledger = ledger_in(own_redis, timeout=20.0)
    accept(ledger, [make_label(i) for i in range(100)])
    rows = []

    def take_and_lose() -> None:
        with ledger.transaction():
            rows.extend(ledger.take_waiting(V, until=float("inf"), most=1000))
            own_redis.kill()
            ledger.store("detector", b"fed")

    with pytest.raises(LedgerError):
        take_and_lose()
    assert len(rows) == 100
    own_redis.start()
    assert ledger.waiting() == {V: 100}
    assert ledger.load("detector") is None
    feed = DriftFeed(ledger, maturity=0.0)
    feed.tick()
    kept = Detector.restore(ledger.load(detector_key(V)) or b"")
    assert kept.labels == 100, "the detector sees each of them, once"
    ledger.close()


def test_a_transaction_whose_lock_expired_keeps_nothing_and_says_so(own_redis: Redis) -> None:
    ledger = ledger_in(own_redis)
    accept(ledger, [make_label(i) for i in range(10)])

    def take_too_long() -> None:
        with ledger.transaction():
            assert len(ledger.take_waiting(V, until=float("inf"), most=4)) == 4
            assert len(ledger.take_waiting(V, until=float("inf"), most=100)) == 6, "each once"
            ledger.store("key", b"value")
            assert ledger.load("key") == b"value"
            with redis.Redis.from_url(own_redis.url) as server:
                server.delete(f"{ledger._root}:lock")  # what its expiry does

    with pytest.raises(LedgerError, match="nothing was written"):
        take_too_long()
    assert ledger.load("key") is None
    assert ledger.waiting() == {V: 10}
    ledger.close()


# --- a store that forgets -----------------------------------------------------------------------


def test_watch_does_not_start_over_a_redis_that_keeps_nothing_unless_told(
    tmp_path: Path, make_server
) -> None:
    with Redis(tmp_path) as server:
        RING.save(tmp_path / "keys.json")
        command = [sys.executable, "-c", "from calib_serve.cli import main; main()", "watch", "m:1=3"]
        options = ["--keyring", str(tmp_path / "keys.json"), "--ledger", server.url, "--port", "0"]
        refused = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=120, check=False
        )
        assert refused.returncode != 0
        said = " ".join(refused.stderr.split())
        assert "Redis keeps nothing when it restarts" in said
        assert "--allow-volatile" in said
        assert "Traceback" not in said
        make_server("--ledger", server.url, "--allow-volatile")


def test_torchserve_s_feedback_does_not_load_over_a_redis_that_keeps_nothing_unless_told(
    tmp_path: Path,
) -> None:
    program = Path(publishers.__file__)
    with Redis(tmp_path) as server:
        command = [sys.executable, str(program), str(tmp_path), server.url]
        refused, taken = (
            subprocess.run(
                command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | told
            )
            for told in ({}, {"CALIB_SERVE_ALLOW_VOLATILE": "yes"})
        )
    assert "LedgerError: Redis keeps nothing when it restarts" in refused.stderr
    assert taken.returncode == 0, taken.stderr
    said = dict(re.findall(r"calib_check_ok.*:([\d.]+)\|#check:([\w-]+)", taken.stdout))
    assert set(said) == {"1.0"}
    assert "#check:store-clock" in taken.stdout


def test_a_redis_that_stops_keeping_while_running_is_counted_in_no_more(own_redis: Redis) -> None:
    watch = watch_over(ledger_in(own_redis))
    with talk_to(watch) as client, redis.Redis.from_url(own_redis.url) as server:
        watch.checks.run()
        assert client.get("/healthz").json()["status"] == "ready"
        assert client.post("/v1/predictions", json=[ONE]).status_code == 200
        server.config_set("appendonly", "no")
        watch.checks.run()
        time.sleep(1.1)  # Redis is asked once a second
        watch.checks.run()
        health = client.get("/healthz")
        assert (health.status_code, health.json()["status"]) == (503, "failing")
        assert "keeps nothing" in health.json()["checks"]["persistence"]
        refused = client.post("/v1/predictions", json=[ONE])
        assert refused.status_code == 503
        assert "nothing was counted" in refused.json()["detail"]
        assert "Check <strong>persistence</strong>: Redis keeps nothing" in client.get("/").text
        assert 'calib_check_ok{check="persistence"} 0.0' in client.get("/metrics").text
        server.config_set("save", "3600 1")
        time.sleep(1.1)
        watch.checks.run()
        assert client.get("/healthz").json()["status"] == "ready"
        assert client.post("/v1/predictions", json=[ONE]).status_code == 200
        text = client.get("/metrics").text
        assert set(re.findall(r'calib_check_ok\{check="([\w-]+)"\} 1.0', text)) == set(watch.checks.reasons())
    assert watch.ledger.sums()[V].predictions.sum() == 2
    watch.ledger.close()


def test_a_managed_redis_that_tells_no_settings_is_used(tmp_path: Path, caplog) -> None:
    with Redis(tmp_path, "--rename-command", "CONFIG", "", durable=True) as server:
        ledger = ledger_in(server)
        assert found(ledger) == {}
        assert accept(ledger, [make_label(1)]) == [True]
        ledger.close()


# --- a store that evicts ------------------------------------------------------------------------


def evict(server: redis.Redis) -> None:
    """Have Redis evict, for real, some of what may expire; and then no more."""
    server.config_set("maxmemory-policy", "volatile-random")
    server.config_set("maxmemory", server.info("memory")["used_memory"] - 50_000)
    for i in range(20):
        try:
            server.set(f"ballast{i}", bytes(1000), ex=100)
        except redis.ResponseError:
            break
    assert server.info("stats")["evicted_keys"] > 0
    server.config_set("maxmemory", 0)
    server.config_set("maxmemory-policy", "noeviction")


def test_no_label_is_counted_again_after_redis_was_told_to_evict(own_redis: Redis) -> None:
    ledger = ledger_in(own_redis)
    # Each in an epoch of its own, as those of many processes.
    labels = [make_label(i << 16) for i in range(1000)]
    assert all(accept(ledger, labels))
    with redis.Redis.from_url(own_redis.url) as server:
        server.config_set("maxmemory-policy", "volatile-random")
        server.config_set("maxmemory", 10**10)
        with pytest.raises(LedgerError, match="set maxmemory-policy noeviction"):
            accept(ledger, [make_label(1)])
        with pytest.raises(LedgerError, match="set maxmemory-policy noeviction"):
            ledger.add({Key(*V): Sums.served([0.9])}, time=time.time())
        assert "may evict" in found(ledger)["eviction"]
        evict(server)
    assert accept(ledger, labels) == [False] * 1000
    assert ledger.sums()[V].feedback.n == 1000
    time.sleep(0.01)
    assert accept(ledger, [make_label(2000 << 16, when=time.time())]) == [True], "later ones are counted"
    assert "refused as forgotten" in found(ledger)["evicted"]
    ledger.close()


def test_a_redis_that_becomes_a_replica_takes_nothing(own_redis: Redis) -> None:
    ledger = ledger_in(own_redis)
    with redis.Redis.from_url(own_redis.url) as server:
        server.replicaof("127.0.0.1", "1")
        assert "read-only replica" in found(ledger)["role"]
        with pytest.raises(LedgerError):
            accept(ledger, [make_label(1)])
        server.replicaof("NO", "ONE")
    assert found(ledger) == {}
    assert accept(ledger, [make_label(1)]) == [True]
    ledger.close()


# --- clocks, disks and files ---------------------------------------------------------------------


@pytest.mark.parametrize("apart", [-3600, -30, 30, 3600])
def test_clocks_that_are_apart_are_said(redis_url: str, apart: float) -> None:
    client = redis.Redis.from_url(redis_url)
    checks = Checks(*redis_checks(client, "r", volatile=True, clock=lambda: time.time() + apart))
    checks.run()
    said = checks.reasons()["store-clock"]
    how = "ahead of" if apart > 0 else "behind"
    told = f"this host's clock is 3600 s {how} that of Redis; set both by NTP"
    assert said == (None if abs(apart) == 30 else told)
    assert checks.status == ("ready" if said is None else "degraded")
    client.close()


def test_receipts_from_ahead_and_another_host_s_clock_are_said(tmp_path: Path) -> None:
    watch, ahead = make_watch(tmp_path), make_watch(tmp_path, clock=lambda: time.time() + 3600)
    with talk_to(watch) as client, talk_to(ahead) as theirs:
        (item,) = theirs.post("/v1/predictions", json=[ONE]).json()["items"]
        outcome = client.post("/v1/labels", json=[{"receipt": item["receipt"], "label": 1}]).json()
        assert outcome["refused"] == 1
        watch.checks.run()
        assert "dated 3600 s ahead" in client.get("/healthz").json()["checks"]["receipts"]
        ahead.ledger.writer = "another"
        other = Watch(RING, ahead.ledger, models=ahead.models, clock=ahead._clock)
        other.checks.run()
        watch.checks.run()
        assert "3600 s behind that of watch another" in client.get("/healthz").json()["checks"]["clock"]
        assert client.get("/healthz").json()["status"] == "degraded"
    watch.ledger.close(), ahead.ledger.close()


def health_on_a_small_disk(folder: Path) -> tuple[int, Any, int, Any]:
    watch = make_watch(folder)
    with talk_to(watch) as client:
        watch.checks.run()
        health = client.get("/healthz")
        counted = client.post("/v1/predictions", json=[ONE])
        with (folder / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        time.sleep(1.1)
        full = client.get("/healthz")
    return health.status_code, health.json(), counted.status_code, full.json()


def test_a_disk_that_is_almost_full_is_said_before_it_is(tmp_path: Path) -> None:
    ended = under(Fault(disk=(tmp_path, 1_000_000)), health_on_a_small_disk, tmp_path)
    assert ended.well, ended
    status, health, counted, full = ended.result
    assert (status, health["status"], counted) == (200, "degraded", 200)
    assert "are free beside the ledger" in health["checks"]["disk"]
    assert full["status"] == "failing", "what cannot be written is not healthy"
    assert str(tmp_path) not in str(full)


def test_a_ledger_that_was_replaced_is_not_healthy(tmp_path: Path) -> None:
    watch = make_watch(tmp_path)
    with talk_to(watch) as client:
        (tmp_path / "l.db").rename(tmp_path / "away.db")
        watch.checks.run()
        health = client.get("/healthz")
        assert health.status_code == 503
        assert health.json()["checks"]["file"] != "ok"
        assert str(tmp_path) not in health.text, "there is no token in front of it"
        (tmp_path / "away.db").rename(tmp_path / "l.db")
        watch.checks.run()
        assert client.get("/healthz").status_code == 200
    watch.ledger.close()


def test_files_that_the_next_start_needs_are_looked_at(tmp_path: Path) -> None:
    RING.save(tmp_path / "keys.json")
    options: dict[str, Any] = {"keyring": tmp_path / "keys.json", "ledger": tmp_path / "l.db"}
    with Watch.open({V: 3}, samples=tmp_path / "samples", **options) as watch:
        assert watch.checks.reasons()["keyring"] is None
        (tmp_path / "keys.json").unlink()
        (tmp_path / "samples").rmdir()
        time.sleep(1.1)  # the keyring's file is looked at once a second
        watch.checks.run()
        assert "keys.json" in str(watch.checks.reasons()["keyring"])
        assert "keys.json" not in str(watch.checks.reasons(public=True)["keyring"])
        assert "samples" in str(watch.checks.reasons()["samples"])
        assert watch.checks.status == "degraded"


def test_programs_that_share_a_ledger_and_take_labels_for_different_times_are_said(tmp_path: Path) -> None:
    one, two = make_watch(tmp_path), make_watch(tmp_path, ttl=7 * 86400.0)
    two.ledger.writer = "two"
    two = Watch(RING, two.ledger, models=two.models, ttl=7 * 86400.0)
    for watch in (one, two, one):
        watch.checks.run()
    assert "for 30 days here and for 7 by watch two" in str(one.checks.reasons()["ttl"])
    assert "for 7 days here and for 30 by" in str(two.checks.reasons()["ttl"])
    one.ledger.close(), two.ledger.close()
