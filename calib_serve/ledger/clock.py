"""The time of a ledger: what its programs date, refuse and forget by, whatever one host's clock says.

PostgreSQL's programs go by the clock of its server. A file of SQLite keeps a time of its own, which only goes
forward, as fast as time passes while a program runs, and never ahead of that program's clock. So a clock that
jumps ahead takes nothing away, and one that falls back dates nothing into the past. After a pause the file's
time is behind: it follows a clock that is less than an hour ahead at once, and a further one once it has been
so for a day and no other program's clock said otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from sqlalchemy import Connection, func, select, text, update

from calib_serve.core.errors import LedgerError
from calib_serve.core.text import when
from calib_serve.ledger.database import Database
from calib_serve.ledger.schema import LEDGER
from calib_serve.receipts import DAY

APART = 60.0
"""Seconds between clocks of hosts that are set by NTP, at most."""

_LOOK = 10.0  # seconds for which the server's answer is taken on from a steady clock
_NEAR = 3600.0  # seconds: a clock no further ahead is followed at once


def steady_seconds() -> float:
    """Seconds that never go back and also count while the host sleeps, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LedgerClock:
    """The time of the ledger in ``database``; safe to use from threads.

    ``clock``: this host's seconds since 1970. ``steady``: seconds that never go back.
    """

    def __init__(
        self, database: Database, clock: Callable[[], float], steady: Callable[[], float] = steady_seconds
    ) -> None:
        self._database, self._clock, self._steady = database, clock, steady
        self._base = self._known = clock()
        self._at, self._skew = steady(), clock() - steady()
        self._looked, self._apart_at = -_LOOK, 0.0  # steady seconds
        self._apart_by = -math.inf  # how far this clock is ahead since then, at least

    def now(self) -> float:
        """The present, in seconds since 1970."""
        if not self._database.lite:
            return self._of_server()
        ours, passed = self._clock(), self._passed()
        return ours if ours > passed - APART else passed

    @property
    def lag(self) -> float:
        """The seconds by which this host's clock is ahead of the ledger's time; 0 where it is not."""
        return max(self._clock() - self._there(), 0.0)

    def advance(self, connection: Connection) -> float:
        """The time by which something may be forgotten, never ahead of either clock; a file's goes on."""
        if not self._database.lite:
            return min(self._clock(), self._of_server())
        known = connection.execute(select(LEDGER.c.time)).scalar() or self._base
        # Earlier than this program saw it: somebody set it right, and what passes is counted from there.
        passed = self._passed() if known >= self._known else known
        ahead = self._clock() - passed
        if ahead > self._apart_by + _NEAR:  # further than it was
            self._apart_at, self._apart_by = self._steady(), ahead
        self._apart_by = min(self._apart_by, ahead) if ahead > _NEAR else -math.inf
        # A clock is followed in small steps: a steady one is off by seconds a month.
        followed = ahead > -APART and (ahead <= _NEAR or self._steady() - self._apart_at > DAY)
        now = self._clock() if followed else passed
        self._set(connection, max(known, now))
        self._base = now
        return now

    def believe(self, connection: Connection) -> float:
        """Make this host's time that of a file, as a person asks; return the ledger's time."""
        if self._database.lite:
            self._set(connection, self._clock())
        return self.now()

    def _set(self, connection: Connection, now: float) -> None:
        connection.execute(update(LEDGER).values(time=now))
        self._base, self._known, self._at = now, now, self._steady()

    def doubt(self) -> None:
        """Note that another program's clock is behind this one's: a day begins in which it may be right."""
        self._apart_by = -math.inf

    def trouble(self, forgotten_until: float) -> str | None:
        """A reason where this clock and the ledger's time are apart, or what was forgotten is to come."""
        ahead, of = self._clock() - self._there(), "ledger's time" if self._database.lite else "database's"
        repair = "calib-serve ledger clock --repair"
        if forgotten_until > self.now() + APART:
            return (
                f"labels of predictions made until {when(forgotten_until)}, which is to come, are refused as "
                f"forgotten, by a clock that was ahead: run {repair}"
            )
        if ahead < -APART:
            return f"this host's clock is {-ahead:.0f} s behind the {of}; set it by NTP, or run {repair}"
        if ahead > (DAY if self._database.lite else APART):
            after = f"; nothing is forgotten by it for a day, or until {repair} says that it is right"
            return (
                f"this host's clock is {ahead:.0f} s ahead of the {of}{after if self._database.lite else ''}"
            )
        return None

    def _there(self) -> float:
        """The time that this host's clock is measured by."""
        return self._passed() if self._database.lite else self._of_server()

    def _passed(self) -> float:
        return self._base + self._steady() - self._at

    def _of_server(self) -> float:
        """The server's time, as it was some seconds ago and what passed since."""
        skew = self._clock() - self._steady()  # which changes where the clock is set, or the host slept
        if self._steady() - self._looked >= _LOOK or abs(skew - self._skew) > 1.0:
            self._looked, self._skew = self._steady(), skew
            try:
                with self._database.reading() as connection:
                    found = connection.execute(select(func.extract("epoch", text("clock_timestamp()"))))
                    self._base, self._at = float(found.scalar_one()), self._steady()
            except LedgerError:  # what is away is told where it is used; its last answer holds
                pass
        return self._passed()
