"""Contracts under watch: kept, broken or not yet known, over labels that are chosen, late or in groups."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers import by_clock

from calib_serve.artifact import Artifact, Clause, Contract, LogitMap
from calib_serve.core.errors import LedgerError
from calib_serve.ledger import Ledger
from calib_serve.ledger.followers import Followers
from calib_serve.monitor.contracts.states import ClauseState
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring
from calib_serve.receipts.batch import ServedPrediction, ServedSums

pytestmark = pytest.mark.store

V = ("pets", "1")
RING = Keyring.new()
ACT = Contract((Clause(0.9, above=0.8),))


class Stream:
    """A watch that serves and labels by chance; ``now`` is its clock."""

    def __init__(self, folder: Path, contract: Contract, **options: object) -> None:
        self.now = float(int(time.time()))
        folder.mkdir(exist_ok=True)
        self.ledger = by_clock(Ledger(folder / "ledger.db"), lambda: self.now)
        watched = Watched.of(Artifact((LogitMap.temperature(1.0),), method="t", classes=4, contract=contract))
        options = {"detector": None, "maturity": 0.0, **options}
        self.watch = Watch(RING, self.ledger, models={V: watched}, **options)  # type: ignore[arg-type]
        self.rng = np.random.default_rng(0)

    def serve(
        self, confidence: np.ndarray, correct: np.ndarray, *, labelled: object = slice(None), **more: str
    ) -> None:
        items = [ServedPrediction(*V, 1, float(c), **more) for c in confidence]
        receipts = self.watch.predictions(items)
        told = [{"receipt": r, "label": 1 if y else 2} for r, y in zip(receipts, correct, strict=True)]
        outcomes = self.watch.labels(np.array(told, object)[labelled].tolist())
        assert all(one.accepted for one in outcomes)
        self.watch.feed.tick()

    @property
    def states(self) -> list[ClauseState]:
        return self.watch.contract_states(V)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_sums_of_a_reporter_that_has_not_the_contract_are_said(folder: Path) -> None:
    stream = Stream(folder, Contract((Clause(0.9, above=0.84),)))
    for low, high, says in ((0.841, 0.86, None), (0.81, 0.86, "up over a threshold of the contract")):
        told = ServedSums(*V, 1, "", low, high, 2, low + high)
        assert stream.watch.served([told], time=stream.now, once=repr(low).encode()) == [None]
        stream.watch.checks.run("versions")
        found = stream.watch.checks.reasons()["versions"]
        assert (found is None) if says is None else (found is not None and says in found)
    stream.now += 901
    stream.watch.checks.run("versions")
    assert stream.watch.checks.reasons()["versions"] is None


def test_what_is_acted_on_counts_and_nothing_else(folder: Path) -> None:
    stream = Stream(folder, ACT)
    c = np.repeat([0.79, 0.8, 0.95], 400)
    y = np.concatenate(
        [np.zeros(400), np.arange(800) % 20 > 0]
    )  # none of the unsure is right; 95 % of others
    stream.serve(c, y)
    (state,) = stream.states
    assert (state.state, state.labels, state.said_at) == ("kept", 800, stream.now)
    assert state.value == pytest.approx(0.95)
    assert 0.9 < state.low < 0.95 < state.high <= 1
    assert state.budget_left == pytest.approx(0.5)
    assert state.burn["30d"].rate == state.burn["1h"].rate == pytest.approx(0.5)
    assert state.burn["1h"].low < 0.5
    assert state.runs_out == math.inf


def test_broken_is_said_for_good_and_the_budget_runs_out(folder: Path) -> None:
    stream = Stream(folder, ACT)
    stream.serve(np.full(3000, 0.9), np.arange(3000) % 100 > 4)  # 95 %: half of the budget
    assert stream.states[0].state == "kept"
    stream.now += 2 * 86_400
    stream.serve(np.full(300, 0.9), np.arange(300) % 4 > 0)  # 75 %
    (state,) = stream.states
    wrong = (150 + 75) / 3300
    assert (state.state, state.said_at) == ("broken", stream.now)
    assert state.budget_left == pytest.approx(1 - wrong / 0.1)
    assert state.burn["6h"].rate == pytest.approx(2.5)
    assert state.runs_out == pytest.approx(30 * 86_400 * (1 - wrong / 0.1) / (2.5 - wrong / 0.1))
    stream.serve(np.full(3000, 0.9), np.ones(3000))
    assert stream.states[0].state == "broken", "what was promised did not hold"


def test_labels_that_are_chosen_by_confidence_do_not_break_what_is_kept(folder: Path) -> None:
    """All of the unsure are looked at, and one in twenty of the others: labels are worse than predictions."""
    stream = Stream(folder, Contract((Clause(0.9, above=0.7),)))
    for _ in range(5):
        c = stream.rng.choice([0.75, 0.99], 2000, p=[0.3, 0.7])
        y = stream.rng.random(2000) < np.where(c < 0.9, 0.78, 0.99)  # 92.7 % of all, 81 % of the labelled
        chosen = (c < 0.9) | (stream.rng.random(2000) < 0.05)
        stream.serve(c, y, labelled=chosen)
    (state,) = stream.states
    assert y[chosen].mean() < 0.85
    assert state.state != "broken"
    assert state.value == pytest.approx(0.927, abs=0.02)
    assert state.low < 0.927 < state.high


def test_labels_of_one_group_count_as_one(folder: Path) -> None:
    alone, together = Stream(folder, ACT), Stream(folder / "other", ACT)
    c, y = np.full(60, 0.9), np.zeros(60)
    alone.serve(c, y)
    together.serve(c, y, group="patient 7")
    assert alone.states[0].state == "broken"
    assert together.states[0].state == "unknown"
    assert together.states[0].why == "60 labels are too few to be sure"
    together.ledger.close()


def test_equal_labels_of_a_group_are_a_bet_whatever_rounds(folder: Path) -> None:
    """The mean of 13 payoffs of -1, weighed by 1 / 3.3, is a little below -1, which no bet can take."""
    stream = Stream(folder, ACT)
    for size in (13, 45):
        stream.serve(np.full(size, 0.9), np.ones(size), group=f"patient {size}")
        stream.serve(np.full(7, 0.95), np.ones(7), labelled=slice(3))
    assert stream.states[0].labels == 64


def test_what_nobody_labels_is_left_open(folder: Path) -> None:
    """The unsure are never labelled, or they alone: neither says what all of them are."""
    sure, unsure = Stream(folder, ACT), Stream(folder / "other", ACT)
    c = np.repeat([0.82, 0.99], [300, 700])
    y = np.concatenate([np.arange(300) % 10 < 8, np.ones(700)])  # 94 % in all
    sure.serve(c, y, labelled=c > 0.9)
    unsure.serve(c, y, labelled=c < 0.9)
    (kept,), (broken,) = sure.states, unsure.states
    assert (kept.state, broken.state) == ("unknown", "unknown")
    assert kept.low < 0.7 < 0.98 < kept.high
    assert broken.low < 0.3 < 0.94 < broken.high
    unsure.ledger.close()


def test_each_label_counts_once_whatever_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(folder, ACT)
    keep = Followers.keep

    def fails(followers: Followers, *what: Any, **when: Any) -> None:
        keep(followers, *what, **when)
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(stream.watch.feed, "tick", lambda: None)
        stream.serve(np.full(50, 0.9), np.ones(50))
    with monkeypatch.context() as patch:
        patch.setattr(Followers, "keep", fails)
        with pytest.raises(LedgerError):
            stream.watch.feed.tick()
    stream.watch.feed.tick()
    known = stream.states[0]
    assert known.labels == 50
    stream.ledger.close()
    again = Stream(folder, ACT)
    (state,) = again.states
    assert (state.labels, state.low, state.high) == (50, known.low, known.high)
    again.serve(np.full(10, 0.9), np.ones(10))
    assert again.states[0].labels == 60


def test_another_promise_begins_anew_and_damage_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(folder, ACT)
    stream.serve(np.full(50, 0.9), np.ones(50))
    stream.ledger.close()
    other = Stream(folder, Contract((Clause(0.8, above=0.8),)))
    assert (other.states[0].state, other.states[0].labels) == ("unknown", 0)
    assert other.states[0].why == "no label that is mature is of it"
    before = {one.name for one in other.ledger.followers.states("clause", ("pets", "1"))}
    other.serve(np.full(5, 0.9), np.ones(5))
    (kept,) = (
        one for one in other.ledger.followers.states("clause", ("pets", "1")) if one.name not in before
    )
    sound = json.loads(kept.value)
    changes: list[dict[str, Any]] = [
        {"format": 0},
        {"labels": -3},
        {"heaviest": math.inf},
        {"units": -1.0},
        {"against": [0.0]},
        {"mean": None},
        {"kept_at": "soon"},
    ]
    for damaged in (b"[]", b"{", *(json.dumps(sound | one).encode() for one in changes)):
        other.ledger.followers.keep("clause", ("pets", "1"), kept.name, damaged, now=0.0)
        assert other.states[0].labels == 0
        assert "begins anew" in caplog.text
        caplog.clear()
