r"""Mutation tests of the Python code: break it a little, many times, and count what no test sees.

    python scripts/mutants/code.py --sample 100 --seed 1 --jobs 2
    python scripts/mutants/code.py --only verdict --show
    python scripts/mutants/code.py --only ledger --match '^Ledger\.(revoke|_revoked):'

``targets.yaml`` says which modules, and which quick tests concern them. Results are kept in a JSON-lines
file, one a mutant: a run that was stopped goes on where it was, and what survived is tried again.
``equivalent.yaml`` lists the mutants that no test can see, each with the reason. Exit status 1 where fewer
than 95 % of the others are killed, 2 where the tests fail without a mutant.

It is a program of our own, as mutmut 3.8 was tried and leaves out properties, module constants and exchanged
arguments, knows one list of tests for all modules, and counts the words of errors; cosmic-ray starts pytest
anew for each mutant, which takes seconds where a fork takes a tenth of one.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
# This file's folder would hide the standard library's ``code``, which pdb and so pytest need.
sys.path[:1] = [str(HERE.parent), str(HERE.parents[1] / "tests" / "support")]

from engines import postgres  # noqa: E402

from mutants.operators import mutants_of  # noqa: E402

ROOT = HERE.parents[1]
RESULTS = ROOT / "build" / "mutants" / "code.jsonl"
AT_LEAST = 0.95

Name = tuple[str, str]
"""A mutant's file and key."""


@dataclass(frozen=True)
class Target:
    """A group of modules, pytest's arguments of the tests that concern them, and what to import once.

    ``postgresql``: whether one is started for all of its tests.
    """

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    preload: tuple[str, ...]
    postgresql: bool

    @classmethod
    def read(cls, path: Path) -> list[Target]:
        """All of targets.yaml; what has a ``*`` is a pattern of files."""
        told = yaml.safe_load(path.read_text())
        found = []
        for name, one in told["targets"].items():
            files = {file for pattern in one["modules"] for file in ROOT.glob(pattern)}
            left = {file for pattern in one.get("except", ()) for file in ROOT.glob(pattern)}
            kept = sorted(file.relative_to(ROOT).as_posix() for file in files - left)
            if not kept:
                raise SystemExit(f"{path}: target {name} has no modules; see its patterns")
            preload = (*told["preload"], *one.get("preload", ()))
            tests = [test for pattern in one["tests"] for test in _expanded(pattern)]
            found.append(cls(name, tuple(kept), tuple(tests), preload, one.get("postgresql", False)))
        return found

    def mutants(self, only: str | None, match: str) -> list[Name]:
        """All of its mutants; ``only``: of one module; ``match``: those in whose key it is found."""
        files = [file for file in self.files if only in (None, self.name, file)]
        trees = {file: ast.parse((ROOT / file).read_text()) for file in files}
        names = [(file, one.key) for file, tree in trees.items() for one in mutants_of(tree, file)]
        return [(file, key) for file, key in names if re.search(match, key)]


def _expanded(pattern: str) -> list[str]:
    """The files of a pattern; other arguments of pytest as they are."""
    if "*" not in pattern:
        return [pattern]
    return sorted(file.relative_to(ROOT).as_posix() for file in ROOT.glob(pattern))


