"""One contract for every ledger: SQLite and Redis count the same labels, the same way."""

import numpy as np
import pytest
from ledgers import FOREVER, accept, make_label, open_one

from calib_serve.errors import InputError, LedgerError
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.ledger.sums import Key, Sums


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
        (ledger.by_segment()[Key("m", "1", "south")], odd & south),
    ):
        np.testing.assert_allclose(got.vector, Sums.labelled(c[of], y[of]).vector, rtol=1e-12)


def test_two_replicas_share_the_nonces_and_publish_their_own_share(store):
    one, two = open_one(*store, writer="one"), open_one(*store, writer="two")
    assert accept(one, [make_label(1)]) == [True]
    assert accept(two, [make_label(1), make_label(2), make_label(3)]) == [False, True, True]
    assert one.sums() == two.sums()
    assert one.sums()["m", "1"].feedback.n == 3
    assert [ledger.sums(own=True)["m", "1"].feedback.n for ledger in (one, two)] == [1, 2]
    with two.emission("torchserve") as fresh:
        assert fresh["m", "1"].feedback.n == 2
    one.close(), two.close()


def test_predictions_are_added_and_a_repeated_batch_is_not(ledger):
    served = {Key("m", "1", "north"): Sums.served([0.9, 0.5])}
    assert ledger.add(served, once=b"batch 1", expires=FOREVER)
    assert not ledger.add(served, once=b"batch 1", expires=FOREVER)
    assert ledger.add(served)
    assert ledger.sums()["m", "1"].predictions.sum() == 4


def test_a_receipt_that_expired_long_ago_is_not_counted(ledger):
    if isinstance(ledger, SqliteLedger):  # Redis forgets by itself, SQLite in sweeps
        accept(ledger, [make_label(1)], expires=2000.0)
        ledger.prune(3000.0)
    assert accept(ledger, [make_label(2)], expires=1500.0) == [False]


def test_an_emitter_gets_each_label_once_over_restarts(store):
    ledger = open_one(*store)
    accept(ledger, [make_label(1), make_label(2)])
    with ledger.emission("torchserve") as fresh:
        assert fresh["m", "1"].feedback.n == 2
    ledger.close()
    ledger = open_one(*store)
    with ledger.emission("torchserve") as fresh:
        assert fresh == {}
    accept(ledger, [make_label(3)])
    with pytest.raises(OSError, match="pipe"), ledger.emission("torchserve") as fresh:
        raise OSError("broken pipe")
    with ledger.emission("torchserve") as fresh:
        assert fresh["m", "1"].feedback.n == 1
    with ledger.emission("another") as fresh:
        assert fresh["m", "1"].feedback.n == 3
    ledger.close()


def test_another_bin_count_is_refused(store):
    open_one(*store, bins=15).close()
    with pytest.raises(LedgerError, match="15 bins, not 10"):
        open_one(*store, bins=10)


def test_expiries_must_match_labels(ledger):
    with pytest.raises(InputError, match="got 1, 0 and 1"):
        ledger.accept([make_label(1)], expires=[])
