"""What is asked of one version, or until a time, is what is asked of all, and less is read for it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from ledgers import NOW, accept, entries, make_label, open_one

from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Key, SqliteLedger, Sums
from calib_serve.watch.ledger.sums import merge_slices

pytestmark = pytest.mark.store

VERSIONS = [("a", "1"), ("a", "2"), ("b", "1"), ("b/1", "")]
AGES = (60.0, 3000.0, 1.5 * DAY, 3 * DAY, 20 * DAY)


def fill(ledger, writer="w"):
    ledger.writer = writer
    for i, version in enumerate(VERSIONS[:3]):
        for j, age in enumerate(AGES):
            for segment in ("", "north")[: 1 + i % 2]:
                sums = Sums.served(np.linspace(0.1, 0.9, 3 + i + j))
                ledger.add(
                    {Key(*version, segment): sums, Key(*version, str(j), "class"): sums}, time=NOW - age
                )
        labels = [
            make_label(1000 * i + j, model=version[0], version=version[1], when=NOW - age)
            for j, age in enumerate(AGES)
        ]
        accept(ledger, labels, ["north" if j % 2 else "" for j in range(len(AGES))])


@pytest.mark.parametrize("folded", [False, True])
def test_one_version_of_all(store, folded):
    ledger = open_one(*store)
    for writer in ("w", "other", "w"):
        fill(ledger, writer)
    if folded:
        ledger.sweep(NOW)
    for own in (False, True):
        for kind in ("segment", "class", "source"):
            every = ledger.slices(kind, own=own)
            for version in VERSIONS:
                found = ledger.slices(kind, own=own, version=version)
                assert found == {key: sums for key, sums in every.items() if key.of == version}
        merged, sums = merge_slices(ledger.slices(own=own)), ledger.sums(own=own)
        assert set(sums) == set(merged)
        for version, one in sums.items():  # added up in another order
            np.testing.assert_allclose(one.vector, merged[version].vector, rtol=1e-12)
    every = list(ledger.dated(0.0, math.inf))
    for version in VERSIONS:
        mine = [one for one in every if one.key.of == version]
        assert_same(ledger.dated(0.0, math.inf, version=version), mine)
        since = NOW - 2 * DAY
        assert_same(
            ledger.dated(since, NOW, version=version, kind="segment"),
            [
                one
                for one in mine
                if one.key.kind == "segment" and one.start >= since and one.start + one.width <= NOW
            ],
        )
    ledger.close()


def assert_same(found, wanted):
    of = {(one.key, one.start, one.width): one.sums for one in found}
    assert of == {(one.key, one.start, one.width): one.sums for one in wanted}


def test_a_version_that_takes_the_place_of_a_dropped_one_is_there(store):
    """Although there are as many names as before."""
    ledger = open_one(*store)
    old, new = VERSIONS[:2]
    ledger.add({Key(*old): Sums.served([0.9])}, time=NOW)
    assert set(ledger.slices(version=old)) == {Key(*old)}
    ledger.drop(old)
    ledger.add({Key(*new): Sums.served([0.9])}, time=NOW)
    assert ledger.slices(version=old) == {}
    assert set(ledger.slices(version=new)) == {Key(*new)}
    ledger.close()


def test_labels_that_wait_until_a_time(store):
    ledger = open_one(*store)
    labels = [make_label(i, version=str(i % 2), when=NOW - i * 100) for i in range(10)]
    ledger.accept(entries(labels[:6]))
    ledger.accept(entries(labels[6:8]), detect=False)
    ledger.accept(entries(labels[8:]))
    assert ledger.waiting() == {("m", "0"): 4, ("m", "1"): 4}
    assert ledger.waiting(until=NOW - 250) == {("m", "0"): 2, ("m", "1"): 3}
    assert ledger.waiting(until=NOW - 250 - 1e4) == {}
    assert len(ledger.take_waiting(("m", "0"), until=math.inf, most=3)) == 3
    assert ledger.waiting() == {("m", "0"): 1, ("m", "1"): 4}
    ledger.close()


def spans(ledger):
    return sorted(ledger._db.execute("SELECT model, version, width, count(*) FROM spans GROUP BY 1, 2, 3"))


def test_a_label_waits_for_little_of_the_merging_of_spans(tmp_path, monkeypatch):
    """One version a look, as a look here has no time at all; in the end all are merged, and none lost."""
    clock = [NOW]
    ledger = SqliteLedger(tmp_path / "l.db", retention=60 * DAY, clock=lambda: clock[0])
    for i in range(5):
        for age in range(0, 6000, 300):
            ledger.add({Key("m", str(i)): Sums.served([0.9])}, time=NOW - age)
    totals, fine = ledger.sums(), spans(ledger)
    monkeypatch.setattr("calib_serve.watch.ledger.sqlite._LOOK", 0.0)
    merged = []
    for i in range(16):
        clock[0] = NOW + 5 * DAY + 100 * i
        accept(ledger, [make_label(i, model="other", when=clock[0])])
        merged.append(len([1 for model, _, width, _ in spans(ledger) if (model, width) == ("m", 300.0)]))
    assert {was - now for was, now in itertools.pairwise(merged)} == {0, 1}
    assert (merged[0], merged[-1]) == (5, 0)
    kept = [one for one in spans(ledger) if one[0] == "m"]
    assert {width for *_, width, _ in kept} == {3600.0} != {width for *_, width, _ in fine}
    assert {v: s for v, s in ledger.sums().items() if v[0] == "m"} == totals
    assert ledger.verify() == []
    ledger.close()
