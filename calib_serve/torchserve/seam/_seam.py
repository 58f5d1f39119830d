"""The seam of a handler: what is known of it before a trial, and what a trial finds; JSON carries both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.scores import Outputs, class_count
from calib_serve.torchserve.shown import Readings


@dataclass(frozen=True)
class Known:
    """What is known of a seam before a handler is asked: where it is, and the scores there.

    ``several``: whether any number of ``classes`` may be true.
    """

    seam: str | None = None
    output: str | None = None
    outputs: Outputs | None = None
    classes: int | None = None
    several: bool | None = None


@dataclass(frozen=True)
class Seam:
    """The place where a handler's class scores pass, and what was seen there.

    ``place`` and ``output`` as in ``ModelOptions``; ``kind`` of the scores, ``columns`` (1: one
    number). ``requests`` that differ, which the handler answered one by one with ``replies``, ``bare``: as a
    body alone, so behind an envelope; ``rows`` (n, K) of scores passed, and ``batched``: those of all at
    once, in order and in reverse. ``in_order``: whether they passed one after another, not on several
    threads; ``alone_because``: why it cannot be asked so, or nothing. ``form``: which of the forms given the
    first was answered in; ``class_names`` of the handler's mapping; ``shown``: what replies show of a row.
    """

    place: str
    output: str
    kind: Outputs
    columns: int
    rows: NDArray[np.float64]
    requests: Sequence[Mapping[str, str]]
    replies: Sequence[Any]
    batched: Sequence[NDArray[np.float64]]
    in_order: bool
    alone_because: str
    form: int
    bare: bool
    handler: str
    shown: Readings
    class_names: Mapping[str, Any] | None

    @property
    def classes(self) -> int:
        """K, or L of labels."""
        return class_count(self.kind, self.columns)

    def as_request(self) -> bytes:
        """A request, as an archive keeps it for its workers."""
        return json.dumps({"request": dict(self.requests[0]), "bare": self.bare}).encode()

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        arrays = {"rows": self.rows.tolist(), "batched": [rows.tolist() for rows in self.batched]}
        return {**vars(self), **arrays, "shown": self.shown.as_dict()}

    @classmethod
    def from_dict(cls, held: Mapping[str, Any]) -> Seam:
        """Read what ``as_dict`` gave."""
        arrays = {"rows": np.array(held["rows"]), "batched": [np.array(rows) for rows in held["batched"]]}
        return cls(**{**held, **arrays, "shown": Readings.from_dict(held["shown"])})
