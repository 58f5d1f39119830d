"""When the labels of a time are in: learned from how long labels took, or given.

Windows, verdicts and the drift detector leave out predictions whose labels are still coming: where wrong
ones are told sooner than right ones, the newest labels of a calibrated model look wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from calib_serve.names import parse_duration
from calib_serve.watch.ledger import Dated
from calib_serve.watch.series import DELAYS

__all__ = ["AUTO", "Maturity", "learned_delay", "parse_maturity"]

AUTO = "auto"
"""Learn it."""

SHARE = 0.99
"""The share of labels that have come when a prediction counts as mature."""

_ENOUGH = 30  # labels to learn from
_SEEN_LONGER = 3.0  # the delay must be this many times shorter than what could be observed


@dataclass(frozen=True)
class Maturity:
    """``seconds`` after which predictions are mature, ``given`` or learned; infinity while not known."""

    seconds: float
    given: bool

    @property
    def known(self) -> bool:
        """Whether anything can be mature."""
        return math.isfinite(self.seconds)


def learned_delay(dated: Iterable[Dated], *, now: float, share: float = SHARE) -> float:
    """Seconds within which ``share`` of the labels come, from the labels by time of prediction and delay.

    Young predictions have shown short delays only. So each step of the delay is judged by predictions old
    enough to have shown it: the product-limit estimate for right-truncated times (Lagakos, Barraj and De
    Gruttola 1988). Infinity while too few labels have come, or while the answer is not well below
    the longest delay that could have been seen: then most labels may be yet to come.
    """
    edges = np.asarray(DELAYS)
    at_step, up_to_step = np.zeros(len(edges)), np.zeros(len(edges))
    longest = 0.0
    for _, start, width, sums in dated:
        delays = sums["calib_feedback_delay"][:-1]
        if delays.any():
            age = now - (start + width)
            longest = max(longest, age)
            shown = edges <= age
            at_step += np.where(shown, delays, 0)
            up_to_step += np.where(shown, np.cumsum(delays), 0)
    if up_to_step.max() < _ENOUGH:
        return math.inf
    # P(delay <= step), from the longest step that any prediction could show downwards.
    stay = 1 - at_step / np.maximum(up_to_step, 1)
    below = np.append(np.cumprod(stay[::-1])[::-1][1:], 1.0)
    seconds = float(edges[int(np.argmax(below >= share))])
    return seconds if seconds * _SEEN_LONGER <= longest else math.inf


def parse_maturity(text: str) -> float | None:
    """Seconds of "0", "90s", "30m", "6h" or "7d"; None for "auto".

    >>> parse_maturity("6h"), parse_maturity("auto")
    (21600.0, None)
    """
    if text == AUTO:
        return None
    return parse_duration(text, what='a time, if not "auto",')
