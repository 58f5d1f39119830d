"""The ledger, in SQLite and in a real PostgreSQL: each label once, whatever happens."""

from __future__ import annotations

import random
import re
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import ledger_model
import numpy as np
import pytest
from cut_proxy import cut_after_commit
from ledgers import NOW, accept, ask, entries, make_label, revoked, sweep
from sizes import sized
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, OperationalError

from calib_serve.core.errors import InputError, LedgerError, UnknownFate
from calib_serve.ledger import Held, Ledger
from calib_serve.ledger.database import Database
from calib_serve.ledger.prediction_ids import PredictionIds
from calib_serve.monitor.drift.detector import Alarm
from calib_serve.monitor.incidents import IncidentLog
from calib_serve.receipts import DAY, OTHER
from calib_serve.receipts.sums import Key, Sums

pytestmark = pytest.mark.store

V = ("m", "1")


def test_a_label_is_counted_once_even_within_one_batch(ledger: Ledger) -> None:
    assert accept(ledger, [make_label(1), make_label(1), make_label(2, label=0)]) == [True, False, True]
    assert accept(ledger, [make_label(2)]) == [False]
    for _ in range(2):  # before and after it is rolled up
        np.testing.assert_allclose(ledger.sums()[V].vector, Sums.labelled([0.9, 0.9], [1, 0]).vector)
        ledger.roll_up()


def test_sums_equal_numpy_over_batches_versions_segments_and_spans(ledger: Ledger) -> None:
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


def test_one_receipt_from_four_threads_in_four_orders_counts_once_and_none_waits_for_ever(url: str) -> None:
    labels = [make_label(i) for i in range(sized(600, 6000))]

    def send(seed: int) -> int:
        one, mine = Ledger(url, timeout=60), labels.copy()
        random.Random(seed).shuffle(mine)
        done = sum(sum(accept(one, mine[at : at + 100])) for at in range(0, len(mine), 100))
        one.roll_up()
        one.close()
        return done

    Ledger(url).close()
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(send, range(4))) == len(labels)
    one = Ledger(url)
    assert one.sums()[V].labels.sum() == len(labels)
    one.close()


def test_a_transaction_that_fails_leaves_nothing_and_one_that_ends_leaves_all(ledger: Ledger) -> None:
    def half() -> None:
        with ledger.transaction():
            accept(ledger, [make_label(1, model="new")])
            ledger.followers.keep("clause", ("new", "1"), "a", b"1", now=NOW)
            raise OSError("half way")

    with pytest.raises(OSError, match="half way"):
        half()
    assert (ledger.sums(), ledger.followers.states("clause")) == ({}, [])
    with ledger.transaction():
        accept(ledger, [make_label(1, model="new")])
        ledger.followers.keep("clause", ("new", "1"), "a", b"1", now=NOW)
    (state,) = ledger.followers.states("clause")
    assert (ledger.sums()["new", "1"].labels.sum(), state.value) == (1, b"1")


def test_states_are_kept_by_name_and_what_changed_last_comes_last(ledger: Ledger) -> None:
    for i, name in enumerate("abca"):
        ledger.followers.keep("shadow", V, name, f"{name}{i}".encode(), now=NOW + i)
    ledger.followers.keep("shadow", ("m", "2"), "d", b"other", now=NOW)
    assert [one.value for one in ledger.followers.states("shadow", V)] == [b"b1", b"c2", b"a3"]
    ledger.followers.discard("shadow", V, "c")
    assert [one.name for one in ledger.followers.states("shadow")] == ["d", "b", "a"]
    assert ledger.followers.states("clause") == []


def test_how_far_a_detector_is_is_a_row(ledger: Ledger) -> None:
    ledger.followers.advance(V, fed_until=NOW, evidence=(1.5, np.nan), late=2, alarms=1)
    ledger.followers.advance(V, late=1, incidents=1)
    one = ledger.followers.progress()[V]
    assert (one.fed_until, one.late, one.alarms, one.incidents, one.log_evidence) == (NOW, 3, 1, 1, 1.5)
    assert np.isnan(one.log_threshold)


