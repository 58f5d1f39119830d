"""Delivery of predictions and labels: to a ``calib-serve watch``, or to a Watch of this process.

Predictions that must be sent one by one, for their ids or logits, wait in a queue, and are sent in batches,
each counted once; of all others sums are sent (``outbox``).
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from calib_serve.core.errors import (
    CalibServeError,
    ConflictError,
    InputError,
    LedgerError,
    Refused,
    ServerError,
    Unanswered,
)
from calib_serve.core.files import open_regular, private_folder, write_whole
from calib_serve.receipts.batch import Item, Outcome, ServedReceipt, ServedSums

if TYPE_CHECKING:
    from calib_serve.receipts.policy import LabelPolicy
    from calib_serve.receipts.sums import Version
    from calib_serve.receipts.wire import SignedReceipt

try:
    import fcntl
except ImportError:  # not on every platform: then two may send the same, which counts once
    fcntl = None  # type: ignore[assignment]


log = logging.getLogger(__name__)


_NAME = re.compile(r"[0-9]+-([0-9]{1,9})-([0-9a-f]+)\.json")  # when, how many, and under which name
LARGEST = 256 << 20  # bytes of a file of a spool


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


_ANSWER_SECONDS = 10.0  # in which the whole answer of a watch is there, or the batch is sent again


class Served(NamedTuple):
    """One prediction to count: its receipt, the caller's own id of it, and its logits (K,) in float16."""

    receipt: str
    id: str = ""
    logits: bytes = b""

    @classmethod
    def of(cls, receipt: str, id: str, logits: Sequence[float] | None) -> Served:
        """Read a prediction from its form on disk."""
        return cls(receipt, id, b"" if logits is None else np.array(logits, np.float16).tobytes())

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The logits as numbers, or None."""
        return tuple(np.frombuffer(self.logits, np.float16).tolist()) if self.logits else None

    def as_item(self) -> dict[str, Any]:
        """The prediction as the watch takes it."""
        item: dict[str, Any] = {"receipt": self.receipt}
        if self.id:
            item["id"] = self.id
        return {**item, "logits": self.numbers} if self.logits else item


class Destination(Protocol):
    """A destination of predictions and labels, which are in a ledger once they are acknowledged."""

    @property
    def sample_rate(self) -> float:
        """The share of predictions whose logits are kept there: 0 for none, 1 where unknown."""

    def predictions(self, batch: Sequence[Served], *, once: str) -> list[Outcome]:
        """Count predictions, once under this name; return the refused ones.

        Raises Unanswered where the batch may be sent again, else ServerError.
        """

    def served(self, sums: Sequence[ServedSums], *, time: float, once: str) -> list[str]:
        """Count predictions by their sums, once under this name; why each sum was refused, or nothing.

        Raises Unanswered where the batch may be sent again, else ServerError.
        """

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels; return the outcome of each. ServerError where that failed: send them again."""


class Remote:
    """A ``calib-serve watch`` at ``url``, with a token of the scopes ``predict`` and ``label``."""

    def __init__(self, url: str, token: str = "") -> None:
        from calib_serve.receipts.client import check_url, post_body  # noqa: PLC0415 - not where no watch is asked

        check_url(url)
        self._url, self._token, self._post = url.rstrip("/"), token, post_body
        self.sample_rate = 1.0  # until the watch has said what it keeps

    def predictions(self, batch: Sequence[Served], *, once: str) -> list[Outcome]:
        """Count predictions, as ``Destination`` says."""
        found = self._sent("predictions", {"items": [one.as_item() for one in batch]}, once=once, tries=1)
        return [one for one in found if not one.accepted]

    def served(self, sums: Sequence[ServedSums], *, time: float, once: str) -> list[str]:
        """Count predictions by their sums, as ``Destination`` says."""
        told = {"time": time, "items": [asdict(one) for one in sums]}
        found = self._sent("sums", told, once=once, tries=1)
        return ["" if one.accepted else one.message or str(one.reason) for one in found]

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels, as ``Destination`` says."""
        return self._sent("labels", {"items": list(items)}, tries=3)

    def _sent(self, what: str, told: Mapping[str, Any], **how: Any) -> list[Outcome]:
        how = {**how, "count": len(told["items"]), "token": self._token, "seconds": _ANSWER_SECONDS}
        found = self._post(f"{self._url}/v1/{what}", json.dumps(told).encode(), **how)
        if found.sample_rate is not None:
            self.sample_rate = found.sample_rate
        return [
            Outcome(one["accepted"], one.get("reason"), str(one.get("message", ""))) for one in found.items
        ]


@runtime_checkable
class LocalWatch(Protocol):
    """Watch of this process, as far as a reporter needs it."""

    @property
    def sample_rate(self) -> float:
        """Return the share of predictions whose logits are kept."""

    def label_policy(self, version: Version) -> LabelPolicy | None:
        """Return the policy by which labels are asked for; None: every label is wanted."""

    def predictions(self, items: Sequence[Item], *, once: bytes | None) -> list[SignedReceipt | Refused]:
        """Count them, once under this name; the receipt of each, or why it was not counted."""

    def served(self, sums: Sequence[ServedSums], *, time: float, once: bytes) -> list[Refused | None]:
        """Count predictions that were added up, once under this name; why each was not counted."""

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels; what became of each."""


