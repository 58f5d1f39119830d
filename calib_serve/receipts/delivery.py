"""Delivery of batches to a watch: cut as they go over the wire, and each counted once under its name."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any, NamedTuple, Union

from calib_serve.core.errors import CalibServeError, ConflictError, Unanswered
from calib_serve.receipts.batch import ServedSums
from calib_serve.receipts.destination import Destination, Served

log = logging.getLogger(__name__)


def wire_size(one: Served | ServedSums) -> int:
    """The most bytes that an item takes over the wire, whatever its numbers are."""
    if isinstance(one, ServedSums):
        return 250 + len(json.dumps([one.model, one.version, one.segment]))
    # A letter takes 12 characters at most, and a number of two bytes 24.
    return 50 + len(one.receipt) + 12 * (len(one.id) + len(one.logits))


class Batch(NamedTuple):
    """Predictions, or sums of them, that are sent under one name until they are settled.

    ``time``: when the first of them was made, about, in seconds since 1970.
    """

    name: str
    time: float
    items: Union[tuple[Served, ...], tuple[ServedSums, ...]]

    @property
    def predictions(self) -> int:
        """The number of predictions in it."""
        return sum(one.count if isinstance(one, ServedSums) else 1 for one in self.items)

    def halves(self) -> Iterator[Batch]:
        """Both halves of its items, whose names are always the same."""
        middle = len(self.items) // 2
        for at, items in enumerate((self.items[:middle], self.items[middle:])):
            yield self._replace(name=f"{self.name}.{at}", items=items)

    def json(self) -> bytes:
        """Its form on disk, without its name."""
        rows = [
            astuple(one) if isinstance(one, ServedSums) else (one.receipt, one.id, one.numbers)
            for one in self.items
        ]
        return json.dumps([self.time, rows]).encode()

    @classmethod
    def read(cls, name: str, body: bytes) -> Batch:
        """Read a batch from its form on disk; ValueError, or TypeError, for any other form."""
        try:
            told, rows = json.loads(body)
            items: Any = tuple(Served.of(*row) if len(row) == 3 else _sums(row) for row in rows)
            texts = [text for one in items if isinstance(one, Served) for text in (one.receipt, one.id)]
            if len({type(one) for one in items}) != 1 or not all(isinstance(one, str) for one in texts):
                raise ValueError("they are no predictions")
            return cls(name, float(told), items)
        except (OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from error


def _sums(row: list[Any]) -> ServedSums:
    found = ServedSums(*row)
    texts = (found.model, found.version, found.segment)
    numbers = (found.predicted, found.low, found.high, found.count, found.confidence)
    if not all(isinstance(one, str) for one in texts) or not all(
        type(one) in (int, float) for one in numbers
    ):
        raise TypeError("they are no sums of predictions")
    return found


class Courier:
    """Delivers batches: an unanswered batch is kept, one refused for good is counted as lost.

    A watch that does not answer is asked ever more rarely, and that is said once a minute.
    """

    def __init__(self, destination: Destination, failed: Callable[..., None], *, on_disk: bool) -> None:
        self._destination, self._failed, self._told = destination, failed, dict[str, float]()
        self._where = "" if on_disk else ", in this process alone (give it spool=)"
        self.forget()

    def forget(self) -> None:
        """End the pause between attempts: the watch answered, or was not asked yet."""
        self._pause, self._again = 0.0, 0.0

    @property
    def waits(self) -> bool:
        """Whether the pause after an unanswered attempt still lasts."""
        return time.monotonic() < self._again

    def settles(self, batch: Batch) -> bool:
        """Send a batch; whether it is settled: counted, or refused for good."""
        try:
            refused = self._refused(batch)
        except Unanswered as error:
            self._pause = min(max(2 * self._pause, 0.5), 15.0)  # seconds
            self._again = time.monotonic() + self._pause
            self.failed("watch", 1, "predictions wait to be counted%s: %s", self._where, error)
            return False
        except CalibServeError as error:  # sending it again would change nothing
            status, n = getattr(error, "status", 0), batch.predictions
            if status == 413 and len(batch.items) > 1:  # the watch was given a bound below the usual one
                return all(map(self.settles, batch.halves()))
            # A conflict: another batch was counted under this name.
            if not (isinstance(error, ConflictError) or status == 409):
                self.failed("watch", n, "%d predictions are not counted: %s", n, error)
        else:
            if lost := sum(n for n, _ in refused):
                self.failed("refused", lost, "%d predictions were refused: %s", lost, refused[0][1])
        self.forget()
        return True

    def _refused(self, batch: Batch) -> list[tuple[int, str]]:
        """Send a batch; how many predictions were refused, and why each."""
        sums = [one for one in batch.items if isinstance(one, ServedSums)]
        if sums:
            answers = self._destination.served(sums, time=batch.time, once=batch.name)
            return [(one.count, why) for one, why in zip(sums, answers, strict=True) if why]
        served = [one for one in batch.items if isinstance(one, Served)]
        return [(1, one.message) for one in self._destination.predictions(served, once=batch.name)]

    def failed(self, stage: str, times: int, text: str, *values: object) -> None:
        """Count failures, and log them unless the same was said just before."""
        self._failed(stage, times=times)
        now = time.monotonic()
        if now - self._told.get(text, -60.0) >= 60.0:  # seconds
            self._told[text] = now
            log.warning(text, *values)
