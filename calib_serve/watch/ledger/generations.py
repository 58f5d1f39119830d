"""The generation of a ledger: grows whenever its sums went down, so that counters that fell are new series.

Prometheus takes a counter that falls for one that began anew at 0, and adds all of it once more.

Beside it is kept how many labels were taken out, whose receipts stay remembered: sums with fewer labels than
receipts do not look as if some were lost.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Protocol

from calib_serve.errors import LedgerError

__all__ = [
    "TAKEN_OUT", "WENT_BACK", "Generation", "begin_generation", "count_taken_out", "read_generation",
    "read_taken_out",
]  # fmt: skip

WENT_BACK = "the store went back"
"""Why there is a generation that nobody asked for: a snapshot was restored, or a replica took over."""

_KEY = "generation"


@dataclass(frozen=True)
class Generation:
    """``number``: 0, or about the Unix time in seconds at which it began, and ``why`` it did.

    ``lowered``: how many began because somebody took labels out, or put back an older ledger, on purpose.
    """

    number: int = 0
    why: str = ""
    lowered: int = 0


class _State(Protocol):
    def transaction(self) -> AbstractContextManager[None]: ...
    def load(self, key: str) -> bytes | None: ...
    def store(self, key: str, value: bytes) -> None: ...


def read_generation(state: _State) -> Generation:
    """The one that lasts."""
    try:
        said = json.loads(state.load(_KEY) or b"{}")
        return Generation(int(said.get("number", 0)), str(said.get("why", "")), int(said.get("lowered", 0)))
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return Generation()  # damaged: the next one is later than it all the same, by the clock


def begin_generation(state: _State, why: str, *, now: float, above: int = 0) -> int:
    """Begin the next one; ``above``: the latest that somebody remembers, which the store may not."""
    with state.transaction():
        before = read_generation(state)
        # By the clock: a number that grew by one might have been given out before the store went back.
        number = max(before.number + 1, above + 1, int(now))
        lowered = before.lowered + (why != WENT_BACK)
        state.store(_KEY, json.dumps(asdict(Generation(number, why, lowered))).encode())
    return number


TAKEN_OUT = "taken_out"
"""The key of the number of labels, as decimal digits."""


def read_taken_out(state: _State) -> int:
    """The number of labels; LedgerError where what is kept is none."""
    kept = state.load(TAKEN_OUT) or b"0"
    if not kept.isdigit():
        raise LedgerError(f"the number of labels that were taken out reads {kept[:40]!r}")
    return int(kept)


def count_taken_out(state: _State, labels: int) -> None:
    """Add so many; to be called within the transaction that takes them out."""
    state.store(TAKEN_OUT, str(read_taken_out(state) + labels).encode())
