"""A log that clients cannot fill: what repeats is written a few times a minute, and counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Sparing", "sparing"]

_EVERY = 60.0  # seconds
_OF_EACH = 5  # messages of one kind in that time
_KINDS = 256  # that are told apart; beyond them all are one


class Sparing(logging.Filter):
    """Lets through a few messages of each kind a minute; the next one after says how many were left out.

    >>> quiet = Sparing(clock=lambda: 0.0)
    >>> record = logging.makeLogRecord({"msg": "no more files"})
    >>> sum(quiet.filter(record) for _ in range(1000))
    5
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._since = clock, clock()
        self._seen, self._before = dict[tuple[str, str], int](), dict[tuple[str, str], int]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is written."""
        now = self._clock()
        if now - self._since >= _EVERY:
            self._before, self._seen, self._since = self._seen, {}, now
        kind = (record.name, str(record.msg).partition("\n")[0][:80])
        if kind not in self._seen and len(self._seen) >= _KINDS:
            kind = ("", "")
        more = self._before.pop(kind, 0) - _OF_EACH
        self._seen[kind] = self._seen.get(kind, 0) + 1
        if more > 0:
            record.msg = f"{record.msg} ({more} more like this before)"
        return self._seen[kind] <= _OF_EACH


@contextmanager
def sparing(*names: str) -> Iterator[None]:
    """Inside, the loggers of these names write sparingly."""
    kept = Sparing()
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(kept)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(kept)
