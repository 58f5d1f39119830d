"""What a ledger is given to count, and where each part of it is kept.

A label is noted in a journal, which is all that is written before it is acknowledged; sums are made of the
journal later, many labels at a time. They are kept twice: over all time, for counters; and by the time of the
*prediction*, in spans that grow with age, for windows. So a late label lands in the window of its prediction.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from calib_serve.errors import ConflictError
from calib_serve.receipts import DAY, TAG, Label
from calib_serve.watch.ledger.sums import Key, Sums, add_at, changes

__all__ = [
    "SPANS", "Dated", "Entry", "Fate", "Mark", "Noted", "Once", "Place", "Shadowed", "check_content",
    "coarser", "holding", "journal_sums", "label_sums", "noted", "places", "served", "span_of",
]  # fmt: skip

Fate = Literal["counted", "duplicate", "forgotten"]
"""What became of a label: ``forgotten``: its receipt is so old that whether it was counted is not known."""

SPANS: tuple[tuple[float, float], ...] = ((300.0, 2 * DAY), (3600.0, 35 * DAY), (DAY, 400 * DAY))
"""Widths of the spans of prediction time, and the age until which each is kept; seconds."""

_SHADOWED = struct.Struct(f">fB{TAG}s")
_TAG = f"[0-9a-f]{{{2 * TAG}}}"


class Mark(NamedTuple):
    """Where a ledger keeps what became of a batch's labels, in the step that counts them: a key, the name."""

    key: str
    batch: str

    @property
    def given_up(self) -> str:
        """The key under which a batch is named that shall no longer be counted."""
        return f"{self.key}/given-up"

    @staticmethod
    def letters(fates: Sequence[Fate]) -> str:
        """The first letter of each."""
        return "".join(fate[0] for fate in fates)

    def kept(self, fates: Sequence[Fate]) -> bytes:
        """What is kept under the key."""
        return f"{self.batch} {self.letters(fates)}".encode()

    def fates_in(self, kept: bytes | None) -> str | None:
        """The letters in what is kept; None where that is of another batch."""
        batch, _, letters = (kept or b"").decode("utf-8", "replace").partition(" ")
        return letters if batch == self.batch else None


@dataclass(frozen=True)
class Entry:
    """A label to be counted, when it ``arrived``, the slices that it counts in, and who sent it."""

    label: Label
    arrived: float
    slices: tuple[Key, ...]
    source: str = ""


class Once(NamedTuple):
    """A batch by its ``name``: a digest of its ``content``, when it was sent first and how long it is known.

    ``note``: what its sender is to know again when it is sent again.
    """

    name: bytes
    content: bytes
    time: float
    expires: float
    note: bytes = b""

    @classmethod
    def of(cls, name: bytes, content: bytes = b"", *, time: float, note: bytes = b"") -> Once:
        """One that is sent at ``time`` and known for a day."""
        return cls(name, content, time, time + DAY, note)


def check_content(once: Once, known: Once) -> None:
    """ConflictError unless what is known is the same batch."""
    if known.content != once.content:
        raise ConflictError(
            "this Idempotency-Key was used for another batch; nothing of this one was counted: "
            "send it under a key of its own"
        )


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


class Shadowed(NamedTuple):
    """What a label says of the shadow's prediction: its confidence, whether it was right, and its tag.

    ``same``: whether it is that of the served one; ``tag``: eight hex digits, of ``receipts.shadow_tag``.
    """

    confidence: float
    correct: bool
    same: bool
    tag: str

    def packed(self) -> bytes:
        """As SQLite ledgers keep it, in 9 bytes."""
        return _SHADOWED.pack(self.confidence, self.correct + 2 * self.same, bytes.fromhex(self.tag))

    @classmethod
    def unpacked(cls, kept: bytes) -> Shadowed | None:
        """The one behind ``packed``, None of no bytes; ValueError of others."""
        if not kept:
            return None
        try:
            confidence, bits, tag = _SHADOWED.unpack(kept)
        except struct.error as error:
            raise ValueError(f"a shadow is kept in {_SHADOWED.size} bytes, got {len(kept)}") from error
        if bits > 3 or not 0 <= confidence <= 1:
            raise ValueError(f"a shadow of the journal reads {(confidence, bits, tag)}")
        return cls(confidence, bool(bits & 1), bool(bits & 2), tag.hex())

    @classmethod
    def of(cls, confidence: float, correct: bool, same: bool, tag: str) -> Shadowed:
        """A sound one, else ValueError."""
        if not 0 <= confidence <= 1 or not re.fullmatch(_TAG, tag):
            raise ValueError(f"a shadow of the journal reads {(confidence, correct, same, tag)}")
        return cls(float(confidence), bool(correct), bool(same), tag)


