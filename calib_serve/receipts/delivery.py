"""Predictions that are sent one by one, for their ids or logits: they wait, and each batch counts once.

Of all others sums are sent (``outbox``).
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from calib_serve.core.errors import CalibServeError, ConflictError, Unanswered
from calib_serve.core.files import open_regular, private_folder, write_whole
from calib_serve.receipts.destination import Destination, Served

try:
    import fcntl
except ImportError:  # not on every platform: then two may send the same, which counts once
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

LARGEST = 256 << 20
"""Bytes of a file of a spool."""

_NAME = re.compile(r"[0-9]+-([0-9]{1,9})-([0-9a-f]+)\.json")  # when, how many, and under which name
_BYTES = 32 << 20  # that wait, of which logits may be half


class Batch(NamedTuple):
    """Predictions that are sent under one name until they are settled."""

    name: str
    items: Sequence[Any]


class BatchFolder:
    """At most ``most`` predictions in a folder, as JSON; the folder is made with the first."""

    def __init__(self, folder: Path, *, most: int) -> None:
        self._folder, self._most = folder, most

    def __len__(self) -> int:
        return sum(int(found[1]) for _, found in self._files())

    def put(self, batch: Batch) -> bool:
        """Write a batch, unless the folder is full; raises OSError."""
        if len(self) + len(batch.items) > self._most:
            return False
        path = self._folder / f"{time.time_ns()}-{len(batch.items)}-{batch.name}.json"
        private_folder(self._folder)
        write_whole(path, json.dumps(batch.items), mode=0o600)
        return True

    def each(self, read: Callable[[Any], Served]) -> Iterator[Batch]:
        """Yield batches that no other process sends, oldest first; a file goes when the next is asked for.

        ``read`` makes an item of its JSON; a file of anything else is left out, and logged.
        """
        for path, found in self._files():
            with suppress(FileNotFoundError, BlockingIOError), open_regular(path) as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    size = os.fstat(file.fileno()).st_size
                    if size > LARGEST:
                        raise ValueError(f"it has more than {LARGEST} bytes")
                    # Reading sets the whole size aside at once, so it is checked first.
                    items = [read(one) for one in json.loads(file.read(size))]
                except (ValueError, TypeError, OverflowError, RecursionError) as error:
                    log.error("what waited in %s cannot be read and is left out: %r", path, error)
                else:
                    yield Batch(found[2], items)
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, re.Match[str]]]:
        for path in sorted(self._folder.glob("*.json")):
            if path.is_file() and (found := _NAME.fullmatch(path.name)):
                yield path, found


class Courier:
    """Delivers batches: an unanswered batch is kept, one refused for good is counted as lost.

    A watch that does not answer is asked ever more rarely, and that is said once a minute.
    """

    def __init__(self, failed: Callable[..., None], *, on_disk: bool) -> None:
        self._failed, self._told = failed, dict[str, float]()
        self._where = "" if on_disk else ", in this process alone (give it spool=)"
        self.forget()

    def forget(self) -> None:
        """End the pause between attempts: the watch answered, or was not asked yet."""
        self._pause, self._again = 0.0, 0.0

    @property
    def waits(self) -> bool:
        """Whether the pause after an unanswered attempt still lasts."""
        return time.monotonic() < self._again

    def settles(self, predictions: int, ask: Callable[[], Sequence[tuple[int, str]]]) -> bool:
        """Send a batch of so many ``predictions``; whether it is settled: counted, or refused for good.

        ``ask`` sends it, and returns how many predictions were refused, and why each.
        """
        try:
            refused = ask()
        except Unanswered as error:
            self._pause = min(max(2 * self._pause, 0.5), 15.0)  # seconds
            self._again = time.monotonic() + self._pause
            self.failed("watch", 1, "predictions wait to be counted%s: %s", self._where, error)
            return False
        except CalibServeError as error:  # sending it again would change nothing
            # A conflict: another batch was counted under this name.
            if not (isinstance(error, ConflictError) or getattr(error, "status", 0) == 409):
                self.failed("watch", predictions, "%d predictions are not counted: %s", predictions, error)
        else:
            if lost := sum(n for n, _ in refused):
                self.failed("refused", lost, "%d predictions were refused: %s", lost, refused[0][1])
        self.forget()
        return True

    def failed(self, stage: str, times: int, text: str, *values: object) -> None:
        """Count failures, and log them unless the same was said just before."""
        self._failed(stage, times=times)
        now = time.monotonic()
        if now - self._told.get(text, -60.0) >= 60.0:  # seconds
            self._told[text] = now
            log.warning(text, *values)


class PredictionQueue:
    """Predictions that are sent one by one, for their ids or logits; at most ``most``, of 32 MiB, wait.

    Beyond half of these bytes they wait without their logits, and ``failed("logits")`` says so. A batch that
    was not answered is sent again under the same name, until it is. ``spool``: a folder where they wait on
    disk while the watch is away, ten times as many, and outlive their process.
    """

    def __init__(
        self,
        destination: Destination,
        failed: Callable[..., None],
        *,
        most: int,
        spool: str | Path | None = None,
    ) -> None:
        self._destination, self._most = destination, most
        self._folder = None if spool is None else BatchFolder(Path(spool) / "ids", most=10 * most)
        self._courier = Courier(failed, on_disk=spool is not None)
        self.after_fork()

    def after_fork(self) -> None:
        """Drop the predictions that the parent process sends."""
        self._waiting: deque[Served] = deque()
        self._batch, self._held = Batch("", ()), 0
        self._turn, self._sending = threading.Lock(), threading.Lock()
        self._courier.forget()

    def __len__(self) -> int:
        return self._here() + (0 if self._folder is None else len(self._folder))

    def _here(self) -> int:
        """The number of predictions that wait in memory."""
        return len(self._waiting) + len(self._batch.items)

    def put(self, served: Served) -> bool:
        """Queue a prediction; False where its sum is enough, or the queue is full."""
        with self._turn:
            if served.logits and self._held + _size(served) > _BYTES // 2:
                self._courier.failed("logits", 1, "samples go without logits: too many wait for the watch")
                served = served._replace(logits=b"")
            if not served.id and not served.logits:
                return False
            if self._held + _size(served) > _BYTES or self._here() >= self._most:
                self._courier.failed("ids", 1, "ids are not bound to their predictions: too many wait")
                return False
            self._held += _size(served)
            self._waiting.append(served)
            return True

    def send(self, *, at_once: bool = False) -> bool:
        """Send the queue; False where the watch does not take it now. ``at_once``: without any pause."""
        with self._sending:
            if not (self._courier.waits and not at_once) and all(map(self._settled, self._batches())):
                return True
            self._keep()
            return False

    def drop(self) -> int:
        """Drop predictions that wait and are not on disk; return their number.

        It waits for no batch that is under way: one that is counted after all is counted once.
        """
        self._keep()
        with self._turn:
            lost, self._batch, self._held = self._here(), Batch("", ()), 0
            self._waiting.clear()
            return lost

    def _batches(self) -> Iterator[Batch]:
        """Yield batches on disk, then those in memory; each is gone when the next one is asked for."""
        if self._folder is not None:
            yield from self._folder.each(lambda one: Served.of(*one))
        left = self._here()
        while left > 0 and (batch := self._filled()).items:  # later predictions wait for the next time
            left -= len(batch.items)
            yield batch
            self._went(batch)

    def _settled(self, batch: Batch) -> bool:
        def ask() -> list[tuple[int, str]]:
            return [(1, one.message) for one in self._destination.predictions(batch.items, once=batch.name)]

        return self._courier.settles(len(batch.items), ask)

    def _keep(self) -> None:
        """Write the queue into the folder, as far as there is room."""
        if self._folder is None:
            return
        try:
            while (batch := self._filled()).items:
                told = [(one.receipt, one.id, one.numbers) for one in batch.items]
                if not self._folder.put(Batch(batch.name, told)):
                    return
                self._went(batch)
        except OSError as error:
            self._courier.failed("spool", 1, "what waits for the watch cannot be written: %s", error)

    def _filled(self) -> Batch:
        """The batch to send: the unanswered one, or the next."""
        with self._turn:
            if not self._batch.items:
                # So many logits, or predictions, fit into the largest batch of a watch.
                room, items = 100_000, list[Served]()
                while self._waiting and len(items) < 1_000 and room > 0:
                    items.append(self._waiting.popleft())
                    room -= len(items[-1].logits) // 2
                # Named before it is sent: even if the answer is lost, it counts once under this name.
                self._batch = Batch(secrets.token_hex(16), items)
            return self._batch

    def _went(self, batch: Batch) -> None:
        """Free the room of a sent batch, unless that was done already."""
        with self._turn:
            if self._batch is batch:
                self._held -= sum(map(_size, batch.items))
                self._batch = Batch("", ())


def _size(one: Served) -> int:
    # Python's objects of one that waits take 400 bytes beside its texts and logits, as measured.
    return 400 + len(one.receipt) + 4 * len(one.id) + len(one.logits)
