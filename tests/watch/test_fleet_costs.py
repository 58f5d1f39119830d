"""What is done for many versions is done once, for those that need it, and says the same as one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ledgers import NOW, entries, make_label

from calib_serve.receipts import DAY
from calib_serve.watch.feed import DriftFeed
from calib_serve.watch.ledger import Key, SqliteLedger, Sums
from calib_serve.watch.maturity import Maturity
from calib_serve.watch.windows import WINDOWS, read_window, read_windows

pytestmark = pytest.mark.store

V = ("m", "1")


@pytest.fixture
def ledger(tmp_path):
    made = SqliteLedger(tmp_path / "l.db", retention=60 * DAY)
    yield made
    made.close()


def fill(ledger, versions, seed=0):
    rng = np.random.default_rng(seed)
    for version in versions:
        for age in rng.exponential(DAY, 20).tolist():
            c = rng.uniform(0.3, 1, 30)
            sums = Sums.served(c) + Sums.labelled(c[:9], rng.random(9) < c[:9], delay=rng.exponential(99, 9))
            ledger.add({Key(*version, "north"): sums, Key(*version, "1", "class"): sums}, time=NOW - age)


@pytest.mark.parametrize("maturity", [Maturity(0.0, given=True), Maturity(5000.0, given=False)])
def test_windows_that_are_read_together_are_those_read_alone(ledger, maturity):
    fill(ledger, [V, ("m", "2")])
    found = read_windows(ledger, V, WINDOWS, maturity=maturity, now=NOW)
    for name in WINDOWS:
        alone = read_window(ledger, V, name, maturity=maturity, now=NOW)
        assert found[name].slices == alone.slices
        assert found[name].immature == alone.immature
        assert (found[name].since, found[name].until) == (alone.since, alone.until)
        assert [one.start for one in found[name].dated] == [one.start for one in alone.dated]
        assert alone.sums.labels.sum() > 0 or name == "1h"


def label_all(ledger, versions, *, age, first=0):
    labels = [
        make_label(first + i, model=model, version=version, when=NOW - age)
        for i, (model, version) in enumerate(versions)
    ]
    ledger.accept(entries(labels))


def test_learned_maturities_are_asked_of_each_version(ledger):
    soon, late, never = ("m", "soon"), ("m", "late"), ("m", "never")
    for version, delay in ((soon, 50.0), (late, 5000.0)):
        sums = Sums.labelled([0.9] * 99, [1] * 99, delay=[delay] * 99)
        for age in (0.3 * DAY, 1.0 * DAY):
            ledger.add({Key(*version): sums}, time=NOW - age)
    label_all(ledger, [soon, late, never], age=600)
    feed = DriftFeed(ledger, clock=lambda: NOW)
    feed.tick()
    assert [feed.maturity(v).seconds for v in (soon, late, never)] == [64.0, 8192.0, math.inf]
    assert ledger.waiting() == {late: 1, never: 1}
