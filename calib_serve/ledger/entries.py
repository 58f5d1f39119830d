"""Records of a ledger: what it takes and gives back, and the spans of time of its sums.

Sums are kept twice: over all time, for counters; and by the time of the *prediction*, in spans that grow with
age, for windows. So a late label lands in the window of its prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from calib_serve.receipts import DAY, OTHER, Key, Label, Sums, Version

Fate = Literal["counted", "duplicate", "forgotten", "corrected", "revoked"]
"""What became of a label.

``forgotten``: its receipt is so old that whether it was counted is not known. ``corrected``: it took the
place of another. ``revoked``: it was to, and the other was revoked, so that none counts.
"""

SPANS: tuple[tuple[float, float], ...] = ((300.0, 2 * DAY), (3600.0, 35 * DAY), (DAY, 400 * DAY))
"""Widths of the spans of prediction time, and the age until which each is kept; seconds."""


class Entry(NamedTuple):
    """A label to be counted.

    Args:
        label: Verified label.
        arrived: When it came, in seconds since 1970.
        slices: Slices that it counts in.
        source: Name of its sender; empty: not known.
        replaces: Whether it takes the place of another label of this receipt.
    """

    label: Label
    arrived: float
    slices: tuple[Key, ...]
    source: str = ""
    replaces: bool = False


class Bucket(NamedTuple):
    """A place of sums: a slice, and a span of prediction time, or all time with width 0."""

    key: Key
    start: float = 0.0
    width: float = 0.0


class WindowSums(NamedTuple):
    """The sums of a slice over a span of prediction time.

    Args:
        key: Slice of a version.
        start: Begin of the span, in seconds since 1970.
        width: Its length, in seconds.
        sums: Sums of its predictions and their labels.
    """

    key: Key
    start: float
    width: float
    sums: Sums


class Shadowed(NamedTuple):
    """Prediction of the shadow of a labelled one.

    Args:
        confidence: Its confidence, in [0, 1].
        correct: Whether it was right.
        same: Whether its class is that of the served one.
        tag: Tag of the shadow (``receipts.shadow_tag``), eight hex digits.
    """

    confidence: float
    correct: bool
    same: bool
    tag: str


class LabelRecord(NamedTuple):
    """A counted label, as the drift detector and other followers are fed with it.

    Args:
        model: Name of the model.
        version: Its version.
        time: When it was predicted, in seconds since 1970.
        nonce: The receipt's nonce, ten bytes.
        arrived: When the label came, in seconds since 1970.
        confidence: Top-1 confidence, in [0, 1].
        correct: Whether the prediction was right.
        predicted: Predicted class id.
        inclusion: Chance of being asked for, above 0.
        group: Number of its group; 0: none.
        slices: Slices that it counts in.
        shadow: Prediction of the shadow; None where none ran.
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
    """A prediction or label of a version not known yet, as it came.

    Args:
        kind: Which of the two.
        name: Its receipt's nonce, in hex.
        version: Model and version.
        content: The item, in JSON.
        source: Name of its sender; empty: not known.
        came_at: When it came, in seconds since 1970.
    """

    kind: Literal["prediction", "label"]
    name: str
    version: Version
    content: str
    source: str
    came_at: float


class State(NamedTuple):
    """The state that a follower of labels keeps of a version.

    Args:
        version: Model and version.
        name: Name of the state.
        value: Bytes, as the follower wrote them.
        changed_at: When it last changed, in seconds since 1970.
    """

    version: Version
    name: str
    value: bytes
    changed_at: float


class Progress(NamedTuple):
    """The progress of the drift detector of a version.

    Args:
        fed_until: Prediction time up to which it was fed, in seconds since 1970.
        late: Number of labels that came too late for it.
        alarms: Number of alarms so far.
        incidents: Number of incidents so far.
        log_evidence: Natural log of its statistic.
        log_threshold: Natural log of the statistic at which it alarms.
    """

    fed_until: float = -math.inf
    late: int = 0
    alarms: int = 0
    incidents: int = 0
    log_evidence: float = math.nan
    log_threshold: float = math.nan


@dataclass(frozen=True)
class Published:
    """The published sums over all time, of one moment.

    Args:
        ledger: Id of the ledger, which tells its series from those of another.
        edition: Id that changes when any sums go down.
        editions: Ids by version that change when its sums go down, which tell its series from those before;
            None: of versions of which nothing was taken out.
        segments: Sums by segment.
    """

    ledger: str
    edition: str
    editions: Mapping[Version | None, str]
    segments: Mapping[Key, Sums]

    def labels(self, version: Version) -> tuple[str, str]:
        """The ledger and edition that label the series of a version.

        Args:
            version: Model and version; ``OTHER`` twice: the sums of several.
        """
        several = version == (OTHER, OTHER)
        return self.ledger, self.edition if several else self.editions.get(version, self.editions[None])


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
