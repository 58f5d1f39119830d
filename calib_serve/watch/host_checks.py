"""Checks of what a program that counts stands on: its ledger, clocks, drift detection, samples and keys."""

from __future__ import annotations

import math
import os
import shutil
import socket
import time
from collections.abc import Callable
from typing import Any

from calib_serve.errors import InputError
from calib_serve.files import FollowedFile
from calib_serve.receipts import DAY
from calib_serve.watch.checks import Check
from calib_serve.watch.feed import DriftFeed
from calib_serve.watch.intake import Intake
from calib_serve.watch.ledger import Ledger
from calib_serve.watch.ledger.schema import PROGRAM
from calib_serve.watch.samples import SampleLog

__all__ = ["counting_checks", "drift_check", "file_check", "samples_check"]

_APART = 60.0  # seconds between clocks
_HEARD = 300.0  # seconds for which a program that wrote to the ledger is taken to run
_LATELY = 900.0  # seconds for which a receipt from ahead of its time is told
_HOUR = 3600.0
_GUESSES = 1_000  # labels of unknown ids in an hour
_ROOM = 64 << 20  # bytes that are free, at least


def counting_checks(
    ledger: Ledger, intake: Intake, *, program: str, ttl: float, clock: Callable[[], float] = time.time
) -> list[Check]:
    """The checks of a program that counts labels in ``ledger`` for ``ttl`` seconds after a prediction.

    ``program``: what tells it from other programs of this host.
    """
    peers = _Peers(ledger, f"{program} {socket.gethostname()}", ttl, clock)
    return [
        Check("ledger", peers.write, "refusing"),
        Check("durability", ledger.database.trouble),
        Check("disk", lambda: _disk(ledger)),
        Check("clock", peers.clock),
        Check("ttl", peers.ttl),
        Check("receipts", lambda: _ahead(intake)),
        Check("ids", _Guesses(intake, clock).run),
    ]


def _disk(ledger: Ledger) -> str | None:
    if not ledger.database.lite:
        return None
    free = shutil.disk_usage(ledger.database.path.absolute().parent).free
    return None if free > _ROOM else f"{free / 2**20:.0f} MiB are free for the ledger; free some space"


class _Peers:
    """Programs that share the ledger say there when they wrote last and for how long they take labels."""

    def __init__(self, ledger: Ledger, name: str, ttl: float, clock: Callable[[], float]) -> None:
        self._ledger, self._name, self._ttl, self._clock = ledger, name, ttl, clock
        self._others: dict[str, tuple[float, float]] = {}

    def write(self) -> None:
        """Whether the ledger takes what it is given: LedgerError where it does not."""
        now, name = self._clock(), PROGRAM.c.name
        row = {"name": self._name, "wrote_at": now, "ttl": self._ttl}
        with self._ledger.transaction() as connection:
            mine = self._ledger.database.insert(PROGRAM).values(row)
            connection.execute(mine.on_conflict_do_update(index_elements=["name"], set_=row))
            connection.execute(PROGRAM.delete().where(PROGRAM.c.wrote_at < now - DAY, name != self._name))
            others = connection.execute(PROGRAM.select().where(name != self._name))
            self._others = {one.name: (one.wrote_at, one.ttl) for one in others}

    def clock(self) -> str | None:
        """Whether another program's clock is ahead of this one's."""
        now = self._clock()
        for name, (wrote, _) in self._others.items():
            if wrote - now > _APART:
                return f"this host's clock is {wrote - now:.0f} s behind that of {name}; set both by NTP"
        return None

    def ttl(self) -> str | None:
        """Whether another program takes labels for another time."""
        now = self._clock()
        for name, (wrote, ttl) in self._others.items():
            if abs(now - wrote) < _HEARD and ttl != self._ttl:
                return (
                    f"labels are taken for {self._ttl / DAY:g} days here and for {ttl / DAY:g} by {name}, "
                    "which shares the ledger; receipts are remembered for the longer time: give both one"
                )
        return None


class _Guesses:
    """Labels by ids that nobody knows, many in an hour: somebody guesses, or predictions come without ids."""

    def __init__(self, intake: Intake, clock: Callable[[], float]) -> None:
        self._intake, self._clock = intake, clock
        self._began, self._before = -math.inf, 0

    def run(self) -> str | None:
        unknown, now = self._intake.refused["unknown_id"], self._clock()
        told = unknown - self._before
        if now - self._began > _HOUR:
            self._began, self._before = now, unknown
        if told < _GUESSES:
            return None
        return (
            f"{told} labels named predictions by ids that are not known here; see who sends them, that "
            "predictions come with their ids, and that who labels those of others has the scope ids"
        )


def _ahead(intake: Intake) -> str | None:
    seconds, at = intake.ahead
    if not seconds > _APART or time.monotonic() - at > _LATELY:
        return None
    return (
        f"receipts are dated {seconds:.0f} s ahead of this host's clock; set the clocks of all hosts by NTP"
    )


def drift_check(feed: DriftFeed) -> Check:
    """Whether labels reach the drift detectors, and what is kept of earlier ones was read."""
    return Check("drift", lambda: feed.trouble or feed.begun_anew())


def samples_check(samples: SampleLog) -> Check:
    """Whether samples can be written."""

    def run() -> str | None:
        if not os.access(samples.folder, os.W_OK | os.X_OK):
            return "the folder of samples is missing, or nothing can be written into it"
        free = shutil.disk_usage(samples.folder).free
        return None if free > _ROOM else f"{free / 2**20:.0f} MiB are free for samples; free some space"

    return Check("samples", run)


def file_check(name: str, file: FollowedFile[Any]) -> Check:
    """Whether a file that is read again can be used, as the next start will."""

    def run() -> None:
        if why := file.trouble():
            raise InputError(why)  # not returned: it names the file

    return Check(name, run)
