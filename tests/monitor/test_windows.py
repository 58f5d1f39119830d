"""Windows go by the time of the prediction, hold what is mature, and add up to all that was counted."""

import math

import numpy as np
import pytest
from ledgers import NOW as LATELY
from ledgers import accept, entries, make_label, sweep

from calib_serve.ledger import Entry, Ledger
from calib_serve.monitor.live_verdict import judge_estimates
from calib_serve.monitor.windows import WINDOWS, Maturity, read_windows
from calib_serve.receipts import DAY
from calib_serve.receipts.sums import Key, Sums

pytestmark = pytest.mark.store

NOW = LATELY - LATELY % 300 - 150  # the middle of a span: what is a minute apart is in the same one
V = ("m", "1")
AT_ONCE, UNKNOWN = Maturity(0.0, given=True), Maturity(math.inf, given=False)
HOUR = Maturity(3600.0, given=True)


def served(ledger, ages):
    for age in ages:
        ledger.add({Key(*V): Sums.served([0.9])}, time=NOW - age)


def window(ledger, name, maturity=AT_ONCE, now=NOW + 1):
    return read_windows(ledger, V, [name], maturity=maturity, now=now)[name]


@pytest.mark.parametrize("maturity", [AT_ONCE, HOUR, UNKNOWN, Maturity(5 * DAY, given=False)])
def test_mature_and_immature_add_up_to_the_totals(url, maturity):
    ledger = Ledger(url, retention=60 * DAY)
    rng = np.random.default_rng(0)
    ages = rng.exponential(4 * DAY, 200).clip(max=50 * DAY)
    labels = [
        make_label(i, confidence=c, label=int(i % 3 == 0), when=NOW - age, group=i % 40)
        for i, (age, c) in enumerate(zip(ages.tolist(), rng.random(200).tolist(), strict=True))
    ]
    segments = ["north" if i % 4 else "" for i in range(200)]
    sliced = [
        Entry(one.label, NOW, (*one.slices, Key(*V, str(one.label.receipt.group % 32), "group")))
        for one in entries(labels, segments)
    ]
    ledger.accept(sliced)
    served(ledger, ages[:50].tolist())
    total, found = ledger.sums()[V], window(ledger, "all", maturity)
    np.testing.assert_allclose((found.sums + found.immature).vector, total.vector, rtol=1e-9, atol=1e-9)
    classes = [sums.labels.sum() for key, sums in found.slices.items() if key.kind == "class"]
    assert found.sums.labels.sum() == sum(classes)
    assert sum(one.labels.sum() for one in found.groups) == found.sums.labels.sum()
    curve = sum(sums.labels.sum() for _, _, sums in found.steps())
    assert curve == found.sums.labels.sum()
    ledger.close()


@pytest.mark.parametrize("maturity", [AT_ONCE, Maturity(5000.0, given=False)])
def test_windows_that_are_read_together_are_those_read_alone(ledger, maturity):
    rng = np.random.default_rng(0)
    for version in (V, ("m", "2")):
        for age in rng.exponential(DAY, 20).tolist():
            c = rng.uniform(0.3, 1, 30)
            sums = Sums.served(c) + Sums.labelled(c[:9], rng.random(9) < c[:9], delay=rng.exponential(99, 9))
            ledger.add({Key(*version, "north"): sums, Key(*version, "1", "class"): sums}, time=NOW - age)
    found = read_windows(ledger, V, WINDOWS, maturity=maturity, now=NOW)
    for name in WINDOWS:
        alone = window(ledger, name, maturity, NOW)
        assert found[name].slices == alone.slices
        assert found[name].immature == alone.immature
        assert (found[name].since, found[name].until) == (alone.since, alone.until)
        assert [one[0] for one in found[name].steps()] == [one[0] for one in alone.steps()]
        assert alone.sums.labels.sum() > 0 or name in ("5m", "1h")


def test_what_is_not_mature_stands_apart(ledger):
    served(ledger, [60, 1800, 2 * 3600, 5 * 3600])
    accept(ledger, [make_label(1, when=NOW - 60), make_label(2, when=NOW - 5 * 3600)])
    day = window(ledger, "24h", HOUR)
    assert (day.sums.predictions.sum(), day.sums.labels.sum()) == (2, 1)
    assert (day.immature.predictions.sum(), day.immature.labels.sum()) == (2, 1)
    assert day.immature_share == 0.5
    assert day.until == pytest.approx(NOW + 1 - 3600)
    at_once = window(ledger, "24h")
    assert (at_once.sums.predictions.sum(), at_once.immature_share) == (4, 0)
    none = window(ledger, "24h", UNKNOWN)
    # All that was predicted before has its label.
    assert (none.sums.predictions.sum(), none.immature_share) == (1, 0.75)
    assert math.isnan(read_windows(ledger, ("m", "2"), ["24h"], maturity=HOUR, now=NOW)["24h"].immature_share)


