"""All benchmarks in one run: nothing is left out, no miss is hidden, no failure stops the others."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("run_all")


def programs() -> dict[str, str]:
    """The text of every file of the folder that keeps a result."""
    texts = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    return {name: text for name, text in texts.items() if "peers.save(" in text}


def test_every_benchmark_is_run_and_has_its_goals(run_all: ModuleType) -> None:
    assert {each.name for each in run_all.BENCHMARKS} == set(programs())
    assert all(each.goals for each in run_all.BENCHMARKS)


def test_every_benchmark_can_be_trimmed_and_keeps_its_result_in_one_way() -> None:
    for name, text in programs().items():
        assert "peers.arguments(" in text, f"{name} has no --quick"
        assert f'peers.save("{name}"' in text or f"peers.save('{name}'" in text, name


def test_no_goal_is_in_seconds_or_a_second(run_all: ModuleType) -> None:
    """They would be another machine's: a time is in units of work that the same run has measured."""
    for goal in (goal for each in run_all.BENCHMARKS for goal in each.goals):
        unit = goal.show.rpartition("}")[2].split()
        assert not {*unit} & {"s", "ms", "us", "µs", "/s"}, goal.says
        assert not re.search(r"\b(a|per) (second|minute|hour)\b", goal.says), goal.says


def test_pages_that_goals_point_to_are_there(run_all: ModuleType) -> None:
    for each in run_all.BENCHMARKS:
        assert not each.page or (ROOT / "docs" / "benchmarks" / f"{each.page}.md").exists()


def test_a_missed_goal_is_shown_with_its_reason(run_all: ModuleType) -> None:
    content = json.loads(run_all.MERGED.read_text())["benchmarks"]
    missed = [goal for each in content.values() for goal in each["goals"] if goal["verdict"] == "missed"]
    page = run_all.PAGE.read_text()
    for goal in missed:
        assert goal["reason"], goal["goal"]
        assert (
            f"| {goal['goal']}: {goal['bound']} | {goal['measured']} | **missed**: {goal['reason']} |" in page
        )


def test_a_goal_is_judged_by_its_bound_and_not_measured_is_not_met(run_all: ModuleType) -> None:
    goal = run_all.Goal("seconds", lambda r: r["s"], at_most=0.25, reason="slow")
    assert run_all.judged(goal, {"s": 0.25})["verdict"] == "met"
    assert run_all.judged(goal, {"s": 0.251}) | {"value": 0} == {
        "goal": "seconds",
        "bound": "at most 0.25",
        "measured": "0.251",
        "value": 0,
        "verdict": "missed",
        "reason": "slow",
    }
    assert run_all.judged(goal, {})["verdict"] == run_all.judged(goal, None)["verdict"] == "not measured"
    assert run_all.judged(goal, {"s": float("nan")})["verdict"] == "missed"


def test_long_lists_of_numbers_become_medians_and_ranges(run_all: ModuleType) -> None:
    records = [{"a": {"b": value}, "pair": [0, value]} for value in (1, 2, 9)]
    named = [{"model": "linear", "ms": 1.0}] * 3
    assert run_all.condensed({"seeds": records, "rows": named}) == {
        "seeds": {
            "a": {"b": {"median": 2, "range": [1, 9], "n": 3}},
            "pair": [[0, 1], [0, 2], [0, 9]],
        },
        "rows": named,
    }


def test_one_that_fails_is_told_with_its_last_lines(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all.peers, "HERE", tmp_path)
    (tmp_path / "bad.py").write_text("print('measuring')\nraise SystemExit('no disk')")
    (tmp_path / "good.py").write_text("import sys; assert sys.argv[1:] == ['--quick']")
    bad = run_all.run(run_all.Benchmark("bad", "", ()), quick=False, limit=60)
    assert (bad["status"], bad["last_lines"]) == ("failed", ["measuring", "no disk"])
    assert run_all.run(run_all.Benchmark("good", "", ()), quick=True, limit=60)["status"] == "done"


def test_one_that_needs_data_is_skipped_with_the_reason(
    run_all: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALIB_SERVE_DATA", raising=False)
    outcome = run_all.run(run_all.Benchmark("labels", "", (), needs_data=True), quick=True, limit=60)
    assert outcome["status"] == "skipped"
    assert "CALIB_SERVE_DATA" in outcome["why"]


def test_a_failure_is_told_until_the_benchmark_has_run_again(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all.peers, "RESULTS", tmp_path)
    failure = {"labels": {"finished": "2026-01-02T00:00:00+00:00", "last_lines": ["no disk"]}}
    run = {"command": "python benchmarks/labels.py", "finished": "2026-01-01T00:00:00+00:00"}
    machine = {"cpu": "c", "cores": 2, "system": "s", "python": "3.11", "versions": {}}
    result = {"run": {**run, "machine": machine}, "trimmed": ["labels"]}
    (tmp_path / "labels.json").write_text(json.dumps(result))
    told = run_all.merged(failure)
    assert told["benchmarks"]["labels"]["failed"] == failure["labels"]
    assert "    no disk" in run_all.page(told)
    result["run"]["finished"] = "2026-01-03T00:00:00+00:00"
    (tmp_path / "labels.json").write_text(json.dumps(result))
    again = run_all.merged(failure)
    assert "failed" not in again["benchmarks"]["labels"]
    assert "trimmed run" in run_all.page(again)


def test_a_run_on_a_gpu_is_told_with_the_device_and_kept_apart(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all.peers, "RESULTS", tmp_path)
    assert "no GPU was at hand" in run_all.page(run_all.merged({}))
    asked = argparse.Namespace(quick=False, device="cuda:1")
    machine = {"cpu": "c", "cores": 2, "gpu": "H100", "system": "s", "python": "3.11", "versions": {}}
    monkeypatch.setattr(run_all.peers, "machine", lambda: machine)
    path = run_all.peers.save("fusion_overhead", {"median_ratio": 1.001, "rows": []}, asked)
    assert path == tmp_path / "fusion_overhead.cuda.json"
    told = run_all.page(run_all.merged({}))
    assert "fusion_overhead: H100" in told
    assert "median of all rows: 1.0010" in told
    assert run_all.merged({})["benchmarks"]["fusion_overhead"]["result"] is None


def test_each_result_is_told_with_the_machine_that_made_it(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all.peers, "RESULTS", tmp_path)
    for name, cpu in (("labels", "one"), ("soak", "another"), ("metrics", "one")):
        machine = {"cpu": cpu, "cores": 2, "system": "s", "python": "3.11", "versions": {"numpy": "2.4"}}
        run = {"command": name, "finished": "2026-01-01T00:00:00+00:00", "machine": machine}
        (tmp_path / f"{name}.json").write_text(json.dumps({"run": run}))
    page = run_all.page(run_all.merged({}))
    assert "- 2 cores of one, s, Python 3.11: labels, metrics\n" in page
    assert "- 2 cores of another, s, Python 3.11: soak\n" in page
