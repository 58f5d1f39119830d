"""A sequential detector of changes in calibration, with an average run length that can be set.

An e-detector (Shin, Ramdas, Rinaldo 2022). Its statistic is the worth of all bets against calibration,
each label being paid in with a stake. Its average run length, from three steps:

1. Theorem. Let a stream be within the tolerance: given all earlier labels, the chance that a prediction is
   right is at most ``tolerance`` from its confidence. Then no bet gains in expectation (``payoffs``), nor
   does the mean of a block's bets, so the statistic's expectation grows by at most the stake a label.
   When it first reaches ``arl``, at label T, it is worth arl or more: E[T] >= arl / stake.
2. At tolerance 0, and wherever labels come in blocks or name groups, the stake is 1 a label
   (``signed_stakes``), so E[T] >= arl for every stream within the tolerance.
3. Of single labels at a larger tolerance the stake is up to 1.8, as a stream that is at one edge of the
   tolerance makes the bets on the other direction lose: E[T] >= arl / 1.8 by the theorem, for every stream,
   even one that changes its errors knowing what was won. That E[T] >= arl as well for streams whose errors
   do not follow the bets, at either edge or between, is measured (``benchmarks/detectors.py``), not proved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.errors import InputError
from calib_serve.core.options.evaluate import Binned
from calib_serve.core.options.servers import DriftOptions
from calib_serve.monitor.drift.bets import SPAN, PartBets, Wealth, signed_stakes
from calib_serve.monitor.drift.rounds import CLASS_SLOTS, MOST_GROUPS, Incoming, Rounds
from calib_serve.monitor.state_format import FORMAT, check_state

Direction = Literal["overconfident", "underconfident", "mixed"]

_SPEAKS = 1.0  # nats: the belief that nothing is wrong with it fell to a third or below
_MOST_LABELS = 4 * SPAN  # at once, of several blocks: the work grows with their square


@dataclass(frozen=True)
class _Shifted:
    """What an alarm names, by its labels since the change: their number, mean confidence and accuracy.

    ``log_evidence``: how strongly it speaks against being calibrated, in nats.
    """

    count: int
    confidence: float
    accuracy: float
    log_evidence: float

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy: positive when overconfident."""
        return self.confidence - self.accuracy


@dataclass(frozen=True, kw_only=True)
class ShiftedBin(_Shifted):
    """A bin, of confidences in (``low``, ``high``]."""

    bin: int
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ShiftedClass(_Shifted):
    """A predicted class; None for all classes together that came after the first fifteen."""

    predicted: int | None


@dataclass(frozen=True)
class Alarm:
    """The detector crossed its threshold.

    ``label`` is the number of the label (1, 2, ... since the detector was made; those left out have none). At
    ``since_label`` and ``since_time``, in seconds since 1970, the change began, by its estimate; ``gap`` is
    mean confidence minus accuracy since then. ``direction`` is "mixed" where bins or classes have both.
    ``evidence`` is in labels.
    """

    label: int
    since_label: int
    since_time: float
    direction: Direction
    bins: tuple[ShiftedBin, ...]
    gap: float
    evidence: float
    classes: tuple[ShiftedClass, ...] = ()


def _shifted_bins(bets: PartBets, at: int) -> tuple[ShiftedBin, ...]:
    """The bins that speak for a shift since start ``at``, strongest first; at least one."""
    evidence = bets.evidence(at)
    bounds = np.linspace(0, 1, len(evidence) + 1).tolist()
    return tuple(
        ShiftedBin(*_seen(bets, at, b), float(evidence[b]), bin=b, low=bounds[b], high=bounds[b + 1])
        for b in _speaking(evidence, least=min(_SPEAKS, float(evidence.max())))
    )


def _shifted_classes(bets: PartBets, at: int, classes: Sequence[int]) -> tuple[ShiftedClass, ...]:
    """The predicted classes that speak for a shift since start ``at``, strongest first."""
    if not classes:
        return ()
    evidence = bets.evidence(at)
    return tuple(
        ShiftedClass(
            *_seen(bets, at, k), float(evidence[k]), predicted=classes[k] if k < len(classes) else None
        )
        for k in _speaking(evidence, least=_SPEAKS)
    )


def _start_near(bets: PartBets, label: float) -> int:
    return int(np.abs(bets.starts[0] - label).argmin())


