"""Run the benchmarks, each peer in its own pinned environment, and write which goals are met.

    make bench                              # all of them, 40 minutes of two fast quiet cores
    make bench-quick                        # the quick ones, trimmed: do they still run?
    python benchmarks/run_all.py labels     # one of them
    python benchmarks/run_all.py --render   # the tables of docs/benchmarks.md from the results there are

Those that measure times run one by one; those that count, two at a time. Each writes results/NAME.json, with
the command and the machine that made it. One that fails, or takes longer than --limit, stops no other.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import peers
from goals import BENCHMARKS, Benchmark, Goal, Result

from calib_serve.core.process import interruptible

PAGE = peers.ROOT / "docs" / "benchmarks.md"
QUICK_LIMIT, FULL_LIMIT = 120, 1800  # seconds that one benchmark may take
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Of each of two at a time: BLAS would take both cores for either, and spend most of them waiting."""
Row = tuple[str, ...]

# --- running ---------------------------------------------------------------------------------------

RUNNING: set[subprocess.Popen[str]] = set()
SAID = threading.Lock()


def run(benchmark: Benchmark, *, quick: bool, limit: float) -> bool:
    """Run it in a session of its own, which ends with it; tell how it went."""
    if why := lacking(benchmark):
        say(benchmark, f"skipped: {why}")
        return True
    if benchmark.environment:
        peers.environment(benchmark.environment)  # its minutes are not those of the benchmark
    start = time.monotonic()
    process = subprocess.Popen(
        arguments(benchmark, quick=quick),
        cwd=peers.ROOT,
        env=os.environ if benchmark.alone else {**os.environ, **ONE_THREAD},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    RUNNING.add(process)
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        stop(process)
        out = process.communicate()[0] + f"stopped: it took longer than {limit:g} s"
    RUNNING.discard(process)
    took = f"{time.monotonic() - start:.1f} s"
    if process.returncode == 0:
        say(benchmark, f"done {took}")
    else:
        say(benchmark, f"failed {took}", *(f"    {line}" for line in out.splitlines()[-15:]))
    return process.returncode == 0


def stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def say(benchmark: Benchmark, *lines: str) -> None:
    with SAID:
        print(f"{benchmark.name:20}", *lines, sep="\n" if len(lines) > 1 else " ", flush=True)


def lacking(benchmark: Benchmark) -> str:
    """Why it cannot run here; empty where it can."""
    if benchmark.needs_data and not os.environ.get("CALIB_SERVE_DATA"):
        return "CALIB_SERVE_DATA is not set: it names the folder of real data"
    missing = [program for program in benchmark.programs if not shutil.which(program)]
    return f"there is no {' and no '.join(missing)} here" if missing else ""


def arguments(benchmark: Benchmark, *, quick: bool) -> list[str]:
    options = ["--quick"] if quick else [*benchmark.options]
    return [sys.executable, str(peers.HERE / f"{benchmark.name}.py"), *options]


def run_each(chosen: list[Benchmark], *, quick: bool, limit: float) -> list[str]:
    """The names of those that failed."""
    outcomes: dict[str, bool] = {}

    def one(benchmark: Benchmark) -> None:
        outcomes[benchmark.name] = run(benchmark, quick=quick, limit=limit)

    for benchmark in chosen:
        if benchmark.alone and not quick:
            one(benchmark)
    pool = ThreadPoolExecutor(2)
    try:
        list(pool.map(one, (b for b in chosen if quick or not b.alone)))
    finally:  # an interrupt does not wait for what is in line
        pool.shutdown(wait=False, cancel_futures=True)
    return [name for name, done in outcomes.items() if not done]


# --- judging ---------------------------------------------------------------------------------------


def kept(name: str) -> Result | None:
    """The result of the last full run."""
    path = peers.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def judged(goal: Goal, result: Result | None) -> tuple[str, str]:
    """What was measured, and "met", "missed" or why it is not measured."""
    if result is None:
        return "", "not measured: no run is kept"
    absent = result.get("absent", {})
    if deciding := [package for package in goal.needs if package in absent]:
        return "", "not measured: " + "; ".join(f"{package}: {absent[package]}" for package in deciding)
    try:
        value = goal.measured(result)
    except KeyError as missing:
        return "", f"not measured: the kept run has no {missing.args[0]!r}"
    except (ValueError, IndexError, StopIteration, ZeroDivisionError):
        return "", "not measured: the kept run has none of its rows"
    return goal.show.format(value), "met" if goal.met(value) else "missed"


# --- the tables of docs/benchmarks.md --------------------------------------------------------------


def goals() -> list[str]:
    """All goals, each with what was measured, its peer and the file that measures it."""
    rows, verdicts, reasons = [], [], []
    for benchmark in BENCHMARKS:
        result = kept(benchmark.name)
        for goal in benchmark.goals:
            measured, verdict = judged(goal, result)
            verdicts.append(verdict.partition(":")[0])
            shown = f"**{verdict}**" if verdict == "missed" else verdict
            rows.append((goal.says, measured, goal.bound, goal.beside, shown, f"`{benchmark.name}`"))
            if verdict == "missed":
                reasons.append(f"- `{benchmark.name}`, {measured}: {goal.reason}.")
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("met", "missed", "not measured"))
    header = ("what", "measured", "goal", "beside", "verdict", "file")
    return [
        f"**Of {len(rows)} goals: {counts}.**",
        "",
        *table(header, rows),
        "",
        "Why they are missed:",
        "",
        *reasons,
    ]


