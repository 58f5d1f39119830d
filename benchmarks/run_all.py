"""Run every benchmark, each peer in its own pinned environment, and say which goals are met.

    CALIB_SERVE_DATA=... python benchmarks/run_all.py [NAME ...]     # hours on two cores
    python benchmarks/run_all.py --quick                             # minutes: all trimmed, kept apart
    python benchmarks/run_all.py --resume                            # go on with a run that was interrupted
    python benchmarks/run_all.py --render                            # nothing runs, only the page is written

Each benchmark writes results/NAME.json; one that fails, or takes longer than --limit, is told with its last
lines, and the others go on. Then results.json (all results, condensed, with the goals) and docs/benchmarks.md
are written from what is there. A quick run writes to results/quick only and judges no goal: trimmed numbers
decide nothing. What has ended is kept in build/benchmarks with the code and settings it ran at: --resume
leaves out what is done at the same ones, and runs what failed or has not run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import blocks
import overview
import peers
from goals import BENCHMARKS, Benchmark, Goal
from progress import Progress

MERGED = peers.HERE / "results.json"
PAGE = peers.ROOT / "docs" / "benchmarks.md"
QUICK_LIMIT, FULL_LIMIT = 600, 8 * 3600  # seconds that one benchmark may take


INTRODUCTION = """# Benchmarks

Every number that we claim is made by one file in `benchmarks/`, beside the fastest peers, each peer in an
environment of pinned versions that the file makes itself. The goals stand in `benchmarks/goals.py`; one that
is missed is shown as missed, with the reason. A peer that cannot be installed is named, and a goal that it
decides is not measured.

```bash
make bench-quick                        # everything, trimmed, in some minutes
python benchmarks/run_all.py            # everything, in hours; CALIB_SERVE_DATA names the real data
python benchmarks/run_all.py --resume   # go on with a run that was interrupted
python benchmarks/run_all.py labels     # one of them, and this page
```
"""


def run(benchmark: Benchmark, *, quick: bool, limit: float) -> dict[str, Any]:
    """Run it in a process of its own: ``status`` is done, skipped, failed or too long."""
    if why := lacking(benchmark):
        return {"status": "skipped", "why": why}
    if benchmark.environment:
        peers.environment(benchmark.environment)  # its minutes are not those of the benchmark
    start = time.monotonic()
    # A session of its own, so that what it started ends with it.
    process = subprocess.Popen(
        arguments(benchmark, quick=quick),
        cwd=peers.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    late = False
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
    took = {"seconds": round(time.monotonic() - start, 1)}
    if process.returncode == 0:
        return {"status": "done", **took}
    lines = [*out.splitlines()[-15:], *([f"stopped: it took longer than {limit:g} s"] if late else [])]
    return {"status": "too long" if late else "failed", **took, "finished": now(), "last_lines": lines}


def lacking(benchmark: Benchmark) -> str:
    """Why it cannot run here; empty where it can."""
    if benchmark.needs_data and not os.environ.get("CALIB_SERVE_DATA"):
        return "CALIB_SERVE_DATA is not set: it names the folder of real data"
    missing = [program for program in benchmark.programs if not shutil.which(program)]
    return f"there is no {' and no '.join(missing)} here" if missing else ""


def arguments(benchmark: Benchmark, *, quick: bool) -> list[str]:
    options = ["--quick"] if quick else [*benchmark.options]
    return [sys.executable, str(peers.HERE / f"{benchmark.name}.py"), *options]


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def condensed(value: Any) -> Any:
    """A result without its bulk: of a long list of numbers, or of records of them, the medians and ranges."""
    if isinstance(value, dict):
        return {key: condensed(item) for key, item in value.items()}
    if not isinstance(value, list) or len(value) < 3:
        return [condensed(item) for item in value] if isinstance(value, list) else value
    if all(isinstance(item, (int, float)) for item in value):
        return {"median": statistics.median(value), "range": [min(value), max(value)], "n": len(value)}
    if all(isinstance(item, dict) and item.keys() == value[0].keys() for item in value) and numeric(value):
        return {key: condensed([item[key] for item in value]) for key in value[0]}
    return [condensed(item) for item in value]


def numeric(value: Any) -> bool:
    """Whether all that lies in these records is a number."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return isinstance(value, (int, float)) if inside is None else all(map(numeric, inside))