def test_labels_wait_for_the_detector_in_the_order_of_their_predictions(ledger: Ledger) -> None:
    accept(ledger, [make_label(i, when=NOW - 60 * i, label=i % 2, group=i) for i in range(5)])
    ledger.accept(entries([make_label(7)]), detect=False)
    assert ledger.followers.waiting() == {V: 5}
    with ledger.transaction():
        first = ledger.followers.take(V, until=NOW - 60, most=2)
        rest = ledger.followers.take(V, until=NOW - 60, most=2)
    assert [(one.group, one.correct) for one in first + rest] == [(4, False), (3, True), (2, False)]
    with ledger.transaction():
        assert [one.group for one in ledger.followers.take(V, until=np.inf, most=9)] == [1, 0]


def test_batches_do_not_wait_for_each_other_but_what_forgets_waits_for_them(postgres_database: str) -> None:
    one, two = Ledger(postgres_database), Ledger(postgres_database)
    accept(one, [make_label(0)])
    with ThreadPoolExecutor(2) as other:
        with one.transaction():
            accept(one, [make_label(1)])
            assert other.submit(accept, two, [make_label(2)]).result(timeout=20) == [True]
            forgets = other.submit(two.forget, NOW)
            with pytest.raises(TimeoutError):
                forgets.result(timeout=0.5)
        forgets.result(timeout=60)
    assert accept(one, [make_label(3)]) == [False]
    one.close(), two.close()


def test_one_process_at_a_time_feeds_a_version(postgres_database: str) -> None:
    one, two = Ledger(postgres_database), Ledger(postgres_database)
    accept(one, [make_label(i) for i in range(4)])
    with one.transaction():
        assert len(one.followers.take(V, until=np.inf, most=2)) == 2
        with ThreadPoolExecutor(1) as other:
            assert other.submit(two.followers.take, V, until=np.inf, most=9).result() == []
    assert len(two.followers.take(V, until=np.inf, most=9)) == 2
    one.close(), two.close()


def test_what_a_source_sent_is_taken_out_of_everything_once(ledger: Ledger, url: str) -> None:
    mine, theirs = (
        entries([make_label(i) for i in of], source=name) for of, name in ((range(4), "lab"), ([9], "desk"))
    )
    ledger.accept(mine[:2])
    ledger.roll_up()
    ledger.accept([*mine[2:], *theirs])
    before = ledger.published()
    assert revoked(ledger, "lab", dry_run=True) == {V: 4}
    assert ledger.published() == before
    assert revoked(ledger, "lab", by="me") == {V: 4}
    np.testing.assert_allclose(ledger.sums()[V].vector, Sums.labelled([0.9], [1]).vector, atol=1e-9)
    after = ledger.published()
    assert {key.name: one.labels.sum() for key, one in ledger.slices("source").items()} == {
        "lab": 0,
        "desk": 1,
    }
    assert ledger.followers.waiting() == {V: 1}
    assert (revoked(ledger, "lab"), ledger.published().edition) == ({}, after.edition)
    assert after.edition != before.edition
    assert ledger.accept(mine) == ["duplicate"] * 4
    assert ask(url, "select why, by, labels from edition order by number") == [
        ("it began", "", 0), ("labels of lab were revoked", "me", 4)
    ]  # fmt: skip


def test_what_is_taken_out_is_a_new_edition_of_its_own_version_alone(ledger: Ledger) -> None:
    other, unseen = ("m", "2"), ("m", "unseen")

    def editions(*versions: tuple[str, str]) -> list[str]:
        published = ledger.published()
        return [published.labels(one)[1].partition(".")[0] for one in versions]  # without the timeline

    ledger.accept(entries([make_label(i) for i in range(4)], source="lab"))
    ledger.accept(entries([make_label(9, version="2")]))
    assert editions(V, other, unseen) == ["1", "1", "1"]
    ledger.revoke("lab")
    # Sums of several versions together went down as well.
    assert editions(V, other, unseen, (OTHER, OTHER)) == ["2", "1", "1", "2"]
    ledger.drop(other)
    assert editions(V, other, unseen) == ["2", "3", "1"]
    ledger.restored()
    assert editions(V, other, unseen) == ["4", "4", "4"]


