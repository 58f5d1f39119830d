"""A store that freezes, forgets, evicts or fills while a program counts in it: what is said then is true."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from injection import Fault, under
from real_servers import Redis
from real_watch import RING, make_watch, talk_to

from calib_serve.watch.intake import Classes
from calib_serve.watch.ledger.redis import RedisLedger
from calib_serve.watch.service import Watch, Watched

pytestmark = pytest.mark.store

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


# --- a store that forgets -----------------------------------------------------------------------


# --- a store that evicts ------------------------------------------------------------------------


# --- clocks, disks and files ---------------------------------------------------------------------


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
