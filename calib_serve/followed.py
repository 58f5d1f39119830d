"""A file that is followed: what was made of it is made anew when it changes, and stays while it is broken."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from calib_serve.errors import CalibServeError

__all__ = ["FollowedFile"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class FollowedFile(Generic[T]):
    """What ``read`` makes of the file at ``path``, read again when that has changed; for any thread.

    The file is looked at when it is used, at most every so many seconds, and at once after ``again``. One of
    which ``read`` raises an error of ours leaves what was read before: that is logged once, told by
    ``trouble``, and ``failed`` is called at each try. The first time the error is raised. ``clock``: seconds
    that never go back.
    """

    def __init__(
        self,
        path: str | Path,
        read: Callable[[Path], T],
        *,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._make, self._every, self._clock = Path(path), read, every, clock
        self.failed = failed
        file = _identity(self._path)
        self._read = _Read(file, read(self._path))
        self._due, self._asked = clock() + every, False

    def current(self) -> T:
        """What is in the file at this moment."""
        if self._clock() >= self._due:
            self._look(again=True)
        return self._read.made

    def changed(self) -> T:
        """The same, and the file is looked at whenever that was last; a broken one is not tried again."""
        self._look(again=False)
        return self._read.made

    def again(self) -> None:
        """Read the file again at the next use, also where it looks unchanged; may be called by a signal."""
        self._asked, self._due = True, -math.inf

    def trouble(self) -> str | None:
        """Why the file cannot be used, if so: then what was read before still holds."""
        self.current()
        return self._read.why

    def _look(self, *, again: bool) -> None:
        # Without a lock: where two threads read at once, the next look finds what the later one missed.
        self._due = self._clock() + self._every
        asked, self._asked = self._asked, False
        file, before = _identity(self._path), self._read
        if file == before.file and not asked and not (before.why and again):
            return
        try:
            self._read = _Read(file, self._make(self._path))
        except CalibServeError as error:
            self._read = _Read(file, before.made, str(error))
            if before.why != str(error):
                log.error("%s stays as it was read before: %s", self._path.name, error)
            self.failed()
        else:
            log.info("read %s again", self._path)


@dataclass(frozen=True)
class _Read(Generic[T]):
    """What was made of a file, of which one, and why a later one could not be read."""

    file: tuple[int, ...] | None
    made: T
    why: str | None = None


def _identity(path: Path) -> tuple[int, ...] | None:
    """What tells a file from the one before, with the time that chmod changes; None where it is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
