"""Sums of served predictions on their way to a watch: bounded, on disk if wanted, and counted once.

A served prediction costs an addition. Twice a second what came is added up by class, segment and bin of
confidence, and sent as one batch under a name of its own; a batch that was not answered is sent again under
it. While the watch is away sums grow with what differs, not with the traffic: those of five minutes are one
batch. In a ``spool`` they outlive their process, and the next one of the same folder sends them.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole, write_whole
from calib_serve.receipts.batch import ServedSums
from calib_serve.receipts.counters import MOST_TO_ADD_UP
from calib_serve.receipts.delivery import LARGEST, Courier
from calib_serve.receipts.destination import Destination

try:
    import fcntl
except ImportError:  # not on every platform: then no process takes over what another left
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_SPAN = 300.0  # seconds whose sums are one batch while the watch is away: a span of its ledger
_ITEMS = 5_000  # of one batch

CellKey = tuple[int, str, int, tuple[str, ...]]
"""Class, segment, bin, and the clauses of the contract that count it."""


@dataclass
class _Cell:
    count: int
    confidence: float
    low: float
    high: float

    def add(self, other: _Cell) -> None:
        self.count += other.count
        self.confidence += other.confidence
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)


class _Open:
    """Sums of one span that still grow; ``name``: under which they will be sent."""

    def __init__(self) -> None:
        self.name, self.cells = secrets.token_hex(16), dict[CellKey, _Cell]()


@dataclass(frozen=True)
class _Batch:
    """Sums that are sent under one name until they are settled."""

    name: str
    time: float
    items: tuple[ServedSums, ...]

    @property
    def predictions(self) -> int:
        return sum(one.count for one in self.items)


class Outbox:
    """Sums up predictions of one model version and sends them to ``destination``; safe to use from threads.

    ``bins``: of confidence, as the watch has them. ``clauses``: those of a contract that count a prediction,
    by its confidence, class and segment; None without a contract. ``most``: sums that may wait; what comes
    beyond is not counted, and ``failed("queue")`` says so. ``spool``: a folder for what waits, None: memory.
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
        self._of, self._bins, self._clauses = (model, version), bins, clauses
        self._spool = None if spool is None else _Spool(spool)
        self._courier = Courier(failed, on_disk=spool is not None)
        self._begin()

    def _begin(self) -> None:
        self._came: deque[tuple[int, float, str]] = deque()
        self._open: dict[float, _Open] = {}
        self._named: list[_Batch] = []
        self._turn, self._sending = threading.RLock(), threading.Lock()
        self._courier.forget()

    def after_fork(self) -> None:
        """Drop the predictions that the parent process sends."""
        self._begin()
        if self._spool is not None:
            self._spool = self._spool.of_a_child()

    def put(self, pairs: Sequence[tuple[int, float]], segments: Sequence[str] = ()) -> None:
        """Queue (class, confidence) pairs to be counted; ``segments`` of each, or none."""
        if segments:
            self._came.extend((k, c, segment) for (k, c), segment in zip(pairs, segments, strict=True))
        else:
            self._came.extend((k, c, "") for k, c in pairs)
        if len(self._came) > MOST_TO_ADD_UP:
            self.settle()

    def settle(self) -> None:
        """Add the queued predictions to the sums."""
        with self._turn:
            # One by one: others append meanwhile, which a deque allows without a lock.
            came = [self._came.popleft() for _ in range(len(self._came))]
            if not came:
                return
            now = self._clock()
            # By span, as the ledger keeps sums by the time of predictions.
            cells = self._open.setdefault(now // _SPAN * _SPAN, _Open()).cells
            inner = np.linspace(0, 1, self._bins + 1)[1:-1]
            where = np.searchsorted(inner, [c for _, c, _ in came]).tolist()
            lost = 0
            for (k, c, segment), b in zip(came, where, strict=True):
                met = tuple(self._clauses(c, k, segment)) if self._clauses else ()
                place = (k, segment, b, met)
                known = cells.get(place)
                if known is not None:
                    known.add(_Cell(1, c, c, c))
                elif self._waiting() < self._most:
                    cells[place] = _Cell(1, c, c, c)
                else:
                    lost += 1
            if lost:
                told = "%d predictions are not counted: %d sums wait for the watch already"
                self._courier.failed("queue", lost, told, lost, self._most)

    def _waiting(self) -> int:
        still = sum(len(one.cells) for one in self._open.values())
        return still + sum(len(one.items) for one in self._named)

    def __len__(self) -> int:
        """The number of predictions that wait."""
        with self._turn:
            still = sum(cell.count for one in self._open.values() for cell in one.cells.values())
            return len(self._came) + still + sum(one.predictions for one in self._named)

    def send(self, *, at_once: bool = False) -> bool:
        """Send the sums; False where the watch does not take them now. ``at_once``: without any pause."""
        with self._sending:
            self.settle()
            if self._courier.waits and not at_once:
                self._keep()
                return False
            if self._spool is not None:
                self._named += self._spool.left()
            # Named batches first: while they wait, predictions are added to the open sums, not as batches.
            while self._named or self._open:
                with self._turn:
                    if not self._named:
                        self._named, self._open = self._batches(), {}
                    batch = self._named[0]
                if not self._courier.settles(batch.predictions, functools.partial(self._refused, batch)):
                    self._keep()
                    return False
                with self._turn:
                    self._named = [one for one in self._named if one is not batch]
            self._keep()
            return True

    def _refused(self, batch: _Batch) -> list[tuple[int, str]]:
        found = self._destination.served(batch.items, time=batch.time, once=batch.name)
        return [(one.count, why) for one, why in zip(batch.items, found, strict=True) if why]

    def _batches(self) -> list[_Batch]:
        """The open sums as batches, as they would be sent now."""
        found = []
        for start, one in sorted(self._open.items()):
            served = tuple(
                ServedSums(*self._of, k, segment, cell.low, cell.high, cell.count, cell.confidence)
                for (k, segment, _, _), cell in one.cells.items()
            )
            found += [
                _Batch(f"{one.name}-{at}", start, served[at : at + _ITEMS])
                for at in range(0, len(served), _ITEMS)
            ]
        return found

    def _keep(self) -> bool:
        """Write the waiting sums to the spool, if there is one; whether they are there."""
        with self._turn:
            if self._spool is None:
                return False
            try:
                self._spool.keep([*self._named, *self._batches()])
            except OSError as error:
                self._courier.failed("spool", 1, "what waits for the watch cannot be written: %s", error)
                return False
            return True

    def drop(self) -> int:
        """Drop the waiting sums, or leave them to the spool; return the number of predictions lost.

        It waits for no batch that is under way: one that is counted after all is counted once.
        """
        with self._turn:
            self.settle()
            lost = 0 if self._keep() else len(self)
            if self._spool is not None:
                self._spool = self._spool.of_a_child()  # a batch under way must not write over the kept sums
            self._open, self._named = {}, []
            return lost


class _Spool:
    """The file of this process in a spool folder, and the files that ended processes left there."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot keep what waits in {self.folder}: {error}") from error
        self._path = self.folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._held: IO[bytes] | None = None
        self._kept: list[_Batch] = []

    def of_a_child(self) -> _Spool:
        """A new spool in the same folder, as after a fork; the next process sends the kept sums."""
        self.let_go()
        return _Spool(self.folder)

    def let_go(self) -> None:
        """Leave the kept sums to the next process."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def keep(self, batches: Sequence[_Batch]) -> None:
        """Write these batches in place of the last ones."""
        if list(batches) == self._kept:
            return
        if self._held is None:
            self._held = self._lock(self._path, make=True)
        if batches:
            told = [[one.name, one.time, [astuple(each) for each in one.items]] for one in batches]
            write_whole(self._path, json.dumps(told), mode=0o600)
        else:
            self._path.unlink(missing_ok=True)
            Path(f"{self._path}.lock").unlink(missing_ok=True)
            self.let_go()
        self._kept = list(batches)

    def left(self) -> list[_Batch]:
        """Take over the batches of processes that have ended, and remove their files."""
        found: list[_Batch] = []
        for path in sorted(self.folder.glob("*-*.json")):
            if path == self._path:
                continue
            try:
                held = self._lock(path)
            except OSError:
                continue  # its process lives, or another took it
            with held:
                found += _read(path)
                self.keep([*self._kept, *found])
                path.unlink(missing_ok=True)
                Path(f"{path}.lock").unlink(missing_ok=True)
        return found

    @staticmethod
    def _lock(path: Path, *, make: bool = False) -> IO[bytes]:
        """A lock on a file that ends with this process; OSError while another process has it."""
        if fcntl is None and not make:
            raise OSError("there are no locks here")
        flags = os.O_RDWR | (os.O_CREAT if make else 0)
        file = os.fdopen(os.open(f"{path}.lock", flags, 0o600), "r+b", 0)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file


def _read(path: Path) -> list[_Batch]:
    try:
        told: list[Any] = json.loads(read_whole(path, limit=LARGEST))
        return [_Batch(str(name), float(at), tuple(map(_sums, items))) for name, at, items in told]
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        log.error("what waited in %s cannot be read and is left out: %r", path, error)
        return []


def _sums(told: Sequence[Any]) -> ServedSums:
    """Sums from their form on disk; TypeError for any other form."""
    found = ServedSums(*told)
    texts = (found.model, found.version, found.segment)
    numbers = (found.predicted, found.low, found.high, found.count, found.confidence)
    if not all(isinstance(one, str) for one in texts) or not all(
        type(one) in (int, float) for one in numbers
    ):
        raise TypeError("they are no sums of predictions")
    return found
