"""Spans of prediction time: a sum lies in the span of its prediction, at any age, and is taken out there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ledgers import by_clock, entries, make_label, revoked, sweep

from calib_serve.ledger import Entry, Ledger
from calib_serve.ledger.entries import coarser, span_of
from calib_serve.receipts import DAY
from calib_serve.receipts.sums import Key, Sums, add_at

NOW = 1_700_000_000.0
V = ("m", "1")

seconds = st.integers(0, 2 * 10**9).map(float)
ages = st.integers(0, 500 * DAY).map(float)


def width_at(age: float) -> float:
    """Five minutes for two days, an hour for 35, a day for 400; 0: no span any more."""
    return next((width for width, most in ((300, 2), (3600, 35), (86400, 400)) if age <= most * DAY), 0)


@given(seconds, ages)
@example(NOW, 2.0 * DAY)
@example(NOW, 35.0 * DAY)
@example(NOW, 400.0 * DAY)
@example(NOW, 400.0 * DAY + 1)
def test_a_prediction_lies_in_the_span_of_its_age(time: float, age: float) -> None:
    start, width = span_of(time, time + age)
    assert width == width_at(age)
    assert (start, width) == (0, 0) or (start <= time < start + width and start % width == 0)


@given(seconds, st.sampled_from([300.0, 3600.0, 86400.0]), ages)
@example(0.0, 300.0, 2.0 * DAY)
@example(0.0, 300.0, 35.0 * DAY)
@example(0.0, 300.0, 400.0 * DAY)
@example(0.0, 300.0, 400.0 * DAY + 1)
def test_an_old_span_is_merged_into_a_wider_one_that_holds_it(time: float, width: float, age: float) -> None:
    start = math.floor(time / width) * width
    wider = coarser(start, width, now=start + width + age)
    if not width_at(age):
        assert wider is None
    else:
        assert wider is not None
        assert wider[1] == max(width, width_at(age))
        assert wider[0] <= start < start + width <= wider[0] + wider[1]
        assert wider[0] % wider[1] == 0


def sum_of(one: Entry) -> Sums:
    """What a label adds."""
    receipt = one.label.receipt
    weight, delay = 1 / receipt.inclusion, one.arrived - receipt.time
    return Sums.labelled([receipt.confidence], [one.label.correct], weight=weight, delay=delay)


def by_span(given: Iterable[Entry], sweeps: Sequence[float]) -> dict[tuple[float, float], Sums]:
    """What each span holds of these labels after sweeps at these moments."""
    found: dict[tuple[float, float], Sums] = {}
    for one in given:
        at: tuple[float, float] | None = span_of(one.label.receipt.time, one.arrived)
        for now in sweeps:
            at = at and coarser(*at, now=now)
        if at and at[1]:
            add_at(found, at, sum_of(one))
    return found


def theirs(given: Iterable[Entry]) -> list[Entry]:
    """What the desk sent."""
    return [one for one in given if one.source == "desk"]


@pytest.mark.store
@pytest.mark.parametrize("days", [[], [0.5], [3, 40], [200], [500]])
def test_what_is_taken_out_leaves_in_every_span_what_others_sent(url: str, days: list[float]) -> None:
    today = NOW + max(days, default=0.0) * DAY
    ledger = by_clock(Ledger(url, retention=1000 * DAY), lambda: today)
    rng = np.random.default_rng(0)
    sweeps = [NOW + day * DAY for day in days]
    early, late = (
        [
            entry
            for i in range(first, first + 120)
            for entry in entries(
                [make_label(i, when=NOW - 40 * (i % 120), confidence=rng.random(), label=i % 2,
                            inclusion=(0.25, 1.0)[i % 5 == 0])],
                delay=wait + (0.0, 60.0, 3 * DAY, 50 * DAY)[i % 4],
                source="desk" if i % 3 else "lab",
            )
        ]
        for first, wait in ((0, 0.0), (120, today - NOW + 40 * 120))
    )  # fmt: skip
    ledger.accept(early)
    for now in sweeps:
        sweep(ledger, now)
    ledger.accept(late)
    # Predictions may be reported late: narrow spans are then there again, without labels.
    ledger.add({Key(*V): Sums.served([0.5])}, time=NOW - 20)
    assert revoked(ledger, "lab") == {V: 80}
    expected = by_span(theirs(early), sweeps)
    for at, more in by_span(theirs(late), []).items():
        add_at(expected, at, more)
    spans = {(one.start, one.width): one.sums for one in ledger.dated(0, 1e11, kind="segment")}
    assert {at for at, one in spans.items() if one.labels.any()} == set(expected)
    for at, one in spans.items():
        left = expected.get(at, Sums.zeros()).vector
        np.testing.assert_allclose(one.of("labels").vector, left, rtol=1e-9, atol=1e-9, err_msg=str(at))
    whole = sum(map(sum_of, theirs(early + late)), Sums.served([0.5]))
    np.testing.assert_allclose(ledger.sums()[V].vector, whole.vector, rtol=1e-9, atol=1e-9)
    ledger.close()
