"""The names of segments, bounded: what clients invent must not grow a table."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from calib_serve.watch.ledger import Key, Version

__all__ = ["OTHER", "Segments"]

OTHER = "other"
"""The segment that counts what comes after ``most`` different ones."""


class Segments:
    """The first ``most`` different segments of each model version; safe to use from threads.

    ``known``: the keys that are counted already.

    >>> segments = Segments(1)
    >>> [segments.under(("digits", "1.0"), name) for name in ("north", "south", "north", "")]
    ['north', 'other', 'north', '']
    """

    def __init__(self, most: int, *, known: Iterable[Key] = ()) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._names: dict[Version, set[str]] = {}
        for key in known:
            self._names.setdefault((key.model, key.version), set()).add(key.segment)

    def under(self, version: Version, name: str) -> str:
        """The segment to count ``name`` under: its own, or ``other`` once there are ``most``."""
        with self._lock:
            names = self._names.setdefault(version, set())
            if not name or name in names:
                return name
            if len(names - {"", OTHER}) >= self.most:
                return OTHER
            names.add(name)
        return name
