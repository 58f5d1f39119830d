"""One contract for every ledger: SQLite and Redis count the same labels, the same way."""

from dataclasses import replace

import numpy as np
import pytest
from ledgers import NOW, accept, entries, make_label, open_one

from calib_serve.errors import ConflictError, LedgerError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Once, SqliteLedger
from calib_serve.watch.ledger.sums import Key, Sums

pytestmark = pytest.mark.store

BATCH = Once.of(b"batch 1", time=NOW)


def test_a_label_is_counted_once_even_within_one_batch(ledger):
    assert accept(ledger, [make_label(1), make_label(1), make_label(2, label=0)]) == [True, False, True]
    assert accept(ledger, [make_label(2)]) == [False]
    assert ledger.sums()["m", "1"] == Sums.labelled([0.9, 0.9], [1, 0])


def test_sums_equal_numpy_over_many_batches_versions_and_segments(ledger):
    rng = np.random.default_rng(0)
    c, y = rng.random(500), rng.integers(0, 2, 500)
    labels = [make_label(i, confidence=c[i], label=int(y[i]), version=str(i % 2)) for i in range(500)]
    segments = ["north" if i % 3 else "south" for i in range(500)]
    for at in range(0, 500, 37):
        accept(ledger, labels[at : at + 37], segments=segments[at : at + 37])
    odd, south = np.arange(500) % 2 == 1, np.arange(500) % 3 == 0
    for got, of in (
        (ledger.sums()["m", "1"], odd),
        (ledger.slices()[Key("m", "1", "south")], odd & south),
    ):
        np.testing.assert_allclose(got.vector, Sums.labelled(c[of], y[of]).vector, rtol=1e-12)


def test_two_replicas_share_the_nonces_and_publish_their_own_share(store):
    one, two = open_one(*store, writer="one"), open_one(*store, writer="two")
    assert accept(one, [make_label(1)]) == [True]
    assert accept(two, [make_label(1), make_label(2), make_label(3)]) == [False, True, True]
    assert one.sums() == two.sums()
    assert one.sums()["m", "1"].feedback.n == 3
    assert [ledger.sums(own=True)["m", "1"].feedback.n for ledger in (one, two)] == [1, 2]
    with two.emission("torchserve") as (fresh, _):
        assert fresh["m", "1"].feedback.n == 2
    one.close(), two.close()


def test_predictions_are_added_and_a_repeated_batch_is_not(ledger):
    served = {Key("m", "1", "north"): Sums.served([0.9, 0.5])}
    assert ledger.add(served, time=NOW, once=BATCH)
    assert not ledger.add(served, time=NOW, once=BATCH)
    assert ledger.add(served, time=NOW)
    assert ledger.sums()["m", "1"].predictions.sum() == 4


def test_a_name_stands_for_the_content_and_time_that_came_under_it_first(ledger):
    served = {Key("m", "1"): Sums.served([0.9])}
    first = Once.of(b"batch", b"content", time=NOW)
    assert ledger.add(served, time=NOW, once=first)
    assert not ledger.add(served, time=NOW + 1, once=Once.of(b"batch", b"content", time=NOW + 1))
    with pytest.raises(ConflictError, match="another batch"):
        ledger.add(served, time=NOW, once=Once.of(b"batch", b"another", time=NOW))
    assert ledger.known(Once.of(b"batch", time=0.0)).time == first.time
    assert ledger.known(Once.of(b"none", time=0.0)) is None
    assert ledger.sums()["m", "1"].predictions.sum() == 1


def test_a_receipt_older_than_the_retention_is_not_counted(ledger):
    if isinstance(ledger, SqliteLedger):  # Redis forgets by itself, SQLite in sweeps
        accept(ledger, [make_label(1 << 16, when=NOW - 40 * DAY), make_label(3)])
        ledger.prune(NOW)
    assert ledger.accept(entries([make_label(2, when=NOW - 41 * DAY)])) == ["forgotten"]


def test_a_longer_retention_counts_no_label_twice(store):
    old, new = [make_label(i, when=NOW - 20 * DAY) for i in range(3)], make_label(9, when=NOW - DAY)
    short = open_one(*store, retention=10 * DAY)
    assert accept(short, [new])
    short.close()
    long = open_one(*store, retention=60 * DAY)
    # What the shorter one may have forgotten is refused, and what it remembers is remembered for longer.
    assert long.accept(entries([*old, new])) == ["forgotten"] * 3 + ["duplicate"]
    again = open_one(*store, retention=5 * DAY)
    assert again.retention == 60 * DAY
    long.close(), again.close()


