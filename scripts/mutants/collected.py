"""The tests of one target, collected once: timed, told what they run, and run again for each mutant."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

__all__ = ["Fixed", "Known", "Told", "in_order", "run_items"]

Place = tuple[str, str, int]
"""A function: its file, name and first line."""


class Known:
    """What a run without a mutant tells: seconds of each test, and which functions it runs."""

    def __init__(self, seconds: dict[str, float], places: dict[str, set[Place]]) -> None:
        self.seconds, self.places = seconds, places

    def covering(self, file: str, function: tuple[str, int]) -> list[str]:
        """The tests that run the function."""
        return [test for test, places in self.places.items() if (file, *function) in places]

    def save(self, path: Path) -> None:
        """As JSON."""
        places = {test: sorted(found) for test, found in self.places.items()}
        path.write_text(json.dumps({"seconds": self.seconds, "places": places}))

    @classmethod
    def load(cls, path: Path) -> Known:
        """The inverse of ``save``."""
        told = json.loads(path.read_text())
        places = {test: {(f, n, line) for f, n, line in found} for test, found in told["places"].items()}
        return cls(told["seconds"], places)


class Fixed:
    """A pytest plugin: the same examples each time, and ``loop`` instead of pytest's own, after ``begin``."""

    def __init__(self, loop: Callable[[pytest.Session], None], begin: Callable[[], None]) -> None:
        self._loop, self._begin = loop, begin

    def pytest_sessionstart(self) -> None:
        """Hypothesis draws what it drew before; a failed example is not shrunk."""
        self._begin()
        settings.register_profile(
            "mutants",
            max_examples=25,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Whatever the tests are collected for."""
        if not session.testsfailed:
            self._loop(session)
        return True


class Told:
    """A pytest plugin: what the first failure is, seconds, and what each test and its fixtures run."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self.failed: str | None = None
        self.reason = ""
        self.seconds: dict[str, float] = defaultdict(float)
        self._places: dict[str, set[Place]] = {}
        self._of_fixtures: dict[str, set[Place]] = defaultdict(set)
        self._files = {str(file) for file in files}
        self._running: list[set[Place]] = []
        self._items: list[pytest.Item] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each of setup, call and teardown."""
        self.seconds[report.nodeid] += report.duration
        if report.failed and self.failed is None:
            self.failed, self.reason = report.nodeid, str(report.longrepr)[-3000:]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Around one test."""
        self._items.append(item)
        self._running.append(self._places.setdefault(item.nodeid, set()))
        yield
        self._running.pop()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, None]:
        """Around one fixture: all that use it run what it runs, not the first alone."""
        self._running.append(self._of_fixtures[fixturedef.argname])
        yield
        self._running.pop()

    def listen(self) -> None:
        """From now on, note calls in the files."""
        if self._files:
            threading.settrace(self._called)
            sys.settrace(self._called)

    def _called(self, frame: FrameType, *_: object) -> None:
        code: CodeType = frame.f_code
        if self._running and code.co_filename in self._files:
            self._running[-1].add((code.co_filename, code.co_name, code.co_firstlineno))

    def known(self) -> Known:
        """When all have run."""
        for item in self._items:
            for name in getattr(item, "fixturenames", ()):
                self._places[item.nodeid] |= self._of_fixtures.get(name, set())
        return Known(dict(self.seconds), self._places)


def in_order(items: Sequence[pytest.Item], known: Known, chosen: set[str] | None = None) -> list[pytest.Item]:
    """The chosen items (or all) that were known to pass, quick ones first; those of one file together."""
    kept = [one for one in items if one.nodeid in known.seconds and (chosen is None or one.nodeid in chosen)]
    quickest: dict[Path, float] = {}
    for one in kept:
        quickest[one.path] = min(quickest.get(one.path, 1e9), known.seconds[one.nodeid])
    return sorted(kept, key=lambda one: (quickest[one.path], str(one.path), known.seconds[one.nodeid]))


def run_items(items: Sequence[pytest.Item], told: Told, *, to_the_end: bool) -> None:
    """Run them in this process; until the first failure, unless ``to_the_end``."""
    if not items:
        return
    config = items[0].config
    config.pluginmanager.register(told)
    started = time.monotonic()
    for item, following in zip(items, [*items[1:], None], strict=True):
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if told.failed and not to_the_end:
            break
    told.seconds["all"] = time.monotonic() - started
