"""Bets about a mean: their sums against products written out, and their promises by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sizes import sized

from calib_serve.errors import InputError
from calib_serve.judgement.bets import BETS, MeanBets


def evidence(x: np.ndarray, mean: float) -> float:
    """The log of the mixture of wealths, a product for each share."""
    stakes = BETS / BETS.sum()
    return math.log(sum(w * np.prod((1 + b * x) / (1 + b * mean)) for b, w in zip(BETS, stakes, strict=True)))


@pytest.mark.parametrize("mean", [-0.3, 0.0, 0.2])
def test_evidence_is_the_product_of_what_each_bet_pays(mean: float) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 50)
    found = MeanBets().seen(x[:20]).seen(x[20:])
    assert found.count == 50
    assert found.above(mean) == pytest.approx(evidence(x, mean))
    assert found.below(mean) == pytest.approx(evidence(-x, -mean))


def test_the_interval_s_ends_are_where_the_evidence_is_enough() -> None:
    x = np.random.default_rng(1).choice([-1.0, 0.1, 0.3], 3000)
    found = MeanBets().seen(x)
    low, high = found.interval()
    assert low < x.mean() < high
    assert evidence(x, low) == pytest.approx(math.log(40), abs=1e-6)
    assert evidence(-x, -high) == pytest.approx(math.log(40), abs=1e-6)
    assert MeanBets().interval() == (-1.0, 1.0)


@pytest.mark.parametrize("odd", [[1.01], [0.5, 1.01], [float("nan")], [-float("inf")], [[0.5]], 0.5])
def test_what_no_bet_can_take_is_refused(odd: object) -> None:
    with pytest.raises(InputError, match=r"\[-1, 1\]"):
        MeanBets().seen(odd)  # type: ignore[arg-type]


def test_successes_are_ones_and_the_other_trials_zeros() -> None:
    for successes, trials in ((0, 3), (2, 5), (4, 4)):
        told = MeanBets.of_successes(successes, trials)
        seen = MeanBets().seen([1.0] * successes + [0.0] * (trials - successes))
        assert told.count == trials
        np.testing.assert_allclose([told.up, told.down], [seen.up, seen.down], rtol=1e-12)
    for successes, trials in ((-1, 3), (4, 3), (float("nan"), 3)):
        with pytest.raises(InputError, match=f"{successes} successes in {trials} trials"):
            MeanBets.of_successes(successes, trials)


def test_a_state_that_is_none_is_refused() -> None:
    for state in (
        (1.0, np.zeros(3), np.zeros(6)),
        (-1.0, np.zeros(6), np.zeros(6)),
        (1.0, np.full(6, np.nan)),
    ):
        with pytest.raises(InputError, match="sums"):
            MeanBets(*state)


def drifting(rng: np.random.Generator, n: int) -> np.ndarray:
    """Of mean 0 in each half of a period, that is so far never above 0: first below, then above."""
    sign = np.where(np.arange(n) % 400 < 200, -0.3, 0.3)
    return np.where(rng.random(n) < (1 + sign) / 2, 1.0, -1.0)


def rare(rng: np.random.Generator, n: int) -> np.ndarray:
    """Of mean 0: small gains, and seldom a great loss."""
    return np.where(rng.random(n) < 0.01, -0.99, 0.01)


def coins(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice([-1.0, 1.0], n)


@pytest.mark.parametrize("stream", [coins, rare, drifting])
def test_a_mean_that_is_not_above_0_is_hardly_ever_said_to_be_looking_at_every_number(stream) -> None:
    rng, runs, n = np.random.default_rng(2), sized(ci=200, nightly=2000), 1000
    wrong = 0
    for _ in range(runs):
        x = stream(rng, n)
        grown = np.cumsum(np.log1p(np.multiply.outer(BETS, x)), axis=1) + np.log(BETS / BETS.sum())[:, None]
        every = np.logaddexp.reduce(grown, axis=0)
        assert every[-1] == pytest.approx(MeanBets().seen(x).above())
        wrong += bool((every >= math.log(20)).any())
    # A binomial share of 5 % is above this once in 10,000.
    assert wrong / runs <= 0.05 + 3.8 * math.sqrt(0.05 * 0.95 / runs)
