"""What is known of a shadow at a moment, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from calib_serve.judgement import signed_points

__all__ = ["ShadowState", "Verdict"]

Verdict = Literal["better", "no worse", "worse", "unknown"]


@dataclass(frozen=True)
class ShadowState:
    """What ``labels`` since ``since`` (the time of the first one's prediction) say of the shadow ``tag``.

    ``gain``: the mean by which the log score of its confidence is better than that of the served one, in nats
    a prediction, see ``ShadowTest``; in ``low`` to ``high`` at all times at once, with a chance of 95 %.
    ``accuracy_difference``: share of right predictions less that of the served one. Both are NaN without
    labels. ``log_evidence``: the natural log of the evidence of each statement.
    """

    tag: str
    labels: float
    verdict: Verdict
    gain: float
    low: float
    high: float
    accuracy_difference: float
    log_evidence: Mapping[str, float]
    since: float

    def says(self) -> str:
        """In a sentence."""
        if not self.labels:
            return f"Shadow {self.tag}: no label yet."
        words = {
            "better": "is better",
            "no worse": "is no worse",
            "worse": "is worse",
            "unknown": "is not yet known to be better, no worse or worse",
        }
        return (
            f"Shadow {self.tag} {words[self.verdict]} after {self.labels:,.0f} labels: its log score is"
            f" {self.gain:.5f} nats better ({self.low:.5f} to {self.high:.5f}), its accuracy"
            f" {signed_points(self.accuracy_difference)} points."
        )