def judged(goal: Goal, result: dict[str, Any] | None) -> dict[str, Any]:
    """A goal with what was measured: met, missed, or not measured and why."""
    told = {"goal": goal.says, "bound": goal.bound}
    if result is None:
        return {**told, "verdict": "not measured", "why": "no full run is kept"}
    absent = result.get("absent", {})
    if deciding := [peer for peer in goal.peers if peer in absent]:
        why = "; ".join(f"{peer}: {absent[peer]}" for peer in deciding)
        return {**told, "verdict": "not measured", "why": why}
    try:
        value = goal.measured(result)
    except KeyError as missing:  # this run was trimmed, or made before the goal
        return {**told, "verdict": "not measured", "why": f"the kept run has no {missing.args[0]!r}"}
    except (ValueError, IndexError, StopIteration, ZeroDivisionError):
        return {**told, "verdict": "not measured", "why": "the kept run has none of its rows"}
    verdict = "met" if goal.met(value) else "missed"
    reason = {"reason": goal.reason} if verdict == "missed" else {}
    return {**told, "value": value, "measured": goal.show.format(value), "verdict": verdict, **reason}


def merged(failures: dict[str, Any]) -> dict[str, Any]:
    """All results there are; a failure is told until the benchmark has run again."""
    content: dict[str, Any] = {}
    results = {benchmark.name: kept(benchmark.name) for benchmark in BENCHMARKS}
    for benchmark in BENCHMARKS:
        result = results[benchmark.name]
        run, failure = (result or {}).get("run"), failures.get(benchmark.name)
        finished = run["finished"] if run else ""
        content[benchmark.name] = {
            "asks": benchmark.asks,
            "command": command(benchmark),
            "last_run": {key: run[key] for key in ("command", "finished")} if run else None,
            "goals": [judged(goal, result) for goal in benchmark.goals],
            **({"absent": result["absent"]} if result and result.get("absent") else {}),
            **({"failed": failure} if failure and failure["finished"] > finished else {}),
            "result": condensed(result),
        }
    return {"answers": overview.answers(results), "benchmarks": content, "gpu": on_gpu()}


def kept(name: str) -> dict[str, Any] | None:
    """The result of the last full run."""
    path = peers.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def command(benchmark: Benchmark) -> str:
    """The full run's."""
    data = "CALIB_SERVE_DATA=... " if benchmark.needs_data else ""
    return data + " ".join(["python", f"benchmarks/{benchmark.name}.py", *benchmark.options])


def on_gpu() -> dict[str, Any]:
    """Results of runs with --device cuda, by benchmark."""
    paths = sorted(peers.RESULTS.glob("*.cuda.json"))
    return {path.name.removesuffix(".cuda.json"): condensed(json.loads(path.read_text())) for path in paths}


def render(failures: dict[str, Any]) -> dict[str, Any]:
    """Write results.json, docs/benchmarks.md and the tables of other pages from the results there are."""
    content = merged(failures)
    MERGED.write_text(json.dumps(content, indent=1) + "\n")
    PAGE.write_text(page(content))
    blocks.render()
    return content


def page(content: dict[str, Any]) -> str:
    benchmarks = content["benchmarks"]
    lines = [
        INTRODUCTION,
        *overview.results(content["answers"]),
        *overview.goals(benchmarks),
        "## Machines",
        "",
        *machines(benchmarks),
        "## By benchmark",
        "",
        "All measured values, with medians and ranges, are in `benchmarks/results.json`.",
        "",
    ]
    for benchmark in BENCHMARKS:
        lines += section(benchmark, benchmarks[benchmark.name])
    return "\n".join([*lines, *gpu(content["gpu"])]) + "\n"


def machines(benchmarks: dict[str, Any]) -> list[str]:
    """A line for each machine, with the benchmarks that ran on it; then the versions of libraries."""
    runs = {
        name: each["result"]["run"] for name, each in benchmarks.items() if (each["result"] or {}).get("run")
    }
    by_machine: dict[str, list[str]] = {}
    versions: dict[str, str] = {}
    for name, run in sorted(runs.items(), key=lambda pair: pair[1]["finished"]):
        machine = run["machine"]
        said = (
            f"{machine['cores']} cores of {machine['cpu']}, {machine['system']}, Python {machine['python']}"
        )
        by_machine.setdefault(said, []).append(name)
        versions |= machine["versions"]
    if not runs:
        return []
    return [
        *(f"- {machine}: {', '.join(sorted(names))}" for machine, names in by_machine.items()),
        "",
        f"With {', '.join(f'{name} {number}' for name, number in sorted(versions.items()))}.",
        "",
    ]


