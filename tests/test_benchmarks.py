"""All benchmarks in one run: nothing is left out, no miss is hidden, no failure stops the others."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.machinery
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from sizes import nightly

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


# What the page says.


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_the_pages_are_those_of_the_kept_results(run_all: ModuleType) -> None:
    """Whoever changes a goal, a table or a result renders the pages: run_all.py --render."""
    content = run_all.merged(run_all.earlier_failures())
    assert json.loads(run_all.MERGED.read_text()) == json.loads(json.dumps(content))
    assert run_all.PAGE.read_text() == run_all.page(content)
    for page in run_all.blocks.PAGES:
        assert page.read_text() == run_all.blocks.rendered(page.read_text()), page.name
        assert "<!-- measured " in page.read_text(), page.name


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


def test_links_to_a_benchmark_name_one(run_all: ModuleType) -> None:
    known = {each.name for each in run_all.BENCHMARKS} | {"machines", "by-benchmark", "goals", "results"}
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    named = {name for page in pages for name in re.findall(r"benchmarks\.md#([\w-]+)", page.read_text())}
    assert named
    assert named <= known
    commands = {
        name for page in pages for name in re.findall(r"python benchmarks/(\w+)\.py", page.read_text())
    }
    assert commands
    assert all((BENCHMARKS / f"{name}.py").exists() for name in commands)


def test_results_and_goals_stand_before_the_details(run_all: ModuleType) -> None:
    page = run_all.PAGE.read_text()
    parts = [page.index(f"\n## {name}\n") for name in ("Results", "Goals", "Machines", "By benchmark")]
    assert parts == sorted(parts)
    content = json.loads(run_all.MERGED.read_text())
    goals = [goal for each in content["benchmarks"].values() for goal in each["goals"]]
    for answer in content["answers"]:
        assert f"| {answer['asks']} | {answer['measured']} | [{answer['benchmark']}](#" in page[: parts[1]]
    for goal in goals:
        assert run_all.overview.short(goal) in page[parts[1] : parts[2]]
    counts = [sum(goal["verdict"] == verdict for goal in goals) for verdict in run_all.overview.VERDICTS]
    met, missed, unmeasured = counts
    assert f"**Of {len(goals)} goals: {met} met, {missed} missed, {unmeasured} not measured.**" in page


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


def test_an_absent_peer_is_a_line_on_the_page(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all.peers, "RESULTS", tmp_path)
    machine = {"cpu": "c", "cores": 2, "system": "s", "python": "3.11", "versions": {}}
    run = {"command": "detectors", "finished": "2026-01-01T00:00:00+00:00", "machine": machine}
    absent = {"river": "could not be installed: ERROR: no disk"}
    (tmp_path / "detectors.json").write_text(json.dumps({"run": run, "absent": absent}))
    page = run_all.page(run_all.merged({}))
    assert "\n- river: could not be installed: ERROR: no disk\n" in page
    assert "| not measured: river: could not be installed: ERROR: no disk |" in page


# What the folder is.


def test_no_name_of_the_goals_is_given_twice() -> None:
    """A second value would silently be the first one's as well, and its goals not measured."""
    for name in ("goals", "overview", "blocks", "quotes"):
        tree = ast.parse((BENCHMARKS / f"{name}.py").read_text())
        given = [target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        given += [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        assert sorted(given) == sorted(set(given)), name


def test_no_benchmark_hides_a_package_of_its_name() -> None:
    """Python looks into a program's own folder first: numba imports coverage where it is installed."""
    installed = [path for path in sys.path if Path(path).name == "site-packages"]  # not what a package added
    for path in BENCHMARKS.glob("*.py"):
        assert path.stem not in sys.stdlib_module_names, path.name
        assert importlib.machinery.PathFinder.find_spec(path.stem, installed) is None, path.name


def test_goals_name_peers_of_the_environment_that_the_benchmark_makes(run_all: ModuleType) -> None:
    canonical = run_all.peers.canonical
    for each in run_all.BENCHMARKS:
        text = (BENCHMARKS / f"{each.name}.py").read_text()
        named = re.findall(r"requirements-\w+\.txt", text)
        if "import PINS" in text or "fit_outputs import" in text:
            named.append("requirements-fit.txt")
        assert each.environment == "".join(named[:1]), each.name
        pins = (BENCHMARKS / each.environment).read_text().splitlines() if each.environment else []
        for goal in each.goals:
            assert {*goal.peers} <= {canonical(pin) for pin in pins}, goal.says


# Environments of peers.


def wheel(folder: Path, name: str) -> None:
    """A package of one empty module, as pip takes it without building anything."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


def test_a_peer_that_cannot_be_installed_is_absent_and_the_others_are_there(
    run_all: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = run_all.peers
    (tmp_path / "requirements-few.txt").write_text("at_hand==1.0\nnot_at_hand==1.0  # old build\n")
    monkeypatch.setattr(peers, "HERE", tmp_path)
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    wheel(tmp_path, "at_hand")
    python = peers.environment("requirements-few.txt")
    subprocess.run([python, "-c", "import at_hand"], check=True)
    assert peers.absent("requirements-few.txt") == {
        "not-at-hand": "could not be installed: ERROR: No matching distribution found for not_at_hand==1.0"
    }
    made = python.stat().st_ctime_ns
    wheel(tmp_path, "not_at_hand")
    peers.environment("requirements-few.txt")
    assert peers.absent("requirements-few.txt") == {}
    subprocess.run([python, "-c", "import at_hand, not_at_hand"], check=True)
    assert python.stat().st_ctime_ns == made, "what was there has been made again"


def test_what_pip_said_last_is_neither_advice_nor_a_warning(run_all: ModuleType) -> None:
    said = """error: subprocess-exited-with-error

    \N{MULTIPLICATION SIGN} Encountered error while generating package metadata.
    ╰─> See above for output.

    note: This is an issue with the package mentioned above, not pip.
    hint: See above for details.
    """
    assert (
        run_all.peers.last_line(said)
        == "\N{MULTIPLICATION SIGN} Encountered error while generating package metadata."
    )
    assert (
        run_all.peers.last_line("WARNING: retrying\nERROR: no disk\nWARNING: old pip\n") == "ERROR: no disk"
    )
    assert run_all.peers.last_line("\n") == "pip said nothing"


def test_a_peer_that_cannot_be_imported_says_so(run_all: ModuleType) -> None:
    lacking: dict[str, str] = {"netcal": "could not be installed: ERROR: no disk"}
    assert run_all.peers.imported("no_such_module_here", "river", lacking) is None
    assert run_all.peers.imported("no_such_module_here", "netcal", lacking) is None
    assert lacking == {
        "river": "could not be imported: ModuleNotFoundError: No module named 'no_such_module_here'",
        "netcal": "could not be installed: ERROR: no disk",
    }
    assert run_all.peers.imported("json", "json", lacking) is json


# Runs.


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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


def test_one_without_its_program_is_skipped_with_the_reason(run_all: ModuleType) -> None:
    lacks = run_all.Benchmark("labels", "", (), programs=("no-such-program-here",))
    outcome = run_all.run(lacks, quick=True, limit=1)
    assert outcome == {"status": "skipped", "why": "there is no no-such-program-here here"}


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
    assert again.done("fleet", ["fleet.py"]) is None
    monkeypatch.setenv("CALIB_SERVE_DATA", str(tmp_path))
    assert module.Progress(kept).done("labels", ["labels.py"]) is None
    monkeypatch.delenv("CALIB_SERVE_DATA")
    monkeypatch.setattr(module, "code", lambda: "other code")
    assert module.Progress(kept).done("labels", ["labels.py"]) is None
    again.forget("labels")
    assert one.done("labels", ["labels.py"]) is None


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A quick run of two real benchmarks, in a folder of its own."""
    command = [sys.executable, "-u", str(folder / "run_all.py"), "--quick", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*command, *TWO], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )


TWO = ("decisions_overhead", "toy_gaussians")


@nightly
def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    shutil.copytree(BENCHMARKS, folder, ignore=shutil.ignore_patterns("results*", "__pycache__"))
    (folder / "results").mkdir()
    quick = folder / "results" / "quick"
    first = r"decisions_overhead +done [\d.]+ s\n"
    for how in (signal.SIGTERM, signal.SIGKILL):
        run = started(folder, "--resume")
        assert run.stdout
        line = run.stdout.readline()
        assert re.fullmatch(first, line), line + run.stdout.read()
        while not (children := psutil.Process(run.pid).children()):
            assert run.poll() is None, run.stdout.read()
            time.sleep(0.01)
        run.send_signal(how)
        if how == signal.SIGKILL:
            run.communicate(timeout=60)
            for child in children:  # nobody else can end it
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        else:
            assert "interrupted; --resume goes on from here" in run.communicate(timeout=60)[0]
            assert run.returncode == 130
            assert not any(child.is_running() for child in children)
        assert [path.stem for path in quick.iterdir()] == ["decisions_overhead"]
        measured = (quick / "decisions_overhead.json").read_text()
        first = r"decisions_overhead +done before, 20\S+, [\d.]+ s\n"

    again = started(folder, "--resume")
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0, out
    assert re.fullmatch(first + r"toy_gaussians +done [\d.]+ s\n", out)
    assert (quick / "decisions_overhead.json").read_text() == measured
    assert (
        "toy_gaussians.py --quick" in json.loads((quick / "toy_gaussians.json").read_text())["run"]["command"]
    )
