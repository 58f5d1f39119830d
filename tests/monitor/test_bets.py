"""Bets about a mean, and evidence that it is above 0: sums written out, and how often they err."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sizes import sized

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.monitor.bets import BETS, Evidence, MeanBets, share_bets, units


def evidence(x: np.ndarray, mean: float) -> float:
    """The log of the mixture of wealths, a product for each share."""
    shares = 0.95 / 2 ** np.arange(6)
    wealth = [b / shares.sum() * np.prod((1 + b * x) / (1 + b * mean)) for b in shares]
    return math.log(sum(wealth))


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


def written_out(payoffs: np.ndarray, scale: float) -> float:
    """0.7 of the stake at once, the rest as 1 / sqrt(1 + n / 1000) falls; each start multiplied out."""
    waiting = [1.0] + [0.3 / math.sqrt(1 + n / 1000) for n in range(1, len(payoffs) + 1)]
    held = waiting[-1]
    for start in range(len(payoffs)):
        stake = (waiting[start] - waiting[start + 1]) / 9
        for size in range(9):
            bet = min(0.002 * 2**size * scale, 0.9)
            held += stake * math.prod(1 + bet * z for z in payoffs[start:])
    return held


def test_it_is_the_sum_over_all_starts_of_the_product_of_what_bets_win() -> None:
    z = np.random.default_rng(0).uniform(-1, 2, 40)
    found, peaks = Evidence.none(), []
    for i in range(40):
        found = found.after(z[i : i + 1], 1.7)
        peaks.append(written_out(z[: i + 1], 1.7))
        assert found.log_evidence == pytest.approx(math.log(peaks[-1]), abs=1e-9)
    assert found.peak == pytest.approx(max(0.0, math.log(max(peaks))), abs=1e-9)


def test_batches_of_any_size_tell_the_same_and_a_store_keeps_all_of_it() -> None:
    rng = np.random.default_rng(1)
    z, r = rng.uniform(-1, 1.2, 5000), rng.uniform(0, 3, 5000)
    whole, parts = Evidence.none().after(z, 0.7, weights=r), Evidence.from_flat(Evidence.none().flat())
    for some in np.split(np.arange(5000), [1, 2, 700, 4999]):
        parts = Evidence.from_flat(parts.after(z[some], 0.7, weights=r[some]).flat())
    assert parts.flat() == pytest.approx(whole.flat(), rel=1e-9)
    assert Evidence.none().after([], 1.0).flat() == Evidence.none().flat()


def test_the_peak_is_of_every_moment_however_many_come_at_once() -> None:
    z = np.concatenate([np.ones(200), -np.ones(300)])
    found, peak = Evidence.none(), 0.0
    for one in z:
        found = found.after([one])
        peak = max(peak, found.log_evidence)
    assert peak > 20 > found.log_evidence
    assert Evidence.none().after(z).peak == pytest.approx(peak)
    assert found.peak == peak


def test_a_bet_that_is_not_set_yet_is_no_part_of_the_peak() -> None:
    one = Evidence.none().after([1.0]).peak
    assert Evidence.none().after([1.0, -1.0, -1.0]).peak == pytest.approx(one, rel=1e-9)


def test_a_promise_that_is_just_kept_is_hardly_ever_said_to_be_broken() -> None:
    """At most one time in twenty, at whatever label one looks: and it could be said."""
    rng, streams = np.random.default_rng(2), sized(ci=200, nightly=2000)
    broken = sum(
        Evidence.none().after(*share_bets(rng.random(4000) < 0.98, 0.98)).peak >= math.log(20)
        for _ in range(streams)
    )
    assert 0 < broken <= 0.05 * streams + 2 * math.sqrt(0.05 * 0.95 * streams)


def test_weights_weigh_alike_however_large_one_is() -> None:
    """Rare good outcomes that stand for many make up for frequent bad ones: their weighed mean is below 0."""
    rng, errors = np.random.default_rng(4), 0
    for _ in range(100):
        rare = rng.random(3000) < 0.1
        right = rng.random(3000) < np.where(rare, 0.99, 0.78)  # 0.9 and more by weight
        payoffs, scale = share_bets(right, 0.9)
        errors += Evidence.none().after(payoffs, scale, weights=np.where(rare, 6.0, 0.4)).peak >= math.log(20)
    assert errors <= 10


@pytest.mark.parametrize("kept", [0, 20_000])
def test_a_breach_is_found_whenever_it_begins(kept: int) -> None:
    rng = np.random.default_rng(3)
    good = Evidence.none().after(*share_bets(rng.random(kept) < 0.985, 0.98))
    assert good.peak < math.log(20)
    assert good.after(*share_bets(rng.random(3000) < 0.95, 0.98)).peak > math.log(20)


@pytest.mark.parametrize(
    ("payoffs", "weight"),
    [
        ([-1.5], 1.0),
        ([math.nan], 1.0),
        ([math.inf], 1.0),
        ([0.1], -1.0),
        ([0.1], math.nan),
        ([0.1], math.inf),
    ],
)
def test_payoffs_that_no_bet_can_take_are_refused(payoffs: list[float], weight: float) -> None:
    with pytest.raises(InputError, match="payoffs must be finite"):
        Evidence.none().after(payoffs, weights=weight)


def test_shapes_and_states_that_are_none_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(n,\)"):
        Evidence.none().after([[0.1]])
    good = Evidence.none().after([0.1, 0.2]).flat()
    with pytest.raises(ShapeError, match="numbers"):
        Evidence.from_flat(good[1:])
    for i, wrong in ((0, -1.0), (0, 1.5), (1, -1.0), (2, -1.0), (3, math.nan), (3, math.inf)):
        with pytest.raises(InputError, match="no state of evidence"):
            Evidence.from_flat([*good[:i], wrong, *good[i + 1 :]])


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 9), st.integers(0, 3)), min_size=1, max_size=40))
def test_units_are_means_of_groups_and_no_further_out_than_their_labels(rows) -> None:
    numbers, weights, groups = (np.array(column) for column in zip(*rows, strict=True))
    found, bounds = units(numbers, weights, groups)
    named = [g or -1 - i for i, g in enumerate(groups.tolist())]
    sums = {g: [w * x for x, w, own in zip(numbers, weights, named, strict=True) if own == g] for g in named}
    assert found * bounds == pytest.approx([np.mean(one) for one in sums.values()], abs=1e-9)
    assert min(numbers.min(), 0) <= found.min() <= found.max() <= max(numbers.max(), 0)