def test_a_revocation_waits_for_who_is_at_work_on_its_labels(postgres_database: str) -> None:
    one, two = Ledger(postgres_database), Ledger(postgres_database)
    one.accept(entries([make_label(i) for i in range(10)], source="lab"))
    with ThreadPoolExecutor(1) as other:
        with one.transaction():
            assert one.roll_up() == 10
            revoked = other.submit(two.revoke, "lab")
            with pytest.raises(TimeoutError):
                revoked.result(timeout=0.5)
        assert len(revoked.result(timeout=60)[V]) == 10
    assert not one.sums()[V].labels.any()
    one.close(), two.close()


def test_a_revocation_waits_for_who_merges_spans(postgres_database: str) -> None:
    one, two = Ledger(postgres_database), Ledger(postgres_database)
    one.accept(entries([make_label(i) for i in range(10)], source="lab"))
    one.roll_up()
    with ThreadPoolExecutor(1) as other:
        with one.transaction():
            sweep(one, NOW + 10 * DAY)
            revoked = other.submit(two.revoke, "lab")
            with pytest.raises(TimeoutError):
                revoked.result(timeout=0.5)
        assert len(revoked.result(timeout=60)[V]) == 10
    assert not any(span.sums.vector.any() for span in one.dated(0, 1e11))
    one.close(), two.close()


def test_two_that_roll_up_at_once_add_each_label_once_and_neither_waits(postgres_database: str) -> None:
    one, two = Ledger(postgres_database), Ledger(postgres_database)
    accept(one, [make_label(i) for i in range(10)])
    with ThreadPoolExecutor(1) as other, one.transaction():
        assert one.roll_up() == 10
        assert other.submit(two.roll_up).result(timeout=60) == 0
    assert two.roll_up() == 0
    assert two.sums()[V].labels.sum() == 10
    one.close(), two.close()


def test_a_revocation_leaves_exact_zeros_and_the_predictions(ledger: Ledger) -> None:
    rng = np.random.default_rng(0)
    for at in range(0, 60, 20):
        some = [make_label(i, confidence=rng.random(), inclusion=0.3) for i in range(at, at + 20)]
        ledger.accept(entries(some, source="lab"))
        ledger.roll_up()
    ledger.add({Key(*V): Sums.served([0.9])}, time=NOW)
    ledger.revoke("lab")
    assert ledger.sums()[V] == Sums.served([0.9])
    assert ledger.check() == []


def test_a_version_is_dropped_with_what_is_kept_of_it_and_counts_no_receipt_again(
    ledger: Ledger, url: str
) -> None:
    ledger.accept(entries([make_label(0)], source="lab"))
    ledger.revoke("lab")
    accept(ledger, [make_label(1), make_label(2, version="2")])
    for version in (V, ("m", "2")):
        ledger.followers.keep("clause", version, "a", b"1", now=NOW)
        alarm = Alarm(1, 1, NOW, "overconfident", (), 0.1, 9.0)
        IncidentLog(ledger).observe(version, [0.1], [alarm], first=1, now=NOW)
    ledger.roll_up()
    accept(ledger, [make_label(3)])  # not rolled up yet
    assert ledger.drop(V) == 2
    of = {"label": 1, "tally": 4, "delay": 4, "state": 1, "incident": 1}
    for table, left in of.items():
        mine = "not revoked and" if table == "label" else ""
        asked = f"select version, count(*) from {table} join version v on {mine} v.id = version_id group by 1"
        assert ask(url, asked) == [("2", left)], table
    assert ledger.followers.waiting() == {("m", "2"): 1}
    assert set(ledger.sums()) == {("m", "2")}
    assert accept(ledger, [make_label(i) for i in (0, 1, 3)]) == [False] * 3


