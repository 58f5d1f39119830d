"""One contract for every ledger: SQLite and Redis count the same labels, the same way."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from calib_serve.errors import InputError, LedgerError
from calib_serve.receipts import Label, Receipt
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.redis_ledger import RedisLedger
from calib_serve.watch.sums import Key, Sums

FOREVER = 4e9


def make_label(i, *, confidence=0.9, label=1, model="m", version="1", when=1000.0):
    return Label(Receipt("k", model, version, when, i.to_bytes(12, "big"), 1, confidence), label)


def accept(ledger, labels, expires=FOREVER, **more):
    return ledger.accept(labels, expires=[expires] * len(labels), **more)


def open_one(kind, place, **options):
    if kind == "sqlite":
        return SqliteLedger(place, **options)
    url, prefix = place
    return RedisLedger(url, prefix=prefix, **options)


@pytest.fixture(params=["sqlite", "redis"])
def store(request, tmp_path):
    """(kind, where it is): open it with ``open_one(*store)``."""
    if request.param == "sqlite":
        return "sqlite", str(tmp_path / "ledger.db")
    return "redis", (request.getfixturevalue("redis_url"), uuid.uuid4().hex)


@pytest.fixture
def ledger(store):
    ledger = open_one(*store)
    yield ledger
    ledger.close()


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
        np.testing.assert_allclose(got.flat(), Sums.labelled(c[of], y[of]).flat(), rtol=1e-12)


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


def _write(kind, place, start):
    ledger = open_one(kind, place, timeout=60)
    for at in range(start, start + 200, 10):
        accept(ledger, [make_label(i) for i in range(at, at + 10)])
    ledger.close()


def test_concurrent_writers_with_overlapping_labels_lose_and_double_nothing(store):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(*store, 100 * k)) for k in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    ledger = open_one(*store)
    assert ledger.sums()["m", "1"].feedback.n == 400
    ledger.close()


def test_a_killed_writer_neither_loses_nor_doubles_a_label(store):
    # It is killed at a moment of its own, in the middle of its work, and then starts again.
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_ledger_contract import *
ledger = open_one(*{store!r})
for at in range(0, 100_000, 10):
    accept(ledger, [make_label(i) for i in range(at, at + 10)])
    print(at, flush=True)
"""
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        acknowledged = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    acknowledged = int(rest[-1]) if rest else acknowledged
    ledger = open_one(*store)
    counted = ledger.sums()["m", "1"].feedback.n
    assert acknowledged + 10 <= counted <= acknowledged + 20  # the last batch may lack its acknowledgement
    again = [
        accept(ledger, [make_label(i) for i in range(at, at + 10)]) for at in range(0, acknowledged + 20, 10)
    ]
    assert not any(any(batch) for batch in again[:-1])
    assert ledger.sums()["m", "1"].feedback.n == acknowledged + 20
    ledger.close()


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
    ledger.forget_emissions("torchserve")
    with ledger.emission("torchserve") as fresh:
        assert fresh["m", "1"].feedback.n == 3
    ledger.close()


def test_a_transaction_keeps_others_out(store):
    one, two = open_one(*store), open_one(*store, timeout=0.2)
    with one.transaction(), one.transaction():
        one.store("key", b"\x00value")
        began = time.monotonic()
        with pytest.raises(LedgerError, match="lock"), two.transaction():
            raise AssertionError("two transactions at once")
        assert time.monotonic() - began < 5
    with two.transaction():
        assert two.load("key") == b"\x00value"
    assert two.load("nothing") is None
    one.close(), two.close()


def test_another_bin_count_is_refused(store):
    open_one(*store, bins=15).close()
    with pytest.raises(LedgerError, match="15 bins, not 10"):
        open_one(*store, bins=10)


def test_expiries_must_match_labels(ledger):
    with pytest.raises(InputError, match="got 1, 0 and 1"):
        ledger.accept([make_label(1)], expires=[])
