"""What a ledger forgets, to the second, and how far it trusts the clock for that."""

from __future__ import annotations

import pytest
from ledgers import accept, ask, by_clock, entries, make_label, sweep

from calib_serve.core.errors import ConflictError
from calib_serve.ledger import Held, Ledger
from calib_serve.ledger.prediction_ids import Binding, PredictionIds
from calib_serve.receipts import BATCH_LIFE, DAY
from calib_serve.receipts.batch import BatchKey, ServedSums, named_batch

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
        ledger.followers.take(V, until=NOW + 1, most=9)
    batches = [BatchKey(name, b"content", NOW - DAY, until) for name, until in ((b"a", NOW), (b"b", NOW + 1))]
    for batch in batches:
        ledger.add({}, time=NOW, once=batch)
    ledger.held.add([Held("label", name, V, "{}", "", NOW - DAY - age) for name, age in (("a", 1), ("b", 0))])
    ids = PredictionIds(ledger)
    for name, when in (("a", old - 1), ("b", old)):
        ids.bind([Binding("m", name, "AgA")], now=when)

    assert sweep(ledger, NOW) == 3
    assert forgotten_until(url) == old
    assert ledger.accept(entries(seen)) == ["forgotten"] * 3 + ["duplicate"] * 2
    fresh = [make_label(10 + i, when=when) for i, when in enumerate((old - DAY, old, old + 1))]
    assert ledger.accept(entries(fresh)) == ["forgotten", "forgotten", "counted"]
    assert ledger.sums()[V].labels.sum() == 6
    assert [ledger.known(batch) for batch in batches] == [None, batches[1]]
    assert [row.name for row in by_clock(ledger, lambda: NOW).held.drop_old()] == ["a"]
    assert [row.name for row in ledger.held.take(V, most=9)] == ["b"]
    assert ids.find(["a", "b"]) == [{}, {"m": ("AgA",)}]
    ledger.close()


def test_what_was_forgotten_stays_so_when_a_sweep_goes_by_an_earlier_time(url: str) -> None:
    ledger = Ledger(url, retention=KEPT)
    for now, until in ((NOW, NOW), (NOW + DAY, NOW + DAY), (NOW, NOW + DAY)):
        sweep(ledger, now)
        assert forgotten_until(url) == until - KEPT
    ledger.close()


def test_a_longer_retention_refuses_what_the_shorter_one_may_have_forgotten(url: str) -> None:
    def opened(days: float, at: float) -> tuple[float, float, float]:
        ledger = Ledger(url, retention=days * DAY, clock=lambda: at, steady=lambda: at)
        accept(ledger, [make_label(1, when=NOW)])
        with ledger.transaction() as connection:
            ledger.time.believe(connection)
        ledger.close()
        (kept,) = ask(url, "select retention, forgotten_until from ledger")
        return ledger.retention / DAY, kept[0] / DAY, (kept[1] - NOW) / DAY

    assert opened(10, NOW)[:2] == (10, 10)
    assert [opened(days, NOW)[:2] for days in (10, 5)] == [(10, 10)] * 2
    assert forgotten_until(url) < 0, "nothing may be forgotten yet"
    opened(10, NOW + DAY)
    assert opened(20, NOW + DAY) == (20, 20, pytest.approx(1 - 10))
    assert opened(60, NOW - 30 * DAY) == (60, 60, pytest.approx(1 - 10)), "the clock went back"


def test_what_waits_for_the_detector_is_not_forgotten(ledger: Ledger, url: str) -> None:
    old = make_label(1, when=NOW - 40 * DAY)
    accept(ledger, [make_label(2, when=NOW), old])
    assert sweep(ledger, NOW) == 0
    with ledger.transaction():
        assert len(ledger.followers.take(V, until=NOW, most=9)) == 1
    assert sweep(ledger, NOW) == 1
    assert ask(url, "select count(*) from label") == [(1,)]


def test_a_sender_s_numbers_are_known_in_any_order_and_take_one_row(url: str) -> None:
    ledger, served, sender = Ledger(url), [ServedSums("m", "1", 1, "", 0.8, 0.8, 2, 1.6)], b"5a" * 16
    for source, numbers, fresh in (
        ("app", (3, 1, 2, 2, 700), (True, True, True, False, True)),
        ("its new token", (1, 3, 700, 4), (False, False, False, True)),
    ):
        for number, is_fresh in zip(numbers, fresh, strict=True):
            once = named_batch(b"%s-%d" % (sender, number), served, (), source=source, time=NOW)
            assert ledger.add({}, time=NOW, once=once) == is_fresh
    other = named_batch(sender + b"-4", served * 2, (), source="app", time=NOW)
    with pytest.raises(ConflictError, match="another batch"):
        ledger.add({}, time=NOW, once=other)
    assert ask(url, "select counted, latest from sender") == [("1-4,700", 4)]
    assert ask(url, "select count(*) from batch") == [(0,)]
    for now, left in ((NOW + BATCH_LIFE - 1, 1), (NOW + BATCH_LIFE, 0)):
        sweep(ledger, now)
        assert ask(url, "select count(*) from sender") == [(left,)]
    ledger.close()
