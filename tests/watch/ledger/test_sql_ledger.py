"""The ledger in SQL, in SQLite and in a real PostgreSQL: each label once, whatever happens."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sql_ledger_model
from ledgers import NOW, accept, entries, make_label
from sizes import sized
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from calib_serve.errors import ConflictError, LedgerError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Key, Once, Sums
from calib_serve.watch.ledger.sql import SqlLedger

pytestmark = pytest.mark.store

V = ("m", "1")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return str(request.getfixturevalue("postgres_database"))


@pytest.fixture
def ledger(url: str) -> Any:
    one = SqlLedger(url)
    yield one
    one.close()


def ask(url: str, sql: str) -> Any:
    """What any SQL tool would be told."""
    address = url.replace("://", "+psycopg://") if "://" in url else f"sqlite:///{url}"
    with create_engine(address, poolclass=NullPool).begin() as connection:
        found = connection.execute(text(sql))
        return found.all() if found.returns_rows else found.rowcount


def test_a_label_is_counted_once_even_within_one_batch(ledger: SqlLedger) -> None:
    assert accept(ledger, [make_label(1), make_label(1), make_label(2, label=0)]) == [True, False, True]
    assert accept(ledger, [make_label(2)]) == [False]
    for _ in range(2):  # before and after it is rolled up
        np.testing.assert_allclose(ledger.sums()[V].vector, Sums.labelled([0.9, 0.9], [1, 0]).vector)
        ledger.roll_up()


def test_sums_equal_numpy_over_batches_versions_segments_and_spans(ledger: SqlLedger) -> None:
    rng = np.random.default_rng(0)
    c, y = rng.random(500), rng.integers(0, 2, 500)
    labels = [make_label(i, confidence=c[i], label=int(y[i]), version=str(i % 2)) for i in range(500)]
    segments = ["north" if i % 3 else "south" for i in range(500)]
    for at in range(0, 500, 37):
        accept(ledger, labels[at : at + 37], segments=segments[at : at + 37])
        if at % 2:
            ledger.roll_up()
    odd, south = np.arange(500) % 2 == 1, np.arange(500) % 3 == 0
    for got, of in (
        (ledger.sums()[V], odd),
        (ledger.slices()[Key(*V, "south")], odd & south),
        (ledger.slices("class", version=V)[Key(*V, "1", "class")], odd),
    ):
        np.testing.assert_allclose(got.vector, Sums.labelled(c[of], y[of]).vector, rtol=1e-9)
    spans = [one.sums for one in ledger.dated(NOW - DAY, NOW + DAY, version=V, kind="segment")]
    np.testing.assert_allclose(sum(one.vector for one in spans), ledger.sums()[V].vector, rtol=1e-9)


def test_predictions_are_added_and_a_repeated_batch_is_not(ledger: SqlLedger) -> None:
    served = {Key("m", "1", "north"): Sums.served([0.9, 0.5])}
    once = Once.of(b"batch 1", b"content", time=NOW)
    assert [ledger.add(served, time=NOW, once=once) for _ in range(2)] == [True, False]
    with pytest.raises(ConflictError, match="another batch"):
        ledger.add(served, time=NOW, once=Once.of(b"batch 1", b"another", time=NOW))
    assert ledger.known(once) == once
    assert ledger.sums()[V].predictions.sum() == 2


def test_one_receipt_from_four_threads_in_four_orders_counts_once_and_none_waits_for_ever(url: str) -> None:
    labels = [make_label(i) for i in range(sized(600, 6000))]

    def send(seed: int) -> int:
        one, mine = SqlLedger(url, timeout=60), labels.copy()
        random.Random(seed).shuffle(mine)
        done = sum(sum(accept(one, mine[at : at + 100])) for at in range(0, len(mine), 100))
        one.roll_up()
        one.close()
        return done

    SqlLedger(url).close()
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(send, range(4))) == len(labels)
    one = SqlLedger(url)
    assert one.sums()[V].labels.sum() == len(labels)
    one.close()


def test_a_transaction_that_fails_leaves_nothing_and_one_that_ends_leaves_all(ledger: SqlLedger) -> None:
    def half() -> None:
        with ledger.transaction():
            accept(ledger, [make_label(1, model="new")])
            ledger.store("state", b"1")
            raise OSError("half way")

    with pytest.raises(OSError, match="half way"):
        half()
    assert (ledger.sums(), ledger.load("state")) == ({}, None)
    with ledger.transaction():
        accept(ledger, [make_label(1, model="new")])
        ledger.store("state", b"1")
    assert (ledger.sums()["new", "1"].labels.sum(), ledger.load("state")) == (1, b"1")


def test_labels_wait_for_the_detector_in_the_order_of_their_predictions(ledger: SqlLedger) -> None:
    accept(ledger, [make_label(i, when=NOW - 60 * i, label=i % 2, group=i) for i in range(5)])
    ledger.accept(entries([make_label(7)]), detect=False)
    assert ledger.waiting() == {V: 5}
    with ledger.transaction():
        first = ledger.take_waiting(V, until=NOW - 60, most=2)
        rest = ledger.take_waiting(V, until=NOW - 60, most=2)
    assert [(one.group, one.correct) for one in first + rest] == [(4, False), (3, True), (2, False)]
    assert [one.group for one in ledger.look_at_waiting(V, until=np.inf, most=9)] == [1, 0]


def test_what_a_source_sent_is_taken_out_of_everything_once(ledger: SqlLedger) -> None:
    mine, theirs = entries([make_label(i) for i in range(4)]), entries([make_label(9, label=0)])
    ledger.accept([replace(one, source="lab") for one in mine[:2]])
    ledger.roll_up()
    ledger.accept([*(replace(one, source="lab") for one in mine[2:]), *theirs])
    before = ledger.edition()
    assert ledger.revoke("lab") == 4
    np.testing.assert_allclose(ledger.sums()[V].vector, Sums.labelled([0.9], [0]).vector, atol=1e-9)
    assert (ledger.waiting(), ledger.edition(), ledger.revoke("lab")) == ({V: 1}, before + 1, 0)
    assert ledger.accept(mine) == ["duplicate"] * 4


def test_receipts_are_forgotten_after_the_retention_and_a_longer_one_counts_none_twice(url: str) -> None:
    old, new = [make_label(i, when=NOW - 20 * DAY) for i in range(3)], make_label(9, when=NOW - DAY)
    short = SqlLedger(url, retention=10 * DAY)
    assert accept(short, [new])
    assert accept(short, old) == [True] * 3
    assert short.sweep(NOW) == 0, "labels that wait for the detector are kept"
    with short.transaction():
        assert len(short.take_waiting(V, until=np.inf, most=9)) == 4
    assert short.sweep(NOW) == 3
    short.close()
    long = SqlLedger(url, retention=60 * DAY)
    assert long.accept(entries([*old, new])) == ["forgotten"] * 3 + ["duplicate"]
    again = SqlLedger(url, retention=5 * DAY)
    assert again.retention == 60 * DAY
    long.close(), again.close()


def test_spans_are_merged_with_age_and_their_sums_stay(ledger: SqlLedger) -> None:
    labels = [make_label(i, when=NOW - 600 * i) for i in range(30)]
    accept(ledger, labels)
    whole = ledger.sums()[V].vector
    ledger.sweep(NOW + 10 * DAY)
    spans = list(ledger.dated(0, 1e11, kind="segment"))
    assert {one.width for one in spans} == {3600.0}
    np.testing.assert_allclose(sum(one.sums.vector for one in spans), whole, rtol=1e-9)


def test_an_older_state_refuses_what_may_have_been_counted_since(ledger: SqlLedger) -> None:
    accept(ledger, [make_label(1, when=NOW - 60)])
    ledger.restored()
    assert ledger.accept(entries([make_label(2, when=NOW - 60)])) == ["forgotten"]
    assert ledger.edition() == 2


def test_an_operator_can_look_with_any_tool(url: str, ledger: SqlLedger) -> None:
    accept(ledger, [make_label(i, confidence=0.3 + i / 10) for i in range(5)], segments=["north"] * 5)
    ledger.roll_up()
    assert ask(url, "select segment, count(*), avg(confidence) from label group by segment") == [
        ("north", 5, pytest.approx(0.5))
    ]
    assert ask(url, "select sum(feedback) from tally where kind = 'segment' and width = 0") == [(5.0,)]


def test_a_ledger_of_other_bins_or_schema_is_refused(url: str) -> None:
    SqlLedger(url, bins=15).close()
    with pytest.raises(LedgerError, match="15 bins, not of 1 and 10"):
        SqlLedger(url, bins=10)
    ask(url, "update ledger set schema = 99")
    with pytest.raises(LedgerError, match="schema 99"):
        SqlLedger(url)


def test_a_database_that_is_away_is_an_error_of_ours_that_counts_nothing(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be used"):
        SqlLedger("postgresql://nobody@127.0.0.1:9/none", timeout=1)
    (tmp_path / "text.db").write_text("this is no database" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        SqlLedger(str(tmp_path / "text.db"))


def test_a_connection_cut_while_labels_are_counted_is_told_and_nothing_is_lost(
    postgres_database: str,
) -> None:
    ledger = SqlLedger(postgres_database)
    accept(ledger, [make_label(0)])
    stop = threading.Event()

    def cut() -> None:
        while not stop.wait(0.02):
            ask(postgres_database, "select pg_terminate_backend(pid) from pg_stat_activity where pid <> "
                "pg_backend_pid() and datname = current_database()")  # fmt: skip

    thread = threading.Thread(target=cut)
    thread.start()
    said, counted = set(), 0
    for i in range(1, sized(60, 600)):
        while True:  # as a client does
            try:
                counted += ledger.accept(entries([make_label(i)])).count("counted")
                break
            except LedgerError as error:
                said.add("send it again" in str(error))
    stop.set()
    thread.join()
    assert said == {True}, "no connection was cut: this tests nothing"
    assert ledger.sums()[V].labels.sum() == sized(60, 600)
    assert counted <= sized(60, 600)
    ledger.close()


def test_it_does_what_its_model_does_in_sqlite() -> None:
    sql_ledger_model.run(runs=sized(12, 300), steps=sized(20, 30))


def test_it_does_what_its_model_does_in_postgresql(postgres_database: str) -> None:
    sql_ledger_model.run(postgres_database, runs=sized(6, 300), steps=sized(20, 30))
