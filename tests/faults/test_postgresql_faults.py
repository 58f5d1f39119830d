"""What happens to a PostgreSQL under a running watch: as much is lost as the page says, within seconds."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from collecting import until, value
from engines import Postgres
from promises import Promise, promised
from real_servers import Server
from sizes import sized

pytestmark = pytest.mark.server

AT_ONCE = 10.0  # seconds in which a client hears of it


class Sent:
    """The answers to labels: seconds, status and headers of each."""

    def __init__(self, server: Server) -> None:
        self._url, self.answers = server.url, list[httpx.Response]()

    def send(self, receipts: list[str]) -> int:
        """Send labels once; the number that was accepted, or known already."""
        items = [{"receipt": one, "label": 1} for one in receipts]
        answer = httpx.post(f"{self._url}/v1/labels", json={"items": items}, timeout=60)
        self.answers.append(answer)
        if answer.status_code != 200:
            assert answer.headers["retry-after"]
            return 0
        return sum(one["accepted"] or one["reason"] == "duplicate" for one in answer.json()["items"])

    @property
    def slowest(self) -> float:
        """The seconds of the slowest answer."""
        return max(one.elapsed.total_seconds() for one in self.answers)


def predicted(server: Server, number: int) -> list[str]:
    items = [{"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}] * number
    answer = httpx.post(f"{server.url}/v1/predictions", json={"items": items}, timeout=60)
    return [one["receipt"] for one in answer.json()["items"]]


def health(server: Server) -> tuple[int, Any]:
    answer = httpx.get(f"{server.url}/healthz", timeout=60)
    assert answer.elapsed.total_seconds() < AT_ONCE
    return answer.status_code, answer.json()


def says(promise: Promise, server: Server) -> None:
    def said() -> bool:
        return promise.is_said_by(httpx.get(f"{server.url}/metrics", timeout=60).text)

    until(said, what=f"the watch does not say that {promise.what}")


@contextmanager
def database(*options: str) -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="pg-") as name, Postgres(Path(name), *options) as server:
        server.make()
        yield server.start()


@contextmanager
def watched(folder: Path, where: str) -> Iterator[Server]:
    server = Server(folder, "--maturity", "0", checks_often=True)
    server.command[server.command.index("--ledger") + 1] = where.replace("postgres:", "postgresql:")
    with server:
        yield server


def follow(primary: Postgres, open_: ExitStack, *, synchronous: bool) -> Postgres:
    """A standby of its own, that commits wait for."""
    folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="pg-")))
    standby = open_.enter_context(Postgres(folder))
    standby.follow(primary, "one")
    standby.start()
    if synchronous:
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("alter system set synchronous_standby_names = 'one'")
            connection.execute("select pg_reload_conf()")
            asked = "select sync_state from pg_stat_replication"
            until(lambda: connection.execute(asked).fetchall() == [("sync",)])
    return standby


def hears_within_seconds(server: Server, promise: Promise, receipts: list[str]) -> Sent:
    """Sixteen clients send at once, and /healthz is asked: each hears within seconds, and of a 503."""
    sent, parts = Sent(server), [receipts[i::16] for i in range(16)]
    with ThreadPoolExecutor(17) as pool:
        asked = pool.submit(lambda: until(lambda: health(server)[0] == 503))
        assert sum(pool.map(sent.send, parts)) == 0, "nothing may be acknowledged"
        asked.result()
    assert {one.status_code for one in sent.answers} == {503}
    assert sent.slowest < AT_ONCE
    says(promise, server)
    return sent


@pytest.mark.parametrize("mode", sized(["access exclusive"], ["access exclusive", "share"]))
def test_another_session_locks_the_tables(tmp_path: Path, mode: str) -> None:
    promise = promised("another session locks its tables")
    with database() as store, watched(tmp_path, store.url) as server:
        receipts = predicted(server, promise.whole)
        with psycopg.connect(store.url) as other:
            other.execute(f"lock table label in {mode} mode")
            sent = hears_within_seconds(server, promise, receipts)
        assert sent.send(receipts) == promise.whole - promise.lost
        until(lambda: health(server)[0] == 200)
        assert value(server.url, "calib_feedback_total") == promise.whole


def test_the_synchronous_standby_is_cut_off(tmp_path: Path) -> None:
    promise = promised("its synchronous standby is cut off")
    with database() as store, ExitStack() as open_:
        standby = follow(store, open_, synchronous=True)
        with watched(tmp_path, store.url) as server:
            receipts = predicted(server, promise.whole)
            assert "synchronous standby" in health(server)[1]["ledger"]["durability"]
            standby.stop()
            sent = hears_within_seconds(server, promise, receipts)
            standby.start()
            until(lambda: sent.send(receipts) == promise.whole - promise.lost)
            until(lambda: health(server)[0] == 200)
            with psycopg.connect(standby.url) as other:
                assert other.execute("select count(*) from label").fetchone() == (promise.whole,)
            assert value(server.url, "calib_feedback_total") == promise.whole


def test_it_fails_over_to_an_asynchronous_standby(tmp_path: Path) -> None:
    promise = promised("PostgreSQL fails over to an asynchronous standby")
    with database() as store, ExitStack() as open_:
        standby = follow(store, open_, synchronous=False)
        hosts = f"127.0.0.1:{store.port},127.0.0.1:{standby.port}"
        where = f"postgresql://auditor@{hosts}/postgres?target_session_attrs=read-write"
        with watched(tmp_path, where) as server:
            sent, receipts = Sent(server), predicted(server, promise.whole)
            kept = promise.whole - promise.lost
            assert sent.send(receipts[:kept]) == kept

            def replicated() -> bool:
                with psycopg.connect(standby.url) as other:
                    return other.execute("select count(*) from label").fetchone() == (kept,)

            until(replicated)
            standby.stop()
            assert sent.send(receipts[kept:]) == promise.lost
            assert health(server)[1]["ledger"]["durability"] == "the disk of PostgreSQL's host"
            store.stop(signal.SIGQUIT)
            standby.start()
            standby.promote()
            says(promise, server)
            until(lambda: health(server)[0] == 200)
            said = health(server)[1]
            assert said["status"] == "degraded"
            assert "may be missing" in said["checks"]["timeline"]
            until(lambda: value(server.url, "calib_feedback_total") == kept)
            assert sent.send(receipts) == promise.whole, "sent again, each counts once"
            subprocess.run(
                [*server.command[:3], "ledger", "promoted", where],
                check=True,
                capture_output=True,
                timeout=60,
            )
            until(lambda: health(server)[1]["status"] == "ready")
            assert value(server.url, "calib_feedback_total") == promise.whole


def test_commits_are_made_asynchronous_while_it_runs(tmp_path: Path) -> None:
    promise = promised("`synchronous_commit` is reloaded to `off` or `local`, and PostgreSQL crashes")
    lazy = ("-c", "wal_writer_delay=10s", "-c", "wal_writer_flush_after=0")
    with database(*lazy) as store, watched(tmp_path, store.url) as server:
        sent, receipts = Sent(server), predicted(server, promise.whole)
        with psycopg.connect(store.url, autocommit=True) as other:
            other.execute("alter system set synchronous_commit = off")
            other.execute("select pg_reload_conf()")
            until(lambda: other.execute("show synchronous_commit").fetchone() == ("off",))
        for at in range(0, promise.whole, 100):
            assert sent.send(receipts[at : at + 100]) == 100
        store.stop(signal.SIGQUIT)
        store.start()
        with psycopg.connect(store.url) as other:
            there = other.execute("select count(*) from label").fetchone()
        assert there == (promise.whole - promise.lost,)
