"""What a ledger forgets, to the second, and how far it trusts the clock for that."""

from __future__ import annotations

import pytest
from ledgers import accept, ask, entries, make_label

from calib_serve.ledger import Held, Ledger
from calib_serve.ledger.prediction_ids import Binding, PredictionIds
from calib_serve.receipts import DAY
from calib_serve.receipts.batch import BatchKey

pytestmark = pytest.mark.store

NOW = 1_700_000_000.0
V = ("m", "1")
KEPT = 10 * DAY


def forgotten_until(url: str) -> float:
    return float(ask(url, "select forgotten_until from ledger")[0][0])


def test_a_sweep_forgets_what_has_lasted_its_time_and_nothing_a_second_younger(url: str) -> None:
    ledger = Ledger(url, retention=KEPT)
    old = NOW - KEPT
    seen = [make_label(i, when=when) for i, when in enumerate((old - DAY, old - 1, old, old + 1, NOW))]
    accept(ledger, seen)
    with ledger.transaction():
        ledger.take_waiting(V, until=NOW + 1, most=9)
    batches = [BatchKey(name, b"content", NOW - DAY, until) for name, until in ((b"a", NOW), (b"b", NOW + 1))]
    for batch in batches:
        ledger.add({}, time=NOW, once=batch)
    ledger.hold([Held("label", name, V, "{}", "", NOW - DAY - age) for name, age in (("a", 1), ("b", 0))])
    ids = PredictionIds(ledger)
    for name, when in (("a", old - 1), ("b", old)):
        ids.bind([Binding("m", name, "AgA")], now=when)

    assert ledger.sweep(NOW) == 3
    assert forgotten_until(url) == old
    assert ledger.accept(entries(seen)) == ["forgotten"] * 3 + ["duplicate"] * 2
    fresh = [make_label(10 + i, when=when) for i, when in enumerate((old - DAY, old, old + 1))]
    assert ledger.accept(entries(fresh)) == ["forgotten", "forgotten", "counted"]
    assert ledger.sums()[V].labels.sum() == 6
    assert [ledger.known(batch) for batch in batches] == [None, batches[1]]
    assert [row.name for row in ledger.drop_held(NOW - DAY)] == ["a"]
    assert [row.name for row in ledger.take_held(V, most=9)] == ["b"]
    assert ids.find(["a", "b"]) == [{}, {"m": ("AgA",)}]
    ledger.close()


def test_the_clock_is_trusted_for_a_day_beyond_the_latest_day_of_a_counted_prediction(url: str) -> None:
    ledger = Ledger(url, retention=KEPT)
    ledger.sweep(NOW)
    assert forgotten_until(url) == NOW - KEPT, "of no label, nothing else is known than the clock"
    accept(ledger, [make_label(1, when=NOW), make_label(2, when=NOW - 5 * DAY)])
    for clock, trusted in ((NOW + DAY, NOW + DAY), (NOW + 400 * DAY, NOW // DAY * DAY + 2 * DAY)):
        ledger.sweep(clock)
        assert forgotten_until(url) == trusted - KEPT
    ledger.sweep(NOW)
    assert forgotten_until(url) == NOW // DAY * DAY + 2 * DAY - KEPT, "what was forgotten stays so"
    ledger.close()


def test_a_longer_retention_refuses_what_the_shorter_one_may_have_forgotten(url: str) -> None:
    def opened(days: float, at: float) -> tuple[float, float, float]:
        ledger = Ledger(url, retention=days * DAY, clock=lambda: at)
        accept(ledger, [make_label(1, when=NOW)])
        ledger.close()
        (kept,) = ask(url, "select retention, forgotten_until from ledger")
        return ledger.retention / DAY, kept[0] / DAY, (kept[1] - NOW) / DAY

    assert opened(10, NOW)[:2] == (10, 10)
    assert [opened(days, NOW)[:2] for days in (10, 5)] == [(10, 10)] * 2
    assert forgotten_until(url) < 0, "nothing may be forgotten yet"
    assert opened(20, NOW + DAY) == (20, 20, pytest.approx(1 - 10))
    assert opened(60, NOW - 30 * DAY) == (60, 60, pytest.approx(1 - 10)), "the clock went back"


def test_what_waits_for_the_detector_is_not_forgotten(ledger: Ledger, url: str) -> None:
    old = make_label(1, when=NOW - 40 * DAY)
    accept(ledger, [make_label(2, when=NOW), old])
    assert ledger.sweep(NOW) == 0
    with ledger.transaction():
        assert len(ledger.take_waiting(V, until=NOW, most=9)) == 1
    assert ledger.sweep(NOW) == 1
    assert ask(url, "select count(*) from label") == [(1,)]
