"""Served predictions on their way to a watch: bounded, on disk if wanted, and counted once.

A served prediction costs an addition: twice a second what came is added up by class, segment and bin of
confidence. Those with an id, or logits that the watch keeps, go one by one. Both are sent in batches under
names of their own; one that was not answered is sent again under its name. In a ``spool`` what waits outlives
its process, and the next one of the same folder sends it.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calib_serve.core.errors import CalibServeError, ConflictError, Unanswered
from calib_serve.receipts.batch import BATCH_LIFE, ServedSums
from calib_serve.receipts.counters import MOST_TO_ADD_UP
from calib_serve.receipts.destination import Batch, Destination, Served, wire_size
from calib_serve.receipts.items import WIRE_BYTES, WIRE_ITEMS, in_batches
from calib_serve.receipts.wire import DAY

if TYPE_CHECKING:
    from calib_serve.receipts.spool import Spool

log = logging.getLogger(__name__)

_SPAN = 300.0  # seconds whose sums are one batch while the watch is away: a span of its ledger
_BYTES = 32 << 20  # of predictions that wait one by one in memory, of which logits may be half
_OLDEST = BATCH_LIFE - DAY  # seconds for which a batch is sent again: the watch knows its name for longer
_SURE = 60 * 60.0  # seconds for which a clock must say that a batch is older


CellKey = tuple[int, str, int, tuple[str, ...]]
"""Class, segment, bin, and the clauses of the contract that count it."""


@dataclass
class _Cell:
    count: int
    confidence: float
    low: float
    high: float


class _GrowingSums:
    """Sums of one model version by span of time: they grow with what differs, not with the traffic.

    ``name``: names the next batch.
    """

    def __init__(
        self,
        model: str,
        version: str,
        *,
        name: Callable[[], str],
        bins: int,
        clauses: Callable[[float, int, str], Iterable[str]] | None,
    ) -> None:
        self._of, self._name, self._clauses = (model, version), name, clauses
        self._inner = np.linspace(0, 1, bins + 1)[1:-1]
        self._spans: dict[float, tuple[list[str], dict[CellKey, _Cell]]] = {}

    def __len__(self) -> int:
        return sum(len(cells) for _, cells in self._spans.values())

    @property
    def predictions(self) -> int:
        """The number of predictions in all sums."""
        return sum(cell.count for _, cells in self._spans.values() for cell in cells.values())

    def add(self, came: Sequence[tuple[int, float, str]], *, now: float, room: int) -> int:
        """Add (class, confidence, segment) of predictions; the number of those that found no room.

        ``room``: sums that may be new.
        """
        # By span, as the ledger keeps sums by the time of predictions.
        _, cells = self._spans.setdefault(now // _SPAN * _SPAN, ([], {}))
        where = np.searchsorted(self._inner, [c for _, c, _ in came]).tolist()
        most, lost = len(cells) + room, 0
        for (k, c, segment), b in zip(came, where, strict=True):
            place = (k, segment, b, tuple(self._clauses(c, k, segment)) if self._clauses else ())
            known = cells.get(place)
            if known is not None:
                known.count, known.confidence = known.count + 1, known.confidence + c
                known.low, known.high = min(known.low, c), max(known.high, c)
            elif len(cells) < most:
                cells[place] = _Cell(1, c, c, c)
            else:
                lost += 1
        return lost

    def batches(self, before: float = math.inf) -> list[Batch]:
        """The sums of spans that began before then, as they would be sent now."""
        found = []
        for start, (names, cells) in sorted(self._spans.items()):
            # Cut by what does not change while sums grow: a batch keeps its items, and with them its name.
            parts = list(in_batches(self._sums(cells), wire_size)) if start < before else []
            names += [self._name() for _ in parts[len(names) :]]
            found += [Batch(name, start, tuple(part)) for name, part in zip(names, parts, strict=False)]
        return found

    def drop(self, before: float = math.inf) -> None:
        """Drop the sums of spans that began before then, which go on as batches."""
        self._spans = {start: one for start, one in self._spans.items() if start >= before}

    def _sums(self, cells: dict[CellKey, _Cell]) -> Iterable[ServedSums]:
        for (k, segment, _, _), cell in cells.items():
            yield ServedSums(*self._of, k, segment, cell.low, cell.high, cell.count, cell.confidence)


class Outbox:
    """Sends the predictions of one model version to ``destination``; safe to use from threads.

    A batch that is not answered waits, and one that is refused for good is counted as lost. A watch that does
    not answer is asked ever more rarely, and that is said once a minute.

    ``bins``: of confidence, as the watch has them. ``clauses``: those of a contract that count a prediction,
    by its confidence, class and segment; None without a contract. ``most``: sums, and predictions that go one
    by one, that may wait in memory; what comes beyond is counted by ``failed``. ``spool``: a folder for what
    waits; None: memory.
    """

    def __init__(
        self,
        destination: Destination,
        failed: Callable[..., None],
        *,
        model: str,
        version: str,
        bins: int = 15,
        clauses: Callable[[float, int, str], Iterable[str]] | None = None,
        most: int = 100_000,
        spool: str | Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._destination, self._most, self._clock = destination, most, clock
        self._count_failure, self._said = failed, dict[str, float]()
        self._spool: Spool | None = None
        if spool is not None:
            from calib_serve.receipts.spool import Spool  # noqa: PLC0415 - sqlite3 is of no use without one

            self._spool = Spool(spool, self._fail)
        self._new_sums = functools.partial(_GrowingSums, model, version, bins=bins, clauses=clauses)
        self._begin()

    def _begin(self) -> None:
        # Of each process its own: the watch keeps the numbers that it counted of each sender.
        self._sender, self._numbers = secrets.token_hex(16), itertools.count(1)
        self._came: deque[tuple[int, float, str]] = deque()
        # Reentrant, as the handler of a signal may serve while its thread does.
        self._turn, self._sending = threading.RLock(), threading.RLock()
        self._old, self._halved = dict[str, float](), set[str]()
        self._pause, self._again = 0.0, 0.0
        self._empty()

    def _empty(self) -> None:
        self._sums, self._named = self._new_sums(name=self._name), list[Batch]()
        self._last, self._last_name = list[Served](), ""
        self._last_size, self._held, self._ones = 0, 0, 0

    def _name(self) -> str:
        return f"{self._sender}-{next(self._numbers)}"

    def after_fork(self) -> None:
        """Drop the predictions that the parent process sends."""
        self._begin()

    def put(self, pairs: Sequence[tuple[int, float]], segments: Sequence[str] = ()) -> None:
        """Queue (class, confidence) pairs to be counted; ``segments`` of each, or none."""
        if segments:
            self._came.extend((k, c, segment) for (k, c), segment in zip(pairs, segments, strict=True))
        else:
            self._came.extend((k, c, "") for k, c in pairs)
        if len(self._came) > MOST_TO_ADD_UP:
            self.settle()

    def put_one(self, one: Served) -> bool:
        """Queue a prediction to be sent by itself; False where its sum is enough, or there is no room."""
        with self._turn:
            size, held = wire_size(one), self._held + _memory(one)
            if one.logits and (size > WIRE_BYTES or held > _BYTES // 2):
                self._fail("logits", 1, "samples go without logits: too many wait for the watch")
                one = one._replace(logits=b"")
                size, held = wire_size(one), self._held + _memory(one)
            if not one.id and not one.logits:
                return False
            if held > _BYTES or self._ones >= self._most:
                self._fail("ids", 1, "ids are not bound to their predictions: too many wait")
                return False
            if len(self._last) == WIRE_ITEMS or self._last_size + size > WIRE_BYTES:
                self._end_last()
            self._last.append(one)
            self._last_size += size
            self._held, self._ones = held, self._ones + 1
            return True

    def settle(self) -> None:
        """Add the queued predictions to the sums."""
        with self._turn:
            # One by one: others append meanwhile, which a deque allows without a lock.
            came = [self._came.popleft() for _ in range(len(self._came))]
            if not came:
                return
            waiting = len(self._sums) + sum(len(one.items) for one in self._named)
            waiting -= self._ones - len(self._last)
            lost = self._sums.add(came, now=self._clock(), room=max(self._most - waiting, 0))
            if lost:
                told = "%d predictions are not counted: %d sums wait for the watch already"
                self._fail("queue", lost, told, lost, self._most)

    def __len__(self) -> int:
        """The number of predictions that wait."""
        return self._here() + (0 if self._spool is None else len(self._spool))

    def _here(self) -> int:
        """The number of predictions that wait in memory."""
        with self._turn:
            named = sum(sum(one.counts) for one in self._named)
            return len(self._came) + self._sums.predictions + named + len(self._last)

    def send(self, *, at_once: bool = False) -> bool:
        """Send what waits; False where the watch does not take it now. ``at_once``: without any pause."""
        with self._sending:
            self.settle()
            done = at_once or time.monotonic() >= self._again
            if not (done and all(map(self._delivered, self._due()))):
                self._keep()
                return False
            return not (self._old or (self._spool is not None and len(self._spool)))

    def drop(self) -> int:
        """Drop what waits, or leave it to the spool; return the number of predictions lost.

        It waits for no batch that is under way: one that is counted after all is counted once.
        """
        with self._turn:
            self.settle()
            lost = 0 if self._keep() else self._here()
            self._empty()
            if self._spool is not None:
                self._spool.let_go()
            return lost

    def _due(self) -> Iterator[Batch]:
        """Yield batches: those on disk, those that ended here, and what came since, which grew until now."""
        if self._spool is not None:
            waiting = map(self._spool.read, self._spool.names())
            yield from (one for one in waiting if one is not None)
        yield from list(self._named)
        with self._turn:
            self._end_sums()
            self._end_last()
            found = list(self._named)
        yield from found

    def _delivered(self, batch: Batch) -> bool:
        """Send a batch; whether the next one may be sent."""
        if self._clock() - batch.time > _OLDEST:
            began = self._old.setdefault(batch.name, time.monotonic())
            if time.monotonic() - began < _SURE:
                return True
            days, n = _OLDEST / DAY, sum(batch.counts)
            self._fail("lost", n, "%d predictions waited for %d days, and are dropped", n, days)
        elif not self._sent(batch):
            return False
        self._old.pop(batch.name, None)
        self._halved = {name for name in self._halved if name.partition(".")[0] != batch.name}
        self._free([batch])
        if self._spool is not None:
            self._spool.delete(batch.name)
        return True

    def _sent(self, batch: Batch) -> bool:
        """Send a batch; whether it is counted, or refused for good."""
        # Halves, once it was too large: one of them may be counted when the watch is given a larger bound.
        if batch.name in self._halved:
            return all(map(self._sent, batch.halves()))
        try:
            refused = self._destination.count(batch)
        except Unanswered as error:
            self._pause = min(max(2 * self._pause, 0.5), 15.0)  # seconds
            self._again = time.monotonic() + self._pause
            where = ", in this process alone (give it spool=)" if self._spool is None else ""
            self._fail("watch", 1, "predictions wait to be counted%s: %s", where, error)
            return False
        except CalibServeError as error:  # sending it again would change nothing
            status, n = getattr(error, "status", 0), sum(batch.counts)
            if status == 413 and len(batch.items) > 1:  # the watch was given a bound below the usual one
                self._halved.add(batch.name)
                return self._sent(batch)
            # A conflict: another batch was counted under this name.
            if not (isinstance(error, ConflictError) or status == 409):
                self._fail("watch", n, "%d predictions are not counted: %s", n, error)
        else:
            if lost := sum(n for n, why in zip(batch.counts, refused, strict=True) if why):
                self._fail(
                    "refused", lost, "%d predictions were refused: %s", lost, next(filter(None, refused))
                )
        self._pause, self._again = 0.0, 0.0
        return True

    def _fail(self, stage: str, times: int, text: str, *values: object) -> None:
        """Count failures, and log them unless the same was said just before."""
        self._count_failure(stage, times=times)
        now = time.monotonic()
        if now - self._said.get(text, -math.inf) >= 60.0:  # seconds
            self._said[text] = now
            log.warning(text, *values)

    def _keep(self) -> bool:
        """Write what waits to the spool, if there is one; whether all of it is there."""
        if self._spool is None:
            return False
        with self._turn:
            began = self._clock() // _SPAN * _SPAN
            self._end_sums(before=began)
            ended, growing = list(self._named), [*self._sums.batches(), *self._growing()]
        try:  # without the lock, as no request waits for the disk
            self._spool.keep(ended, growing)
        except OSError as error:
            self._fail("spool", 1, "what waits for the watch cannot be written: %s", error)
            return False
        self._free(ended)
        return True

    def _growing(self) -> list[Batch]:
        """The last predictions that go one by one, as they would be sent now."""
        if self._last and not self._last_name:
            self._last_name, self._last_began = self._name(), self._clock()
        return [Batch(self._last_name, self._last_began, tuple(self._last))] if self._last else []

    def _end_last(self) -> None:
        self._named += self._growing()
        self._last, self._last_name, self._last_size = [], "", 0

    def _end_sums(self, before: float = math.inf) -> None:
        self._named += self._sums.batches(before)
        self._sums.drop(before)

    def _free(self, batches: Sequence[Batch]) -> None:
        """Free the memory of batches that are settled, or on disk."""
        with self._turn:
            gone = {one.name for one in batches} & {one.name for one in self._named}
            went = [item for one in self._named if one.name in gone for item in one.items]
            sizes = [_memory(one) for one in went if isinstance(one, Served)]
            self._held, self._ones = self._held - sum(sizes), self._ones - len(sizes)
            self._named = [one for one in self._named if one.name not in gone]


def _memory(one: Served) -> int:
    # Python's objects of one that waits take 400 bytes beside its texts and logits, as measured.
    return 400 + len(one.receipt) + 4 * len(one.id) + len(one.logits)
