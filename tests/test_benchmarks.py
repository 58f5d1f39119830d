"""Benchmarks: nothing is left out, no miss is hidden, and the page says what the kept results say."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("run_all")


@pytest.fixture
def goals(run_all: ModuleType) -> ModuleType:
    return importlib.import_module("goals")


def test_every_file_that_keeps_a_result_has_goals_or_belongs_to_a_paper(goals: ModuleType) -> None:
    texts = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    keep = {name for name, text in texts.items() if "peers.save(" in text}
    assert keep == {*(each.name for each in goals.BENCHMARKS), *goals.PAPERS}
    assert all(each.goals for each in goals.BENCHMARKS)


def test_all_of_them_take_forty_minutes_of_two_cores(goals: ModuleType) -> None:
    one_by_one = sum(each.minutes for each in goals.BENCHMARKS if each.alone)
    two_at_a_time = sum(each.minutes for each in goals.BENCHMARKS if not each.alone)
    assert one_by_one + two_at_a_time / 2 <= 41.5


def test_a_goal_that_is_missed_says_why(run_all: ModuleType) -> None:
    for benchmark in run_all.BENCHMARKS:
        result = run_all.kept(benchmark.name)
        for goal in benchmark.goals:
            assert run_all.judged(goal, result)[1] != "missed" or goal.reason, goal.says


def test_what_was_not_measured_is_neither_met_nor_missed(run_all: ModuleType, goals: ModuleType) -> None:
    goal = goals.Goal(says="", measured=lambda r: r["ratio"], beside="a peer", at_most=1.0, needs=("peer",))
    verdicts = {
        "met": {"ratio": 1.0},
        "missed": {"ratio": 1.01},
        "not measured: no run is kept": None,
        "not measured: peer: no wheel": {"ratio": 0.5, "absent": {"peer": "no wheel"}},
        "not measured: the kept run has no 'ratio'": {},
    }
    assert {run_all.judged(goal, result)[1]: result for result in verdicts.values()} == verdicts


def test_the_page_is_that_of_the_kept_results(run_all: ModuleType) -> None:
    """Whoever changes a goal or a result renders the page: run_all.py --render."""
    page = run_all.PAGE.read_text()
    assert all(f"<!-- {name} -->" in page for name in run_all.TABLES)
    assert run_all.rendered(page) == page


def test_cells_of_one_shape_see_the_same_predictions_and_other_labels(run_all: ModuleType) -> None:
    coverage = importlib.import_module("interval_coverage")
    _, calibrated, _ = coverage.measured((2, 200, "calibrated"), range(3), 20)
    _, guessing, _ = coverage.measured((2, 200, "guessing"), range(3), 20)
    values = {name: np.array(rows)[:, 1] for name, rows in calibrated.items()}
    others = {name: np.array(rows)[:, 1] for name, rows in guessing.items()}
    np.testing.assert_array_equal(values["mean_confidence"], others["mean_confidence"])
    assert (values["accuracy"] > others["accuracy"]).all()  # one label in seven is drawn blindly
    assert len(set(values["accuracy"])) > 1


def test_coverage_counts_both_sides(run_all: ModuleType) -> None:
    coverage = importlib.import_module("interval_coverage")
    inside, below, above = [0.5, 0.5, 0.4, 0.6], [0.3, 0.5, 0.4, 0.6], [0.7, 0.5, 0.4, 0.6]
    found = coverage.summary([inside] * 6 + [below] * 1 + [above] * 3)
    assert found["coverage"] == pytest.approx(0.6)
    assert (found["below"], found["above"]) == pytest.approx((0.1, 0.3))
