"""Which versions a scrape tells of, where the series of all of them would be too many for one scrape.

Versions come first, and what room they leave goes to their segments. What is left out is counted and
published, never left out in silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from calib_serve.watch.ledger import Version

__all__ = ["MAX_SERIES", "Room"]

MAX_SERIES = 50_000
"""Series of one scrape, about: so many are told within a second."""

_IDLE = 3600.0  # seconds without a label or prediction, after which a version makes room for another


class Room:
    """Chooses as many versions as fit, the same ones from scrape to scrape while they are in use.

    ``clock``: that of the times at which versions were counted last.

    >>> room = Room(clock=lambda: 10_000.0)
    >>> a, b, c = (("m", name) for name in "abc")
    >>> room.choose({a: 2, b: 2, c: 2}, {b: 9_990.0}, most=4)
    [('m', 'b'), ('m', 'a')]
    >>> room.choose({a: 2, b: 2, c: 2}, {b: 9_990.0, c: 9_999.0}, most=4)
    [('m', 'b'), ('m', 'c')]
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._chosen: frozenset[Version] = frozenset()

    def choose(
        self, sizes: Mapping[Version, int], counted_at: Mapping[Version, float], *, most: int
    ) -> list[Version]:
        """Versions whose ``sizes`` add up to ``most`` at most: those in use first, then the chosen."""
        in_use = self.in_use(counted_at)
        chosen = []
        for version in sorted(sizes, key=lambda v: (v not in in_use, v not in self._chosen)):
            if sizes[version] <= most:
                most -= sizes[version]
                chosen.append(version)
        self._chosen = frozenset(chosen)
        return chosen

    def crowded_out(self, versions: Iterable[Version], counted_at: Mapping[Version, float]) -> int:
        """How many of these versions are in use, and were not chosen last."""
        return len(self.in_use(counted_at).intersection(versions).difference(self._chosen))

    def in_use(self, counted_at: Mapping[Version, float]) -> set[Version]:
        """The versions that were counted lately."""
        now = self._clock()
        return {version for version, at in list(counted_at.items()) if now - at <= _IDLE}
