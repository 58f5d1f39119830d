"""A PostgreSQL whose primary dies under load: its synchronous standby has all that was acknowledged."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest
from engines import Postgres
from ledgers import entries, make_label
from sizes import sized

from calib_serve.core.errors import LedgerError, UnknownFate
from calib_serve.ledger import Ledger

pytestmark = pytest.mark.store

SYNCHRONOUS = ("-c", "synchronous_standby_names=one")


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary and its standby, which each commit waits for."""
    with ExitStack() as open_:
        one, other = (Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="pg-"))) for _ in range(2))
        primary = open_.enter_context(Postgres(one))
        primary.make()
        primary.start()
        standby = open_.enter_context(Postgres(other))
        standby.follow(primary, "one")
        standby.start()
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("alter system set synchronous_standby_names = 'one'")
            connection.execute("select pg_reload_conf()")
            until = time.monotonic() + 60
            asked = "select sync_state from pg_stat_replication"
            while connection.execute(asked).fetchall() != [("sync",)]:
                assert time.monotonic() < until, "the standby does not follow"
                time.sleep(0.1)
        yield primary, standby


@pytest.mark.parametrize("round_", range(sized(1, 5)))
def test_a_failover_under_load_loses_no_acknowledged_label_and_doubles_none(
    pair: tuple[Postgres, Postgres], round_: int
) -> None:
    primary, standby = pair
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    where = f"postgresql://auditor@{hosts}/postgres?target_session_attrs=read-write"
    ledger = Ledger(where, timeout=3)
    before = ledger.published()
    acknowledged: dict[int, str] = {}
    failed: list[type[LedgerError]] = []
    stop = threading.Event()

    def send(worker: int) -> None:
        at = worker * 1_000_000
        while not stop.is_set():
            some = list(range(at, at + 5))
            labels = entries([make_label(i) for i in some])
            while not stop.is_set():  # as a client does
                try:
                    fates = ledger.accept(labels)
                except LedgerError as error:
                    failed.append(type(error))
                    time.sleep(0.05)
                    continue
                acknowledged.update(zip(some, fates, strict=True))
                break
            with suppress(LedgerError):
                ledger.roll_up()
            at += 5

    workers = [threading.Thread(target=send, args=(i,)) for i in range(4)]
    for one in workers:
        one.start()
    time.sleep(1 + round_ / 3)
    primary.stop(signal.SIGQUIT)  # at once, as where its host dies
    standby.promote()
    with psycopg.connect(standby.url, autocommit=True) as connection:
        connection.execute("alter system set synchronous_standby_names = ''")
        connection.execute("select pg_reload_conf()")
    went_over = len(acknowledged)
    until = time.monotonic() + 90
    while len(acknowledged) < went_over + 50:
        assert time.monotonic() < until, "nothing is counted after the failover"
        time.sleep(0.1)
    stop.set()
    for one in workers:
        one.join()
    assert failed, "nobody noticed: this tests nothing"
    assert set(failed) <= {LedgerError, UnknownFate}
    with psycopg.connect(standby.url) as connection:
        there = {row[0] for row in connection.execute("select receipt from label").fetchall()}
    lost = [i for i in acknowledged if i.to_bytes(10, "big").hex() not in there]
    assert lost == []
    # What was counted while its answer was lost is a duplicate when it is sent again.
    after = ledger.published()
    assert sum(one.labels.sum() for one in after.segments.values()) == len(there)
    assert before.edition.partition(".")[2] != after.edition.partition(".")[2], "a timeline of its own"
    ledger.close()
