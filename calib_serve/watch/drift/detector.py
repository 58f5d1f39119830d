"""A sequential detector of changes in calibration, with a guaranteed average run length.

An e-detector (Shin, Ramdas, Rinaldo 2022): a statistic whose expectation grows by at most 1 a
label while the model is calibrated within the tolerance, so that the average number of labels to
a false alarm is at least the threshold, whatever the confidences are.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.drift.bets import Rounds
from calib_serve.watch.drift.bin_bets import BinBets
from calib_serve.watch.drift.wealth import SPAN, Wealth

__all__ = ["Alarm", "Detector", "ShiftedBin"]

Direction = Literal["overconfident", "underconfident", "mixed"]

_FORMAT = 4
_MOST_BINS = 1000
_LONGEST = 1e30  # labels; what SPAN labels may multiply it with still fits a float


@dataclass(frozen=True)
class ShiftedBin:
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

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy: positive when overconfident."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Alarm:
    """The detector crossed its threshold at label number ``label`` (1, 2, ... since it was made).

    ``since_label`` and ``since_time`` estimate when the change began (seconds since 1970, NaN when
    no times were given); ``gap`` is mean confidence minus accuracy since then; ``evidence`` is the
    statistic and ``threshold`` what it crossed.
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


class Detector:
    """Alarms when accuracy no longer matches confidence; falsely at most once in ``arl`` labels on average.

    ``arl``: the average run length to a false alarm, in labels, at least; after an alarm the
    detector starts afresh. ``tolerance``: how far accuracy may be from confidence, in every
    single prediction, without being called drift. ``block``: labels that may depend on one another
    (errors that come in runs, as in weather or prices: choose a day's worth); each block then counts
    as one bet, the mean of its labels' bets, which needs no independence within it.

    >>> d = Detector(arl=1000, tolerance=0.01)
    >>> alarms = d.update(np.full(200, 0.9), np.zeros(200))
    >>> alarms[0].direction, alarms[0].label < 10
    ('overconfident', True)
    """

    def __init__(
        self, *, arl: float = 100_000, tolerance: float = 0.01, bins: int = 15, block: int = 1
    ) -> None:
        if block < 1:
            raise InputError(f"block is a number of labels, at least 1, got {block}")
        if not 1 <= bins <= _MOST_BINS:
            raise InputError(f"bins must be 1 to {_MOST_BINS}, got {bins}")
        if not 2 <= arl <= _LONGEST:
            raise InputError(f"arl is a number of labels, from 2 to {_LONGEST:.0e}, got {arl}")
        if not 0 <= tolerance < 0.5:
            raise InputError(f"tolerance must be in [0, 0.5), got {tolerance}")
        self.arl, self.tolerance, self.bins, self.block = float(arl), float(tolerance), int(bins), int(block)
        self._waiting = np.empty((0, 3))  # confidence, correct, time of a block that is not whole yet
        self._wealth = Wealth.none(0, bins=self.bins)

    @classmethod
    def for_days(
        cls, days: float, *, labels_a_day: float, tolerance: float = 0.01, bins: int = 15, block: int = 1
    ) -> Detector:
        """A detector with a false alarm in ``days`` days at most, on average, at this rate of labels.

        >>> Detector.for_days(365, labels_a_day=200).arl
        73000.0
        """
        return cls(arl=days * labels_a_day, tolerance=tolerance, bins=bins, block=block)

    def update(
        self, confidence: ArrayLike, correct: ArrayLike, *, time: ArrayLike | None = None
    ) -> list[Alarm]:
        """Take labels in the order they came; the alarms they raised.

        ``confidence``, ``correct`` (n,); ``time`` (n,) in seconds since 1970: when each prediction
        was made.
        """
        c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        t = np.full(c.shape, math.nan) if time is None else np.asarray(time, np.float64)
        if c.ndim != 1 or c.shape != y.shape or c.shape != t.shape:
            raise ShapeError(
                f"confidence, correct and time must be (n,), got {c.shape}, {y.shape}, {t.shape}"
            )
        rows = np.concatenate([self._waiting, np.stack([c, y, t], axis=1)])
        whole = len(rows) - len(rows) % self.block
        rows, self._waiting = rows[:whole], rows[whole:]
        rounds = Rounds.of(rows, tolerance=self.tolerance, bins=self.bins, size=self.block)
        alarms, at, most = [], 0, max(SPAN // self.block, 1)
        while at < len(rounds):
            span = rounds.part(at, at + most)
            after, evidence = self._wealth.after(span)
            crossed = np.flatnonzero(evidence >= self.arl)
            if len(crossed):
                span = rounds.part(at, at + 1 + int(crossed[0]))
                after, evidence = self._wealth.after(span)
                alarms.append(self._alarm(after, float(evidence[-1]), float(span.times[-1])))
                after = Wealth.none(after.labels, bins=self.bins)
            self._wealth = after
            at += len(span)
        return alarms

    @property
    def options(self) -> tuple[float, float, int, int]:
        """What it was made with: arl, tolerance, bins, block."""
        return self.arl, self.tolerance, self.bins, self.block

    @property
    def labels(self) -> int:
        """Labels taken since it was made, in whole blocks."""
        return self._wealth.labels

    @property
    def evidence(self) -> float:
        """The statistic: at most the number of labels since the restart, in expectation, without drift."""
        return self._wealth.evidence

    @property
    def log_evidence(self) -> float:
        """Natural log of the statistic; minus infinity before the first label."""
        return math.log(self.evidence) if self.evidence > 0 else -math.inf

    @property
    def log_threshold(self) -> float:
        """Natural log of the threshold, which is ``arl``."""
        return math.log(self.arl)

    def _alarm(self, wealth: Wealth, evidence: float, time: float) -> Alarm:
        since, bets = wealth.began, wealth.by_bin
        at = int(np.abs(bets.starts[0] - since[0]).argmin())
        bins = _shifted(bets, at)
        count, confidence, correct = bets.seen[:, :, at].sum(axis=1).tolist()
        gap = (confidence - correct) / max(count, 1)
        both = min(b.gap for b in bins) < 0 < max(b.gap for b in bins)
        return Alarm(
            label=wealth.labels,
            time=time,
            since_label=int(since[0]),
            since_time=float(since[1]),
            direction="mixed" if both else "overconfident" if gap > 0 else "underconfident",
            bins=bins,
            gap=gap,
            evidence=evidence,
            threshold=self.arl,
        )

    def state(self) -> bytes:
        """The whole state, to continue in another process; read back by ``restore``."""
        head = {
            "format": _FORMAT,
            "options": self.options,
            "labels": self.labels,
            "waiting": len(self._waiting),
        }
        body = np.concatenate([self._waiting.ravel(), self._wealth.flat()])
        return json.dumps(head).encode() + b"\n" + body.astype("<f8").tobytes()

    @classmethod
    def restore(cls, state: bytes) -> Detector:
        """The detector whose ``state`` this was; InputError if it is not one."""
        head, _, body = state.partition(b"\n")
        try:
            said = json.loads(head)
            if said["format"] != _FORMAT:
                raise InputError(f"a detector state of format {said['format']}; this is {_FORMAT}")
            arl, tolerance, bins, block = said["options"]
            detector = cls(arl=arl, tolerance=tolerance, bins=bins, block=block)
            waiting, flat = np.split(np.frombuffer(body, "<f8"), [3 * said["waiting"]])
            detector._waiting = waiting.reshape(-1, 3)
            detector._wealth = Wealth.from_flat(flat, labels=int(said["labels"]), bins=bins)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"not a detector's state: {error}; start a new detector") from error
        return detector


def _shifted(bets: BinBets, at: int) -> tuple[ShiftedBin, ...]:
    """The bins that speak for a shift since start ``at``, strongest first; at least one."""
    evidence = bets.evidence(at)
    speaking = np.flatnonzero(evidence >= min(1.0, evidence.max()))
    bounds = np.linspace(0, 1, len(evidence) + 1).tolist()
    found = []
    for b in sorted(speaking.tolist(), key=lambda b: -evidence[b]):
        count, confidence, correct = bets.seen[:, b, at].tolist()
        mean, accuracy = confidence / count, correct / count
        shifted = ShiftedBin(b, bounds[b], bounds[b + 1], int(count), mean, accuracy, float(evidence[b]))
        found.append(shifted)
    return tuple(found)
