"""Change every bound of the alerts and recording rules, and see whether promtool's tests notice.

    python scripts/mutants/alerts.py                      every mutant, by all of deploy/prometheus/*_test.yml
    python scripts/mutants/alerts.py --only LabelsFew     those of one alert or recorded series
    python scripts/mutants/alerts.py --sample 100         so many, drawn

A mutant changes one thing: a number, a comparison, `for`, `keep_firing_for`, and/or/unless, a matcher, a
range, a function, a sign, a severity. It is killed where a test fails. Mutants that mean the same as the rule
are in `equivalent_alerts.txt` beside this file, with a reason. Exit code 1 where fewer than 95 % of the
others are killed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
EQUIVALENT = Path(__file__).with_name("equivalent_alerts.txt")
WANTED = 0.95

_NUMBER = re.compile(r"(?<![\w.:{\[])(\d+(?:\.\d+)?)(?![\w.:\]])")
_TEXT = re.compile(r"'[^']*'|\([a-z_, ]*\) ?\(|\{[^}]*\}|\[[^\]]*\]|\b(?:model_version\w*|calib)[\w:]+")
_RANGE = re.compile(r"\[(\d+)([smhdw])(:\w*)?\]")
_MATCHER = re.compile(r"(\w+)(=~|!~|!=|=)'([^']*)'")
_SWAPS = {
    " > ": (" >= ", " < "),
    " >= ": (" > ", " < "),
    " < ": (" <= ", " > "),
    " <= ": (" < ", " > "),
    " == ": (" != ",),
    " and ": (" or ", " unless "),
    " or ": (" and ",),
    " unless ": (" and ", " or "),
    " + ": (" - ",),
    " - ": (" + ",),
    " * ": (" / ",),
    " / ": (" * ",),
    "max without": ("min without",),
    "min without": ("max without",),
    "increase(": ("rate(",),
    "rate(": ("increase(",),
    "sum without": ("max without",),
    "clamp_min(": ("clamp_max(",),
    "abs(": ("(",),
    "sqrt(": ("(",),
}


@dataclass(frozen=True)
class Mutant:
    """``line`` of ``file`` written as ``text``: ``what`` was changed in the rule ``where``."""

    file: str
    line: int
    where: str
    what: str
    text: str

    @property
    def name(self) -> str:
        """By which a list of equivalents knows it: nothing of it depends on where the line stands."""
        return f"{self.where}: {self.what}"


def mutants() -> list[Mutant]:
    """Of all rules, in the order of the files; a name that comes twice has a number."""
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for file in ("alerts.yml", "rules.yml"):
        where = ""
        for number, line in enumerate((DEPLOY / file).read_text("utf-8").splitlines()):
            if began := re.match(r"\s*- (?:alert|record): (\S+)", line):
                seen[began[1]] = seen.get(began[1], 0) + 1
                where = began[1] if seen[began[1]] == 1 else f"{began[1]} ({seen[began[1]]})"
            expression = (
                re.match(r"^          (?! )(?!summary|description|runbook)", line) or "expr: " in line
            )
            changes = _of_expression(line) if where and expression else _of_setting(line)
            found += [Mutant(file, number, where, what, text) for what, text in changes]
    return found


def _of_setting(line: str) -> Iterator[tuple[str, str]]:
    if found := re.match(r"(\s*)(for|keep_firing_for): (\d+)(\w)$", line):
        space, name, count, unit = found.groups()
        yield f"{name} {count}{unit} -> 0", f"{space}{name}: 0{unit}"
        yield f"{name} {count}{unit} -> {2 * int(count)}{unit}", f"{space}{name}: {2 * int(count)}{unit}"
    if found := re.search(r"severity: (\w+)", line):
        other = "info" if found[1] != "info" else "critical"
        yield f"severity {found[1]} -> {other}", line.replace(found[0], f"severity: {other}")


def _of_expression(line: str) -> Iterator[tuple[str, str]]:
    hidden = [found.span() for found in _TEXT.finditer(line)]
    for found in _NUMBER.finditer(line):
        if any(a <= found.start() < b for a, b in hidden):
            continue
        value = float(found[1])
        for other in (value * 0.9, value * 1.1) if value else (0.01, -0.01):
            new = f"{other:.6g}"
            yield _said(line, found.span(), new), _put(line, found.span(), new)
    for old, others in _SWAPS.items():
        for found in re.finditer(re.escape(old), line):
            for new in others:
                yield _said(line, found.span(), new), _put(line, found.span(), new)
    for found in _RANGE.finditer(line):
        new = f"[{2 * int(found[1])}{found[2]}{found[3] or ''}]"
        yield _said(line, found.span(), new), _put(line, found.span(), new)
    for found in _MATCHER.finditer(line):
        new = f"{found[1]}!='no such'"
        yield _said(line, found.span(), new), _put(line, found.span(), new)


def _said(line: str, span: tuple[int, int], new: str) -> str:
    """What was changed, and which of its like in this line."""
    old = line[slice(*span)]
    before = line[: span[0]].count(old)
    return f"{old.strip()} -> {new.strip()}" + (f" (number {before + 1})" if line.count(old) > 1 else "")


def _put(line: str, span: tuple[int, int], new: str) -> str:
    return line[: span[0]] + new + line[span[1] :]


@dataclass(frozen=True)
class Case:
    """One of promtool's tests: its file, its text, and the alerts and series that it looks at."""

    file: str
    text: str
    asks: frozenset[str]