class Results:
    """The JSON-lines file: the last line of a mutant counts, if its file is still the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.of = {(one["file"], one["key"]): one for one in map(json.loads, lines) if _is_current(one)}

    def add(self, lines: Iterable[dict[str, Any]]) -> None:
        """Keep them."""
        with self._path.open("a") as file:
            for line in lines:
                dated = line | {"digest": _digest(line["file"])}
                self.of[line["file"], line["key"]] = dated
                file.write(json.dumps(dated) + "\n")


def _digest(file: str) -> str:
    path = ROOT / file
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def _is_current(line: dict[str, Any]) -> bool:
    return bool(line.get("digest") == _digest(line["file"]))


def chosen(target: Target, options: argparse.Namespace) -> list[Name]:
    """The sample of a target, the same for one seed whatever else is run."""
    names = target.mutants(options.only, options.match)
    if options.sample is None or options.sample >= len(names):
        return names
    rng = random.Random(f"{options.seed} {target.name}")
    return sorted(rng.sample(names, options.sample))


def copied(to: Path) -> None:
    """The repository's files, as they are now: tests write, and files may change meanwhile."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def run(
    target: Target, names: list[Name], scratch: Path, options: argparse.Namespace, more: dict[str, str]
) -> list[dict[str, Any]]:
    """What became of the mutants, by ``--jobs`` processes of which each has its share.

    ``more``: variables of their environment.
    """
    started = []
    for job in range(min(options.jobs, len(names))):
        work = scratch / f"{target.name}-{job}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        results = work / "results.jsonl"
        results.touch()
        spec = {
            **{"root": str(scratch / "tree"), "work": str(work), "results": str(results)},
            **{"tests": [*target.tests, *shlex.split(options.pytest)], "preload": list(target.preload)},
            "mutants": names[job :: options.jobs],
            "least": 6.0,
        }
        (work / "spec.json").write_text(json.dumps(spec))
        paths = f"{HERE.parent}{os.pathsep}{scratch / 'tree'}"
        log = (work / "log.txt").open("w")
        process = subprocess.Popen(
            ["nice", "-n", "10", sys.executable, "-m", "mutants.worker", str(work / "spec.json")],
            cwd=scratch / "tree", stdout=log, stderr=log,
            env={**os.environ, **more, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        started.append((process, work, log))
    found = []
    for process, work, log in started:
        status = process.wait()
        log.close()
        if status:
            tail = (work / "log.txt").read_text()[-3000:]
            raise SystemExit(
                f"{tail}\n{target.name}: the tests do not pass without a mutant ({status}), see above"
            )
        found += [json.loads(line) for line in (work / "results.jsonl").read_text().splitlines()]
    return found


def main(argv: list[str]) -> int:
    """See the head of this file."""
    options = _options(argv)
    targets = Target.read(HERE / "targets.yaml")
    if options.only:
        targets = [one for one in targets if options.only == one.name or options.only in one.files]
        if not targets:
            raise SystemExit(f"--only {options.only}: no target and no module of one; see targets.yaml")
    reasons = _equivalent()
    results, console = Results(options.results), Console()
    rows = []
    with tempfile.TemporaryDirectory(prefix="calib-serve-mutants-") as folder:
        scratch = Path(folder)
        copied(scratch / "tree")
        for target in targets:
            names = chosen(target, options)
            done = {
                n for n in names if n in results.of and (options.show or results.of[n]["outcome"] == "killed")
            }
            waiting = [] if options.show else [n for n in names if n not in done or options.fresh]
            # Once: to start it takes seconds, and a mutant's process that is ended would leave it behind.
            with postgres(durable=True) if waiting and target.postgresql else nullcontext("") as url:
                more = (
                    {"CALIB_SERVE_TEST_POSTGRES": url.replace("postgres://", "postgresql://")} if url else {}
                )
                for at in range(0, len(waiting), options.batch):
                    results.add(run(target, waiting[at : at + options.batch], scratch, options, more))
            rows.append((target.name, [results.of[n] for n in names if n in results.of]))
    return report(rows, reasons, console)


def _equivalent() -> dict[str, dict[str, str]]:
    """Read the reasons by file and key; exit where one is of no mutant, as after a change of the code."""
    told: dict[str, dict[str, str]] = yaml.safe_load((HERE / "equivalent.yaml").read_text())
    for file, keys in told.items():
        text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        there = {one.key for one in mutants_of(ast.parse(text), file)}
        if gone := sorted(set(keys) - there):
            raise SystemExit(f"equivalent.yaml names mutants of {file} that there are not: {gone}")
    return told


def report(rows: list[tuple[str, list[dict[str, Any]]]], reasons: dict[str, Any], console: Console) -> int:
    """A table, the survivors, and the exit status."""
    table = Table("target", "mutants", "killed", "equivalent", "survived", "killed of the others")
    all_killed = all_told = 0
    for name, lines in rows:
        killed = sum(line["outcome"] == "killed" for line in lines)
        alive = [line for line in lines if line["outcome"] != "killed"]
        left = [line for line in alive if line["key"] not in reasons.get(line["file"], {})]
        told = killed + len(left)
        all_killed, all_told = all_killed + killed, all_told + told
        share = f"{killed / told:.1%}" if told else "-"
        table.add_row(name, str(len(lines)), str(killed), str(len(alive) - len(left)), str(len(left)), share)
        for line in left:
            why = f" ({line['by']})" if line["by"] else ""
            console.print(f"{line['file']}:{line['line']} {line['key']}{why}", markup=False, soft_wrap=True)
    console.print(table)
    console.print(f"killed: {all_killed} of {all_told} that are not equivalent")
    return int(all_killed < AT_LEAST * all_told)


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--only", metavar="MODULE", help="one target or one module, calib_serve/core/bins.py")
    parser.add_argument("--match", metavar="PATTERN", default="", help="those in whose key it is found")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="so many mutants of each target; all by default"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--batch", type=int, default=10_000, help="results are kept after so many mutants")
    parser.add_argument("--fresh", action="store_true", help="also those that were killed before")
    parser.add_argument("--show", action="store_true", help="run nothing: the report of what is known")
    parser.add_argument(
        "--pytest", default="", metavar="ARGS", help="more arguments, to see what fewer tests see"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the JSON-lines file")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