def needs() -> list[str]:
    """Return how long `make bench` takes, and what benchmarks need beside the package."""
    alone = sum(b.minutes for b in BENCHMARKS if b.alone)
    beside = sum(b.minutes for b in BENCHMARKS if not b.alone) / 2
    data = ", ".join(f"`{b.name}`" for b in BENCHMARKS if b.needs_data)
    programs = ", ".join(f"`{b.name}` ({', '.join(b.programs)})" for b in BENCHMARKS if b.programs)
    slow = ", ".join(f"`{b.name}`" for b in BENCHMARKS if not b.quick)
    return [
        f"- {alone:g} minutes one by one and {beside:g} two at a time: about {alone + beside:.0f} in all.",
        f"- Real data: {data}.",
        f"- Programs: {programs}.",
        f"- Not in `make bench-quick`: {slow}.",
    ]


def machines() -> list[str]:
    """Return a line for each machine that kept results were measured on; the busiest is the last."""
    by_machine: dict[str, list[str]] = {}
    for benchmark in BENCHMARKS:
        if run := (kept(benchmark.name) or {}).get("run"):
            machine = run["machine"]
            where = f"{machine['cores']} cores of {machine['cpu']}, Python {machine['python']}"
            by_machine.setdefault(where, []).append(benchmark.name)
    *few, most = sorted(by_machine.items(), key=lambda item: len(item[1]))
    return [*(f"- {where}: {', '.join(names)}." for where, names in few), f"- {most[0]}: all others."]


TABLES = {"goals": goals, "needs": needs, "machines": machines}


def table(header: Row, rows: list[Row]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ("---",) * len(header), *rows)]


def rendered(text: str) -> str:
    """The page with what stands between ``<!-- NAME -->`` and ``<!-- end -->`` as the results are."""

    def written(found: re.Match[str]) -> str:
        return "\n".join([f"<!-- {found[1]} -->", "", *TABLES[found[1]](), "", "<!-- end -->"])

    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->.*?<!-- end -->", written, text, flags=re.S)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all without: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="trimmed, into results/quick")
    parser.add_argument("--render", action="store_true", help="run nothing")
    parser.add_argument(
        "--limit", type=float, help=f"seconds for each; {FULL_LIMIT}, and {QUICK_LIMIT} of --quick"
    )
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(names):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [
        b for b in BENCHMARKS if b.name in asked.names or (not asked.names and (b.quick or not asked.quick))
    ]
    failed: list[str] = []
    if not asked.render:
        limit = asked.limit or (QUICK_LIMIT if asked.quick else FULL_LIMIT)
        try:
            with interruptible():
                failed = run_each(chosen, quick=asked.quick, limit=limit)
        except KeyboardInterrupt:  # what was started ends with us
            for process in [*RUNNING]:
                stop(process)
            sys.exit(130)
    if not asked.quick:
        PAGE.write_text(rendered(PAGE.read_text()))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
