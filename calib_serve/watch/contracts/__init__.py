"""How the promises of contracts stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from calib_serve.artifact import Clause

__all__ = ["Burn", "ClauseState"]


@dataclass(frozen=True)
class Burn:
    """A burn rate, and its lower 95 % end."""

    rate: float
    low: float


@dataclass(frozen=True)
class ClauseState:
    """How one promise stands."""

    clause: Clause
    state: Literal["kept", "broken", "unknown"]
    said_at: float | None
    labels: float
    value: float
    low: float
    high: float
    budget_left: float
    burn: Mapping[str, Burn]
    runs_out: float
    why: str
