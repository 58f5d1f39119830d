"""What a ledger is given to count, and where each part of it is kept.

Sums are kept twice: over all time, for counters; and by the time of the *prediction*, in spans that grow
with age, for windows. So a label that comes late lands in the window of its prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.receipts import DAY, Label
from calib_serve.watch.ledger.sums import Key, Sums, changes

__all__ = [
    "SPANS", "Dated", "Entry", "Fate", "Place", "Waiting", "coarser", "label_changes", "places",
    "places_of", "served", "sums_by_place", "waiting",
]  # fmt: skip

Fate = Literal["counted", "duplicate", "forgotten"]
"""What became of a label: ``forgotten``: its receipt is so old that whether it was counted is not known."""

SPANS: tuple[tuple[float, float], ...] = ((300.0, 2 * DAY), (3600.0, 35 * DAY), (DAY, 400 * DAY))
"""Widths of the spans of prediction time, and the age until which each is kept; seconds."""


@dataclass(frozen=True)
class Entry:
    """A label to be counted, when it ``arrived``, and the slices of the version that it counts in."""

    label: Label
    arrived: float
    slices: tuple[Key, ...]


class Place(NamedTuple):
    """Where sums are kept: of a slice, over the span of prediction time, or over all time with width 0."""

    key: Key
    start: float = 0.0
    width: float = 0.0


class Dated(NamedTuple):
    """The sums of a slice over predictions from ``start``, for ``width`` seconds."""

    key: Key
    start: float
    width: float
    sums: Sums


class Waiting(NamedTuple):
    """A label that waits for those of its time: what the drift detector is given, in order of prediction."""

    time: float
    nonce: bytes
    confidence: float
    correct: bool
    predicted: int
    group: int


def places(key: Key, *, time: float, now: float) -> list[Place]:
    """Where a prediction made at ``time`` counts: over all time, and in its span unless that is too old."""
    for width, most in SPANS:
        if now - time <= most:
            return [Place(key), Place(key, math.floor(time / width) * width, width)]
    return [Place(key)]


def coarser(start: float, width: float, *, now: float) -> tuple[float, float] | None:
    """The span that one of ``width`` is to be merged into, itself while it is young; None: delete it."""
    for wider, most in SPANS:
        if wider >= width and now - (start + width) <= most:
            return math.floor(start / wider) * wider, wider
    return None


def label_changes(entries: Sequence[Entry], *, bins: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Which numbers of a sum each label changes, and by how much; both (n, sums)."""
    receipts = [one.label.receipt for one in entries]
    return changes(
        "labels",
        [one.confidence for one in receipts],
        [one.label.correct for one in entries],
        [1 / one.inclusion for one in receipts],
        [one.arrived - one.label.receipt.time for one in entries],
        bins=bins,
    )


def places_of(entry: Entry) -> list[Place]:
    """Where a label counts."""
    when = entry.label.receipt.time
    return [place for key in entry.slices for place in places(key, time=when, now=entry.arrived)]


def sums_by_place(entries: Sequence[Entry], *, bins: int) -> dict[Place, Sums]:
    """The sums of labels, by where they are kept."""
    if not entries:
        return {}
    members: dict[Place, list[int]] = {}
    for i, one in enumerate(entries):
        for place in places_of(one):
            members.setdefault(place, []).append(i)
    where, values = label_changes(entries, bins=bins)
    return {place: Sums.at(where[rows], values[rows], bins=bins) for place, rows in members.items()}


def served(sums: Mapping[Key, Sums], *, time: float) -> dict[Place, Sums]:
    """The sums of predictions made at ``time``, by where they are kept."""
    return {place: more for key, more in sums.items() for place in places(key, time=time, now=time)}


def waiting(entry: Entry) -> Waiting:
    """The label as the drift detector is given it."""
    one = entry.label.receipt
    return Waiting(one.time, one.nonce, one.confidence, entry.label.correct, one.predicted, one.group)