@pytest.mark.parametrize("seconds", [0.0, 3600.0, 3 * DAY, 20 * DAY])
@pytest.mark.parametrize("name", ["1h", "24h", "7d"])
def test_a_window_is_about_as_long_as_it_says_whatever_the_maturity(tmp_path, name, seconds):
    """Old spans are wide: a window must not fall between two of them."""
    ledger = Ledger(tmp_path / "l.db", retention=60 * DAY)
    step = WINDOWS[name] / 48
    ages = seconds + np.arange(-4 * 3600, 2 * WINDOWS[name] + 2 * DAY, step)
    ledger.add({Key(*V): Sums.served([0.9])}, time=NOW)  # makes the file
    times = (NOW - ages[ages > 0]).tolist()
    ledger.accept(entries([make_label(i, when=t) for i, t in enumerate(times)]))
    rows = [Entry(one.label, NOW, one.slices) for one in entries([make_label(10**6, when=NOW)])]
    ledger.accept(rows)
    sweep(ledger, NOW)
    for shift in (0.0, 1000.0, 2500.0) if seconds else (0.0,):  # nothing came after NOW
        found = window(ledger, name, Maturity(seconds, given=True), now=NOW + shift)
        assert 36 <= found.sums.labels.sum() <= 60
    ledger.close()


def test_while_it_is_not_known_when_labels_are_in_what_has_come_can_be_seen_and_is_no_verdict(ledger):
    served(ledger, [60.0] * 501)
    accept(ledger, [make_label(i, when=NOW - 60, label=0) for i in range(500)])
    mature = window(ledger, "24h", UNKNOWN)
    assert mature.sums.labels.sum() == 0
    assert mature.immature_share == 1
    shown = read_windows(ledger, V, ["24h"], maturity=UNKNOWN, now=NOW + 1, provisional=True)["24h"]
    assert shown.sums.labels.sum() == 500
    assert shown.estimates.gap.value == pytest.approx(0.9)
    assert (shown.verdict.level, shown.verdict.headline[:18]) == ("too_little", "Provisional, as mo")
    assert judge_estimates(shown.estimates).level == "off"


@pytest.mark.parametrize("maturity", [HOUR, UNKNOWN, Maturity(5 * DAY, given=False)])
def test_with_every_label_in_nothing_waits_whatever_the_maturity(ledger, maturity):
    ages = [10.0, 60.0, 700.0, 3 * 3600.0]
    served(ledger, ages)
    accept(ledger, [make_label(i, when=NOW - age, label=0) for i, age in enumerate(ages)])
    found = read_windows(ledger, V, WINDOWS, maturity=maturity, now=NOW + 1, provisional=True)
    for name, labels in (("1h", 3), ("24h", 4), ("7d", 4), ("all", 4)):
        assert (found[name].sums.labels.sum(), found[name].sums.predictions.sum()) == (labels, labels)
        assert (found[name].immature_share, found[name].provisional) == (0, False)
        assert found[name].until == NOW + 1
    served(ledger, [1.0])  # and its label is to come
    young = window(ledger, "24h", maturity)
    assert (young.sums.labels.sum(), young.immature.predictions.sum()) == (2, 3)


@pytest.mark.parametrize("maturity", [HOUR, UNKNOWN])
def test_of_spans_with_few_predictions_each_those_that_are_labelled_soon_do_not_count_alone(ledger, maturity):
    """Wrong ones are told at once, the others after an hour, and there is one prediction in five minutes."""
    ages = 60.0 + 300.0 * np.arange(20)
    served(ledger, ages.tolist())
    wrong = [k for k in range(20) if k % 2]
    late = [k for k in range(20) if ages[k] > 3600]
    accept(ledger, [make_label(k, when=NOW - ages[k], label=int(k % 2)) for k in {*wrong, *late}])
    found = window(ledger, "24h", maturity, NOW)
    counted = found.sums.predictions.sum()
    assert found.sums.labels.sum() == counted > 5
    assert abs(found.sums["calib_feedback_right"].sum() - counted / 2) <= 1


def test_where_labels_come_for_predictions_that_are_not_counted_all_may_not_be_in(ledger):
    served(ledger, [60.0])
    accept(ledger, [make_label(i, when=NOW - 60) for i in range(2)])
    found = window(ledger, "24h", UNKNOWN)
    assert (found.sums.labels.sum(), found.immature.labels.sum()) == (0, 2)
    shown = read_windows(ledger, V, ["24h"], maturity=UNKNOWN, now=NOW, provisional=True)["24h"]
    assert (shown.sums.labels.sum(), shown.provisional) == (2, True)
