"""A report of rows that weigh is that of the rows repeated, or nearly so where weights are no counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib_serve.metrics import softmax
from calib_serve.report import prepare_labels_report, prepare_report

RNG = np.random.default_rng(0)
Z = 2 * RNG.standard_normal((900, 3))
Y = (Z / 2 + RNG.gumbel(size=Z.shape)).argmax(axis=1)
P, Q = softmax(Z), softmax(Z / 2)
HOW: dict[str, Any] = {"title": "weighed", "replicates": 40}


def test_counts_are_as_many_rows_in_every_number() -> None:
    counts = RNG.integers(0, 4, len(Y))
    again = np.repeat(np.arange(len(Y)), counts)
    weighed = prepare_report(before=(P, Y), after=(Q, Y), sample_weight=counts, **HOW)
    rows = prepare_report(before=(P[again], Y[again]), after=(Q[again], Y[again]), **HOW)
    for one, other in zip(weighed.sides, rows.sides, strict=True):
        np.testing.assert_equal(vars(one.reliability), vars(other.reliability))
        np.testing.assert_equal(vars(one.risk_coverage), vars(other.risk_coverage))
        assert one.metrics.ece.value == pytest.approx(other.metrics.ece.value)
    for name, change in weighed.changes.items():
        assert change.p == pytest.approx(rows.changes[name].p, nan_ok=True)
        if "floor" not in name:
            assert change.difference.value == pytest.approx(rows.changes[name].difference.value, abs=1e-9)
    assert weighed.verdict.level == rows.verdict.level


def test_weights_that_are_no_counts_change_figures_and_metrics_alike() -> None:
    weight = RNG.exponential(size=len(Y)) * np.where(Q.argmax(axis=1) == Y, 2.0, 0.5)
    found = prepare_report(before=(P, Y), after=(Q, Y), sample_weight=weight, **HOW)
    side, bare = found.sides[1], prepare_report(after=(Q, Y), **HOW).sides[0]
    assert side.metrics.accuracy.value > bare.metrics.accuracy.value + 0.1
    assert side.reliability.ece == pytest.approx(side.metrics.ece.value, abs=0.03)
    change = found.changes["nll"].difference
    first, second = (one.metrics.nll.value for one in found.sides)
    assert change.value == pytest.approx(second - first)
    assert change.low < change.value < change.high


def test_labels_weigh_too() -> None:
    p = RNG.random((400, 4))
    y = (RNG.random((400, 4)) < p).astype(int)
    counts = RNG.integers(0, 3, 400)
    again = np.repeat(np.arange(400), counts)
    weighed = prepare_labels_report(title="w", before=(p, y), after=(p**0.9, y), sample_weight=counts)
    rows = prepare_labels_report(title="r", before=(p[again], y[again]), after=((p**0.9)[again], y[again]))
    one, other = (report.changes["nll"].difference.value for report in (weighed, rows))
    assert one == pytest.approx(other)
    assert weighed.sides[1].metrics.nll.value == pytest.approx(rows.sides[1].metrics.nll.value)
