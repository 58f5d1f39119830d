"""The paired test of a shadow: against sums written out, in every ledger, and what it may not say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ledgers import NOW, entries
from sizes import sized

from calib_serve import Keyring, Watch
from calib_serve.core.errors import InputError, LedgerError
from calib_serve.ledger import LabelRecord, Ledger, Shadowed
from calib_serve.ledger.recovery import recent_recovery
from calib_serve.monitor.bets import BETS
from calib_serve.monitor.feed import DriftFeed
from calib_serve.monitor.shadow import LESS_RIGHT, MARGIN, ShadowFollower, ShadowTest, shadow_states
from calib_serve.receipts import Label, Receipt, Shadow

TAG, V = "0a1b2c3d", ("m", "1")


def row(c, y, s, t, *, same=True, inclusion=1.0, group=0, tag=TAG, time=NOW):
    return LabelRecord(
        "m", "1", time, b"", time, c, bool(y), 1, inclusion, group, (), Shadowed(s, bool(t), same, tag)
    )


def score(c, y):
    return -math.log(min(max(c if y else 1 - c, 0.01), 0.99))


def difference(one):
    """How much better the shadow's log score is, at most a nat whatever comes out."""
    c, s = one.confidence, one.shadow.confidence
    outcomes = [(0, 0), (1, 1)] if one.shadow.same else [(0, 0), (0, 1), (1, 0)]
    most = max(abs(score(c, y) - score(s, t)) for y, t in outcomes)
    return (score(c, one.correct) - score(s, one.shadow.correct)) / max(most, 1)


def log_evidence(numbers):
    stakes = BETS / BETS.sum()
    paid = [w * math.prod(1 + b * x for x in numbers) for b, w in zip(BETS, stakes, strict=True)]
    return math.log(sum(paid))


ROWS = [
    row(0.9, 1, 0.8, 1),
    row(0.9, 0, 0.8, 0),
    row(0.999, 0, 0.5, 1, same=False),
    row(0.4, 0, 0.995, 0, same=False),
    row(0.6, 1, 0.7, 0, same=False),
]


def test_each_statement_s_evidence_is_what_bets_on_its_numbers_pay():
    found = ShadowTest().fed(ROWS[:2]).fed(ROWS[2:]).log_evidence
    d = [difference(one) for one in ROWS]
    assert max(map(abs, d)) <= 1
    assert found["better"] == pytest.approx(log_evidence(d))
    assert found["worse"] == pytest.approx(log_evidence([-x for x in d]))
    served = [score(one.confidence, one.correct) for one in ROWS]
    margin = [(x + MARGIN * s) / (1 + MARGIN * score(0, 1)) for x, s in zip(d, served, strict=True)]
    assert found["no worse"] == pytest.approx(log_evidence(margin))
    right = [(one.shadow.correct - one.correct + LESS_RIGHT) / (1 + LESS_RIGHT) for one in ROWS]
    assert found["no less accurate"] == pytest.approx(log_evidence(right))
    assert found["less accurate"] == pytest.approx(log_evidence([-x for x in right]))
    state = ShadowTest().fed(ROWS).state(TAG)
    assert state.gain == pytest.approx(np.mean(d))
    assert state.accuracy_difference == pytest.approx(-1 / 5 + 1 / 5)
    assert (state.labels, state.since, state.verdict) == (5, NOW, "unknown")


def test_a_label_counts_by_one_over_its_chance_scaled_by_the_least_chance_before_it():
    rows = [changed(ROWS[0], inclusion=pi) for pi in (1.0, 0.5, 0.5, 0.25, 1.0)]
    d = difference(ROWS[0])
    weights = [1, 1, 1, 1, 0.25]  # the second one's weight, 2, is known to be possible only after it
    found = ShadowTest().fed(rows[:3]).fed(rows[3:])
    assert found.log_evidence["better"] == pytest.approx(log_evidence([w * d for w in weights]))
    assert found.state(TAG).gain == pytest.approx(d)


def changed(one, **changes):
    return one._replace(**changes)


def test_a_group_s_labels_count_as_one():
    grouped = [changed(one, group=7) for one in ROWS] + [ROWS[0]]
    d = [difference(one) for one in ROWS]
    found = ShadowTest().fed(grouped).log_evidence["better"]
    assert found == pytest.approx(log_evidence([float(np.mean(d)), d[0]]))


def stream(rng, n, served, shadow, *, p=None, disagree=0.0, more_right=0.0):
    """n labels: ``served`` and ``shadow`` give the confidences of a true chance of being right."""
    p = rng.uniform(0.5, 1, n) if p is None else p
    y = rng.random(n) < p
    other = rng.random(n) < disagree
    t = np.where(other, np.where(y, False, rng.random(n) < more_right), y)
    c, s = served(p), shadow(p)
    return [row(*one[:4], same=not one[4]) for one in zip(c, y, s, t, other, strict=True)]


def off(by):
    return lambda p: 1 / (1 + ((1 - p) / np.maximum(p, 1e-9)) ** by)


