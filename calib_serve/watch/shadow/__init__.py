"""How shadows compare with what is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["ShadowState"]


@dataclass(frozen=True)
class ShadowState:
    """How one shadow compares."""

    tag: str
    labels: float
    verdict: Literal["better", "no worse", "worse", "unknown"]
    gain: float
    low: float
    high: float
    accuracy_difference: float
    log_evidence: Mapping[str, float]
    since: float

    def says(self) -> str:
        """In a sentence."""
        return f"The shadow {self.tag} is {self.verdict}."
