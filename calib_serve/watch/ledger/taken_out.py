"""How many labels were taken out of the sums, whose receipts stay remembered until they expire.

It is kept in the ledger's state: sums with fewer labels than receipts do not look as if some were lost.
"""

from __future__ import annotations

from typing import Protocol

from calib_serve.errors import LedgerError

__all__ = ["TAKEN_OUT", "count_taken_out", "read_taken_out"]

TAKEN_OUT = "taken_out"
"""The key of the number, as decimal digits."""


class _State(Protocol):
    def load(self, key: str) -> bytes | None: ...

    def store(self, key: str, value: bytes) -> None: ...


def read_taken_out(state: _State) -> int:
    """The number of labels; LedgerError where what is kept is none."""
    kept = state.load(TAKEN_OUT) or b"0"
    if not kept.isdigit():
        raise LedgerError(f"the number of labels that were taken out reads {kept[:40]!r}")
    return int(kept)


def count_taken_out(state: _State, labels: int) -> None:
    """Add so many; to be called within the transaction that takes them out."""
    state.store(TAKEN_OUT, str(read_taken_out(state) + labels).encode())
