"""One target's mutants, each in a forked child: ``python -m mutants.worker SPEC``, for ``code.py``.

The children of one process share what is slow: numpy and its like are imported once, and so are the package
and its tests, which are collected once. A child swaps the code of one function and runs the tests that run
it, quickest first, until one fails. What acts at import (defaults, constants) is imported anew, with the
mutant in. Nothing is written to the package: a mutant is only ever in memory.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mutants.collected import Fixed, Known, Told, in_order, run_items
from mutants.operators import Mutant, mutants_of
from mutants.swap import Swapped, swap

_QUIET = (
    "-q",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--no-header",
    "-m",
    "not server",
)
_MEMORY = 12 * 2**30
_GREEN, _RED, _NOT_SWAPPED, _NO_TESTS, _BROKEN = 0, 1, 3, 4, 5


@dataclass(frozen=True)
class Spec:
    """What ``code.py`` asks for; ``root`` is a copy of the repository that no one else writes to."""

    root: Path
    work: Path
    results: Path
    tests: list[str]
    preload: list[str]
    mutants: list[tuple[str, str]]
    least: float  # seconds of computing that a mutant may take, and more where tests take long

    @classmethod
    def read(cls, path: Path) -> Spec:
        """From JSON."""
        told = json.loads(path.read_text())
        paths = {name: Path(told[name]) for name in ("root", "work", "results")}
        mutants = [(file, key) for file, key in told["mutants"]]
        return cls(
            **paths, tests=told["tests"], preload=told["preload"], mutants=mutants, least=told["least"]
        )


class Worker:
    """Runs them one after the other."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.trees = {file: ast.parse((spec.root / file).read_text()) for file, _ in spec.mutants}
        every = {(file, one.key): one for file, tree in self.trees.items() for one in mutants_of(tree, file)}
        self.mutants = [every[name] for name in spec.mutants]
        self.known: Known | None = None

    def run(self) -> int:
        """0, or 2 where the tests fail without a mutant."""
        for name in self.spec.preload:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        hot, note = self.spec.work / "known.json", self.spec.work / "later.json"
        status = _in_child(lambda: self._collected(self._hot, note), limit=None)[0]
        if status != "green":
            return 2
        self.known = Known.load(hot)
        later = set(json.loads(note.read_text()))
        for mutant in (one for one in self.mutants if one.id in later):
            self._noted(mutant, partial(self._cold, mutant), self._limit(None), how="imported")
        return 0

    def _collected(
        self,
        loop: Callable[[pytest.Session], None],
        note: Path | None = None,
        begin: Callable[[], None] = lambda: None,
    ) -> int:
        """Collect the tests and hand them to ``loop``."""
        self._note = note
        base = f"--basetemp={self.spec.work / 'tmp'}"
        code = pytest.main([*self.spec.tests, *_QUIET, base], plugins=[Fixed(loop, begin)])
        return int(code)

    def _hot(self, session: pytest.Session) -> None:
        """In the process that has all: what is known of the tests, then every mutant of a function."""
        hot, items = self.spec.work / "known.json", session.items
        files = [self.spec.root / file for file in self.trees]
        status, _ = _in_child(lambda: self._without_mutant(items, files, hot), limit=None)
        if status != "green":
            os._exit(_RED)
        self.known = known = Known.load(hot)
        # In another order, and without being listened to, they pass as well.
        if _in_child(lambda: self._tested(items, None), limit=None)[0] != "green":
            os._exit(_RED)
        later = []
        for mutant in self.mutants:
            if mutant.function is None:
                later.append(mutant.id)
                continue
            chosen = known.covering(str(self.spec.root / mutant.file), mutant.function)
            if not chosen:
                self._write(mutant, "survived", "no test runs it", 0.0, "")
                continue
            status = self._noted(mutant, partial(self._swapped, mutant, items, chosen), self._limit(chosen))
            if status == "not swapped":
                later.append(mutant.id)
        assert self._note is not None
        self._note.write_text(json.dumps(later))

    def _without_mutant(self, items: list[pytest.Item], files: list[Path], to: Path) -> int:
        told = Told(files)
        told.listen()
        run_items(items, told, to_the_end=True)
        sys.settrace(None)
        if told.failed:
            sys.stderr.write(f"without a mutant, {told.failed} fails:\n{told.reason}\n")
            return _RED
        told.known().save(to)
        return _GREEN

    def _tested(self, items: list[pytest.Item], chosen: set[str] | None) -> int:
        assert self.known is not None
        told, kept = Told(), in_order(items, self.known, chosen)
        run_items(kept, told, to_the_end=False)
        if told.failed:
            (self.spec.work / "by.txt").write_text(told.failed)
            sys.stderr.write(f"{told.failed}\n")
            return _RED
        return _GREEN if kept else _NO_TESTS

    def _swapped(self, mutant: Mutant, items: list[pytest.Item], chosen: list[str]) -> int:
        if not swap(self.trees[mutant.file], self.spec.root / mutant.file, mutant):
            return _NOT_SWAPPED
        return self._tested(items, set(chosen))

    def _cold(self, mutant: Mutant) -> int:
        path = self.spec.root / mutant.file
        module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        swapped = Swapped(self.trees[mutant.file], path, module, mutant)
        swapped.install()  # conftest.py imports it perhaps
        found = [_RED]

        def loop(session: pytest.Session) -> None:
            found[0] = self._tested(session.items, None)

        # And once more, before pytest's own importer, which takes files that are named as tests are.
        code = self._collected(loop, begin=swapped.install)
        return _RED if code not in (0, pytest.ExitCode.TESTS_FAILED) else found[0]

    def _limit(self, chosen: list[str] | None) -> float:
        """Seconds of computing: many times what the tests take without a mutant."""
        assert self.known is not None
        of_all = [s for test, s in self.known.seconds.items() if test != "all"]
        usual = sum(of_all) if chosen is None else sum(self.known.seconds[test] for test in chosen)
        return self.spec.least + 4 * usual

    def _noted(self, mutant: Mutant, act: Callable[[], int], limit: float, how: str = "swapped") -> str:
        by = self.spec.work / "by.txt"
        by.unlink(missing_ok=True)
        status, seconds = _in_child(act, limit=limit)
        if status == "broken":  # this program, not the mutant: see the log
            os._exit(_BROKEN)
        if status != "not swapped":
            outcome = {"green": "survived", "red": "killed", "limit": "killed"}[status]
            told = "time limit" if status == "limit" else by.read_text() if by.exists() else ""
            self._write(mutant, outcome, told or ("at import" if outcome == "killed" else ""), seconds, how)
        return status

    def _write(self, mutant: Mutant, outcome: str, by: str, seconds: float, how: str) -> None:
        line = {"file": mutant.file, "key": mutant.key, "line": mutant.line, "outcome": outcome, "by": by}
        with self.spec.results.open("a") as file:
            file.write(json.dumps(line | {"how": how, "seconds": round(seconds, 2)}) + "\n")


def _in_child(act: Callable[[], int], *, limit: float | None) -> tuple[str, float]:
    """Run it in a fork: green, red, "not swapped" or "limit", and seconds; all that it started is ended."""
    started = time.monotonic()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            if limit is not None:
                seconds = int(limit) + 1
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
                resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
                # On the wall as well: what waits for ever computes nothing.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(3 * seconds)
            code = act()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(_BROKEN)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if os.WIFSIGNALED(status):
        told = "limit" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL) else "red"
    else:
        told = {_GREEN: "green", _BROKEN: "broken", _NO_TESTS: "green", _NOT_SWAPPED: "not swapped"}.get(
            os.WEXITSTATUS(status), "red"
        )
    return told, time.monotonic() - started


def main(argv: list[str]) -> Any:
    """For ``code.py``."""
    spec = Spec.read(Path(argv[1]))
    os.chdir(spec.root)
    sys.path.insert(0, str(spec.root))
    return Worker(spec).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
