"""Figures: what is drawn first, in which colours, on which ground, and what one dot hides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.metrics import decision_curve, evaluate_ratios, softmax
from calib_serve.report import prepare_report, render

Pair = tuple[NDArray[np.float64], NDArray[np.int64]]
BARE = ReportOptions(replicates=0)


def rare(n: int = 4000, seed: int = 5) -> tuple[Pair, Pair]:
    """An event of 3 in 100 with P(y = 1) too high, and with the true one."""
    rng = np.random.default_rng(seed)
    z = rng.normal(-4, 1.2, n)
    true, said = (1 / (1 + np.exp(-one)) for one in (z, z + 1))
    y = (rng.random(n) < true).astype(int)
    return tuple((np.column_stack([1 - p, p]), y) for p in (said, true))  # type: ignore[return-value]


def test_of_a_rare_event_the_first_screen_is_of_the_event() -> None:
    before, after = rare()
    contents = prepare_report(title="rare", before=before, after=after, options=BARE)
    page = render(contents)
    first = page[: page.index("</section>")]
    assert "AUROC of P(y = 1)" in first
    assert "ECE of P(y = 1)" in first
    assert "share of class 1 against P(y = 1)" in first
    assert "accuracy against confidence" not in first
    assert "accuracy against confidence" in page


def test_the_auroc_of_the_event_is_that_of_its_ranks_with_weights_as_repeated_rows() -> None:
    (p, y), _ = rare(600)
    events, others = p[y == 1, 1], p[y == 0, 1]
    ranks = np.mean(events[:, None] > others) + np.mean(events[:, None] == others) / 2
    found = prepare_report(title="t", after=(p, y), options=BARE).after.positive_auroc
    assert found.value == pytest.approx(ranks, abs=1e-12)
    assert found.low < ranks < found.high
    again = np.repeat(np.arange(len(y)), 1 + y)
    weighed = prepare_report(title="t", after=(p, y), options=replace(BARE, sample_weight=1 + y)).after
    repeated = prepare_report(title="t", after=(p[again], y[again]), options=BARE).after
    assert weighed.positive_auroc.value == pytest.approx(repeated.positive_auroc.value, abs=1e-12)


def test_a_dot_that_holds_most_samples_is_shown_in_parts_that_add_up_to_it() -> None:
    before, after = rare()
    sides = prepare_report(title="t", before=before, after=after, options=BARE).sides
    for side in sides:
        whole, parts = side.positive.reliability, side.positive.dense
        assert parts.count.sum() == whole.count[0]
        assert np.ptp(parts.count) <= 1
        assert np.nansum(parts.count * parts.accuracy) == pytest.approx(whole.count[0] * whole.accuracy[0])
    rng = np.random.default_rng(0)
    flat = softmax(rng.normal(size=(500, 3)))
    assert prepare_report(title="t", after=(flat, flat.argmax(1)), options=BARE).after.dense is None


def test_a_decision_curve_is_that_of_the_event_and_stands_in_the_page() -> None:
    before, after = rare(1500)
    contents = prepare_report(title="rare", before=before, after=after, options=BARE)
    page = render(contents)
    for side, (p, y) in zip(contents.sides, (before, after), strict=True):
        assert side.benefit.model == decision_curve(p[:, 1], y).model
        costs = evaluate_ratios(np.log(p[:, 1] / p[:, 0]), y)
        assert side.estimates()["positive_eer"] == pytest.approx(float(costs["eer"]))
    assert "Is deciding by P(y = 1) worth it?" in page
    assert "minDCF" in page
    of_three = prepare_report(title="three", after=(np.full((60, 3), 1 / 3), np.arange(60) % 3), options=BARE)
    assert "worth it" not in render(of_three)
