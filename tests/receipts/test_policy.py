"""Which labels are asked for: by a chance that is known, kept, and pays for what it costs."""

import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledgers import by_clock

from calib_serve.core.errors import ConflictError, InputError
from calib_serve.ledger import Ledger
from calib_serve.monitor.estimates import estimate
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring
from calib_serve.receipts.batch import ServedPrediction
from calib_serve.receipts.classes import Classes
from calib_serve.receipts.policy import LEAST_CHANCE, LabelPolicy, parse_policy
from calib_serve.receipts.sums import Sums

DAY = 86_400.0


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def confidences(seed, n):
    return 1 - 0.75 * np.random.default_rng(seed).beta(0.5, 4, n)


def serve(policy, clock, c, *, seconds, at_once=100):
    """Draw for all of them, evenly over the seconds; whether each was wanted, and its chance."""
    found = []
    for part in np.array_split(c, max(len(c) // at_once, 1)):
        clock.now += seconds * len(part) / len(c)
        found.append(policy.draw(part, uniforms=np.random.default_rng(len(found)).random(len(part))))
    return tuple(np.concatenate(columns) for columns in zip(*found, strict=True))


@given(st.lists(st.floats(0, 1), max_size=30), st.sampled_from(["0.05", "500/day"]))
def test_chances_are_within_their_range_and_their_draws_of_the_same_length(c, text):
    wanted, chance = parse_policy(text).draw(c)
    assert wanted.shape == chance.shape == (len(c),)
    assert ((chance >= LEAST_CHANCE) & (chance <= 1)).all()


@pytest.mark.parametrize("per_day", [200, 2000])
def test_a_budget_is_met_over_days_of_steady_traffic(per_day):
    clock = Clock()
    policy = LabelPolicy.budget(per_day, clock=clock)
    serve(policy, clock, confidences(0, 40_000), seconds=DAY)
    wanted, chance = serve(policy, clock, confidences(1, 80_000), seconds=2 * DAY)
    assert chance.sum() == pytest.approx(2 * per_day, rel=0.03)
    assert wanted.sum() == pytest.approx(2 * per_day, rel=0.2)


def test_chances_go_with_the_spread_of_outcomes_and_nowhere_to_nothing():
    clock = Clock()
    policy = LabelPolicy.budget(2000, clock=clock)
    serve(policy, clock, confidences(0, 40_000), seconds=DAY)
    c = np.array([0.51, 0.84, 0.9999999])
    _, chance = policy.draw(c)
    spread = np.sqrt(c * (1 - c))
    assert chance[0] / chance[1] == pytest.approx(spread[0] / spread[1], rel=0.1)
    assert chance[2] == pytest.approx(0.1 * 2000 / 40_000, rel=0.05)


def test_labels_asked_for_by_budget_estimate_the_gap_without_bias():
    errors, ses = [], []
    for seed in range(60):
        clock, c = Clock(), confidences(seed, 10_000)
        policy = LabelPolicy.budget(1000, clock=clock)
        wanted, chance = serve(policy, clock, c, seconds=DAY, at_once=200)
        y = np.random.default_rng(seed).random(len(c)) < c - 0.05
        found = estimate(Sums.served(c) + Sums.labelled(c[wanted], y[wanted], weight=1 / chance[wanted]))
        errors.append(found.gap.value - 0.05)
        ses.append(found.gap.se)
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(60)
    assert np.std(errors) == pytest.approx(np.mean(ses), rel=0.3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LabelPolicy.uniform(0),
        lambda: LabelPolicy.budget(0),
        lambda: LabelPolicy.uniform(0.1).draw([1.2]),
        lambda: LabelPolicy.uniform(0.1).draw([float("nan")]),
    ],
)
def test_impossible_policies_and_confidences_are_refused(make):
    with pytest.raises(InputError, match="got"):
        make()


@pytest.mark.parametrize("text", ["500/day", "0.05", "2.5/day", "1"])
def test_a_policy_is_read_from_text_and_says_the_same(text):
    assert parse_policy(text).text == text
    assert parse_policy(f" {text} ").text == text


@pytest.mark.parametrize("text", ["", "often", "0", "5 %", "0.7:1", "/day", "-5/day", "nan"])
def test_text_that_is_no_policy_is_refused_with_what_to_say(text):
    with pytest.raises(InputError, match="label policy"):
        parse_policy(text)


@pytest.mark.store
@pytest.mark.parametrize(
    "policy",
    [
        None,
        partial(LabelPolicy.budget, 50),
        partial(LabelPolicy.uniform, 0.5),
    ],
)
def test_a_batch_that_is_sent_again_later_has_the_same_receipts(url, policy):
    now = [time.time()]
    ledger, models = by_clock(Ledger(url), lambda: now[0]), {("m", "1"): Watched(Classes(2))}
    watch = Watch(Keyring.new(), ledger, models=models, policy=policy)
    batch = [ServedPrediction("m", "1", 1, i / 100) for i in range(100)]
    first = watch.predictions(batch, once=b"a")
    for _ in range(20):
        watch.predictions(batch)  # a budget's chances fall
    now[0] += 3600.0
    assert watch.predictions(batch, once=b"a") == first
    assert watch.predictions(batch, once=b"b") != first
    with pytest.raises(ConflictError):
        watch.predictions(batch[:50], once=b"a")
    assert ledger.sums()["m", "1"].predictions.sum() == 100 * 22
    ledger.close()
