"""What held-out labels say of a contract, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from calib_serve.artifact import Clause
from calib_serve.metrics import Estimate

__all__ = ["ClauseCheck", "ContractCheck", "Found"]

_SURE = 0.001

Found = Literal["can be kept", "cannot be kept", "not enough samples", "not checked"]
"""By the interval: it lies on the promise's good side, on its bad side, on both, or there is none."""


@dataclass(frozen=True)
class ClauseCheck:
    """What ``samples`` that a clause concerns say of it; ``counted`` of them are in its ``value``.

    ``value``: the share of right ones among those acted on, the calibration error (debiased), or the share of
    sure ones, with its interval. ``probability`` that the promise is kept, NaN where nothing is known.
    ``threshold``: the smallest that keeps an act clause's promise with the guarantee, and the share ``acted``
    on from there; NaN where none does. ``note``: what to know of it.
    """

    clause: Clause
    found: Found
    samples: int
    counted: int
    value: Estimate
    probability: float
    threshold: float = math.nan
    acted: float = math.nan
    note: str = ""

    @property
    def line(self) -> str:
        """The YAML of the clause with the threshold that keeps it; "" where there is none."""
        if math.isnan(self.threshold):
            return ""
        return f"act: {{above: {self.threshold!r}, accuracy: {self.clause.promise!r}}}"

    def says(self, class_names: Sequence[str] = ()) -> list[str]:
        """In sentences: what is promised, what was found, and what would keep it."""
        said = [f"{self.clause.name}: {self.found}", self.clause.says(class_names)]
        if not math.isnan(self.value.value):
            said.append(self._measured())
        if self.note:
            said.append(self.note)
        if self.line:
            said.append(f"Kept with the guarantee, and {_percent(self.acted)} acted on, by {self.line}")
        elif self.clause.kind == "act" and self.found != "not checked":
            said.append("No threshold keeps it with the guarantee on these samples.")
        return said

    def _measured(self) -> str:
        value, clause = self.value, self.clause
        ends = "" if math.isnan(value.low) else f" [{100 * value.low:.2f}, {100 * value.high:.2f}]"
        of = {
            "act": f"of {self.counted:,} acted on ({_percent(self.counted / self.samples)}) are right",
            "calibration": f"is the error of {self.samples:,}",
            "coverage": f"of {self.samples:,} are as sure",
        }[clause.kind]
        chance = _chance(self.probability)
        kept = "" if math.isnan(self.probability) else f"; kept with a probability {chance}"
        return f"{100 * value.value:.2f} %{ends} {of}{kept}."

    def as_dict(self) -> dict[str, Any]:
        """For JSON; null where not known."""
        known = {
            name: None if math.isnan(number) else number
            for name, number in (
                ("probability", self.probability),
                ("threshold", self.threshold),
                ("acted", self.acted),
            )
        }
        return {
            "clause": self.clause.name,
            "id": self.clause.id,
            "promise": self.clause.promise,
            "found": self.found,
            "samples": self.samples,
            "counted": self.counted,
            "value": self.value.as_dict(),
            **known,
            "line": self.line,
            "note": self.note,
        }


@dataclass(frozen=True)
class ContractCheck:
    """What ``samples`` say of each clause, at ``level``."""

    samples: int
    level: float
    clauses: tuple[ClauseCheck, ...]

    @property
    def broken(self) -> bool:
        """Whether a clause cannot be kept."""
        return any(one.found == "cannot be kept" for one in self.clauses)

    @property
    def proven(self) -> bool:
        """Whether every clause can be kept."""
        return all(one.found == "can be kept" for one in self.clauses)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "samples": self.samples,
            "level": self.level,
            "broken": self.broken,
            "proven": self.proven,
            "clauses": [one.as_dict() for one in self.clauses],
        }


def _chance(probability: float) -> str:
    """For a person: what rounds to 0 or 1 is neither."""
    if _SURE <= probability <= 1 - _SURE:
        return f"of {probability:.3f}"
    return f"above {1 - _SURE}" if probability > _SURE else f"below {_SURE}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
