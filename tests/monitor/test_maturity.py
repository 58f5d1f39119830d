"""When labels are in, learned from delays that are cut off by the present."""

import math

import numpy as np
import pytest

from calib_serve.ledger import Ledger, WindowSums
from calib_serve.monitor.feed import DriftFeed
from calib_serve.monitor.windows import learned_delay
from calib_serve.receipts import DAY
from calib_serve.receipts.sums import Key, Sums

NOW = 1_700_000_000.0
SPAN = 300.0


def seen(delays, ages, *, confidence=0.9):
    """The spans of labels with these delays, of predictions ``ages`` old; what is yet to come is not in."""
    come = delays <= ages
    starts = np.floor((NOW - ages) / SPAN) * SPAN
    return [
        WindowSums(
            Key("m", "1"),
            float(start),
            SPAN,
            Sums.labelled(
                np.full(int((mine := come & (starts == start)).sum()), confidence),
                np.ones(int(mine.sum())),
                delay=delays[mine],
            ),
        )
        for start in np.unique(starts)
    ]


def next_step(seconds):
    """The step of the delay in which so many seconds lie: 2, 3, 4, 6, 8, 11, ..."""
    return float(round(2 ** (math.ceil(2 * math.log2(seconds)) / 2)))


@pytest.mark.parametrize("scale", [10.0, 400.0, 3000.0])
def test_it_is_the_99_percent_point_of_the_delays_to_the_next_step(scale):
    rng = np.random.default_rng(int(scale))
    delays, ages = rng.exponential(scale, 20_000), rng.uniform(0, 60 * scale, 20_000)
    assert learned_delay(seen(delays, ages), now=NOW) == next_step(-math.log(0.01) * scale)


def test_young_predictions_which_have_shown_short_delays_alone_do_not_shorten_it():
    """Traffic grows: most predictions are minutes old, and their labels take an hour."""
    rng = np.random.default_rng(0)
    delays = rng.uniform(0, 3600, 60_000)
    ages = np.concatenate([rng.uniform(0, 20_000, 100), rng.uniform(0, 600, 59_900)])
    come = delays <= ages
    plain = np.quantile(delays[come], 0.99)
    assert next_step(plain) < 4096
    assert learned_delay(seen(delays, ages), now=NOW) == 4096


def test_a_version_younger_than_its_delays_says_infinity():
    rng = np.random.default_rng(1)
    delays = rng.exponential(86_400, 50_000)
    for age in (600.0, 3600.0, 86_400.0):
        ages = rng.uniform(0, age, 50_000)
        found = seen(delays, ages)
        assert sum(one.sums.labels.sum() for one in found) > 100
        assert learned_delay(found, now=NOW) == math.inf


def test_too_few_labels_say_infinity():
    delays, ages = np.full(30, 10.0), np.full(30, 10_000.0)
    assert learned_delay(seen(delays[:29], ages[:29]), now=NOW) == math.inf
    assert learned_delay(seen(delays, ages), now=NOW) == 11
    assert learned_delay([], now=NOW) == math.inf


@pytest.mark.store
def test_learned_maturities_are_asked_of_each_version(tmp_path):
    soon, late, never = ("m", "soon"), ("m", "late"), ("m", "never")
    ledger = Ledger(tmp_path / "l.db")
    for version, delay in ((soon, 50.0), (late, 5000.0)):
        sums = Sums.labelled([0.9] * 99, [1] * 99, delay=[delay] * 99)
        for age in (0.3 * DAY, 1.0 * DAY):
            ledger.add({Key(*version): sums}, time=NOW - age)
    feed = DriftFeed(ledger, clock=lambda: NOW)
    assert [feed.maturity(v).seconds for v in (soon, late, never)] == [64.0, 5793.0, math.inf]
    ledger.close()
