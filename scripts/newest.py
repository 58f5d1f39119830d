"""Name what breaks with the newest of everything, and who meets it: a plugin of pytest.

``pytest -p newest``, with this folder on the path, ends with a line for each test that failed: "user" where
our package is in the traceback or a result differs, "test" where only a test's own set-up fails. The rows of
docs/install.md that are not yet over excuse their tests.

    python scripts/newest.py PYTHON UV    the direct dependencies, and of which of them a newer release is out
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `(tests/[^`]+)` \|[^|]+\| (\d{4}-\d\d-\d\d) \|", re.MULTILINE)
"""A row of what is known to break: the test, what breaks, and until when it may."""


def excused(page: str, today: date) -> tuple[str, ...]:
    """Beginnings of the names of tests that may still break, by the table in a page."""
    return tuple(name for name, until in ROW.findall(page) if date.fromisoformat(until) >= today)


def meets(error: pytest.ExceptionInfo[BaseException]) -> str:
    """Who meets an error: "user" in our package or by another result, "test" in a test's own set-up."""
    ours = any("calib_serve" in Path(entry.path).parts for entry in error.traceback)
    return "user" if ours or error.errisinstance(AssertionError) else "test"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note who meets a failure."""
    report: Any = yield
    if report.failed and call.excinfo is not None:
        told = str(call.excinfo.value).strip().partition("\n")[0][:160]
        # Workers hand properties on to the process that reports; other attributes stay.
        report.user_properties.append(("broke", f"{meets(call.excinfo)}  {call.excinfo.typename}: {told}"))
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Exit with 0 where every failure is excused."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    failed = session.exitstatus == pytest.ExitCode.TESTS_FAILED
    if failed and reporter and not _broken(reporter)["broke"]:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each failure, and who meets it."""
    for title, lines in _broken(terminalreporter).items():
        terminalreporter.section(f"{title} with the newest of everything: {len(lines)}")
        for line in lines:
            terminalreporter.write_line(line)


def _broken(reporter: Any) -> dict[str, list[str]]:
    known = excused((ROOT / "docs" / "install.md").read_text("utf-8"), date.today())
    found: dict[str, list[str]] = {"broke": [], "known": []}
    for kind in ("failed", "error"):
        for report in reporter.stats.get(kind, ()):
            told = dict(report.user_properties).get("broke", "user  no report")
            found["known" if report.nodeid.startswith(known) else "broke"].append(f"{told}  {report.nodeid}")
    return {title: sorted(lines, reverse=True) for title, lines in found.items()}


def main(python: str, uv: str) -> None:
    """Print the versions of what we ask for, and the newer ones that something holds back."""
    listed = {
        one["name"]: one["version"]
        for one in json.loads(_output(uv, "pip", "list", "--python", python, "--format=json"))
    }
    outdated = json.loads(_output(uv, "pip", "list", "--python", python, "--outdated", "--format=json"))
    newer = {one["name"]: one["latest_version"] for one in outdated}
    asked = {re.match(r"[\w.-]+", line)[0].lower() for line in requires("calib-serve") or ()}  # type: ignore[index]
    for name in sorted(asked & listed.keys()):
        print(f"{name} {listed[name]}" + (f", held back: {newer[name]} is out" if name in newer else ""))


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
