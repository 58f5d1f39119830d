"""Which receipts and batches were counted, in a SQLite ledger: a receipt is a bit in the bitmap of its epoch.

A bitmap is a sorted list of its bits while few are set. Where some were lost to damage, receipts of unknown
epochs that may be among them are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import LedgerError
from calib_serve.nonces import PER_EPOCH, split
from calib_serve.watch.ledger.entries import Fate, Once, check_content
from calib_serve.watch.ledger.tables import Rows, Tables

__all__ = ["Batches", "Seen", "doubt"]

_BITMAP = PER_EPOCH // 8
_SPARSE = _BITMAP // 2  # bits beyond which a bitmap is smaller than their list
_DOUBTED, _DOUBTED_BATCHES = "ledger/doubted", "ledger/doubted_batches"


def _doubted(state: Rows) -> float:
    """Until when receipts were predicted that may have been counted without being remembered.

    It is minus infinity unless something was lost: then those of unknown names are refused.
    """
    row = state.get(_DOUBTED)
    return -math.inf if row is None else float(row[1])


def _doubted_batches(state: Rows) -> float:
    """The same, of batches of predictions."""
    row = state.get(_DOUBTED_BATCHES)
    return -math.inf if row is None else float(row[1])


def doubt(state: Rows, *, receipts: float, batches: float) -> None:
    """From now on doubt what came until then."""
    state.put(_DOUBTED, repr(max(receipts, _doubted(state))).encode())
    state.put(_DOUBTED_BATCHES, repr(max(batches, _doubted_batches(state))).encode())


class Seen:
    """The receipts that the ledger behind ``tables`` remembers; used within its transactions.

    ``damaged``: says what cannot be.
    """

    def __init__(self, tables: Tables, *, damaged: Callable[[object], LedgerError]) -> None:
        self._damaged = damaged
        self._epochs, self._state = tables["epochs"], tables["state"]

    def add(self, nonces: Sequence[bytes], times: Sequence[float], *, retention: float) -> list[Fate]:
        """Remember each until ``retention`` seconds after its time, at least; what became of each."""
        fates: list[Fate] = ["duplicate"] * len(nonces)
        epochs: dict[bytes, list[int]] = {}
        for i, nonce in enumerate(nonces):
            epochs.setdefault(split(nonce)[0], []).append(i)
        for epoch, members in epochs.items():
            bits = [split(nonces[i])[1] for i in members]
            found = self._set(epoch, bits, [times[i] for i in members], retention)
            for i, fate in zip(members, found, strict=True):
                fates[i] = fate
        return fates

    def _set(self, epoch: bytes, bits: Sequence[int], times: Sequence[float], retention: float) -> list[Fate]:
        row, was = self._epochs.find(epoch)
        # Of an epoch that is not known, what may have been counted and lost stays refused for good.
        until, since = (-math.inf, _doubted(self._state)) if row is None else row[1:3]
        found = _unpacked(b"") if row is None else self._bits(row[3])
        fates: list[Fate] = []
        for bit, time in zip(bits, times, strict=True):
            if time <= since:
                fates.append("forgotten")
            else:
                fates.append("duplicate" if found[bit] else "counted")
                found[bit] = True
        if "counted" in fates:
            until = max(until, *(time + retention for time in times))
            self._epochs.replace((epoch, until, since, _packed(found)), was)
        return fates

    def _bits(self, kept: bytes) -> NDArray[np.bool_]:
        try:
            return _unpacked(kept)
        except (ValueError, TypeError) as error:
            raise self._damaged(f"the bits of an epoch: {error}") from error

    def forget(self, before: float, *, at_most: int) -> tuple[int, float]:
        """Forget ``at_most`` epochs; how many, and when the last one expired."""
        gone = self._epochs.expire(before, at_most=at_most)
        return len(gone), max((row[1] for row in gone), default=-math.inf)

    def prolong(self, seconds: float) -> None:
        """Remember everything for longer."""
        for epoch, expires, *more in self._epochs.select():
            self._epochs.put(epoch, expires + seconds, *more)


class Batches:
    """The batches that the ledger behind ``tables`` remembers; used within its transactions."""

    def __init__(self, tables: Tables) -> None:
        self._named, self._state = tables["batches"], tables["state"]

    def add(self, once: Once) -> bool:
        """Remember it; False if it was remembered already, ConflictError if with another content.

        False as well for one of a time whose batches may have been lost to damage.
        """
        if (known := self.find(once)) is not None:
            check_content(once, known)
            return False
        if once.time <= _doubted_batches(self._state):
            return False
        self._named.add([once])
        return True

    def find(self, once: Once) -> Once | None:
        """The batch as it was remembered under this name."""
        row = self._named.get(once.name)
        return None if row is None else Once(*row)

    def forget(self, before: float, *, at_most: int) -> None:
        """Forget so many that expired before."""
        self._named.expire(before, at_most=at_most)


def _unpacked(kept: bytes) -> NDArray[np.bool_]:
    if len(kept) == _BITMAP:
        return np.unpackbits(np.frombuffer(kept, np.uint8)).view(np.bool_)
    found = np.zeros(PER_EPOCH, np.bool_)
    if len(kept) % 2 or len(kept) > 2 * _SPARSE:
        raise ValueError(f"none has {len(kept)} bytes")
    found[np.frombuffer(kept, "<u2")] = True
    return found


def _packed(found: NDArray[np.bool_]) -> bytes:
    bits = np.flatnonzero(found)
    # Strictly below: a list of that many would be as long as a bitmap.
    return bits.astype("<u2").tobytes() if len(bits) < _SPARSE else np.packbits(found).tobytes()
