"""Where predictions are counted and labels are sent: a ``calib-serve watch``, or a Watch of this process.

Predictions that must be sent one by one, for their ids or logits, wait in a queue, and are sent in batches,
each counted once; of all others sums are sent (``outbox``).
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from calib_serve.errors import CalibServeError, LedgerError, Refused, ServerError
from calib_serve.reporter.batch_folder import Batch, BatchFolder
from calib_serve.watch.batch import ServedReceipt, ServedSums
from calib_serve.watch.intake import Outcome
from calib_serve.watch.sender import Unanswered, post_body, post_items
from calib_serve.watch.service import Watch

__all__ = ["Home", "HomewardQueue", "Remote", "Served", "Within", "home_of"]

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0  # in which a watch answers, or the batch is sent again


class Served(NamedTuple):
    """One prediction to count: its receipt, the caller's own id of it, and its logits."""

    receipt: str
    id: str = ""
    logits: tuple[float, ...] | None = None

    def as_item(self) -> dict[str, Any]:
        """As the watch takes it."""
        item: dict[str, Any] = {"receipt": self.receipt}
        if self.id:
            item["id"] = self.id
        return item if self.logits is None else {**item, "logits": self.logits}


class Home(Protocol):
    """Takes predictions and labels; what it acknowledges is in the ledger."""

    def predictions(self, batch: Sequence[Served | str], *, once: str) -> list[Outcome]:
        """Count them, once under this name; those that are refused. A text is a receipt alone.

        Raises Unanswered where they may be sent again, else ServerError.
        """

    def served(self, sums: Sequence[ServedSums], *, time: float, once: str) -> list[str]:
        """Count predictions that were added up here, once under this name; why each was refused, or nothing.

        Raises Unanswered where they may be sent again, else ServerError.
        """

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels; what became of each. ServerError where that failed: send them again."""


class Remote:
    """A ``calib-serve watch`` at ``url``, with a token of the scopes ``predict`` and ``label``."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url, self._token = url.rstrip("/"), token

    def predictions(self, batch: Sequence[Served | str], *, once: str) -> list[Outcome]:
        """See Home."""
        if any(isinstance(one, Served) for one in batch):
            items = [one.as_item() if isinstance(one, Served) else {"receipt": one} for one in batch]
            body = json.dumps({"items": items})
        else:  # receipts need no escapes; this thread takes its time from the one that serves
            body = '{"items":[{"receipt":"' + '"},{"receipt":"'.join(map(str, batch)) + '"}]}'
        url = f"{self._url}/v1/predictions"
        how: dict[str, Any] = {"token": self._token, "tries": 1, "seconds": _ANSWER_SECONDS, "once": once}
        found = post_body(url, body.encode(), count=len(batch), **how)
        return [_outcome(one) for one in found if not one["accepted"]]

    def served(self, sums: Sequence[ServedSums], *, time: float, once: str) -> list[str]:
        """See Home."""
        body = json.dumps({"time": time, "items": [asdict(one) for one in sums]}).encode()
        how: dict[str, Any] = {"token": self._token, "tries": 1, "seconds": _ANSWER_SECONDS, "once": once}
        found = post_body(f"{self._url}/v1/sums", body, count=len(sums), **how)
        return ["" if one["accepted"] else str(one.get("message") or one["reason"]) for one in found]

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """See Home."""
        how: dict[str, Any] = {"token": self._token, "tries": 3, "seconds": _ANSWER_SECONDS}
        return [_outcome(one) for one in post_items(f"{self._url}/v1/labels", items, **how)]


def _outcome(told: Mapping[str, Any]) -> Outcome:
    return Outcome(bool(told["accepted"]), told.get("reason"), str(told.get("message", "")))