class Noted(NamedTuple):
    """A label in the ledger's journal, from which sums are made and the drift detector is fed.

    ``time`` of the prediction, and ``arrived``, when its label came; ``writer``: who counted it; ``shadow``:
    what it says of the shadow's prediction, if one ran.
    """

    writer: str
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


def places(key: Key, *, time: float, now: float) -> list[Place]:
    """Where a prediction made at ``time`` counts: over all time, and in its span unless that is too old."""
    start, width = span_of(time, now)
    return [Place(key), Place(key, start, width)] if width else [Place(key)]


def span_of(time: float, now: float) -> tuple[float, float]:
    """The span of a prediction's time, start and width; of width 0 where it is too old for any."""
    for width, most in SPANS:
        if now - time <= most:
            return math.floor(time / width) * width, width
    return 0.0, 0.0


def coarser(start: float, width: float, *, now: float) -> tuple[float, float] | None:
    """The span that one of ``width`` is to be merged into, itself while it is young; None: delete it."""
    for wider, most in SPANS:
        if wider >= width and now - (start + width) <= most:
            return math.floor(start / wider) * wider, wider
    return None


def noted(entry: Entry, *, writer: str) -> Noted:
    """The label as the journal keeps it."""
    one = entry.label.receipt
    beside = one.shadow
    return Noted(
        writer,
        one.model,
        one.version,
        one.time,
        one.nonce,
        entry.arrived,
        one.confidence,
        entry.label.correct,
        one.predicted,
        one.inclusion,
        one.group,
        entry.slices,
        None
        if beside is None
        else Shadowed(
            beside.confidence,
            beside.predicted == entry.label.label,
            beside.predicted == one.predicted,
            beside.tag.hex(),
        ),
    )


def journal_sums(rows: Sequence[Noted], *, bins: int) -> dict[str, dict[Place, Sums]]:
    """The sums of labels, by writer and by where they are kept."""
    if not rows:
        return {}
    members: dict[tuple[str, tuple[Key, ...], tuple[float, float]], list[int]] = {}
    for i, row in enumerate(rows):
        members.setdefault((row.writer, row.slices, span_of(row.time, row.arrived)), []).append(i)
    where, values = changes(
        "labels",
        [row.confidence for row in rows],
        [row.correct for row in rows],
        [1 / row.inclusion for row in rows],
        [row.arrived - row.time for row in rows],
        bins=bins,
    )
    found: dict[str, dict[Place, Sums]] = {}
    for (writer, slices, (start, width)), at in members.items():
        more, mine = Sums.at(where[at], values[at], bins=bins), found.setdefault(writer, {})
        for key in slices:
            for place in (Place(key), Place(key, start, width))[: 2 if width else 1]:
                add_at(mine, place, more)
    return found


def label_sums(rows: Sequence[Noted], *, bins: int) -> dict[tuple[str, Place], Sums]:
    """The sums of labels that were counted, by writer and place; in spans they are those of no writer."""
    found: dict[tuple[str, Place], Sums] = {}
    for writer, sums in journal_sums(rows, bins=bins).items():
        for place, more in sums.items():
            add_at(found, ("" if place.width else writer, place), more)
    return found


def holding(place: Place) -> list[Place]:
    """The spans in which the sums of this one may lie today: itself, and the wider ones that hold it."""
    key, start, width = place
    return [Place(key, math.floor(start / w) * w, w) for w, _ in SPANS if w >= width] if width else [place]


def served(sums: Mapping[Key, Sums], *, time: float) -> dict[Place, Sums]:
    """The sums of predictions made at ``time``, by where they are kept."""
    return {place: more for key, more in sums.items() for place in places(key, time=time, now=time)}
