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
from collecting import until
from engines import Postgres
from ledgers import NOW, by_clock, entries, make_label
from sizes import sized

from calib_serve.core.errors import LedgerError, UnknownFate
from calib_serve.core.text import when
from calib_serve.ledger import Intake, Ledger
from calib_serve.monitor.checks import Checks, counting_checks
from calib_serve.receipts import DAY, BatchKey, Key, Keyring, Sums

pytestmark = pytest.mark.store


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
            asked = "select sync_state from pg_stat_replication"
            until(lambda: connection.execute(asked).fetchall() == [("sync",)])
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
    until(lambda: len(acknowledged) >= went_over + 50, what="is anything counted after the failover")
    stop.set()
    for one in workers:
        one.join()
    assert failed, "nobody noticed: this tests nothing"
    assert set(failed) <= {LedgerError, UnknownFate}
    with psycopg.connect(standby.url) as connection:
        there = {row[0] for row in connection.execute("select receipt from labels").fetchall()}
    lost = [i for i in acknowledged if i.to_bytes(10, "big").hex() not in there]
    assert lost == []
    # What was counted while its answer was lost is a duplicate when it is sent again.
    after = ledger.published()
    assert sum(one.labels.sum() for one in after.segments.values()) == len(there)
    assert before.edition.partition(".")[2] != after.edition.partition(".")[2], "a timeline of its own"
    ledger.close()


def addressed(server: Postgres) -> str:
    return server.url.replace("postgres:", "postgresql:")


def promised(ledger: Ledger, *numbers: int) -> list[str] | type[LedgerError]:
    """What a client hears, within seconds."""
    began = time.monotonic()
    try:
        return list(ledger.accept(entries([make_label(i) for i in numbers])))
    except LedgerError as error:
        return type(error)
    finally:
        assert time.monotonic() - began < 10


def test_a_standby_that_is_cut_off_has_nothing_acknowledged_until_it_is_back(
    pair: tuple[Postgres, Postgres],
) -> None:
    primary, standby = pair
    ledger = Ledger(addressed(primary))
    sums = {Key("m", "1"): Sums.zeros(15).with_values({("calib_predictions_total", 3): 7.0})}
    batch = BatchKey(b"batch", b"content", NOW, NOW + 9e9, b"")
    assert promised(ledger, 1) == ["counted"]
    assert "synchronous standby" in ledger.database.durability()
    standby.stop()
    # Committed here, and on no standby: neither it nor what comes again may be acknowledged.
    for _ in range(2):
        assert promised(ledger, 1, 2) is UnknownFate
        with pytest.raises(UnknownFate):
            ledger.add(sums, time=NOW, once=batch)
    standby.start()
    until(lambda: promised(ledger, 1, 2) == ["duplicate", "duplicate"])
    assert not ledger.add(sums, time=NOW, once=batch)
    with psycopg.connect(standby.url) as connection:
        assert connection.execute("select count(*) from label").fetchone() == (2,)
        assert connection.execute("select count(*) from batch").fetchone() == (1,)
    ledger.close()


def test_of_two_primaries_the_old_one_acknowledges_nothing(pair: tuple[Postgres, Postgres]) -> None:
    primary, standby = pair
    old, acknowledged, stop = Ledger(addressed(primary)), set[int](), threading.Event()
    hosts = f"127.0.0.1:{standby.port}/postgres"

    def send() -> None:
        at = 0
        while not stop.is_set():
            if promised(old, at) == ["counted"]:
                acknowledged.add(at)
            at += 1

    worker = threading.Thread(target=send)
    worker.start()
    time.sleep(1)
    standby.promote()  # while the old one lives, cut off from it alone
    before = len(acknowledged)
    with psycopg.connect(standby.url, autocommit=True) as connection:
        connection.execute("alter system set synchronous_standby_names = ''")
        connection.execute("select pg_reload_conf()")
    new = Ledger(f"postgresql://auditor@{hosts}")
    assert promised(new, *range(10_000, 10_010)) == ["counted"] * 10
    time.sleep(sized(6, 20))
    stop.set()
    worker.join()
    assert acknowledged, "this tests nothing"
    assert len(acknowledged) <= before + 1, (
        "the old one went on to acknowledge, and more than it was about to"
    )
    with psycopg.connect(standby.url) as connection:
        there = {row[0] for row in connection.execute("select receipt from labels").fetchall()}
    assert [i for i in acknowledged if i.to_bytes(10, "big").hex() not in there] == []
    old.close(), new.close()


def test_a_failover_is_a_check_until_somebody_says_that_they_know(pair: tuple[Postgres, Postgres]) -> None:
    primary, standby = pair
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    where = f"postgresql://auditor@{hosts}/postgres?target_session_attrs=read-write"

    def check(ledger: Ledger, now: float) -> str | None:
        intake = Intake(Keyring.new(), ledger, models={})
        by_clock(ledger, lambda: now)
        checks = Checks(*counting_checks(ledger, intake, program="one", ttl=DAY))
        checks.run()
        assert checks.reasons()["ledger"] is None
        return checks.reasons()["timeline"]

    ledger = Ledger(where, clock=lambda: NOW)
    assert check(ledger, NOW) is None
    assert check(ledger, NOW + 60) is None
    primary.stop(signal.SIGQUIT)
    standby.promote()
    with psycopg.connect(standby.url, autocommit=True) as connection:
        connection.execute("alter system set synchronous_standby_names = ''")
        connection.execute("select pg_reload_conf()")
    assert f"since {when(NOW + 60)} may be missing" in str(check(ledger, NOW + 75))
    another = Ledger(where)  # which begins afterwards
    assert f"since {when(NOW + 60)} may be missing" in str(check(another, NOW + 900))
    assert promised(another, 1) == ["counted"], "it goes on to count"
    another.promoted()
    assert check(ledger, NOW + 960) is None
    ledger.close(), another.close()
