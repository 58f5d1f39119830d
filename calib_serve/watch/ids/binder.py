"""Binds the ids of predictions that were counted, beside counting: what fails here undoes nothing."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from calib_serve.receipts.wire import decoded, parsed
from calib_serve.watch.checks import Check
from calib_serve.watch.ids.bindings import Binding, ReceiptIds

__all__ = ["FATES", "Binder"]

Fate = Literal["bound", "conflict", "evicted", "failed"]

FATES: tuple[Fate, ...] = ("bound", "conflict", "evicted", "failed")
"""What became of an id: it names its prediction, names another one, gave way to newer ones, or was lost."""

_LATELY = 900.0  # seconds for which a label is told whose id had to give way


class Binder:
    """Binds ids in ``store`` and counts what becomes of them since this object was made.

    ``unknown``: how many labels were refused so far as their id is not known.
    """

    def __init__(self, store: ReceiptIds, *, unknown: Callable[[], int]) -> None:
        self.store, self._unknown = store, unknown
        self._counts: Counter[Fate] = Counter()
        self._seen, self._refused_at = (0, 0), -math.inf
        self.check = Check("ids", self._trouble)

    def bind(self, bindings: Sequence[Binding]) -> list[bool]:
        """Whether each id names this prediction from now on; LedgerError where that cannot be kept."""
        try:
            kept = self.store.bind(bindings)
        except BaseException:
            self._counts["failed"] += len(bindings)
            raise
        bound = [_same(one.receipt, other) for one, other in zip(bindings, kept, strict=True)]
        self._counts["bound"] += sum(bound)
        self._counts["conflict"] += len(bound) - sum(bound)
        return bound

    def fates(self) -> dict[Fate, int]:
        """How many ids had which fate."""
        return {fate: self._counts[fate] for fate in FATES} | {"evicted": self.store.evicted}

    def _trouble(self) -> str | None:
        seen = (self._unknown(), self.store.evicted)
        # An id that gives way is no trouble before a label names it.
        if seen[0] > self._seen[0] and seen[1]:
            self._refused_at = time.monotonic()
        self._seen = seen
        if time.monotonic() - self._refused_at < _LATELY:
            return (
                "labels came whose ids are not known, and ids had to give way to newer ones: raise "
                "--max-ids, or send receipts"
            )
        return self.store.trouble()


def _same(one: str, other: str) -> bool:
    """Whether two receipts are of one prediction: signed again by a newer key, it has the same nonce."""
    return one == other or parsed(decoded(one)[0]).nonce == parsed(decoded(other)[0]).nonce
