"""What is said of a model's calibration, wherever it is said."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

__all__ = ["Level", "Tested", "Verdict"]

Level = Literal["calibrated", "unproven", "off"]
"""``calibrated``: the error is proven to be within the tolerance; ``off``: an error is proven, and may be
beyond it; ``unproven``: neither, for want of samples."""


@dataclass(frozen=True)
class Tested:
    """One thing that was tested: ``what`` in words, and what was found.

    ``p`` is how often a calibrated model shows as much, corrected for all tests; ``error`` the mean
    absolute gap seen and ``most`` its upper 95 % bound, both fractions; ``tolerance`` what it is held
    against. NaN stands for what such a test does not tell. ``required`` says whether "calibrated" needs
    this bound; other tests can only veto. ``finding`` is "within" where the bound is below the tolerance,
    "off" where an error is proven that may be beyond, else "open".
    """

    name: str
    what: str
    p: float
    error: float
    most: float
    tolerance: float
    required: bool
    finding: Literal["within", "open", "off"] = "open"


@dataclass(frozen=True)
class Verdict:
    """Whether a model is calibrated: a level, a headline, the reasons, each test, and what to do.

    ``changed`` says what a calibration moved, where it is compared with none. As text, it is all sentences.

    >>> found = Verdict("unproven", "Too few samples to tell.", do=("Test on 5,000.",))
    >>> print(found)
    Too few samples to tell. Test on 5,000.
    """

    level: Level
    headline: str
    reasons: tuple[str, ...] = ()
    tests: tuple[Tested, ...] = ()
    do: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.headline, *self.reasons, *self.changed, *self.do))

    def as_dict(self) -> dict[str, Any]:
        """For JSON; None stands for NaN."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        tests = [{name: _finite(value) for name, value in vars(test).items()} for test in self.tests]
        return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()} | {"tests": tests}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