def cases() -> list[Case]:
    """Every test of every file, shortest first; each is a file of its own, as most mutants need few."""
    found = []
    for path in sorted(DEPLOY.glob("*_test.yml")):
        whole = yaml.safe_load(path.read_text("utf-8"))
        for test in whole["tests"]:
            alerts = {one["alertname"] for one in test.get("alert_rule_test", ())}
            series = " ".join(one["expr"] for one in test.get("promql_expr_test", ()))
            alerts |= set(re.findall(r'alertname="(\w+)"', series))
            asks = frozenset(alerts | set(re.findall(r"model_version\w*:calib_[\w:]+", series)))
            text = yaml.safe_dump({**whole, "tests": [test]}, width=1_000_000, allow_unicode=True)
            found.append(Case(path.name, text, asks))
    return sorted(found, key=lambda case: len(case.text))


def killed(mutant: Mutant, known: Sequence[Case]) -> str:
    """The test file that fails on it, or nothing; of a recorded series any test may be the one."""
    name = mutant.where.split(" ")[0]
    first = [case for case in known if name in case.asks]
    rest = [case for case in known if name not in case.asks] if mutant.file == "rules.yml" else []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("rules.yml", "alerts.yml"):
            shutil.copy(DEPLOY / name, folder)
        changed = Path(folder, mutant.file)
        lines = changed.read_text("utf-8").splitlines()
        lines[mutant.line] = mutant.text
        changed.write_text("\n".join(lines) + "\n", "utf-8")
        for case in (*first, *rest):
            Path(folder, "case.yml").write_text(case.text, "utf-8")
            done = subprocess.run(
                ["promtool", "test", "rules", "case.yml"], cwd=folder, check=False, capture_output=True
            )
            if done.returncode:
                return case.file
    return ""


def main() -> int:
    """The exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--only", default="", help="an alert or recorded series")
    options.add_argument("--file", default="", help="alerts.yml or rules.yml alone")
    options.add_argument("--sample", type=int, help="so many, drawn")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    told = options.parse_args()
    if not shutil.which("promtool"):
        sys.exit("promtool is missing: scripts/system_tools.sh installs it")
    reasons = dict(
        line.split(" | ", 1) for line in EQUIVALENT.read_text("utf-8").splitlines() if " | " in line
    )
    every = mutants()
    if gone := sorted(set(reasons) - {one.name for one in every}):
        sys.exit(f"{EQUIVALENT.name} names mutants that there are not: {gone}")
    wanted = [one for one in every if told.only in one.where and one.name not in reasons]
    wanted = [one for one in wanted if told.file in one.file]
    if told.sample:
        wanted = random.Random(told.seed).sample(wanted, min(told.sample, len(wanted)))
    known = cases()
    with concurrent.futures.ThreadPoolExecutor(told.jobs) as pool:
        found = dict(zip(wanted, pool.map(lambda one: killed(one, known), wanted), strict=True))
    for one, by in found.items():
        if not by:
            print(f"{one.file}:{one.line + 1} | {one.name} | SURVIVED")
    dead = sum(map(bool, found.values()))
    print(f"{dead} of {len(found)} killed, {dead / max(len(found), 1):.1%}; {len(reasons)} are equivalent")
    return 0 if dead >= WANTED * len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
