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
from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Dated
from calib_serve.watch.series import DELAYS

__all__ = ["AUTO", "Delays", "Maturity", "duration", "learned_delay", "parse_maturity"]

AUTO = "auto"
"""Learn it."""

SHARE = 0.99
"""The share of labels that have come when a prediction counts as mature."""

_ENOUGH = 30  # labels to learn from


@dataclass(frozen=True)
class Maturity:
    """``seconds`` after which predictions are mature, ``given`` or learned; infinity while not known."""

    seconds: float
    given: bool

    @property
    def known(self) -> bool:
        """Whether anything can be mature."""
        return math.isfinite(self.seconds)


@dataclass(frozen=True)
class Delays:
    """How late ``labels`` came so far, in seconds: a ``third``, as good as ``all`` of them, the ``longest``.

    Each is the upper end of a step of ``DELAYS``, NaN without labels. ``known_at``: the time at which it can
    be known that these were not just the first ones, as far as one can tell today.
    """

    labels: float
    third: float
    all: float
    longest: float
    known_at: float

    @classmethod
    def of(cls, dated: Iterable[Dated], *, now: float, share: float = SHARE) -> Delays:
        """From the labels by time of prediction and delay.

        Young predictions have shown short delays only. So each step of the delay is judged by predictions old
        enough to have shown it: the product-limit estimate for right-truncated times (Lagakos, Barraj and De
        Gruttola 1988). It is known once predictions have shown a step longer than ``all``, in which no labels
        came: else most of them may be yet to come.
        """
        edges = np.asarray(DELAYS)
        at_step, up_to_step, every = np.zeros(len(edges)), np.zeros(len(edges)), np.zeros(len(edges) + 1)
        first = math.inf
        for _, start, width, sums in dated:
            delays = sums["calib_feedback_delay"]
            if delays.any():
                every += delays
                first = min(first, start + width)
                shown = edges <= now - (start + width)
                at_step += np.where(shown, delays[:-1], 0)
                up_to_step += np.where(shown, np.cumsum(delays[:-1]), 0)
        labels = float(every.sum())
        if not labels:
            return cls(0.0, math.nan, math.nan, math.nan, math.nan)
        ends = np.append(edges, math.inf)
        third = float(ends[int(np.argmax(np.cumsum(every) >= labels / 3))])
        longest = int(np.flatnonzero(every)[-1])
        # P(delay <= step), from the longest step that any prediction could show downwards.
        stay = 1 - at_step / np.maximum(up_to_step, 1)
        below = np.append(np.cumprod(stay[::-1])[::-1][1:], 1.0)
        step = int(np.argmax(below >= share)) if up_to_step.any() else min(longest, len(edges) - 1)
        further = float(edges[step + 1]) if step + 1 < len(edges) else math.inf
        told = step + 1 < len(edges) and up_to_step[step + 1] >= _ENOUGH
        known_at = first + further if told else max(first + further, math.nextafter(now, math.inf))
        return cls(labels, third, float(edges[step]), float(ends[longest]), known_at)

    @property
    def says(self) -> str:
        """What is known of them, in a sentence.

        >>> Delays(900.0, 8192.0, 65536.0, 131072.0, math.nan).says
        'A third of 900 labels came within 2.3 hours, the longest took up to 36.4 hours.'
        """
        if not self.labels:
            return "No label has come yet."
        third = duration(self.third, 1)
        most = f"took up to {duration(self.longest, 1)}" if math.isfinite(self.longest) else "took months"
        return f"A third of {self.labels:,.0f} labels came within {third}, the longest {most}."


def duration(seconds: float, digits: int = 0) -> str:
    """Two or more of its unit."""
    for unit, size in (("days", DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} seconds"


def learned_delay(dated: Iterable[Dated], *, now: float, share: float = SHARE) -> float:
    """Seconds within which ``share`` of the labels come; infinity while that is not known (``Delays``)."""
    found = Delays.of(dated, now=now, share=share)
    return found.all if found.known_at <= now else math.inf


def parse_maturity(text: str | float | None) -> float | None:
    """Seconds of "0", "90s", "30m", "6h" or "7d", or of a number of them; None for "auto".

    >>> parse_maturity("6h"), parse_maturity("auto")
    (21600.0, None)
    """
    if text is None or text == AUTO:
        return None
    if not isinstance(text, str):
        return float(text)
    return parse_duration(text, what='a time, if not "auto",')
