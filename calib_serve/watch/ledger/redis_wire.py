"""How sums, labels and rows are written for the scripts of a Redis ledger, and read back."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from calib_serve.nonces import NONCE_BYTES, split
from calib_serve.watch.ledger.entries import Entry, Place, Waiting, waiting
from calib_serve.watch.ledger.sums import Sums, Version

__all__ = [
    "PUBLISHED", "Rows", "escaped", "fields", "packed_waiting", "published", "seen_as", "unpacked_waiting",
    "version_of",
]  # fmt: skip

PUBLISHED = "published/"
"""Where the state begins that says what was published."""

_WAITING = struct.Struct(">dB?IQ")  # confidence, length of the nonce, correct, predicted, group


class Rows:
    """The rows that a batch changes, each told once to the script: a total's or a span's name."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self._numbers: dict[Place, int] = {}
        self.told: list[dict[str, Any]] = []

    def number(self, place: Place) -> int:
        """The row's number, from 1 as Lua counts."""
        if place not in self._numbers:
            self._numbers[place] = len(self.told) + 1
            key, start, width = place
            if width:
                names = [key.model, key.version, key.kind, key.name, start, width]
                self.told.append({"name": json.dumps(names), "start": start})
            else:
                self.told.append({"name": json.dumps([self._writer, *key.of, key.kind, key.name])})
        return self._numbers[place]


def fields(sums: Sums) -> dict[int, float]:
    """The numbers that are not 0."""
    return {field: float(sums.vector[field]) for field in np.flatnonzero(sums.vector).tolist()}


def seen_as(nonce: bytes) -> dict[str, Any]:
    """What the script remembers a receipt by."""
    if len(nonce) != NONCE_BYTES:
        return {"nonce": nonce.hex()}
    epoch, bit = split(nonce)
    return {"epoch": epoch.hex(), "bit": bit}


def version_of(entry: Entry) -> str:
    """The model version of a label."""
    return json.dumps([entry.label.receipt.model, entry.label.receipt.version])


def packed_waiting(entry: Entry) -> str:
    """A label that waits for the drift detector."""
    one = waiting(entry)
    packed = _WAITING.pack(one.confidence, len(one.nonce), one.correct, one.predicted, one.group)
    return (one.nonce + packed).hex()


def unpacked_waiting(member: bytes, time: float) -> Waiting:
    """The label behind ``packed_waiting``."""
    raw = bytes.fromhex(member.decode())
    confidence, length, correct, predicted, group = _WAITING.unpack(raw[-_WAITING.size :])
    return Waiting(time, raw[:length], confidence, correct, predicted, group)


def published(consumer: str, version: Version) -> str:
    """Where it is kept what ``consumer`` has published."""
    return PUBLISHED + json.dumps([consumer, *version])


def escaped(root: str) -> str:
    """For a pattern of keys, in which brackets and braces mean something."""
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in root)