def test_spans_are_merged_with_age_and_their_sums_stay(ledger: Ledger) -> None:
    labels = [make_label(i, when=NOW - 600 * i) for i in range(30)]
    accept(ledger, labels)
    whole = ledger.sums()[V].vector
    sweep(ledger, NOW + 10 * DAY)
    spans = list(ledger.dated(0, 1e11, kind="segment"))
    assert {one.width for one in spans} == {3600.0}
    np.testing.assert_allclose(sum(one.sums.vector for one in spans), whole, rtol=1e-9)


def test_a_check_holds_sums_over_all_time_against_the_labels(ledger: Ledger, url: str) -> None:
    accept(ledger, [make_label(i) for i in range(3)])
    ledger.roll_up()
    ask(url, "delete from tally where width > 0")  # as those that are too old go
    assert ledger.check() == []
    ask(url, "update tally set feedback = feedback - 1 where width = 0 and kind = 'segment'")
    assert ledger.check() == ["3 labels are counted, and the sums hold 2"]


def test_a_ledger_of_other_bins_is_refused(url: str) -> None:
    Ledger(url, bins=15).close()
    with pytest.raises(LedgerError, match="15 bins, not of 10"):
        Ledger(url, bins=10)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("", "an empty name"),
        ("redis://127.0.0.1/0", "a file name or a postgresql:// address"),
        ("postgresql://ana:word@db/labels", "holds a password"),
        ("postgresql://db/labels?password=word", "holds a password"),
        ("postgresql://db/labels?nonsense=1", "no address of a PostgreSQL"),
    ],
)
def test_an_address_that_is_none_or_holds_a_password_is_refused_and_not_repeated(
    where: str, why: str
) -> None:
    with pytest.raises(InputError, match=why) as refused:
        Ledger(where)
    assert "word@" not in str(refused.value)
    assert "=word" not in str(refused.value)


def test_a_ledger_that_must_exist_is_not_made(url: str) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger(url, must_exist=True)
    Ledger(url, retention=9 * DAY).close()
    one = Ledger(url, must_exist=True, retention=0.0)
    assert one.retention == 9 * DAY
    one.close()


def test_processes_that_share_a_ledger_publish_the_same_sums_under_its_name(url: str) -> None:
    one, two = Ledger(url), Ledger(url)
    accept(one, [make_label(i) for i in range(3)])
    accept(two, [make_label(i) for i in range(2, 6)])
    first, second = one.published(), two.published()
    assert first == second
    assert sum(each.labels.sum() for each in first.segments.values()) == 6
    assert first.labels(V) == (one.uuid[:8], first.edition)
    one.close(), two.close()


def test_a_commit_whose_answer_is_lost_is_told_as_unknown(postgres_database: str) -> None:
    """A proxy that dies between the commit and its answer: what was counted is a duplicate afterwards."""
    with cut_after_commit(postgres_database) as (address, cut):
        ledger = Ledger(address)
        cut.set()
        with pytest.raises(UnknownFate, match="send it again"):
            accept(ledger, [make_label(1)])
        cut.clear()
        fate = ledger.accept(entries([make_label(1)]))
        assert fate == ["duplicate"]
        assert ledger.sums()[V].labels.sum() == 1
        ledger.close()


def test_the_views_say_what_is_in_the_ledger(url: str) -> None:
    ledger = Ledger(url)
    ledger.accept(entries([make_label(i, label=i % 2) for i in range(6)], ["north"] * 6, source="lab"))
    ledger.roll_up()
    asked = "select segment, source, count(*) from labels where not revoked and correct group by 1, 2"
    assert ask(url, asked) == [("north", "lab", 3)]
    assert ask(url, "select sum(feedback) from sums where width = 0 and kind = 'segment'") == [(6,)]
    assert ask(url, "select * from incidents") == []
    ledger.close()


