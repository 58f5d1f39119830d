"""What held-out labels say of a contract: exact intervals, and guaranteed thresholds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from calib_serve.artifact import Clause, Contract
from calib_serve.monitor.contracts.check import ClauseCheck, check_contract


def sure(c: list[float], right: list[bool], predicted: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of one class among 3, of these confidences, right or wrong."""
    rest = (1 - np.array(c)) / 2
    probs = np.stack([np.array(c), rest, rest], axis=1)
    return np.roll(probs, predicted, axis=1), np.where(right, predicted, (predicted + 1) % 3)


def one_of(clause: Clause, probs: np.ndarray, labels: np.ndarray, **how: Any) -> ClauseCheck:
    (found,) = check_contract(Contract((clause,)), probs, labels, **how).clauses
    return found


ACT = Clause(0.9, above=0.8)


@pytest.mark.parametrize(
    ("right", "said"), [(97, "can be kept"), (80, "cannot be kept"), (92, "not enough samples")]
)
def test_an_act_clause_is_judged_by_the_exact_interval_of_what_is_acted_on(right: int, said: str) -> None:
    n = 150 if said != "not enough samples" else 100
    probs, labels = sure([0.9] * n + [0.5] * 50, [i < right * n // 100 for i in range(n)] + [False] * 50)
    found = one_of(ACT, probs, labels)
    k = right * n // 100
    interval = stats.binomtest(k, n).proportion_ci(0.95, "exact")
    assert (found.samples, found.counted, found.found) == (n + 50, n, said)
    assert found.value.value == pytest.approx(k / n)
    assert (found.value.low, found.value.high) == pytest.approx((interval.low, interval.high))


def test_the_threshold_keeps_its_promise_on_new_samples_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    clause = Clause(0.9, above=0.999)
    broken = named = 0
    for _ in range(100):
        c = rng.uniform(0.5, 1, 1500)
        probs, labels = sure(c.tolist(), (rng.random(1500) < c).tolist())
        found = one_of(clause, probs, labels)
        if not math.isnan(found.threshold):
            named += 1
            # Right with the probability c, evenly spread: above t the share is (1 + t) / 2.
            broken += (1 + max(found.threshold, 0.5)) / 2 < 0.9
    assert named > 90
    assert stats.binomtest(broken, 100, 0.05, alternative="greater").pvalue > 0.01, broken


def test_the_line_is_a_clause_that_reads_and_acts_on_the_share_it_says() -> None:
    probs, labels = sure(np.linspace(0.5, 1, 400).tolist(), [c > 0.7 for c in np.linspace(0.5, 1, 400)])
    found = one_of(ACT, probs, labels)
    again = Contract.read(f"contract: 1\n{found.line}")
    assert again.acts(probs.max(axis=1), probs.argmax(axis=1)).mean() == pytest.approx(found.acted)
    hopeless = one_of(Clause(0.999, above=0.5), probs[:50], labels[:50])
    assert (hopeless.line, math.isnan(hopeless.threshold)) == ("", True)
    assert "No threshold" in " ".join(hopeless.says())


def test_a_class_and_a_segment_are_judged_by_their_own_samples() -> None:
    first, second = sure([0.9] * 100, [True] * 100), sure([0.9] * 60, [False] * 60, predicted=1)
    probs, labels = np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
    of = ["de"] * 30 + ["fr"] * 130
    contract = Contract(
        (
            Clause(0.9, above=0.8),
            Clause(0.9, above=0.85, predicted=0),
            Clause(0.9, above=0.95, segment="de"),
            Clause(0.9, above=0.5, segment="fr"),
            Clause(0.9, above=0.5, segment="it"),
        )
    )
    found = check_contract(contract, probs, labels, segments=of).clauses
    # 30 of "de" are below its own threshold: nobody acts on them, under any clause.
    assert [one.counted for one in found] == [130, 70, 0, 130, 0]
    assert [one.samples for one in found] == [160, 100, 30, 130, 0]
    assert found[1].found == "can be kept"
    assert "would be acted on" in found[2].note
    assert "falls under it" in found[4].note
    without = check_contract(contract, probs, labels).clauses
    assert [one.found for one in without[2:]] == ["not checked"] * 3
    assert [one.counted for one in without[:2]] == [160, 100]
    assert "as if no sample were of the segments de, fr, it" in without[0].note


def test_samples_of_a_group_count_as_often_as_they_differ() -> None:
    probs, labels = sure([0.9] * 500, [i // 10 % 5 > 0 for i in range(500)])
    alone, together = (one_of(ACT, probs, labels, groups=g) for g in (None, np.arange(500) // 10))
    assert together.value.low < alone.value.low
    # All of a group alike: 50 independent samples, but for the correction of few groups.
    wanted = stats.binomtest(40, 50).proportion_ci(0.95, "exact").low
    assert together.value.low == pytest.approx(wanted, abs=0.01)
    # A class whose samples are of one group alone has no threshold: nothing is known of others.
    (p, y), (q, z) = sure([0.9] * 100, [True] * 100), sure([0.9] * 9, [True] * 9, predicted=1)
    every = np.concatenate([p, q]), np.concatenate([y, z])
    lone = one_of(Clause(0.5, above=0.8, predicted=0), *every, groups=[0] * 100 + [*range(1, 10)])
    assert (lone.counted, lone.line) == (100, "")
    perfect = one_of(ACT, *sure([0.9] * 500, [True] * 500), groups=np.arange(500) // 10)
    assert perfect.value.low == pytest.approx(0.025 ** (1 / 50))
