"""Predictions on their way home: sent in batches, each counted once, in the order in which they were made."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from calib_serve.errors import CalibServeError
from calib_serve.reporter.home import Home, Served
from calib_serve.watch.sender import Unanswered

__all__ = ["HomewardQueue"]

log = logging.getLogger(__name__)

_BATCH = 1_000  # predictions
_NUMBERS = 100_000  # or logits, that fit into the largest batch of a watch
_TELL_EVERY = 60.0  # seconds between two messages of the same trouble
_LONGEST_PAUSE = 15.0


class HomewardQueue:
    """At most ``most`` predictions wait; what comes beyond is not counted, and ``failed("queue")`` says so.

    A batch that was not answered is sent again under the same name, until it is.
    """

    def __init__(self, home: Home, failed: Callable[..., None], *, most: int) -> None:
        self._home, self._failed, self._most = home, failed, most
        self._told = -_TELL_EVERY
        self.after_fork()

    def after_fork(self) -> None:
        """Forget what the parent sends."""
        self._waiting: deque[Served | str] = deque()
        self._batch: list[Served | str] = []
        self._name = ""
        self._sending = threading.Lock()
        self._pause, self._again = 0.0, 0.0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._batch)

    def put(self, served: Sequence[Served | str]) -> None:
        """Let these wait, as far as there is room; a text is a receipt of which nothing more is said."""
        if len(self._waiting) + len(served) > self._most:
            room = max(self._most - len(self._waiting), 0)
            served, lost = served[:room], len(served) - room
            self._failed("queue", times=lost)
            self._tell("%d predictions are not counted: %d wait for the watch already", lost, self._most)
        self._waiting.extend(served)

    def send(self, *, at_once: bool = False) -> bool:
        """Send what waits; False where the watch does not take it now. ``at_once``: without any pause."""
        with self._sending:
            if time.monotonic() < self._again and not at_once:
                return False
            left = len(self)  # what comes meanwhile is for the next time: in few batches, not in many
            while left > 0 and self._fill():
                left -= len(self._batch)
                try:
                    refused = self._home.predictions(self._batch, once=self._name)
                except Unanswered as error:
                    self._failed("watch")
                    self._tell("predictions wait to be counted: %s", error)
                    self._pause = min(max(2 * self._pause, 0.5), _LONGEST_PAUSE)
                    self._again = time.monotonic() + self._pause
                    return False
                except CalibServeError as error:  # sending it again would change nothing
                    self._failed("watch", times=len(self._batch))
                    self._tell("%d predictions are not counted: %s", len(self._batch), error)
                else:
                    if refused:
                        self._failed("refused", times=len(refused))
                        self._tell("%d predictions were refused: %s", len(refused), refused[0].message)
                self._batch, self._pause = [], 0.0
            return True

    def drop(self) -> int:
        """Give up what waits; how many that were."""
        with self._sending:
            lost, self._batch = len(self), []
            self._waiting.clear()
            return lost

    def _fill(self) -> bool:
        if not self._batch:
            room = _NUMBERS
            while self._waiting and len(self._batch) < _BATCH and room > 0:
                one = self._waiting.popleft()
                self._batch.append(one)
                room -= len(one.logits or ()) if isinstance(one, Served) else 0
            self._name = secrets.token_hex(16)
        return bool(self._batch)

    def _tell(self, text: str, *values: object) -> None:
        if time.monotonic() - self._told >= _TELL_EVERY:
            self._told = time.monotonic()
            log.warning(text, *values)