def _speaking(evidence: np.ndarray[tuple[int], np.dtype[np.float64]], *, least: float) -> list[int]:
    speaking = np.flatnonzero(evidence >= least).tolist()
    return sorted(speaking, key=lambda part: -float(evidence[part]))


def _seen(bets: PartBets, at: int, part: int) -> tuple[int, float, float]:
    """The number of labels, mean confidence and accuracy of a part since start ``at``."""
    count, confidence, correct = bets.seen[:, part, at].tolist()
    return int(count), confidence / count, correct / count


class Detector:
    """Alarms when accuracy no longer matches confidence; falsely at most once in ``arl`` labels on average.

    What is proved of the average run length ``arl``, and what is measured, is in this module; after an alarm
    the detector starts afresh. ``tolerance`` is how far accuracy may be from confidence, in every single
    prediction, without being called drift. ``block``: labels that may depend on one another (errors that come
    in runs, as in weather or prices: choose a day's worth); each block then counts as one bet, the mean of
    its labels' bets, which needs no independence within it. Where it is known which labels belong together,
    pass their ``group`` to ``update`` instead.

    Args:
        arl: Labels between two false alarms, on average, at least.
        tolerance: How far accuracy may be from confidence, in [0, 0.5).
        block: Labels that may depend on one another.
        bins: Number of bins of confidence, of equal width.

    >>> d = Detector(arl=1000, tolerance=0.01)
    >>> alarms = d.update(np.full(200, 0.9), np.zeros(200))
    >>> alarms[0].direction, alarms[0].label < 10
    ('overconfident', True)
    """

    def __init__(
        self,
        *,
        arl: float = DriftOptions.arl,
        tolerance: float = DriftOptions.tolerance,
        block: int = DriftOptions.block,
        bins: int = Binned.bins,
    ) -> None:
        DriftOptions(arl=arl, tolerance=tolerance, block=block)  # which checks them
        if not 1 <= bins <= 1000:
            raise InputError(f"bins must be 1 to 1000, got {bins}")
        self.arl, self.tolerance = float(arl), float(tolerance)
        self.bins, self.block = int(bins), int(block)
        self._incoming = Incoming(block=self.block)
        self._stakes = self._stakes_now()
        self._wealth = Wealth.none(0, bins=self.bins)

    def update(
        self,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        time: ArrayLike | None = None,
        predicted: ArrayLike | None = None,
        group: ArrayLike | None = None,
    ) -> list[Alarm]:
        """Take labels in the order in which they came; return the alarms that they raised.

        Args:
            confidence: Top-1 confidences (n,), in [0, 1].
            correct: Whether each prediction was right (n,).
            time: When each was made (n,), in seconds since 1970.
            predicted: Class ids (n,): errors that cancel over the predicted classes are then found as well.
            group: Unsigned 64-bit ids (n,) of one patient, match or session; 0: none. The labels of a group
                in one call are one block; those that come in a later call are left out of the bets
                (``left_out``), as their group has made its bet.
        """
        rows, sizes = self._incoming.blocks(confidence, correct, time, predicted, group)
        if not len(sizes):
            return []
        self._stakes = self._stakes_now()
        rounds = Rounds.of(rows, sizes, tolerance=self.tolerance, bins=self.bins)
        ends = np.cumsum(sizes)
        alarms, at, taken = [], 0, 0
        while at < len(rounds):
            stop = int(np.searchsorted(ends, taken + _MOST_LABELS, side="right"))
            stop = max(at + 1, min(stop, at + SPAN))
            span = rounds.of_blocks(at, stop)
            after, evidence = self._wealth.after(span, self._stakes)
            crossed = np.flatnonzero(evidence >= self.arl)
            if len(crossed):
                # Bet again, up to the block that crossed: the alarm reports the state at that block.
                span = rounds.of_blocks(at, at + 1 + int(crossed[0]))
                after, evidence = self._wealth.after(span, self._stakes)
                alarms.append(self._alarm(after, float(evidence[-1])))
                after = Wealth.none(after.labels, bins=self.bins)
            self._wealth = after
            at += len(span)
            taken = int(ends[at - 1])
        return alarms

    def _stakes_now(self) -> NDArray[np.float64]:
        """The stakes of the signed bets: stakes for blocks, once a group has been seen."""
        block = max(self.block, 1 + self.grouped)
        return signed_stakes(tolerance=self.tolerance, arl=self.arl, block=block)

    @property
    def options(self) -> tuple[float, float, int, int]:
        """The detector's options: arl, tolerance, bins, block."""
        return self.arl, self.tolerance, self.bins, self.block

    @property
    def labels(self) -> int:
        """The number of labels since it was made, in whole blocks, without those left out."""
        return self._wealth.labels

    @property
    def grouped(self) -> bool:
        """Whether any label has named a group."""
        return len(self._incoming.groups) > 0

    @property
    def left_out(self) -> int:
        """The number of labels left out since it was made: their group had bet in an earlier call."""
        return self._incoming.left_out

    @property
    def evidence(self) -> float:
        """The statistic: the worth of all bets since the restart; the alarm is raised at ``arl``."""
        return self._wealth.evidence(self._stakes)

    @property
    def log_evidence(self) -> float:
        """Natural log of the statistic; minus infinity before the first label."""
        return math.log(self.evidence) if self.evidence > 0 else -math.inf

    @property
    def log_threshold(self) -> float:
        """Natural log of the threshold, which is ``arl``."""
        return math.log(self.arl)

    def _alarm(self, wealth: Wealth, evidence: float) -> Alarm:
        """The alarm of bets that crossed the threshold at their latest label."""
        since, since_time = wealth.began(self._stakes).tolist()
        at = _start_near(wealth.by_bin, since)
        bins = _shifted_bins(wealth.by_bin, at)
        of_classes = _start_near(wealth.by_class, since)
        classes = _shifted_classes(wealth.by_class, of_classes, self._incoming.classes)
        count, confidence, correct = wealth.by_bin.seen[:, :, at].sum(axis=1).tolist()
        gap = (confidence - correct) / max(count, 1)
        gaps = [*(one.gap for one in bins), *(one.gap for one in classes)]
        both = min(gaps) < 0 < max(gaps)
        return Alarm(
            label=wealth.labels,
            since_label=int(since),
            since_time=float(since_time),
            direction="mixed" if both else "overconfident" if gap > 0 else "underconfident",
            bins=bins,
            gap=gap,
            evidence=evidence,
            classes=classes,
        )

    def state(self) -> bytes:
        """The whole state, for another process, which ``restore`` reads back."""
        kept = self._incoming
        head = {
            "format": FORMAT,
            "options": self.options,
            "labels": self.labels,
            "left_out": kept.left_out,
            "classes": kept.classes,
            "groups": len(kept.groups),
            "waiting": len(kept.waiting),
        }
        body = np.concatenate([kept.waiting.ravel(), self._wealth.flat()])
        return (
            json.dumps(head).encode()
            + b"\n"
            + kept.groups.astype("<u8").tobytes()
            + body.astype("<f8").tobytes()
        )

    @classmethod
    def restore(cls, state: bytes) -> Detector:
        """Rebuild a detector from its ``state``; InputError for anything else, or an unknown format.

        LedgerError where a newer program wrote it, which goes on with it after an upgrade.
        """
        head, _, body = state.partition(b"\n")
        try:
            said = json.loads(head)
            check_state(said, "a detector's state")
            arl, tolerance, bins, block = said["options"]
            detector = cls(arl=arl, tolerance=tolerance, bins=bins, block=block)
            groups, waiting, flat = _split(body, groups=said["groups"], waiting=said["waiting"])
            classes = [int(one) for one in said["classes"]]
            if len(classes) >= CLASS_SLOTS:
                raise InputError(f"a detector knows fewer than {CLASS_SLOTS} classes, not {len(classes)}")
            detector._incoming = Incoming(
                block=detector.block,
                waiting=waiting,
                classes=classes,
                groups=groups,
                left_out=int(said["left_out"]),
            )
            detector._stakes = detector._stakes_now()
            detector._wealth = Wealth.from_flat(flat, labels=int(said["labels"]), bins=detector.bins)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(f"not a detector's state: {error}; start a new detector") from error
        return detector


def _split(
    body: bytes, *, groups: int, waiting: int
) -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.float64]]:
    """The groups, the waiting labels (w, 4) and the wealth in a state's body."""
    if not (0 <= groups <= MOST_GROUPS and waiting >= 0):
        raise InputError(f"a detector's state cannot have {groups} groups and {waiting} labels waiting")
    numbers = np.frombuffer(body[8 * groups :], "<f8")
    rows, flat = np.split(numbers, [4 * waiting])
    return (
        np.frombuffer(body[: 8 * groups], "<u8").astype(np.uint64),
        rows.reshape(waiting, 4),
        flat,
    )
