"""promtool's tests one by one, each with no more rules than it needs: a mutant costs a fraction of a second.

A test of one alert is run with that alert and the recorded series that it reads. What is left of it must pass
with the rules as they are, so that nothing fails by being cut.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mutants.rule_changes import FILES, Mutant

__all__ = ["Bench", "Broken", "Verdict"]

_TOO_MANY = "too many samples"
"""promtool's own limit, which a window of twice the length may reach: that is no answer."""
_RECORDED = re.compile(r"model_version\w*:calib_[\w:]+")


class Broken(Exception):
    """A test fails with the rules as they are."""


@dataclass(frozen=True)
class Verdict:
    """The file of the test that fails, or nothing; ``valid`` is whether promtool could read the rules."""

    by: str
    valid: bool = True


@dataclass(frozen=True, eq=False)
class _Case:
    """One test of ``file``, with the head of it, and the alerts and series that each question is about."""

    file: str
    head: dict[str, Any]
    body: dict[str, Any]
    asks: tuple[tuple[str, dict[str, Any], frozenset[str]], ...]

    @property
    def size(self) -> int:
        return len(str(self.body))


class Bench:
    """All tests of a folder, and what of its rules each needs."""

    def __init__(self, folder: Path) -> None:
        self.texts = {file: (folder / file).read_text("utf-8") for file in FILES}
        self.reads = {
            name: frozenset(_RECORDED.findall(str(rule))) - {name}
            for text in self.texts.values()
            for name, rule in _by_name(text)
        }
        # Two alerts of one name read what both read.
        for name, rule in _by_name(self.texts["alerts.yml"]):
            self.reads[name] |= frozenset(_RECORDED.findall(str(rule)))
        alerts = frozenset(name for name, _ in _by_name(self.texts["alerts.yml"]))
        self.cases = sorted(
            (case for path in sorted(folder.glob("*_test.yml")) for case in _cases(path, alerts)),
            key=lambda case: case.size,
        )
        self._sound = functools.lru_cache(maxsize=None)(self._passes_unchanged)

    def try_(self, mutant: Mutant) -> Verdict:
        """The first test that fails of those that ask for the rule or what is computed from it."""
        lines = self.texts[mutant.file].splitlines()
        lines[mutant.line] = mutant.text
        texts = {**self.texts, mutant.file: "\n".join(lines) + "\n"}
        about = frozenset(name for name in self.reads if mutant.series in self._upstream({name}))
        # Those that ask for the rule itself first, and short ones: the likeliest and the quickest to fail.
        asking = [case for case in self.cases if any(asked & about for _, _, asked in case.asks)]
        for case in sorted(
            asking, key=lambda case: not any(mutant.series in asked for _, _, asked in case.asks)
        ):
            answer = self._run(case, about, texts)
            if not answer or _TOO_MANY in answer:
                continue
            if "parse error" in answer or "error parsing" in answer or "could not parse" in answer:
                return Verdict("", valid=False)
            if not self._sound(case, about):
                raise Broken(f"{case.file}, {case.body['name']!r} fails with the rules as they are")
            return Verdict(case.file)
        return Verdict("")

    def _passes_unchanged(self, case: _Case, about: frozenset[str]) -> bool:
        return not self._run(case, about, self.texts)

    def _upstream(self, names: Iterable[str]) -> frozenset[str]:
        """These and all that is read for them."""
        found: set[str] = set()
        ahead = list(names)
        while ahead:
            name = ahead.pop()
            if name not in found:
                found.add(name)
                ahead += self.reads.get(name, ())
        return frozenset(found)

    def _run(self, case: _Case, about: frozenset[str], texts: dict[str, str]) -> str:
        """What promtool says of the questions that are ``about`` these names; nothing where all is well."""
        asked = [one for one in case.asks if one[2] & about]
        needed = self._upstream(name for _, _, names in asked for name in names)
        body = {key: value for key, value in case.body.items() if key not in _QUESTIONS}
        for kind, question, _ in asked:
            body.setdefault(kind, []).append(question)
        with tempfile.TemporaryDirectory() as folder:
            there = [group for file, text in texts.items() for group in _cut(folder, file, text, needed)]
            order = [one for one in case.head.get("group_eval_order", ()) if one in there]
            whole = {**case.head, "group_eval_order": order, "tests": [body]}
            Path(folder, "case.yml").write_text(_dumped(whole), "utf-8")
            done = subprocess.run(
                ["promtool", "test", "rules", "case.yml"],
                cwd=folder,
                check=False,
                capture_output=True,
                text=True,
            )
        return (done.stdout + done.stderr or "failed") if done.returncode else ""


_QUESTIONS = ("alert_rule_test", "promql_expr_test")


def _cases(path: Path, alerts: frozenset[str]) -> list[_Case]:
    head = _loaded(path.read_text("utf-8"))
    tests = head.pop("tests")
    found = []
    for body in tests:
        asks = tuple((kind, one, _names(one, alerts)) for kind in _QUESTIONS for one in body.get(kind, ()))
        found.append(_Case(path.name, head, body, asks))
    return found


def _names(question: dict[str, Any], alerts: frozenset[str]) -> frozenset[str]:
    if "alertname" in question:
        return frozenset({question["alertname"]})
    expression = question["expr"]
    named = frozenset(re.findall(r'alertname="(\w+)"', expression))
    if "ALERTS" in expression and not named:
        named = alerts
    return named | frozenset(_RECORDED.findall(expression))


def _by_name(text: str) -> list[tuple[str, dict[str, Any]]]:
    rules = [rule for group in _loaded(text)["groups"] for rule in group["rules"]]
    return [(rule.get("alert") or rule["record"], rule) for rule in rules]


def _cut(folder: str, file: str, text: str, needed: frozenset[str]) -> list[str]:
    """The names of the groups that are left."""
    groups = []
    for group in _loaded(text)["groups"]:
        kept = [rule for rule in group["rules"] if (rule.get("alert") or rule["record"]) in needed]
        groups += [{**group, "rules": kept}] if kept else []
    Path(folder, file).write_text(_dumped({"groups": groups}), "utf-8")
    return [group["name"] for group in groups]


def _loaded(text: str) -> Any:
    return yaml.load(text, yaml.CSafeLoader)


def _dumped(whole: Any) -> str:
    return yaml.dump(whole, Dumper=yaml.CSafeDumper, width=1_000_000, allow_unicode=True, sort_keys=False)
