"""How many labels a breach takes to be noticed: by the watch's test, and by one that is looked at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sizes import sized

from calib_serve.artifact import Clause, Contract
from calib_serve.monitor import planning as contracts
from calib_serve.monitor.bets import Evidence
from calib_serve.monitor.clause_evidence import ClauseEvidence, Labelled
from calib_serve.monitor.planning import fixed_labels, labels_until_broken, plan_contract
from calib_serve.receipts.policy import parse_policy

ACT = Clause("act", 0.95, above=0.9)


@pytest.mark.parametrize(
    ("promise", "breach", "power"),
    [(0.98, 0.03, 0.8), (0.5, 0.5, 0.9), (0.999, 0.005, 0.9)],
)
def test_the_fixed_number_is_the_first_at_which_the_exact_test_has_its_power(
    promise: float, breach: float, power: float
) -> None:
    n = 1
    while True:
        most = int(stats.binom.ppf(0.05, n, promise))
        most -= stats.binom.cdf(most, n, promise) > 0.05
        if most >= 0 and stats.binom.cdf(most, n, promise - breach) >= power:
            break
        n += 1
    assert fixed_labels(promise, breach, power=power) == n


def labelled(correct: np.ndarray) -> Labelled:
    n = len(correct)
    return Labelled(
        np.full(n, 0.95), correct.astype(float), np.ones(n), np.full(n, 14), np.zeros(n, np.int64)
    )


@pytest.mark.parametrize("promise", [0.5, 0.9, 0.999])
def test_what_is_simulated_is_the_evidence_that_the_watch_has(promise: float) -> None:
    correct = np.random.default_rng(0).random(3000) < promise - 0.02
    clause = replace(ACT, promise=promise)
    watched = ClauseEvidence.none(clause, bins=15).after(labelled(correct), shares=np.ones(15) / 15, now=1.0)
    planned = contracts._fed(Evidence.none(), ~correct, promise)
    assert planned.log_evidence == pytest.approx(watched.against.log_evidence, rel=1e-9)
    assert contracts._broken(planned) == (watched.broken_at is not None)


@pytest.mark.parametrize("kept", [0, 2000])
def test_the_watch_s_own_test_says_it_after_so_many_labels_as_often_as_planned(kept: int) -> None:
    streams = sized(ci=60, nightly=600)
    median, labels = labels_until_broken(0.95, 0.05, power=(0.5, 0.9), kept=kept, streams=3 * streams)
    rng = np.random.default_rng(1)  # not the streams of the plan
    shares = np.full(15, 1 / 15)
    said = {median: 0, labels: 0}
    for _ in range(streams):
        for after in said:
            one = ClauseEvidence.none(ACT, bins=15)
            if kept:
                one = one.after(labelled(rng.random(kept) < 0.95), shares=shares, now=1.0)
            one = one.after(labelled(rng.random(int(after)) < 0.90), shares=shares, now=2.0)
            said[after] += one.broken_at is not None
    for after, power in ((median, 0.5), (labels, 0.9)):
        spread = 3.5 * math.sqrt(power * (1 - power) / streams * (1 + 1 / 3))
        assert abs(said[after] / streams - power) < spread + 0.05 * bool(kept), (after, said)


def test_a_plan_counts_labels_by_day_and_by_prediction() -> None:
    contract = Contract(
        (ACT, Clause("act", 0.95, above=0.9, predicted=1), Clause("coverage", 0.5, above=0.9))
    )
    how: dict[str, Any] = {"breach": 0.1, "within": 2 * 86_400.0, "kept": 0, "streams": 50}
    whole, of_class = plan_contract(contract, acted={"act": 0.5}, predictions_per_day=1000, **how)
    assert whole.per_day == pytest.approx(whole.labels / 2)
    assert whole.all_per_day == pytest.approx(whole.labels)
    assert whole.rate == pytest.approx(whole.labels / 1000)
    assert (of_class.labels, math.isnan(of_class.rate)) == (whole.labels, True)
    assert whole.median < whole.labels
    assert whole.fixed == fixed_labels(0.95, 0.1)
    (alone, _) = plan_contract(contract, acted={"act": 0.5}, predictions_per_day=10, **how)
    assert "There are not so many predictions" in " ".join(alone.says())
    for predictions in (1000, 10**9):
        (one, _) = plan_contract(contract, acted={"act": 0.5}, predictions_per_day=predictions, **how)
        (budget,) = [line.split("--label-budget ")[1] for line in one.says() if "--label-budget" in line]
        chance = parse_policy(budget).chances([0.95])[0]
        assert max(one.rate, 0.001) <= chance <= 1.1 * max(one.rate, 0.001)