def section(benchmark: Benchmark, found: dict[str, Any]) -> list[str]:
    more = f" [More](benchmarks/{benchmark.page}.md)." if benchmark.page else ""
    lines = [f"### {benchmark.name}", "", f"{benchmark.asks}{more}", ""]
    if found["goals"]:
        lines += ["| goal | measured | met or missed | command |", "| --- | --- | --- | --- |"]
    for goal in found["goals"]:
        verdict = {
            "met": "met",
            "missed": f"**missed**: {goal.get('reason')}",
            "not measured": f"not measured: {goal.get('why')}",
        }[goal["verdict"]]
        cells = (
            f"{goal['goal']}: {goal['bound']}",
            goal.get("measured", ""),
            verdict,
            f"`{found['command']}`",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [""] if found["goals"] else []
    if absent := found.get("absent"):
        lines += ["Left out:", "", *(f"- {name}: {why}" for name, why in absent.items()), ""]
    if found["last_run"]:
        run = found["last_run"]
        lines += [f"Last run on {run['finished'][:10]}: `{run['command']}`.", ""]
    if trimmed(found["result"] or {}):
        lines += ["What is shown was measured in a trimmed run; the result says how.", ""]
    if "failed" in found:
        lines += [f"**The last run failed** ({found['failed']['finished'][:10]}):", ""]
        lines += [*(f"    {line}" for line in found["failed"]["last_lines"]), ""]
    return lines


def trimmed(result: dict[str, Any]) -> bool:
    models = result.get("models")  # results by model, or how many there were
    parts = models.values() if isinstance(models, dict) else ()
    return any(bool(part.get("trimmed")) for part in (result, *parts))


GPU = ("neural_clamping", "neural_clamping_speed", "masked_head", "fusion_overhead")


def gpu(found: dict[str, Any]) -> list[str]:
    lines = ["## On a GPU", "", "```bash"]
    lines += [f"python benchmarks/{name}.py --device cuda" for name in GPU]
    lines += ["```", "", "Each writes a result of its own, and says so where no CUDA device is.", ""]
    return [*lines, *(gpu_line(name, found.get(name)) for name in GPU)]


def gpu_line(name: str, result: dict[str, Any] | None) -> str:
    """What the goals of the same benchmark come to there, and the page that tells the rest."""
    if result is None:
        return f"- {name}: not measured on a GPU."
    (benchmark,) = (each for each in BENCHMARKS if each.name == name)
    raw = json.loads((peers.RESULTS / f"{name}.cuda.json").read_text())
    told = (judged(goal, raw) for goal in benchmark.goals)
    figures = [f"{goal['goal']}: {goal['measured']}" for goal in told if "measured" in goal]
    run, more = result["run"], f"[more](benchmarks/{benchmark.page}.md)"
    parts = [run["machine"]["gpu"], f"`{run['command']}`", *figures, more]
    return f"- {name}: {'; '.join(parts)}."


def earlier_failures() -> dict[str, Any]:
    kept = json.loads(MERGED.read_text())["benchmarks"] if MERGED.exists() else {}
    return {name: each["failed"] for name, each in kept.items() if "failed" in each}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all without: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true", help="leave out what is done at this code")
    parser.add_argument("--render", action="store_true")
    parser.add_argument(
        "--limit", type=float, help=f"seconds for each; {FULL_LIMIT}, and {QUICK_LIMIT} of --quick"
    )
    asked = parser.parse_args()
    unknown = set(asked.names) - set(names)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if asked.render:
        render(earlier_failures())
        return
    # What was started ends with us, by whichever signal.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    chosen = [b for b in BENCHMARKS if not asked.names or b.name in asked.names]
    try:
        failed = run_each(chosen, asked)
    except KeyboardInterrupt:
        print("interrupted; --resume goes on from here", flush=True)
        sys.exit(130)
    if not asked.quick:
        print(f"written: {MERGED.relative_to(peers.ROOT)}, {PAGE.relative_to(peers.ROOT)}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run_each(chosen: list[Benchmark], asked: argparse.Namespace) -> list[str]:
    """The names of those that failed."""
    progress = Progress.of(quick=asked.quick)
    limit = asked.limit or (QUICK_LIMIT if asked.quick else FULL_LIMIT)
    failures, failed = earlier_failures(), []
    for benchmark in chosen:
        print(f"{benchmark.name:24}", end="", flush=True)
        command = arguments(benchmark, quick=asked.quick)[1:]
        if asked.resume and (earlier := progress.done(benchmark.name, command)):
            print(f"done before, {earlier['finished']}, {earlier['seconds']} s", flush=True)
            continue
        progress.forget(benchmark.name)
        outcome = run(benchmark, quick=asked.quick, limit=limit)
        progress.keep(benchmark.name, command, {**outcome, "finished": now()})
        took = f"{outcome['seconds']} s" if "seconds" in outcome else outcome["why"]
        print(outcome["status"], took, flush=True)
        if "last_lines" in outcome:
            print(*(f"    {line}" for line in outcome["last_lines"]), sep="\n", flush=True)
            failures[benchmark.name] = outcome
            failed.append(benchmark.name)
        if not asked.quick:
            render(failures)
    return failed


if __name__ == "__main__":
    main()
