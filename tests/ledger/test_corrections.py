"""A label that replaces another leaves every sum as if the other had never come."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ledgers import NOW, accept, ask, entries, make_label, revoked, sweep
from sizes import sized

from calib_serve.ledger import Entry, Ledger
from calib_serve.receipts import DAY, Label, Shadow
from calib_serve.receipts.sums import Key, Sums

pytestmark = pytest.mark.store

V = ("m", "1")


def sent(
    labels: Sequence[Label], *, source: str = "lab", delay: float = 60.0, replaces: bool = False
) -> list[Entry]:
    """Labels in slices of every kind."""
    return [
        one._replace(
            replaces=replaces,
            slices=(
                *one.slices,
                Key(*V, str(one.label.receipt.group % 32), "group"),
                Key(*V, "promise", "clause"),
            ),
        )
        for one in entries(labels, ["north"] * len(labels), delay=delay, source=source)
    ]


def some(n: int, label: int, *, days: float = 0.0) -> list[Label]:
    """Labels of unlike confidences, weights, groups and shadows."""
    return [
        make_label(
            i, confidence=(i + 0.5) / n, label=label, when=NOW - days * DAY - i, group=i % 3 + 1,
            inclusion=1 / (1 + i % 4), shadow=Shadow(i % 2, 0.5, b"abcd"),
        )
        for i in range(n)
    ]  # fmt: skip


def everything(ledger: Ledger) -> dict[object, np.ndarray]:
    """All sums of all places, of which something is not 0."""
    found: dict[object, np.ndarray] = {key: sums.vector for key, sums in ledger.slices(None).items()}
    dated = ledger.dated(0, 1e12)
    found |= {(one.key, one.start, one.width): one.sums.vector for one in dated}
    return {place: vector for place, vector in found.items() if np.abs(vector).max() > 1e-9}


def assert_alike(ledger: Ledger, other: Ledger) -> None:
    found, expected = everything(ledger), everything(other)
    assert found.keys() == expected.keys()
    for place, vector in expected.items():
        np.testing.assert_allclose(found[place], vector, rtol=1e-9, atol=1e-9, err_msg=str(place))


@pytest.mark.parametrize("between", ["at once", "rolled up", "in wider spans", "half of each"])
def test_every_sum_is_that_of_the_new_labels_alone(between: str, url: str, tmp_path: Path) -> None:
    now = [NOW]
    ledger, other = Ledger(url, clock=lambda: now[0]), Ledger(tmp_path / "other.db", clock=lambda: now[0])
    for one in (ledger, other):
        one.add({Key(*V, "north"): Sums.served([0.5] * 40)}, time=NOW)
    old = some(40, 1)
    kept = [make_label(1000 + i) for i in range(5)]
    for one in (ledger, other):
        one.accept(sent(kept))
    for half in (old[:20], old[20:]):
        assert ledger.accept(sent(half)) == ["counted"] * 20
        if between != "at once" and (between != "half of each" or half[0] is old[0]):
            ledger.roll_up()
    if between == "in wider spans":
        now[0] += 9 * DAY
        sweep(ledger, now[0]), sweep(other, now[0])
    new = some(40, 2)
    again = sent(new, source="desk", delay=now[0] - NOW + 600, replaces=True)
    assert ledger.accept(again) == ["corrected"] * 40
    assert other.accept(again) == ["counted"] * 40
    assert_alike(ledger, other)
    for one in (ledger, other):
        one.roll_up()
    assert_alike(ledger, other)
    assert ledger.accept(again) == ["duplicate"] * 40  # sent again
    assert ledger.accept(sent(old)) == ["duplicate"] * 40
    assert_alike(ledger, other)
    assert ledger.check() == []
    assert revoked(ledger, "lab") == {V: 5}
    assert revoked(ledger, "desk") == {V: 40}
    assert sum(float(one.labels.sum()) for one in ledger.sums().values()) == pytest.approx(0, abs=1e-9)
    ledger.close(), other.close()


def test_both_labels_are_in_the_history_of_the_row(ledger: Ledger, url: str) -> None:
    for label, source in ((1, "lab"), (0, "desk"), (2, "")):
        ledger.accept(sent([make_label(1, label=label)], source=source, replaces=True))
    (row,) = ask(url, "select label, correct, source, history from labels")
    assert (row[0], bool(row[1]), row[2]) == (2, False, "")
    assert json.loads(row[3]) == [
        {"label": 1, "source": "lab", "arrived_at": NOW + 60},
        {"label": 0, "source": "desk", "arrived_at": NOW + 60},
    ]


def test_the_edition_of_its_version_alone_changes(ledger: Ledger) -> None:
    accept(ledger, [make_label(1), make_label(2, version="2")])
    before = ledger.published()
    assert ledger.accept(sent([make_label(1, label=0)], replaces=True)) == ["corrected"]
    after = ledger.published()
    assert after.labels(V) != before.labels(V)
    assert after.labels(("m", "2")) == before.labels(("m", "2"))


def test_a_detector_sees_each_prediction_once_and_the_label_that_it_has_by_then(ledger: Ledger) -> None:
    accept(ledger, [make_label(1), make_label(2)])
    with ledger.transaction():
        (first,) = ledger.followers.take(V, until=NOW + 9, most=1)
    assert first.correct
    both = sent([make_label(1, label=0), make_label(2, label=0)], replaces=True)
    assert ledger.accept(both) == ["corrected"] * 2
    assert ledger.followers.waiting() == {V: 1}
    with ledger.transaction():
        (second,) = ledger.followers.take(V, until=NOW + 9, most=9)
    assert (second.nonce, second.correct) == (make_label(2).receipt.nonce, False)
    assert ledger.followers.waiting() == {}


@pytest.mark.parametrize("rolled", [False, True])
def test_of_one_receipt_in_one_batch_the_last_that_replaces_counts(ledger: Ledger, rolled: bool) -> None:
    if rolled:
        accept(ledger, [make_label(1, label=1)])
        ledger.roll_up()
    plain, first, second = (make_label(1, label=label) for label in (1, 0, 2))
    batch = [*sent([plain]), *sent([first, second, first], replaces=True), *sent([plain])]
    last = "corrected" if rolled else "counted"
    assert ledger.accept(batch) == ["duplicate", "duplicate", "duplicate", last, "duplicate"]
    assert ledger.accept([batch[3]] * 2) == ["duplicate"] * 2
    sums = ledger.sums()[V]
    assert (sums.labels.sum(), sums.feedback.correct.sum()) == (pytest.approx(1), pytest.approx(0, abs=1e-9))


def test_what_fails_changes_neither_label_nor_sums(ledger: Ledger) -> None:
    accept(ledger, [make_label(i) for i in range(9)])
    ledger.roll_up()
    before = everything(ledger)

    def failing() -> None:
        with ledger.transaction():
            ledger.accept(sent([make_label(i, label=0) for i in range(9)], replaces=True))
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        failing()
    assert everything(ledger).keys() == before.keys()
    again = sent([make_label(i, label=0) for i in range(9)], replaces=True)
    assert ledger.accept(again) == ["corrected"] * 9


def test_processes_that_correct_roll_up_sweep_and_revoke_at_once_leave_one_label_each(url: str) -> None:
    n, rounds = 30, sized(6, 60)
    books = [Ledger(url) for _ in range(4)]
    accept(books[0], [make_label(i) for i in range(n)])
    failed: list[BaseException] = []
    stop = threading.Event()

    def correct(number: int) -> None:
        order = np.random.default_rng(number).permutation(n)
        for k in range(rounds):
            some = [make_label(int(i), label=(k + number) % 3) for i in order]
            books[number].accept(sent(some, source=f"desk{number}", replaces=True))

    def tend(number: int) -> None:
        # A pause between: SQLite queues nobody, so that a writer who never rests starves the others.
        while not stop.wait(0.005):
            books[number].roll_up() if number == 2 else books[number].sweep()
            books[number].revoke("nobody")

    def guarded(work: object, number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    works = [threading.Thread(target=guarded, args=(correct, i)) for i in (0, 1)]
    tending = [threading.Thread(target=guarded, args=(tend, i)) for i in (2, 3)]
    for one in (*works, *tending):
        one.start()
    for one in works:
        one.join()
    stop.set()
    for one in tending:
        one.join()
    assert not failed, failed
    rows = ask(url, "select confidence, correct, inclusion from labels where not revoked")
    expected = sum((Sums.labelled([c], [bool(y)], weight=1 / w) for c, y, w in rows), Sums.zeros())
    found = books[0].sums()[V]
    assert len(rows) == n
    np.testing.assert_allclose(found.feedback.correct, expected.feedback.correct, atol=1e-9)
    np.testing.assert_allclose(found.labels, expected.labels, atol=1e-9)
    assert books[0].check() == []
    for one in books:
        one.close()
