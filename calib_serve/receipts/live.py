"""A keyring that follows its file: what runs uses new keys without a restart."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from calib_serve.errors import KeyringError, Refused
from calib_serve.receipts.keyring import Keyring
from calib_serve.receipts.receipt import DAY, Receipt

__all__ = ["LiveKeyring"]

log = logging.getLogger(__name__)


class LiveKeyring:
    """The keyring in ``path``, read again when the file has changed; safe to use from threads.

    The file is looked at when the ring is used, at most every so many seconds, and at once after ``again``. A
    file that cannot be read leaves the ring as it was: that is logged, told by ``trouble``, and ``failed`` is
    called at each try. KeyringError where the file cannot be read to begin with. ``clock``: seconds that
    never go back.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._every, self._clock = Path(path), every, clock
        self.failed = failed
        file = _identity(self._path)
        self._read = _Read(file, Keyring.load(self._path))
        self._due, self._asked = clock() + every, False

    def current(self) -> Keyring:
        """The ring of this moment; take it once for a batch."""
        if self._clock() >= self._due:
            self._look()
        return self._read.ring

    def verify(self, token: str, *, now: float | None = None, ttl: float = 30 * DAY) -> Receipt:
        """As ``Keyring.verify``; for an unknown key the file is looked at first, whenever it was last."""
        ring = self.current()
        try:
            return ring.verify(token, now=now, ttl=ttl)
        except Refused as refusal:
            if refusal.reason != "unknown_key":
                raise
            self._look(again=False)
            if self._read.ring is ring:
                raise
        return self._read.ring.verify(token, now=now, ttl=ttl)

    def again(self) -> None:
        """Read the file again at the next use, also where it looks unchanged; may be called by a signal."""
        self._asked, self._due = True, -math.inf

    def trouble(self) -> str | None:
        """Why the file cannot be used, if so: then the ring is the one that was read before."""
        self.current()
        return self._read.why

    def _look(self, *, again: bool = True) -> None:
        # Without a lock: where two threads read at once, the next look finds what the later one missed.
        self._due = self._clock() + self._every
        asked, self._asked = self._asked, False
        file, before = _identity(self._path), self._read
        if file == before.file and not asked and not (before.why and again):
            return
        try:
            self._read = _Read(file, Keyring.load(self._path))
        except KeyringError as error:
            self._read = _Read(file, before.ring, str(error))
            if before.why != str(error):
                log.error("the keyring stays as it was read before: %s", error)
            self.failed()
        else:
            log.info("read the keyring %s again: %s signs", self._path, self._read.ring.active)


_Identity = tuple[int, ...]


class _Read(NamedTuple):
    """A ring, which file it is of, and why a later file could not be read."""

    file: _Identity | None
    ring: Keyring
    why: str | None = None


def _identity(path: Path) -> _Identity | None:
    """What tells a file from the one before, with the time that chmod changes; None where it is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
