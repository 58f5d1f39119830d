"""When did calibration change: one sequential detector with a guaranteed run length.

An e-detector (Shin, Ramdas, Rinaldo 2022): a statistic whose expectation grows by at most 1 a
label while the model is calibrated within the tolerance, so that the average number of labels to
a false alarm is at least the threshold, whatever the confidences are.

Half of its stake bets that all confidences are off in one direction: a mixture, over sizes, of
Shiryaev-Roberts recursions. Half bets that every bin is off by one size, in a direction of its
own that the bets learn, or not at all: so errors that cancel over bins are found as well. These
run from many starting times at once, thinned out geometrically, and the older a start is, the
farther it is from its neighbours.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import bin_index
from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.bets import SHIFTS, payoffs

__all__ = ["Alarm", "Detector", "Shifted"]

Floats = NDArray[np.float64]
Direction = Literal["overconfident", "underconfident", "mixed"]

_SIGNED = 0.5  # the signed bets' share of the stake
_IDLE = 0.2  # a bin's prior that nothing is wrong with it
_PRIOR = np.array([_IDLE, (1 - _IDLE) / 2, (1 - _IDLE) / 2])  # nothing, over-, underconfident
_SPACING = 16  # labels between two starting times
_THIN = 1.25  # of two starts with ages closer than this ratio, one is enough
_FORMAT = 3


@dataclass(frozen=True)
class Shifted:
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
    bins: tuple[Shifted, ...]
    gap: float
    evidence: float
    threshold: float


class Detector:
    """Alarms when confidence stops meaning what it says; falsely, at most once in ``arl`` labels on average.

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
        if not 2 <= arl < math.inf:
            raise InputError(f"arl is a number of labels, at least 2, got {arl}")
        if not 0 <= tolerance < 0.5:
            raise InputError(f"tolerance must be in [0, 0.5), got {tolerance}")
        self.arl, self.tolerance, self.bins, self.block = float(arl), float(tolerance), int(bins), int(block)
        self.labels = 0
        self._waiting = np.empty((0, 3))  # confidence, correct, time of a block that is not whole yet
        self._restart()

    @classmethod
    def for_days(
        cls, days: float, *, labels_a_day: float, tolerance: float = 0.01, bins: int = 15, block: int = 1
    ) -> Detector:
        """A detector with a false alarm in ``days`` days at most, on average, at this rate of labels.

        >>> Detector.for_days(365, labels_a_day=200).arl
        73000.0
        """
        return cls(arl=days * labels_a_day, tolerance=tolerance, bins=bins, block=block)

    def _restart(self) -> None:
        sizes = len(SHIFTS)
        self._began = self.labels
        self._signed = np.zeros(2 * sizes)
        self._run = np.zeros(2 * sizes)  # CUSUM of each signed bet: its change began where it was last 0
        self._run_start = np.full((2 * sizes, 2), [self.labels + 1.0, math.nan])
        self._starts = np.empty((0, 2))  # label number, time
        self._capital = np.empty((0, sizes))
        self._belief = np.empty((0, self.bins, 3, sizes))  # of each direction, by start, bin and size
        self._seen = np.empty((0, self.bins, 3))  # labels, their confidences, how many were right

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
        index = bin_index(rows[:, 0], bins=self.bins)
        pays = payoffs(rows[:, 0], rows[:, 1], tolerance=self.tolerance)
        alarms = []
        for i in range(0, whole, self.block):
            block = slice(i, i + self.block)
            self._step(index[block], rows[block], pays[block])
            if self.evidence >= self.arl:
                alarms.append(self._alarm(rows[i, 2]))
                self._restart()
        return alarms

    def _step(self, index: NDArray[np.intp], rows: Floats, pays: Floats) -> None:
        """One block of labels: their bins, (confidence, correct, time), and what each bet pays for each."""
        n, first, t = len(rows), self.labels + 1, rows[0, 2]
        self.labels += n
        mean = pays.mean(axis=0)
        self._signed = (self._signed + n) * mean
        fresh = self._run <= 0
        self._run_start[fresh] = (first, t)
        self._run = np.where(fresh, 0.0, self._run) + np.log(mean)
        if not len(self._starts) or first - self._starts[-1, 0] >= _SPACING:
            self._open(first, t)
        growth = np.zeros_like(self._capital)
        for b, pay in zip(index.tolist(), pays.reshape(n, 2, -1), strict=True):
            growth += self._belief[:, b, 0] + (self._belief[:, b, 1:] * pay).sum(axis=1)
        self._capital *= growth / n
        for b, row, pay in zip(index.tolist(), rows, pays.reshape(n, 2, -1), strict=True):
            belief = self._belief[:, b]
            belief[:, 1:] *= pay if n == 1 else pay ** (1 / n)  # a block teaches as much as one label
            belief /= belief.sum(axis=1, keepdims=True)
            self._seen[:, b] += (1.0, row[0], row[1])

    def _open(self, first: int, t: float) -> None:
        """Start another e-process, paid for with the labels since the last one started."""
        last = self._starts[-1, 0] if len(self._starts) else first - 1
        sizes = len(SHIFTS)
        stake = np.full((1, sizes), (self.labels - last) / sizes)
        prior = np.broadcast_to(_PRIOR[:, None], (1, self.bins, 3, sizes))
        self._starts = np.vstack([self._starts, (first, t)])
        self._capital = np.concatenate([self._capital, stake])
        self._belief = np.concatenate([self._belief, prior])
        self._seen = np.concatenate([self._seen, np.zeros((1, self.bins, 3))])
        self._thin(first)

    def _thin(self, first: int) -> None:
        """Let starts of nearly the same age share one belief; capital moves on, so no bet is lost."""
        age = first + _SPACING - self._starts[:, 0]
        keep = [0]
        for i in range(1, len(age) - 1):
            if age[keep[-1]] <= _THIN * age[i + 1]:
                self._capital[i + 1] += self._capital[i]
            else:
                keep.append(i)
        if len(age) > 1:
            keep.append(len(age) - 1)
        self._starts, self._capital = self._starts[keep], self._capital[keep]
        self._belief, self._seen = self._belief[keep], self._seen[keep]

    @property
    def options(self) -> tuple[float, float, int, int]:
        """What it was made with: arl, tolerance, bins, block."""
        return self.arl, self.tolerance, self.bins, self.block

    @property
    def evidence(self) -> float:
        """The statistic: at most the number of labels since the restart, in expectation, without drift."""
        return _SIGNED * float(self._signed.mean()) + (1 - _SIGNED) * float(self._capital.sum())

    @property
    def log_evidence(self) -> float:
        """Natural log of the statistic; minus infinity before the first label."""
        return math.log(self.evidence) if self.evidence > 0 else -math.inf

    @property
    def log_threshold(self) -> float:
        """Natural log of the threshold, which is ``arl``."""
        return math.log(self.arl)

    def _alarm(self, t: float) -> Alarm:
        all_one_way = _SIGNED * self._signed.mean() > (1 - _SIGNED) * self._capital.sum()
        by_start = self._capital.sum(axis=1)
        since = (
            self._run_start[int(self._signed.argmax())] if all_one_way else self._starts[by_start.argmax()]
        )
        at = int(np.abs(self._starts[:, 0] - since[0]).argmin())
        bins = self._shifted(at)
        count, confidence, correct = self._seen[at].sum(axis=0).tolist()
        gap = (confidence - correct) / max(count, 1)
        both = min(b.gap for b in bins) < 0 < max(b.gap for b in bins)
        return Alarm(
            label=self.labels,
            time=float(t),
            since_label=int(since[0]),
            since_time=float(since[1]),
            direction="mixed" if both else "overconfident" if gap > 0 else "underconfident",
            bins=bins,
            gap=gap,
            evidence=self.evidence,
            threshold=self.arl,
        )

    def _shifted(self, at: int) -> tuple[Shifted, ...]:
        """The bins that speak for a shift since start ``at``, strongest first; at least one.

        A bin's evidence is how far its belief that nothing is wrong fell: log(prior / now).
        """
        size = int(self._capital[at].argmax())
        idle = np.maximum(self._belief[at, :, 0, size], np.finfo(float).tiny)
        evidence = np.where(self._seen[at, :, 0] > 0, np.log(_IDLE / idle), -math.inf)
        speaking = np.flatnonzero(evidence >= min(1.0, evidence.max()))
        edges = np.linspace(0, 1, self.bins + 1)
        found = []
        for b in sorted(speaking.tolist(), key=lambda b: -evidence[b]):
            count, confidence, correct = self._seen[at, b].tolist()
            mean, accuracy = confidence / count, correct / count
            low, high = float(edges[b]), float(edges[b + 1])
            found.append(Shifted(b, low, high, int(count), mean, accuracy, float(evidence[b])))
        return tuple(found)

    def state(self) -> bytes:
        """All that the detector knows, to go on elsewhere; read back by ``restore``."""
        file = io.BytesIO()
        np.savez(
            file,
            format=_FORMAT,
            options=self.options,
            at=[self.labels, self._began],
            **{name: getattr(self, f"_{name}") for name in _ARRAYS},
        )
        return file.getvalue()

    @classmethod
    def restore(cls, state: bytes) -> Detector:
        """The detector whose ``state`` this was; InputError if it is not one."""
        try:
            with np.load(io.BytesIO(state), allow_pickle=False) as kept:
                if int(kept["format"]) != _FORMAT:
                    raise InputError(f"a detector state of format {int(kept['format'])}; this is {_FORMAT}")
                arl, tolerance, bins, block = kept["options"].tolist()
                detector = cls(arl=arl, tolerance=tolerance, bins=int(bins), block=int(block))
                detector.labels, detector._began = map(int, kept["at"])
                for name in _ARRAYS:
                    setattr(detector, f"_{name}", kept[name])
        except (OSError, KeyError, ValueError, EOFError, BadZipFile) as error:
            raise InputError(f"not a detector's state: {error}; start a new detector") from error
        return detector


_ARRAYS = ("signed", "run", "run_start", "starts", "capital", "belief", "seen", "waiting")