def test_labels_wait_for_the_detector_in_the_order_of_their_predictions(ledger):
    late = [make_label(i, when=NOW - 60 * i, label=i % 2, group=i) for i in range(5)]
    accept(ledger, late)
    ledger.accept(entries([make_label(7)]), detect=False)
    assert ledger.waiting() == {("m", "1"): 5}
    with ledger.transaction():
        first = ledger.take_waiting(("m", "1"), until=NOW - 60, most=2)
        rest = ledger.take_waiting(("m", "1"), until=NOW - 60, most=2)
    assert [(one.group, one.correct) for one in first + rest] == [(4, False), (3, True), (2, False)]
    assert [one.time for one in first] == pytest.approx([NOW - 240, NOW - 180], abs=0.001)
    assert (first[0].confidence, first[0].predicted) == (0.9, 1)
    assert ledger.waiting() == {("m", "1"): 2}


def test_labels_of_one_moment_wait_in_no_order_that_their_outcomes_could_make(ledger):
    # Wrong ones come first; the order of nonces has nothing to do with that.
    accept(ledger, [make_label(i, label=0) for i in (9, 3, 7)])
    accept(ledger, [make_label(i) for i in (8, 2, 4)])
    with ledger.transaction():
        taken = ledger.take_waiting(("m", "1"), until=NOW + 1, most=10)
    assert [one.nonce[-1] for one in taken] == [2, 3, 4, 7, 8, 9]


def test_a_label_counts_in_the_span_of_its_prediction_however_late_it_comes(ledger):
    for i, hours in enumerate((2, 100, 700)):
        accept(ledger, [make_label(i, when=NOW - 3600 * hours)], delay=3600 * hours)
    found = ledger.dated(0, NOW + 2 * DAY, version=("m", "1"), kind="segment")
    assert [(one.width, one.sums.labels.sum()) for one in found] == [(3600, 1), (3600, 1), (300, 1)]
    assert all(one.start % one.width == 0 for one in found)
    recent = ledger.dated(NOW - 3 * 3600, NOW + DAY, kind="class")
    assert [(one.key, one.sums.labels.sum()) for one in recent] == [(Key("m", "1", "1", "class"), 1)]


def test_spans_that_grow_old_become_wider_and_lose_nothing(store):
    ledger = open_one(*store, retention=60 * DAY)
    ages = [0.1, 3, 3.01, 3.02, 50, 50.1]  # days; each label came at once
    accept(ledger, [make_label(i, when=NOW - age * DAY) for i, age in enumerate(ages)])
    ledger.prune(NOW) if isinstance(ledger, SqliteLedger) else ledger.sweep(NOW)
    found = ledger.dated(0, NOW + DAY, kind="segment")
    assert {one.width for one in found} == {300, 3600, DAY}
    assert sum(one.sums.labels.sum() for one in found) == len(ages) == ledger.sums()["m", "1"].labels.sum()
    ledger.close()


def test_bits_and_names_are_counted_once_in_every_order(store):
    rng = np.random.default_rng(1)
    one, two = open_one(*store, writer="one"), open_one(*store, writer="two")
    epochs = [bytes([e] * 8) for e in range(3)]
    every = [e + int(b).to_bytes(2, "big") for e in epochs for b in rng.permutation(6000)[:5000]]
    labels = [make_label(0) for _ in every]
    labels = [
        replace(one, receipt=replace(one.receipt, nonce=n)) for one, n in zip(labels, every, strict=True)
    ]
    sent = [labels[i] for i in rng.permutation(np.arange(len(labels)).repeat(2))]
    counted = 0
    for at in range(0, len(sent), 3000):
        counted += sum(accept([one, two][at // 3000 % 2], sent[at : at + 3000]))
    assert counted == len(labels) == one.sums()["m", "1"].labels.sum()
    one.close(), two.close()


def test_an_emitter_gets_each_label_once_over_restarts(store):
    ledger = open_one(*store)
    accept(ledger, [make_label(1), make_label(2)])
    with ledger.emission("torchserve") as (fresh, _):
        assert fresh["m", "1"].feedback.n == 2
    ledger.close()
    ledger = open_one(*store)
    with ledger.emission("torchserve") as (fresh, _):
        assert fresh == {}
    accept(ledger, [make_label(3)])
    with pytest.raises(OSError, match="pipe"), ledger.emission("torchserve") as (fresh, _):
        raise OSError("broken pipe")
    with ledger.emission("torchserve") as (fresh, _):
        assert fresh["m", "1"].feedback.n == 1
    with ledger.emission("another") as (fresh, _):
        assert fresh["m", "1"].feedback.n == 3
    ledger.close()


def test_another_bin_count_is_refused(store):
    open_one(*store, bins=15).close()
    with pytest.raises(LedgerError, match="15 bins, not 10"):
        open_one(*store, bins=10)
