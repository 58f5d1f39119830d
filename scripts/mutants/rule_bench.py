"""A mutant against the cases that are about its rule: each runs with no more rules than it is about."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rule_cases import Case, promtool

from mutants.rule_changes import FILES, Mutant

__all__ = ["Bench", "Broken", "Verdict"]

_TOO_MANY = "too many samples"
"""promtool's own limit, which a window of twice the length may reach: that is no answer."""
_UNREAD = ("parse error", "error parsing", "could not parse")


class Broken(Exception):
    """A case fails with the rules as they are."""


@dataclass(frozen=True)
class Verdict:
    """The name of the case that fails, or nothing; ``valid`` is whether promtool could read the rules."""

    by: str
    valid: bool = True


class Bench:
    """The rules of a folder and the cases that test them."""

    def __init__(self, folder: Path, cases: Sequence[Case]) -> None:
        self.texts = {file: (folder / file).read_text("utf-8") for file in FILES}
        self.cases = cases
        self._sound = functools.lru_cache(maxsize=None)(lambda case: not promtool(case, self.texts))

    def try_(self, mutant: Mutant) -> Verdict:
        """Return the first case that fails of those about the mutant's rule."""
        texts = self._changed(mutant)
        for case in self.cases:
            if mutant.series not in case.about:
                continue
            answer = promtool(case, texts)
            if not answer or _TOO_MANY in answer:
                continue
            if any(words in answer for words in _UNREAD):
                return Verdict("", valid=False)
            if not self._sound(case):
                raise Broken(f"{case.name!r} fails with the rules as they are")
            return Verdict(case.name)
        return Verdict("")

    def _changed(self, mutant: Mutant) -> Mapping[str, str]:
        lines = self.texts[mutant.file].splitlines()
        lines[mutant.line] = mutant.text
        return {**self.texts, mutant.file: "\n".join(lines) + "\n"}
