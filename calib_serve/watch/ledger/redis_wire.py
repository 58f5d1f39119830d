"""How sums, labels and rows are written for the scripts of a Redis ledger, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_serve.nonces import split
from calib_serve.watch.ledger.entries import SPANS, Noted, Once, Place, Shadowed, holding, label_sums
from calib_serve.watch.ledger.redis_scripts import FEW
from calib_serve.watch.ledger.sums import Key, Sums, Version, label_places

__all__ = [
    "PUBLISHED", "batch_as", "batch_of", "bits_of", "escaped", "fields", "less_labels", "packed", "published",
    "rows_and_sums", "seen_as", "unpacked",
]  # fmt: skip

PUBLISHED = "published/"
"""Where the state begins that says what was published."""

_PLAIN = len(Noted._fields) - 1  # numbers and texts of a row without a shadow


def rows_and_sums(sums: Mapping[Place, Sums], *, writer: str) -> dict[str, Any]:
    """What the script that adds sums is given: the rows that change, and the numbers of each."""
    rows, told = [], []
    for (key, start, width), more in sums.items():
        name = _row(writer, Place(key, start, width))
        rows.append({"name": name, "start": start} if width else {"name": name})
        told.append(list(fields(more).items()))
    return {"rows": rows, "sums": told}


def less_labels(rows: Sequence[Noted], *, bins: int, now: float) -> dict[str, Any]:
    """What the script that takes labels back is given: their sums and where they may lie, and which wait.

    ``bins``: the places of a bin's label sums, their count first: they are emptied with it, and ``whole``,
    those of no bin, with the last label.
    """
    told = []
    for (writer, place), sums in label_sums(rows, bins=bins).items():
        names = [_row(writer, one) for one in holding(place)]
        old = bool(place.width) and now - (place.start + place.width) > SPANS[-1][1]
        kind = ":span:" if place.width else ":total:"
        numbers, counts = fields(sums), label_places(bins)[0]
        labels = [(at, numbers[at]) for at in counts if at in numbers]
        told.append({"names": names, "kind": kind, "old": old, "labels": labels, "sums": [*numbers.items()]})
    _, by_bin, whole = label_places(bins)
    waiting = [(json.dumps([row.model, row.version]), packed(row)) for row in rows]
    return {"rows": told, "bins": by_bin, "whole": whole, "waiting": waiting}


def _row(writer: str, place: Place) -> str:
    key, start, width = place
    if width:
        return json.dumps([key.model, key.version, key.kind, key.name, start, width])
    return json.dumps([writer, *key.of, key.kind, key.name])


def fields(sums: Sums) -> dict[int, float]:
    """The numbers that are not 0."""
    return {field: float(sums.vector[field]) for field in np.flatnonzero(sums.vector).tolist()}


def seen_as(nonce: bytes) -> dict[str, Any]:
    """What the script remembers a receipt by."""
    epoch, bit = split(nonce)
    return {"epoch": epoch.hex(), "bit": bit}


def bits_of(key: bytes, content: bytes) -> int:
    """How many bits of an epoch are set, by what its key holds: a list of them, or a bitmap."""
    if key.endswith(FEW):
        return len(content) // 2
    return int(np.unpackbits(np.frombuffer(content, np.uint8)).sum())


def batch_as(once: Once) -> dict[str, Any]:
    """What the script remembers a batch by; for how long, by the clock of Redis."""
    return {
        "once": once.name.hex(),
        "known": json.dumps([once.content.hex(), once.time, once.note.hex()]),
        "left": (once.expires - once.time) * 1000,
    }


def batch_of(once: Once, kept: bytes) -> Once:
    """The batch that is remembered as ``kept`` under this name."""
    content, time, note = json.loads(kept)
    return Once(once.name, bytes.fromhex(content), time, time + once.expires - once.time, bytes.fromhex(note))


def packed(row: Noted) -> str:
    """A row of the journal as text, by whose order labels of one moment wait.

    The nonce comes first, as by their order of arrival wrong ones might.
    """
    slices = [[key.kind, key.name] for key in row.slices]
    shadow = [] if row.shadow is None else [row.shadow]
    return json.dumps([row.nonce.hex(), *row[:4], *row[5:-2], slices, *shadow])


def unpacked(text: bytes) -> Noted:
    """The row behind ``packed``."""
    told = json.loads(text)
    shadow = Shadowed.of(*told.pop()) if len(told) > _PLAIN else None
    nonce, writer, model, version, time, *row, slices = told
    keys = tuple(Key(model, version, name, kind) for kind, name in slices)
    return Noted._make([writer, model, version, time, bytes.fromhex(nonce), *row, keys, shadow])


def published(consumer: str, version: Version) -> str:
    """Where it is kept what ``consumer`` has published."""
    return PUBLISHED + json.dumps([consumer, *version])


def escaped(root: str) -> str:
    """For a pattern of keys, in which brackets and braces mean something."""
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in root)
