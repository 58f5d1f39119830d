"""How many labels one source may send: a share of a version's, so that none decides alone, and a rate."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from calib_serve.errors import InputError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Entry, Fate, Ledger

__all__ = ["FREE", "SourceRate", "SourceShare"]

FREE = 1_000
"""Labels of a version in a day before a source's share of them is looked at."""

_KEY = "sources/day"
_STEP = 3600.0  # seconds that are counted together and fall out of the day together

_Of = tuple[str, str, str]  # model, version, source


class SourceShare:
    """Refuses labels of a source beyond ``share`` of what its version got in the last day, by arrival.

    Counted in the ledger, so over all processes and restarts; a version's first ``FREE`` labels of a day are
    taken from anybody.
    """

    def __init__(self, ledger: Ledger, share: float, *, clock: Callable[[], float] = time.time) -> None:
        if not 0 < share <= 1:
            raise InputError(f"a source's share is above 0 and at most 1, got {share}")
        self._ledger, self._share, self._clock = ledger, share, clock

    def accept(
        self, entries: Sequence[Entry], accept: Callable[[Sequence[Entry]], list[Fate]]
    ) -> list[Fate | Literal["capped"]]:
        """What ``accept`` makes of the labels that are not too many; the others are ``capped``."""
        with self._ledger.transaction():
            steps = self._kept()
            open_ = self._admitted(entries, steps)
            fates = iter(accept([one for one, admitted in zip(entries, open_, strict=True) if admitted]))
            told: list[Fate | Literal["capped"]] = [
                next(fates) if admitted else "capped" for admitted in open_
            ]
            new = Counter(_of(one) for one, fate in zip(entries, told, strict=True) if fate == "counted")
            if new:
                self._keep(steps, new)
        return told

    def _admitted(self, entries: Sequence[Entry], steps: dict[int, Counter[_Of]]) -> list[bool]:
        mine: Counter[_Of] = sum(steps.values(), Counter())
        every = Counter[tuple[str, str]]()
        for (model, version, _), n in mine.items():
            every[model, version] += n
        admitted = []
        for one in entries:
            of = _of(one)
            # Who has more than its share already: two that hold half each may go on in turn.
            admitted.append(every[of[:2]] < FREE or mine[of] <= self._share * every[of[:2]])
            if admitted[-1]:
                every[of[:2]] += 1
                mine[of] += 1
        return admitted

    def _kept(self) -> dict[int, Counter[_Of]]:
        """Labels counted by step of arrival; those of the last day."""
        oldest = math.floor((self._clock() - DAY) / _STEP)
        try:
            kept = json.loads(self._ledger.load(_KEY) or b"{}")
            return {
                int(step): Counter({(model, version, source): int(n) for model, version, source, n in rows})
                for step, rows in kept.items()
                if int(step) > oldest
            }
        except (ValueError, TypeError, AttributeError, RecursionError):
            return {}  # damaged: counted anew

    def _keep(self, steps: dict[int, Counter[_Of]], new: Counter[_Of]) -> None:
        steps.setdefault(math.floor(self._clock() / _STEP), Counter()).update(new)
        rows = {step: [[*of, n] for of, n in counts.items()] for step, counts in steps.items()}
        self._ledger.store(_KEY, json.dumps(rows).encode())


def _of(entry: Entry) -> _Of:
    receipt = entry.label.receipt
    name = next((key.name for key in entry.slices if key.kind == "source"), "")
    return receipt.model, receipt.version, name


class SourceRate:
    """At most ``per_minute`` labels of each source, counted in this process; bursts of a minute's worth."""

    def __init__(self, per_minute: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not 0 < per_minute < math.inf:
            raise InputError(f"a rate is above 0 labels a minute, got {per_minute}")
        self._most, self._clock = per_minute, clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, source: str, labels: int) -> float:
        """0 where so many may come now, else seconds to wait; more than a minute's worth come one at a time.

        >>> rate = SourceRate(60, clock=lambda: 0.0)
        >>> rate.take("lab", 100), rate.take("lab", 1), rate.take("another", 1)
        (0.0, 41.0, 0.0)
        """
        with self._lock:
            now = self._clock()
            left, at = self._left.get(source, (self._most, now))
            left = min(left + (now - at) * self._most / 60, self._most)
            needed = min(float(labels), self._most)
            if left < needed:
                return (needed - left) * 60 / self._most
            self._left[source] = (left - labels, now)
            return 0.0
