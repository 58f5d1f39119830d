"""A source's labels are taken back: what is left is what was there without it, in every sum, once."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import make_label, open_one
from real_watch import RING
from sizes import sized
from typer.testing import CliRunner

from calib_serve.cli import app as cli
from calib_serve.errors import InputError, LedgerError
from calib_serve.receipts import DAY, Keyring, Shadow
from calib_serve.watch.intake import Classes, Intake
from calib_serve.watch.journal import LabelJournal, read_journal
from calib_serve.watch.ledger import Key, SqliteLedger, Sums
from calib_serve.watch.revoke import revoke
from calib_serve.watch.samples import SampleLog, read_samples

pytestmark = pytest.mark.store

V = ("m", "1")
NOW = time.time()
KINDS = ("segment", "class", "group", "source")


def open_again(place, name):
    """Another, empty ledger of the same kind."""
    kind, where = place
    return open_one(
        kind, where + name if kind == "sqlite" else (where[0], where[1] + name), retention=60 * DAY
    )


def take(intake, items, source):
    outcomes = intake.take(items, source=source)
    return [one.accepted for one in outcomes]


def make_intake(ledger, folder, **more):
    journal = None if folder is None else LabelJournal(folder, ledger)
    models = {V: Classes(3), ("m", "2"): Classes(3)}
    return Intake(RING, ledger, models=models, journal=journal, ttl=60 * DAY, **more), journal


def receipt(i, *, age=10.0, confidence=0.9, version="1", **more):
    nonce = i.to_bytes(10, "big")
    facts = {"model": "m", "version": version, "predicted": 1, "confidence": confidence, "nonce": nonce}
    return RING.sign(**facts, time=NOW - age, **more)


def everything(ledger):
    """All sums that are not 0, by kind, slice and span, and what waits."""
    found = {}
    for kind in KINDS:
        found |= {("all", *key): sums.vector for key, sums in ledger.slices(kind).items()}
    for key, start, width, sums in ledger.dated(0, NOW + DAY):
        at = (start, width, *key)
        found[at] = sums.vector
    with ledger.transaction():
        waiting = sorted(
            (row.nonce, row.confidence)
            for version in ledger.waiting()
            for row in ledger.take_waiting(version, until=4e9, most=10**6)
        )
    return {at: vector for at, vector in found.items() if vector.any()}, waiting


items = st.lists(
    st.tuples(
        st.sampled_from([10.0, 3000.0, 3 * DAY, 3.01 * DAY, 40 * DAY]),
        st.floats(0, 1),
        st.integers(0, 2),
        st.sampled_from(["1", "2"]),
        st.sampled_from(["", "north"]),
        st.integers(0, 3),
        st.sampled_from([1.0, 0.3]),
    ),
    max_size=30,
)


@pytest.fixture(params=["sqlite", "redis"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return "sqlite", str(tmp_path / "ledger")
    return "redis", (request.getfixturevalue("redis_url"), f"revoke{time.monotonic_ns()}-")


@given(a=items, b=items, order=st.randoms(use_true_random=False), folded=st.booleans())
@settings(
    max_examples=sized(ci=15, nightly=300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_to_accept_a_and_b_and_revoke_b_is_to_accept_a(place, tmp_path_factory, a, b, order, folded):
    folder = tmp_path_factory.mktemp("journal")
    name = folder.name
    both, alone = (open_again(place, f"{name}-{which}") for which in ("both", "alone"))
    sent = [(i, one, "a") for i, one in enumerate(a)] + [(len(a) + i, one, "b") for i, one in enumerate(b)]
    order.shuffle(sent)
    intake, journal = make_intake(both, folder)
    other, _ = make_intake(alone, None)
    for at in range(0, len(sent), 7):
        for who in ("a", "b"):
            batch = [
                {
                    "receipt": receipt(i, age=age, confidence=c, version=v, segment=s, group=g, inclusion=p),
                    "label": y,
                }
                for i, (age, c, y, v, s, g, p), source in sent[at : at + 7]
                if source == who
            ]
            assert all(take(intake, batch, who))
            assert who == "b" or all(take(other, batch, who))
        if folded:
            both.sums()
            with both.emission("x"):
                pass
    journal.close()
    told = revoke(both, folder, source="b")
    assert sum(told.labels.values()) == len(b)
    assert sum(revoke(both, folder, source="b").labels.values()) == 0
    (found, waits), (want, wait) = everything(both), everything(alone)
    assert found.keys() == want.keys()
    for at in want:
        np.testing.assert_allclose(found[at], want[at], rtol=1e-9, atol=1e-9)
    assert waits == wait
    both.close(), alone.close()


@pytest.fixture
def ledger(place):
    ledger = open_again(place, "one")
    yield ledger
    ledger.close()


def some(start, count, **more):
    return [{"receipt": receipt(i, **more), "label": 1} for i in range(start, start + count)]


def test_what_was_taken_back_is_not_counted_again_and_taken_back_once(ledger, tmp_path):
    intake, journal = make_intake(ledger, tmp_path / "j")
    take(intake, some(0, 20), "a"), take(intake, some(20, 30), "b")
    assert not any(take(intake, some(0, 5), "b"))  # duplicates are b's lines, and a's labels
    dry = revoke(ledger, tmp_path / "j", source="b", dry_run=True)
    assert (dry.labels, ledger.sums()[V].labels.sum()) == ({V: 30}, 50)
    assert revoke(ledger, tmp_path / "j", source="b").labels == {V: 30}
    again = revoke(ledger, tmp_path / "j", source="b")
    assert (again.labels, again.before, ledger.sums()[V].labels.sum()) == ({}, 30, 20)
    assert not any(take(intake, some(20, 30), "b"))
    assert all(take(intake, some(60, 5), "b"))
    assert revoke(ledger, tmp_path / "j", source="b").labels == {V: 5}
    assert ledger.slices("source")[Key(*V, "b", "source")].labels.sum() == 0
    journal.close()


def test_a_part_of_the_time_can_be_taken_back_and_the_rest_later(ledger, tmp_path):
    now = [NOW]
    intake, journal = make_intake(ledger, tmp_path / "j", clock=lambda: now[0])
    for i in range(10):
        now[0] = NOW + i
        take(intake, some(10 * i, 10), "a")
    assert revoke(ledger, tmp_path / "j", source="a", since=NOW + 3, until=NOW + 5, by="me").labels == {V: 20}
    assert revoke(ledger, tmp_path / "j", source="a", until=NOW + 6).labels == {V: 40}
    assert ledger.sums()[V].labels.sum() == 40
    first, second = map(json.loads, (tmp_path / "j" / "revoked.log").read_text().splitlines())
    assert (first["by"], first["revoked"], first["labels"]) == ("me", "a", [["m", "1", 20]])
    assert second["since"] is None
    journal.close()


def test_a_journal_of_another_ledger_takes_nothing_back(ledger, place, tmp_path):
    other = open_again(place, "other")
    intake, journal = make_intake(other, tmp_path / "j")
    take(intake, some(0, 20), "a")
    ledger_intake, _ = make_intake(ledger, None)
    take(ledger_intake, some(100, 5), "a")
    before = everything(ledger)[0]
    with pytest.raises(LedgerError, match="never counted"):
        revoke(ledger, tmp_path / "j", source="a")
    after = everything(ledger)[0]
    assert all(np.array_equal(before[at], after[at]) for at in {*before, *after})
    journal.close(), other.close()


def test_spans_that_were_merged_since_give_up_what_is_theirs(ledger, tmp_path):
    now = [NOW - 3 * DAY]
    intake, journal = make_intake(ledger, tmp_path / "j", clock=lambda: now[0])
    take(intake, some(0, 5, age=3 * DAY + 10), "a"), take(intake, some(5, 5, age=3 * DAY + 10), "b")
    if hasattr(ledger, "prune"):
        now[0] = NOW
        assert take(intake, some(20, 1, age=0), "c") == [
            True
        ]  # without it, a sweep takes the clock for one that runs ahead
        for _ in range(3):
            ledger.prune(NOW)  # a day at a time
    else:
        ledger.sweep(NOW)
    assert {one.width for one in ledger.dated(0, NOW - DAY)} == {3600}
    assert revoke(ledger, tmp_path / "j", source="b").labels == {V: 5}
    assert sum(one.sums.labels.sum() for one in ledger.dated(0, NOW - DAY, kind="segment")) == 5
    journal.close()


def test_what_a_writer_that_died_had_counted_is_known(ledger, tmp_path):
    intake, journal = make_intake(ledger, tmp_path / "j")
    take(intake, some(0, 5), "a")
    real = ledger.accept

    def dies_after(entries, **more):
        real(entries, **more)
        raise LedgerError("the answer was lost")

    def dies_before(entries, **more):
        raise LedgerError("never came")

    for accept, start in ((dies_before, 10), (dies_after, 20)):
        ledger.accept = accept
        with pytest.raises(LedgerError):
            take(intake, some(start, 5), "a")
    # As SIGKILL would leave it: nothing more is written, the lock falls.
    journal._file.close(), journal._held.close()
    ledger.accept = real
    assert revoke(ledger, tmp_path / "j", source="a", dry_run=True).labels == {V: 10}
    after, journal = make_intake(ledger, tmp_path / "j")
    take(after, some(30, 5), "a")
    assert [one.fates for one in read_journal(tmp_path / "j")] == ["ccccc", "     ", "ccccc", "ccccc"]
    assert revoke(ledger, tmp_path / "j", source="a").labels == {V: 15}
    assert ledger.sums()[V].labels.sum() == 0
    journal.close()


def test_a_batch_that_was_given_up_is_not_counted_when_it_comes_late(request, tmp_path):
    ledger = open_one("redis", (request.getfixturevalue("redis_url"), f"late{time.monotonic_ns()}"))
    intake, journal = make_intake(ledger, tmp_path / "j")
    real, late = ledger.accept, []

    def hangs(entries, **more):
        late.append((entries, more))
        raise LedgerError("no answer in time")

    ledger.accept = hangs
    with pytest.raises(LedgerError):
        take(intake, some(0, 5), "a")
    ledger.accept = real
    assert all(take(intake, some(10, 5), "a"))
    ((entries, more),) = late
    with pytest.raises(LedgerError, match="given up"):
        ledger.accept(entries, **more)
    assert all(take(intake, some(0, 5), "a"))
    assert revoke(ledger, tmp_path / "j", source="a").labels == {V: 10}
    assert ledger.sums()[V].labels.sum() == 0
    journal.close(), ledger.close()


def test_a_refit_does_not_learn_what_was_taken_back_also_of_a_server_that_still_has_to_write_it(tmp_path):
    ledger = open_one("sqlite", tmp_path / "l.db")
    log = SampleLog(tmp_path / "s", rate=1.0)
    labels = [make_label(i) for i in range(30)]
    log.predicted(*V, [one.receipt.nonce for one in labels], np.zeros((30, 2)), times=[NOW] * 30)
    log.labelled(labels[:10])
    log.flush()
    log.labelled(labels[10:])  # waits in the server
    intake, journal = make_intake(ledger, tmp_path / "j")
    take(intake, some(0, 5), "a"), take(intake, some(5, 10), "b")
    assert revoke(ledger, tmp_path / "j", source="b", samples=tmp_path / "s").labels == {V: 10}
    log.close()
    assert len(read_samples(tmp_path / "s", model="m", version="1").labels) == 20
    journal.close(), ledger.close()


def test_the_command_takes_back_what_it_is_told_and_says_how_much(tmp_path):
    ledger = open_one("sqlite", tmp_path / "l.db", retention=60 * DAY)
    intake, journal = make_intake(ledger, tmp_path / "j")
    take(intake, some(0, 5), "a"), take(intake, some(5, 10), "b")
    journal.close(), ledger.close()

    def run(*more):
        asked = [
            "ledger",
            "revoke",
            str(tmp_path / "l.db"),
            "--journal",
            str(tmp_path / "j"),
            "--source",
            "b",
        ]
        return CliRunner().invoke(cli, [*asked, *more])

    assert run("--dry-run").output == "m 1: 10 would be taken back\n"
    assert run("--until", "2001-01-01T00:00").output == "nothing to take back\n"
    assert run("--since", "2001-01-01T00:00+02:00", "--json").output.startswith('{"revoked": [{"model": "m"')
    assert run().output == "nothing to take back\n10 were taken back before\n"
    assert isinstance(run("--since", "yesterday").exception, InputError)
    missing = ["ledger", "revoke", str(tmp_path / "none.db"), "--journal", str(tmp_path), "--source", "b"]
    assert isinstance(CliRunner().invoke(cli, missing).exception, LedgerError)


def test_the_command_leaves_a_ledger_its_own_bins_and_retention(tmp_path):
    """Opened with others, it would be refused, or remember receipts for longer from then on."""
    SqliteLedger(tmp_path / "l.db", bins=10, retention=7 * DAY).close()
    (tmp_path / "j").mkdir()
    asked = ["ledger", "revoke", str(tmp_path / "l.db"), "--journal", str(tmp_path / "j"), "--source", "b"]
    assert CliRunner().invoke(cli, asked).output == "nothing to take back\n"
    ledger = SqliteLedger(tmp_path / "l.db", bins=10, retention=DAY)
    assert ledger.retention == 7 * DAY
    ledger.close()
    assert not (tmp_path / "none.db").exists()


def test_a_label_of_the_smallest_and_the_largest_receipt_comes_back_from_its_line_as_it_was(tmp_path):
    ledger = open_one("sqlite", tmp_path / "l.db")
    intake, journal = make_intake(ledger, tmp_path / "j")
    take(intake, [{"receipt": receipt(1, segment="ü" * 20, group=2**62, inclusion=1e-9), "label": 2}], "a")
    (batch,) = read_journal(tmp_path / "j")
    line = batch.lines[0]
    assert (line.source, line.label, line.noted.group, line.noted.correct) == ("a", 2, 2**62, False)
    assert line.noted.nonce == (1).to_bytes(10, "big")
    assert replace(make_label(1).receipt, nonce=line.noted.nonce)
    assert isinstance(RING, Keyring)
    assert sum(ledger.slices().values(), Sums.zeros()).labels.sum() == 1
    journal.close(), ledger.close()


def test_labels_whose_shadow_waits_are_taken_back_as_well(place, tmp_path):
    ledger = open_one(*place, retention=60 * DAY)
    intake, journal = make_intake(ledger, tmp_path / "journal")
    shadow = Shadow(2, 0.1, b"abcd")  # not a number that doubles and texts say alike by chance
    ours = [{"receipt": receipt(i, shadow=shadow), "label": 1} for i in range(6)]
    theirs = [{"receipt": receipt(i, shadow=shadow), "label": 2} for i in range(6, 10)]
    assert all(take(intake, ours, "ours") + take(intake, theirs, "theirs"))
    journal.close()
    told = next(iter(read_journal(tmp_path / "journal")))
    assert told.lines[0].noted.shadow == (np.float32(0.1), False, False, "61626364")
    assert revoke(ledger, tmp_path / "journal", source="theirs", by="a test").labels == {V: 4}
    with ledger.transaction():
        rows = ledger.take_waiting(V, until=4e9, most=100)
    assert sorted(row.nonce for row in rows) == [i.to_bytes(10, "big") for i in range(6)]
    assert all(row.shadow == (np.float32(0.1), False, False, "61626364") for row in rows)
    ledger.close()