class Within:
    """A Watch of this process."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def predictions(self, batch: Sequence[Served | str], *, once: str) -> list[Outcome]:
        """See Home."""
        items = [ServedReceipt(*one) if isinstance(one, Served) else ServedReceipt(one) for one in batch]
        try:
            found = self._watch.predictions(items, once=once.encode(), source="reporter")
        except LedgerError as error:
            raise Unanswered(f"the ledger cannot keep the predictions: {error}") from error
        return [Outcome(False, one.reason, str(one)) for one in found if isinstance(one, Refused)]

    def served(self, sums: Sequence[ServedSums], *, time: float, once: str) -> list[str]:
        """See Home."""
        try:
            found = self._watch.served(sums, time=time, once=once.encode(), source="reporter")
        except LedgerError as error:
            raise Unanswered(f"the ledger cannot keep the predictions: {error}") from error
        return ["" if one is None else str(one) for one in found]

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """See Home."""
        try:
            return self._watch.labels(items)
        except LedgerError as error:
            raise ServerError(f"the ledger cannot keep the labels: {error}; send them again") from error


def home_of(watch: str | Watch, token: str = "") -> Home:
    """The home at a URL, or in this process."""
    return Remote(watch, token) if isinstance(watch, str) else Within(watch)


_BATCH = 1_000  # predictions
_NUMBERS = 100_000  # or logits, that fit into the largest batch of a watch
_TELL_EVERY = 60.0  # seconds between two messages of the same trouble
_LONGEST_PAUSE = 15.0


class Patience:
    """When a watch that did not answer is asked again, ever more rarely, and how often that is said."""

    def __init__(self) -> None:
        self._told = -_TELL_EVERY
        self.forget()

    def forget(self) -> None:
        """It answered, or nobody asked yet."""
        self._pause, self._again = 0.0, 0.0

    def longer(self) -> None:
        """It did not answer."""
        self._pause = min(max(2 * self._pause, 0.5), _LONGEST_PAUSE)
        self._again = time.monotonic() + self._pause

    @property
    def waits(self) -> bool:
        """Whether it is too soon to ask again."""
        return time.monotonic() < self._again

    def say(self, text: str, *values: object) -> None:
        """Log this, unless something was said just before."""
        if time.monotonic() - self._told >= _TELL_EVERY:
            self._told = time.monotonic()
            log.warning(text, *values)


def waiting(on_disk: bool) -> str:
    """What the log says of predictions that wait: those in memory alone would end with their process."""
    where = "" if on_disk else ", in this process alone (give it spool=)"
    return f"predictions wait to be counted{where}: %s"


class HomewardQueue:
    """At most ``most`` predictions wait; what comes beyond is not counted, and ``failed("queue")`` says so.

    A batch that was not answered is sent again under the same name, until it is. ``spool``: a folder where
    they wait on disk while the watch is away, ten times as many, and outlive their process.
    """

    def __init__(
        self, home: Home, failed: Callable[..., None], *, most: int, spool: str | Path | None = None
    ) -> None:
        self._home, self._failed, self._most = home, failed, most
        self._folder = None if spool is None else BatchFolder(Path(spool) / "ids", most=10 * most)
        self._patience = Patience()
        self.after_fork()

    def after_fork(self) -> None:
        """Forget what the parent sends."""
        self._waiting: deque[Served | str] = deque()
        self._batch = Batch("", ())
        self._sending = threading.Lock()
        self._patience.forget()

    def __len__(self) -> int:
        kept = 0 if self._folder is None else len(self._folder)
        return len(self._waiting) + len(self._batch.items) + kept

    def put(self, served: Sequence[Served | str]) -> None:
        """Let these wait, as far as there is room; a text is a receipt of which nothing more is said."""
        room = max(self._most - len(self._waiting) - len(self._batch.items), 0)
        if len(served) > room:
            served, lost = served[:room], len(served) - room
            self._failed("queue", times=lost)
            self._patience.say(
                "%d predictions are not counted: %d wait for the watch already", lost, self._most
            )
        self._waiting.extend(served)

    def send(self, *, at_once: bool = False) -> bool:
        """Send what waits; False where the watch does not take it now. ``at_once``: without any pause."""
        with self._sending:
            if not (self._patience.waits and not at_once) and all(map(self._settled, self._batches())):
                return True
            self._keep()
            return False

    def _batches(self) -> Iterator[Batch]:
        """What lies on disk, then what waits here; each is gone when the next one is asked for."""
        if self._folder is not None:
            for kept in self._folder.each():
                yield Batch(kept.name, [one if isinstance(one, str) else _served(*one) for one in kept.items])
        left = len(self._waiting) + len(self._batch.items)
        while left > 0 and self._fill():  # what comes meanwhile is for the next time: in few batches
            left -= len(self._batch.items)
            yield self._batch
            self._batch = Batch("", ())

    def _settled(self, batch: Batch) -> bool:
        """Whether it is: counted, or refused for good."""
        try:
            refused = self._home.predictions(batch.items, once=batch.name)
        except Unanswered as error:
            self._failed("watch")
            self._patience.say(waiting(self._folder is not None), error)
            self._patience.longer()
            return False
        except CalibServeError as error:  # sending it again would change nothing
            self._failed("watch", times=len(batch.items))
            self._patience.say("%d predictions are not counted: %s", len(batch.items), error)
        else:
            if refused:
                self._failed("refused", times=len(refused))
                self._patience.say("%d predictions were refused: %s", len(refused), refused[0].message)
        self._patience.forget()
        return True

    def _keep(self) -> None:
        """Write what waits into the folder, as far as it may."""
        if self._folder is None:
            return
        try:
            while self._fill() and self._folder.put(self._batch):
                self._batch = Batch("", ())
        except OSError as error:
            self._failed("spool")
            self._patience.say("what waits for the watch cannot be written: %s", error)

    def drop(self) -> int:
        """Give up what waits and is not on disk; how many that were."""
        with self._sending:
            self._keep()
            lost = len(self._waiting) + len(self._batch.items)
            self._waiting.clear()
            self._batch = Batch("", ())
            return lost

    def _fill(self) -> bool:
        """Whether there is a batch to send: the one that was not answered, or of what waits."""
        if not self._batch.items:
            room = _NUMBERS
            items: list[Served | str] = []
            while self._waiting and len(items) < _BATCH and room > 0:
                one = self._waiting.popleft()
                items.append(one)
                room -= len(one.logits or ()) if isinstance(one, Served) else 0
            self._batch = Batch(secrets.token_hex(16), items)
        return bool(self._batch.items)


def _served(receipt: str, id: str, logits: Sequence[float] | None) -> Served:
    return Served(receipt, id, None if logits is None else tuple(logits))
