"""What an alarm tells: when, since when, which way, and in which bins and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calib_serve.watch.drift.bets import PartBets, Wealth

__all__ = ["Alarm", "Direction", "ShiftedBin", "ShiftedClass", "shifted_bins", "shifted_classes"]

Direction = Literal["overconfident", "underconfident", "mixed"]

_SPEAKS = 1.0  # nats: the belief that nothing is wrong with it fell to a third or below


class _Shifted:
    """What bins and classes that an alarm names have in common."""

    confidence: float
    accuracy: float

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy: positive when overconfident."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class ShiftedBin(_Shifted):
    """A bin that an alarm names: confidences in (low, high], and what was seen in it since.

    ``log_evidence``: how strongly it speaks against being calibrated, in nats.
    """

    bin: int
    low: float
    high: float
    count: int
    confidence: float
    accuracy: float
    log_evidence: float


@dataclass(frozen=True)
class ShiftedClass(_Shifted):
    """A predicted class that an alarm names, and what was seen of it since.

    ``predicted``: its id; None for all classes together that came after the first fifteen.
    ``log_evidence``: how strongly it speaks against being calibrated, in nats.
    """

    predicted: int | None
    count: int
    confidence: float
    accuracy: float
    log_evidence: float


@dataclass(frozen=True)
class Alarm:
    """The detector crossed its threshold at label number ``label`` (1, 2, ... since it was made).

    Labels that were left out have no number. ``since_label`` and ``since_time`` estimate when the change
    began (seconds since 1970, NaN when no times were given); ``gap`` is mean confidence minus accuracy
    since then; ``evidence`` is the statistic and ``threshold`` what it crossed. ``classes``: none where no
    predicted class was told, or none speaks.
    """

    label: int
    time: float
    since_label: int
    since_time: float
    direction: Direction
    bins: tuple[ShiftedBin, ...]
    gap: float
    evidence: float
    threshold: float
    classes: tuple[ShiftedClass, ...] = ()

    @classmethod
    def of(
        cls, wealth: Wealth, *, since: Sequence[float], time: float, classes: Sequence[int],
        evidence: float, threshold: float,
    ) -> Alarm:  # fmt: skip
        """What ``wealth`` tells of the labels since the label and time ``since`` (2,)."""
        bets = wealth.by_bin
        at = _start_near(bets, since[0])
        bins = shifted_bins(bets, at)
        named = shifted_classes(wealth.by_class, _start_near(wealth.by_class, since[0]), classes)
        count, confidence, correct = bets.seen[:, :, at].sum(axis=1).tolist()
        gap = (confidence - correct) / max(count, 1)
        gaps = [*(one.gap for one in bins), *(one.gap for one in named)]
        both = min(gaps) < 0 < max(gaps)
        return cls(
            label=wealth.labels,
            time=time,
            since_label=int(since[0]),
            since_time=float(since[1]),
            direction="mixed" if both else "overconfident" if gap > 0 else "underconfident",
            bins=bins,
            gap=gap,
            evidence=evidence,
            threshold=threshold,
            classes=named,
        )


def shifted_bins(bets: PartBets, at: int) -> tuple[ShiftedBin, ...]:
    """The bins that speak for a shift since start ``at``, strongest first; at least one."""
    evidence = bets.evidence(at)
    bounds = np.linspace(0, 1, len(evidence) + 1).tolist()
    return tuple(
        ShiftedBin(b, bounds[b], bounds[b + 1], *_seen(bets, at, b), float(evidence[b]))
        for b in _speaking(evidence, least=min(_SPEAKS, float(evidence.max())))
    )


def shifted_classes(bets: PartBets, at: int, classes: Sequence[int]) -> tuple[ShiftedClass, ...]:
    """The predicted classes that speak for a shift since start ``at``, strongest first."""
    if not classes:
        return ()
    evidence = bets.evidence(at)
    return tuple(
        ShiftedClass(classes[k] if k < len(classes) else None, *_seen(bets, at, k), float(evidence[k]))
        for k in _speaking(evidence, least=_SPEAKS)
    )


def _start_near(bets: PartBets, label: float) -> int:
    return int(np.abs(bets.starts[0] - label).argmin())


def _speaking(evidence: np.ndarray[tuple[int], np.dtype[np.float64]], *, least: float) -> list[int]:
    speaking = np.flatnonzero(evidence >= least).tolist()
    return sorted(speaking, key=lambda part: -float(evidence[part]))


def _seen(bets: PartBets, at: int, part: int) -> tuple[int, float, float]:
    """Labels, mean confidence and accuracy of a part since start ``at``."""
    count, confidence, correct = bets.seen[:, part, at].tolist()
    return int(count), confidence / count, correct / count
