"""Sums of served predictions on their way to a watch: bounded, on disk if wanted, and counted once.

A served prediction costs an addition. Twice a second what came is added up by class, segment and bin of
confidence, and sent as one batch under a name of its own; a batch that was not answered is sent again under
it. While the watch is away sums grow with what differs, not with the traffic: those of five minutes are one
batch. In a ``spool`` they outlive their process, and the next one of the same folder sends them.
"""

from __future__ import annotations

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

from calib_serve.errors import CalibServeError, ConflictError, InputError
from calib_serve.files import write_whole
from calib_serve.reporter.home import Home, Patience, waiting
from calib_serve.watch.batch import ServedSums
from calib_serve.watch.sender import Unanswered

try:
    import fcntl
except ImportError:  # not on every platform: then no process takes over what another left
    fcntl = None  # type: ignore[assignment]

__all__ = ["Outbox"]

log = logging.getLogger(__name__)

_SPAN = 300.0  # seconds whose sums are one batch while the watch is away: a span of its ledger
_ITEMS = 5_000  # of one batch
_MOST = 100_000  # predictions that wait to be added up; beyond, the one that comes adds them up
_CONFLICT = 409  # another batch was counted under this name

Place = tuple[int, str, int, tuple[str, ...]]
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
    """Sums of one span, to which more may come; ``name``: under which they will be sent."""

    def __init__(self) -> None:
        self.name, self.cells = secrets.token_hex(16), dict[Place, _Cell]()


@dataclass(frozen=True)
class _Batch:
    """What is sent under one name, whatever happens."""

    name: str
    time: float
    items: tuple[ServedSums, ...]

    @property
    def predictions(self) -> int:
        return sum(one.count for one in self.items)


class Outbox:
    """Adds predictions of one model version up and sends them to ``home``; safe to use from threads.

    ``bins``: of confidence, as the watch has them. ``clauses``: those of a contract that count a prediction,
    by its confidence, class and segment; None without a contract. ``most``: sums that may wait; what comes
    beyond is not counted, and ``failed("queue")`` says so. ``spool``: a folder for what waits, None: memory.
    """

    def __init__(
        self,
        home: Home,
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
        self._home, self._failed, self._most, self._clock = home, failed, most, clock
        self._of, self._bins, self._clauses = (model, version), bins, clauses
        self._spool = None if spool is None else _Spool(spool)
        self._patience = Patience()
        self._begin()

    def _begin(self) -> None:
        self._came: deque[tuple[int, float, str]] = deque()
        self._open: dict[float, _Open] = {}
        self._named: list[_Batch] = []
        self._turn, self._sending = threading.RLock(), threading.Lock()
        self._patience.forget()

    def after_fork(self) -> None:
        """Forget what the parent sends."""
        self._begin()
        if self._spool is not None:
            self._spool = self._spool.of_a_child()

    def put(self, pairs: Sequence[tuple[int, float]], segments: Sequence[str] = ()) -> None:
        """Count (class, confidence) pairs; ``segments`` of each, or none."""
        if segments:
            self._came.extend((k, c, segment) for (k, c), segment in zip(pairs, segments, strict=True))
        else:
            self._came.extend((k, c, "") for k, c in pairs)
        if len(self._came) > _MOST:
            self.settle()

    def settle(self) -> None:
        """Add up what came since the last time."""
        with self._turn:
            came = [self._came.popleft() for _ in range(len(self._came))]
            if not came:
                return
            now = self._clock()
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
                self._failed("queue", times=lost)
                self._patience.say(
                    "%d predictions are not counted: %d sums wait for the watch already", lost, self._most
                )

    def _waiting(self) -> int:
        still = sum(len(one.cells) for one in self._open.values())
        return still + sum(len(one.items) for one in self._named)

    def __len__(self) -> int:
        """How many predictions wait."""
        with self._turn:
            still = sum(cell.count for one in self._open.values() for cell in one.cells.values())
            return len(self._came) + still + sum(one.predictions for one in self._named)

    def send(self, *, at_once: bool = False) -> bool:
        """Send what waits; False where the watch does not take it now. ``at_once``: without any pause."""
        with self._sending:
            self.settle()
            if self._patience.waits and not at_once:
                self._keep()
                return False
            if self._spool is not None:
                self._named += self._spool.left()
            # What failed comes first: while it waits, more is added to what is open, and not to the line.
            while self._named or self._open:
                with self._turn:
                    if not self._named:
                        self._named, self._open = self._batches(), {}
                if not self._sent(self._named[0]):
                    self._keep()
                    return False
                with self._turn:
                    del self._named[0]
                self._patience.forget()
            self._keep()
            return True

    def _batches(self) -> list[_Batch]:
        """What is open, as it would be sent now."""
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

    def _sent(self, batch: _Batch) -> bool:
        """Whether it is settled: counted, or refused for good."""
        try:
            refused = self._home.served(batch.items, time=batch.time, once=batch.name)
        except Unanswered as error:
            self._failed("watch")
            self._patience.say(waiting(self._spool is not None), error)
            self._patience.longer()
            return False
        except CalibServeError as error:  # sending it again would change nothing
            if isinstance(error, ConflictError) or getattr(error, "status", 0) == _CONFLICT:
                return True  # a process sent it with more, and ended before that was written
            self._failed("watch", times=batch.predictions)
            self._patience.say("%d predictions are not counted: %s", batch.predictions, error)
            return True
        lost = [(one.count, why) for one, why in zip(batch.items, refused, strict=True) if why]
        if lost:
            self._failed("refused", times=sum(n for n, _ in lost))
            self._patience.say("%d predictions were refused: %s", sum(n for n, _ in lost), lost[0][1])
        return True

    def _keep(self) -> None:
        """Write what waits to the spool, if there is one."""
        if self._spool is None:
            return
        with self._turn:
            waiting = [*self._named, *self._batches()]
        try:
            self._spool.keep(waiting)
        except OSError as error:
            self._failed("spool")
            self._patience.say("what waits for the watch cannot be written: %s", error)

    def drop(self) -> int:
        """Give up what waits, unless it lies in the spool; how many predictions are lost."""
        with self._sending:
            if self._spool is not None:
                self._keep()
                self._spool.let_go()
                return 0
            lost = len(self)
            self._came.clear()
            self._open, self._named = {}, []
            return lost


class _Spool:
    """A file of this process in a folder, while it has something to keep, and those that others left."""

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
        """Another one in the same folder, of a forked process, which lets go of its parent's."""
        self.let_go()
        return _Spool(self.folder)

    def let_go(self) -> None:
        """Leave what is kept to the next process."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def keep(self, batches: Sequence[_Batch]) -> None:
        """Write these in place of what was written before."""
        if list(batches) == self._kept:
            return
        if self._held is None:
            self._held = self._lock(self._path, make=True)
        if batches:
            told = [[one.name, one.time, [astuple(each) for each in one.items]] for one in batches]
            write_whole(self._path, json.dumps(told))
        else:
            self._path.unlink(missing_ok=True)
            Path(f"{self._path}.lock").unlink(missing_ok=True)
            self.let_go()
        self._kept = list(batches)

    def left(self) -> list[_Batch]:
        """The batches of processes that have ended, whose files go."""
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
        """A hold on a file that ends with this process; OSError while another has it."""
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
        told: list[Any] = json.loads(path.read_bytes())
        return [
            _Batch(str(name), float(at), tuple(ServedSums(*one) for one in items)) for name, at, items in told
        ]
    except (OSError, ValueError, TypeError) as error:
        log.error("what waited in %s cannot be read and is left out: %s", path, error)
        return []