def test_the_four_verdicts():
    rng = np.random.default_rng(3)
    said = {}
    for name, rows in {
        "better": stream(rng, 4000, off(2.0), off(1.0)),
        "worse": stream(rng, 4000, off(1.0), off(2.0)),
        "no worse": stream(rng, 8000, off(1.0), off(1.0)),
        "less right": stream(rng, 4000, off(2.0), off(1.0), disagree=0.05),
        "a few other classes": stream(rng, 4000, off(2.0), off(1.0), disagree=0.01, more_right=0.5),
        "few": stream(rng, 20, off(2.0), off(1.0)),
    }.items():
        said[name] = ShadowTest().fed(rows).state(TAG)
    assert {name: one.verdict for name, one in said.items()} == {
        "better": "better", "worse": "worse", "no worse": "no worse", "less right": "worse", "few": "unknown",
        "a few other classes": "unknown",
    }  # fmt: skip
    assert said["better"].low > 0 > said["worse"].high
    # Of a better score and an accuracy that is not known well enough, neither is said.
    assert said["a few other classes"].low > 0
    assert -0.01 < said["a few other classes"].accuracy_difference < 0
    # Better calibrated and less right is said so, not averaged away.
    assert said["less right"].gain > 0 > said["less right"].accuracy_difference
    assert "is better after 4,000 labels" in said["better"].says()


def test_a_shadow_that_games_the_score_by_being_surely_wrong_is_worse():
    rng = np.random.default_rng(4)
    wrong = [row(c, rng.random() < c, 0.01, 0, same=False) for c in rng.uniform(0.5, 0.9, 500)]
    found = ShadowTest().fed(wrong).state(TAG)
    assert found.gain > 0
    assert found.verdict == "worse"


@pytest.mark.parametrize(("served", "shadow"), [(1.0, 1.3), (1.2, 1.0 / 1.2), (1.0, 1.0)])
def test_a_shadow_that_is_no_better_is_hardly_ever_said_to_be_looking_all_the_time(served, shadow):
    rng, runs = np.random.default_rng(5), sized(ci=60, nightly=1000)
    wrong = 0
    for _ in range(runs):
        rows, test = stream(rng, 1500, off(served), off(shadow)), ShadowTest()
        for at in range(0, len(rows), 50):
            test = test.fed(rows[at : at + 50])
            if test.verdict == "better":
                wrong += 1
                break
    assert wrong / runs <= 0.05 + 3.8 * math.sqrt(0.05 * 0.95 / runs)


def test_a_state_survives_being_kept_and_a_damaged_one_is_refused():
    test = ShadowTest().fed(ROWS)
    kept = ShadowTest.of(test.as_dict())
    assert kept.as_dict() == test.as_dict()
    assert ShadowTest.of(ShadowTest().as_dict()).state(TAG).verdict == "unknown"
    good = test.as_dict()
    for damage in ({**good, "format": 0}, {**good, "chance": 0.0}, {**good, "gain": [1, [0.0], [0.0]]}):
        with pytest.raises(InputError):
            ShadowTest.of(damage)
    with pytest.raises(LedgerError, match="of format 2, which a newer calib-serve wrote"):
        ShadowTest.of({**good, "format": 2})


def labels(count, *, tag=TAG, begin=0, shadow=True):
    for i in range(begin, begin + count):
        beside = Shadow(1 if i % 4 else 2, 0.75, bytes.fromhex(tag)) if shadow else None
        receipt = Receipt("k", *V, NOW + i / 1000, i.to_bytes(10, "big"), 1, 0.875, shadow=beside)
        yield Label(receipt, 1 if i % 3 else 2)


@pytest.mark.store
def test_every_ledger_counts_each_label_once_for_the_shadow_that_its_receipt_names(url):
    with_shadow, without = list(labels(60)), list(labels(9, begin=60, shadow=False))
    expected = ShadowTest().fed(
        [
            row(0.875, one.correct, 0.75, one.receipt.shadow.predicted == one.label,
                same=one.receipt.shadow.predicted == 1, time=one.receipt.time)
            for one in with_shadow
        ]
    )  # fmt: skip
    for some in ((with_shadow[:30], without), (with_shadow[30:], with_shadow[:10])):
        ledger = Ledger(url)
        for part in some:
            ledger.accept(entries(part))
        DriftFeed(ledger, maturity=0.0, followers=[ShadowFollower(ledger)]).tick()
        DriftFeed(ledger, maturity=0.0, followers=[ShadowFollower(ledger)]).tick()
        ledger.close()
    ledger = Ledger(url)
    (state,) = shadow_states(ledger, V)
    assert shadow_states(ledger, ("m", "2")) == []
    assert state.labels == 60
    assert state.log_evidence == pytest.approx(dict(expected.log_evidence))
    assert state.since == pytest.approx(NOW, rel=0, abs=1e-4)
    ledger.close()


@pytest.mark.store
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000])
def test_a_damaged_state_begins_anew_and_is_said(damage, tmp_path, caplog):
    ledger = Ledger(tmp_path / "l.db")
    ledger.followers.keep("shadow", V, "0a1b2c3d", damage, now=NOW)
    assert shadow_states(ledger, V) == []
    ShadowFollower(ledger).feed(V, ROWS, now=NOW)
    assert [state.labels for state in shadow_states(ledger, V)] == [len(ROWS)]
    assert "begins anew" in caplog.text
    assert "the test of shadow 0a1b2c3d of m 1 began anew" in (recent_recovery(ledger, now=NOW) or "")
    ledger.close()


@pytest.fixture
def watch(tmp_path):
    with Watch.open({V: 10}, keyring=Keyring.new(), ledger=tmp_path / "l.db", maturity=0.0) as found:
        yield found
