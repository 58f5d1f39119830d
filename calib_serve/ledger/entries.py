"""Records of a ledger: what it takes and gives back, and the spans of time of its sums.

Sums are kept twice: over all time, for counters; and by the time of the *prediction*, in spans that grow with
age, for windows. So a late label lands in the window of its prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from calib_serve.receipts import DAY, Key, Label, Sums, Version

Fate = Literal["counted", "duplicate", "forgotten"]
"""What became of a label: ``forgotten``: its receipt is so old that whether it was counted is not known."""

SPANS: tuple[tuple[float, float], ...] = ((300.0, 2 * DAY), (3600.0, 35 * DAY), (DAY, 400 * DAY))
"""Widths of the spans of prediction time, and the age until which each is kept; seconds."""


@dataclass(frozen=True)
class Entry:
    """A label to be counted, with its arrival (``arrived``), its slices, and its sender."""

    label: Label
    arrived: float
    slices: tuple[Key, ...]
    source: str = ""


class Bucket(NamedTuple):
    """A place of sums: a slice, and a span of prediction time, or all time with width 0."""

    key: Key
    start: float = 0.0
    width: float = 0.0


class WindowSums(NamedTuple):
    """The sums of a slice over predictions from ``start``, for ``width`` seconds."""

    key: Key
    start: float
    width: float
    sums: Sums


class Shadowed(NamedTuple):
    """Prediction of the shadow of a labelled one: its confidence, whether it was right, and its tag.

    ``same``: whether it is that of the served one; ``tag``: eight hex digits, of ``receipts.shadow_tag``.
    """

    confidence: float
    correct: bool
    same: bool
    tag: str


class LabelRecord(NamedTuple):
    """A counted label, as the drift detector and other followers are fed with it.

    ``time`` of the prediction, and ``arrived``, when its label came; ``shadow``: what it says of the shadow's
    prediction, if one ran.
    """

    model: str
    version: str
    time: float
    nonce: bytes
    arrived: float
    confidence: float
    correct: bool
    predicted: int
    inclusion: float
    group: int
    slices: tuple[Key, ...]
    shadow: Shadowed | None = None


class Held(NamedTuple):
    """A prediction or label of a version not known yet, as it came; ``name``: its nonce, in hex."""

    kind: Literal["prediction", "label"]
    name: str
    version: Version
    content: str
    source: str
    came_at: float


class State(NamedTuple):
    """The state that a follower of labels keeps of a version, by name, and when it last changed."""

    version: Version
    name: str
    value: bytes
    changed_at: float


class Progress(NamedTuple):
    """The progress of the drift detector of a version.

    ``fed_until``: which prediction time; ``late``: labels that came too late for it; alarms and incidents so
    far, and the natural logs of its statistic and of where it alarms.
    """

    fed_until: float = -math.inf
    late: int = 0
    alarms: int = 0
    incidents: int = 0
    log_evidence: float = math.nan
    log_threshold: float = math.nan


@dataclass(frozen=True)
class Published:
    """The published sums over all time, of one moment: by segment, and by sender of labels.

    ``ledger`` and ``edition`` tell its series from those of another ledger, and from those before sums last
    went down.
    """

    ledger: str
    edition: str
    segments: Mapping[Key, Sums]
    sources: Mapping[Key, Sums]

    @property
    def labels(self) -> dict[str, str]:
        """The two labels of the ledger's series."""
        return {"ledger": self.ledger, "edition": self.edition}


def buckets(key: Key, start: float, width: float) -> list[Bucket]:
    """List the places where a prediction of this span counts: all time, and its span if it has one."""
    return [Bucket(key), Bucket(key, start, width)] if width else [Bucket(key)]


def span_of(time: float, now: float) -> tuple[float, float]:
    """The span of a prediction's time, start and width; of width 0 where it is too old for any."""
    for width, most in SPANS:
        if now - time <= most:
            return math.floor(time / width) * width, width
    return 0.0, 0.0


def coarser(start: float, width: float, *, now: float) -> tuple[float, float] | None:
    """The span to merge one of ``width`` into, itself while it is young; None: delete it."""
    for wider, most in SPANS:
        if wider >= width and now - (start + width) <= most:
            return math.floor(start / wider) * wider, wider
    return None
