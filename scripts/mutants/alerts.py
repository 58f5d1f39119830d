"""Change every bound of the alerts and recording rules, and see whether the cases for promtool notice.

    python scripts/mutants/alerts.py                      every mutant, by the cases in tests/deploy
    python scripts/mutants/alerts.py --only LabelsMissing  those of one alert or recorded series
    python scripts/mutants/alerts.py --sample 100         so many, drawn

A mutant changes one thing: a number, a comparison, `for`, and/or/unless, a matcher, a
range, an offset, a function, a sign, a label, a text. It is killed where a case fails; one that promtool
cannot read is not counted. Mutants that mean the same as the rule are in `equivalent_alerts.txt` beside this
file, with a reason. Exit code 1 where one of the others survives.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# As in code.py: this folder would hide the standard library's ``code``.
TESTS = HERE.parents[1] / "tests"
sys.path[:1] = [str(HERE.parent), str(TESTS / "support"), str(TESTS / "deploy")]

from rule_cases import cases  # noqa: E402

from calib_serve.web import export_monitoring  # noqa: E402
from mutants.rule_bench import Bench, Broken, Verdict  # noqa: E402
from mutants.rule_changes import Mutant, mutants  # noqa: E402

EQUIVALENT = HERE / "equivalent_alerts.txt"
WANTED = 1.0


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
    with tempfile.TemporaryDirectory() as folder:
        export_monitoring(Path(folder), parts=["rules", "alerts"])
        return tried(told, Path(folder) / "prometheus")


def tried(told: argparse.Namespace, rules: Path) -> int:
    """Try the mutants that are asked for, of the files in a folder; the exit code."""
    reasons = known_equivalents()
    every = mutants(rules)
    if gone := sorted(set(reasons) - {one.name for one in every}):
        sys.exit(f"{EQUIVALENT.name} names mutants that there are not: {gone}")
    wanted = [one for one in every if told.only in one.where and told.file in one.file]
    wanted = [one for one in wanted if one.name not in reasons]
    if not wanted:
        sys.exit(f"no mutant is of {told.only or told.file!r}; give an alert or a recorded series")
    if told.sample:
        wanted = random.Random(told.seed).sample(wanted, min(told.sample, len(wanted)))
    bench = Bench(rules, cases())
    with concurrent.futures.ThreadPoolExecutor(told.jobs) as pool:
        found = []
        try:
            for one, verdict in zip(wanted, pool.map(bench.try_, wanted), strict=True):
                print(f"{one.file}:{one.line + 1} | {one.name} | {_said(verdict)}", flush=True)
                found.append((one, verdict))
        except Broken as broken:
            pool.shutdown(cancel_futures=True)
            sys.exit(str(broken))
    return report(found, len(reasons))


def known_equivalents() -> dict[str, str]:
    """The reason of each mutant that is not counted."""
    lines = EQUIVALENT.read_text("utf-8").splitlines()
    return dict(line.split(" | ", 1) for line in lines if " | " in line)


def report(found: list[tuple[Mutant, Verdict]], equivalent: int) -> int:
    """The survivors once more, and the share; 1 where it is too small."""
    valid = [(one, verdict) for one, verdict in found if verdict.valid]
    alive = [one for one, verdict in valid if not verdict.by]
    for one in alive:
        print(f"survived: {one.file}:{one.line + 1} {one.name}\n    {one.text.strip()[:200]}")
    share = 1 - len(alive) / max(len(valid), 1)
    print(
        f"{len(valid) - len(alive)} of {len(valid)} killed, {share:.1%}; {equivalent} are equivalent, "
        f"{len(found) - len(valid)} are no rules"
    )
    return 0 if share >= WANTED else 1


def _said(verdict: Verdict) -> str:
    return (verdict.by or "SURVIVED") if verdict.valid else "not a rule"


if __name__ == "__main__":
    sys.exit(main())