class Within:
    """A Watch of this process."""

    def __init__(self, watch: LocalWatch) -> None:
        self._watch = watch

    @property
    def sample_rate(self) -> float:
        """The share of sampled predictions, as ``Destination`` says."""
        return self._watch.sample_rate

    def predictions(self, batch: Sequence[Served], *, once: str) -> list[Outcome]:
        """Count predictions, as ``Destination`` says."""
        items = [ServedReceipt(one.receipt, one.id, one.numbers) for one in batch]
        try:
            found = self._watch.predictions(items, once=once.encode())
        except LedgerError as error:
            raise Unanswered(f"the ledger cannot keep the predictions: {error}") from error
        return [Outcome(False, one.reason, str(one)) for one in found if isinstance(one, Refused)]

    def served(self, sums: Sequence[ServedSums], *, time: float, once: str) -> list[str]:
        """Count predictions by their sums, as ``Destination`` says."""
        try:
            found = self._watch.served(sums, time=time, once=once.encode())
        except LedgerError as error:
            raise Unanswered(f"the ledger cannot keep the predictions: {error}") from error
        return ["" if one is None else str(one) for one in found]

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels, as ``Destination`` says."""
        try:
            return self._watch.labels(items)
        except LedgerError as error:
            raise ServerError(f"the ledger cannot keep the labels: {error}; send them again") from error


def destination_of(watch: str | LocalWatch, token: str = "") -> Destination:
    """Return the destination at a URL, or in this process; InputError for what is neither."""
    if isinstance(watch, str):
        return Remote(watch, token)
    if not isinstance(watch, LocalWatch):
        raise InputError(
            "watch is the address of a calib-serve watch, or a Watch of this process, got "
            f"{type(watch).__name__}: give watch=URL or watch=Watch.open(...)"
        )
    return Within(watch)


_BATCH = 1_000  # predictions
_NUMBERS = 100_000  # or logits, that fit into the largest batch of a watch
_BYTES = 32 << 20  # that wait, of which logits may be half
_EACH = 400  # bytes of one that waits, beside its texts and logits; measured
_TELL_EVERY = 60.0  # seconds between two messages of the same trouble
_LONGEST_PAUSE = 15.0
_CONFLICT = 409  # another batch was counted under this name


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
            self._pause = min(max(2 * self._pause, 0.5), _LONGEST_PAUSE)
            self._again = time.monotonic() + self._pause
            self.failed("watch", 1, "predictions wait to be counted%s: %s", self._where, error)
            return False
        except CalibServeError as error:  # sending it again would change nothing
            if not (isinstance(error, ConflictError) or getattr(error, "status", 0) == _CONFLICT):
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
        if now - self._told.get(text, -_TELL_EVERY) >= _TELL_EVERY:
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
                room, items = _NUMBERS, list[Served]()
                while self._waiting and len(items) < _BATCH and room > 0:
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
    return _EACH + len(one.receipt) + 4 * len(one.id) + len(one.logits)