def test_a_database_that_is_away_is_an_error_of_ours_that_counts_nothing(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"127\.0\.0\.1:9/none cannot be used"):
        Ledger("postgresql://nobody@127.0.0.1:9/none", timeout=1)
    (tmp_path / "text.db").write_text("this is no database" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        Ledger(tmp_path / "text.db")


@pytest.mark.parametrize(
    ("where", "why", "state", "fate"),
    [
        # What was undone is no mystery, even where the commit failed.
        ("postgresql://127.0.0.1/labels", "server closed the connection", "", UnknownFate),
        ("postgresql://127.0.0.1/labels", "could not serialize access", "40001", LedgerError),
        ("postgresql://127.0.0.1/labels", "deadlock detected", "40P01", LedgerError),
        ("l.db", "database or disk is full", "", LedgerError),
        ("l.db", "disk I/O error", "", UnknownFate),
    ],
)
def test_an_error_of_a_commit_leaves_the_fate_unknown_unless_it_was_undone(
    where: str, why: str, state: str, fate: type, tmp_path: Path
) -> None:
    database = Database(where if "://" in where else str(tmp_path / where))

    class Said(Exception):
        sqlstate = state

    error = OperationalError("commit", {}, Said(why))
    assert type(database._told(error, committing=True)) is fate
    for before, said in ((error, "cannot be used"), (IntegrityError("insert", {}, Said(why)), "refused")):
        told = database._told(before, committing=False)
        assert (type(told), said in str(told), why in str(told)) == (LedgerError, True, True)
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        raise LedgerError(why) from error

    with pytest.raises(LedgerError, match=why):
        database.again(work)
    assert len(tries) == (5 if state else 1)
    database.close()


def test_an_operator_sees_its_kind_its_size_and_that_it_is_whole(ledger: Ledger, url: str) -> None:
    accept(ledger, [make_label(1)])
    database = ledger.database
    assert database.kind == ("PostgreSQL" if "://" in url else "SQLite")
    assert database.size() > 10_000
    assert (database.lag(), database.damage(), ledger.check()) == (None, [], [])


def test_a_connection_cut_while_labels_are_counted_is_told_and_nothing_is_lost(
    postgres_database: str,
) -> None:
    ledger = Ledger(postgres_database)
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
                said.add(str(error))
    stop.set()
    thread.join()
    assert said, "no connection was cut: this tests nothing"
    assert ledger.sums()[V].labels.sum() == sized(60, 600)
    assert counted <= sized(60, 600)
    ledger.close()


def test_it_does_what_its_model_does_in_sqlite() -> None:
    ledger_model.run(runs=sized(12, 340), steps=sized(20, 30))


def test_it_does_what_its_model_does_in_postgresql(postgres_database: str) -> None:
    ledger_model.run(postgres_database, runs=sized(8, 340), steps=sized(20, 30))


def test_no_statement_looks_through_all_rows_of_a_file(tmp_path: Path) -> None:
    """The work of a batch is that of its labels, whatever the ledger holds already."""
    ledger = Ledger(tmp_path / "l.db", retention=DAY, clock=lambda: NOW)
    ids = PredictionIds(ledger)
    told: list[tuple[str, object]] = []
    event.listen(ledger.database._engine, "before_cursor_execute", lambda *of: told.append((of[2], of[3])))
    labels = [make_label(i) for i in range(3)]
    accept(ledger, labels)
    accept(ledger, labels)
    ledger.roll_up()
    with ledger.transaction():
        assert len(ledger.followers.take(V, until=NOW + 1, most=2)) == 2
    ledger.held.add([Held("label", "a", ("m", "2"), "{}", "", NOW)])
    assert len(ledger.held.take(("m", "2"), most=5)) == 1
    ids.find(["a", "b"])
    with ledger.transaction():
        ledger.followers.take(V, until=NOW + 1, most=2)
    assert revoked(ledger, "lab", dry_run=True) == {}
    assert sweep(ledger, NOW + 3 * DAY) == 3
    assert len(told) > 20
    looked = []
    with closing(sqlite3.connect(tmp_path / "l.db")) as file:
        for statement, parameters in told:
            if statement.split()[0].lower() in ("select", "update", "delete", "insert", "with"):
                some = parameters[0] if isinstance(parameters, list) else parameters
                plan = file.execute(f"explain query plan {statement}", some).fetchall()
                looked += [(one[3], statement) for one in plan]
    whole = re.compile(r"SCAN (label|prediction_id)\b(?!.*INDEX label_to_)|\(predicted_at=\?\)")
    for one in looked:
        assert not whole.search(one[0]), one
    ledger.close()
