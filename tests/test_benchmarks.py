"""All benchmarks in one run: nothing is left out, no miss is hidden, no failure stops the others."""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import re
import sys
import time
from pathlib import Path
from types import ModuleType

import psutil
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
    assert all(each.goals or each.page for each in run_all.BENCHMARKS)


def test_no_goal_is_in_seconds_or_a_second(run_all: ModuleType) -> None:
    """They would be another machine's: a time is in units of work that the same run has measured."""
    for goal in (goal for each in run_all.BENCHMARKS for goal in each.goals):
        unit = goal.show.rpartition("}")[2].split()
        assert not {*unit} & {"s", "ms", "us", "µs", "/s"}, goal.says
        assert not re.search(r"\b(a|per) (second|minute|hour)\b", goal.says), goal.says


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


@pytest.mark.server
def test_one_that_fails_is_told_with_its_last_lines(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all.peers, "HERE", tmp_path)
    (tmp_path / "bad.py").write_text("print('measuring')\nraise SystemExit('no disk')")
    (tmp_path / "good.py").write_text("import sys; assert sys.argv[1:] == ['--quick']")
    bad = run_all.run(run_all.Benchmark("bad", "", ()), quick=False, limit=60)
    assert (bad["status"], bad["last_lines"]) == ("failed", ["measuring", "no disk"])
    assert run_all.run(run_all.Benchmark("good", "", ()), quick=True, limit=60)["status"] == "done"


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


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_the_pages_are_those_of_the_kept_results(run_all: ModuleType) -> None:
    """Whoever changes a goal, a table or a result renders the pages: run_all.py --render."""
    content = run_all.merged(run_all.earlier_failures())
    assert json.loads(run_all.MERGED.read_text()) == json.loads(json.dumps(content))
    assert run_all.PAGE.read_text() == run_all.page(content)
    for page in run_all.blocks.PAGES:
        assert page.read_text() == run_all.blocks.rendered(page.read_text()), page.name


@pytest.mark.parametrize("name", ["mac_cal_page", "neural_clamping_page"])
def test_the_tables_of_papers_are_those_of_the_kept_results(run_all: ModuleType, name: str) -> None:
    module = importlib.import_module(name)
    for page in getattr(module, "PAGES", None) or [module.PAGE]:
        assert page.read_text() == module.rendered(page.read_text()), page.name


def test_the_page_of_fusion_is_that_of_the_kept_result(run_all: ModuleType) -> None:
    module = importlib.import_module("fusion_overhead")
    assert module.PAGE.read_text() == module.page(run_all.kept("fusion_overhead"))


def test_sentences_with_numbers_say_what_was_measured(run_all: ModuleType) -> None:
    quotes = importlib.import_module("quotes").QUOTES
    assert len(quotes) > 10
    for quote in quotes:
        said = squeezed(quote.says(run_all.kept(quote.benchmark)))
        assert said in squeezed((ROOT / "docs" / quote.page).read_text()), (quote.page, said)


def test_the_table_of_a_deployment_takes_what_the_others_measured(run_all: ModuleType) -> None:
    """It keeps their numbers of when it ran: it runs again after them, or its table says otherwise."""
    assert run_all.kept("deployment")["of_others"] == run_all.blocks.deployment.of_others()


def test_a_goal_that_was_not_measured_says_why(run_all: ModuleType) -> None:
    goal = run_all.Goal(
        "ratio", lambda r: r["rows"]["ours"] / r["rows"]["theirs"], at_most=1, peers=("river",)
    )
    assert run_all.judged(goal, None)["why"] == "no full run is kept"
    assert run_all.judged(goal, {"rows": {"ours": 1}})["why"] == "the kept run has no 'theirs'"
    rows = {"ours": 1.0, "theirs": 2.0}
    lacks = {"rows": rows, "absent": {"river": "could not be installed: ERROR: no disk"}}
    told = run_all.judged(goal, lacks)
    assert (told["verdict"], told["why"]) == (
        "not measured",
        "river: could not be installed: ERROR: no disk",
    )
    other = {"rows": rows, "absent": {"netcal": "could not be installed: ERROR: no disk"}}
    assert run_all.judged(goal, other)["verdict"] == "met"
    for each in json.loads(run_all.MERGED.read_text())["benchmarks"].values():
        assert all(goal["why"] for goal in each["goals"] if goal["verdict"] == "not measured")


def test_no_benchmark_hides_a_package_of_its_name() -> None:
    """Python looks into a program's own folder first: numba imports coverage where it is installed."""
    installed = [path for path in sys.path if Path(path).name == "site-packages"]  # not what a package added
    for path in BENCHMARKS.glob("*.py"):
        assert path.stem not in sys.stdlib_module_names, path.name
        assert importlib.machinery.PathFinder.find_spec(path.stem, installed) is None, path.name


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.server
def test_one_that_takes_too_long_is_told_with_what_it_had_said(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all.peers, "HERE", tmp_path)
    (tmp_path / "long.py").write_text(
        "import subprocess, sys\nprint('measuring', flush=True)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "stdout=-3, stderr=-3)\n"
        "print(child.pid, flush=True)\nchild.wait()\n"
    )
    outcome = run_all.run(run_all.Benchmark("long", "", ()), quick=True, limit=8)
    assert outcome["status"] == "too long"
    said, child, last = outcome["last_lines"]
    assert (said, last) == ("measuring", "stopped: it took longer than 8 s")
    until = time.monotonic() + 20
    while running(int(child)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(int(child))


@pytest.mark.server  # it asks git
def test_what_is_done_counts_for_the_same_command_code_and_settings_alone(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("progress")
    monkeypatch.delenv("CALIB_SERVE_DATA", raising=False)
    kept = tmp_path / "new" / "quick.json"
    one, again = module.Progress(kept), module.Progress(kept)
    one.keep("labels", ["labels.py"], {"status": "done", "seconds": 1.0})
    one.keep("soak", ["soak.py"], {"status": "failed", "seconds": 1.0})
    assert again.done("labels", ["labels.py"])["seconds"] == 1.0
    assert again.done("labels", ["labels.py", "--quick"]) is None
    assert again.done("soak", ["soak.py"]) is None
    assert again.done("serving", ["serving.py"]) is None
    monkeypatch.setenv("CALIB_SERVE_DATA", str(tmp_path))
    assert module.Progress(kept).done("labels", ["labels.py"]) is None
    monkeypatch.delenv("CALIB_SERVE_DATA")
    monkeypatch.setattr(module, "code", lambda: "other code")
    assert module.Progress(kept).done("labels", ["labels.py"]) is None
    again.forget("labels")
    assert one.done("labels", ["labels.py"]) is None
