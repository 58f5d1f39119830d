"""Health checks of a running program: its store, disk, clocks, samples and files.

What would keep a program from starting keeps it from acknowledging as well, from when it is found until it is
gone. What is merely wrong is said, by ``/healthz``, a metric and the page.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import and_, insert, or_, select

from calib_serve.core.errors import CalibServeError, InputError, LedgerError
from calib_serve.core.files import LEAST_ROOM, FollowedFile
from calib_serve.ledger import APART, GIVEN, LEDGER_ITSELF, PROGRAM, Intake, Ledger, note_timeline
from calib_serve.receipts import DAY, SampleLog

log = logging.getLogger(__name__)

Level = Literal["degraded", "refusing"]
Status = Literal["ready", "degraded", "failing"]

TOLD_FOR = 900.0
"""Seconds for which a trouble that comes with a batch is told."""

_REPLIES = "replies"
_HEARD = 300.0  # seconds for which a program that wrote to the ledger is taken to run


@dataclass(frozen=True)
class Check:
    """A named check of the watch.

    Args:
        name: Name of the part that is checked.
        run: Returns None when all is well, else a short reason for people, without secrets; an error of ours
            or OSError is a reason as well.
        level: "degraded": it is reported; "refusing": nothing is acknowledged while ``run`` returns a reason.
            Where ``run`` raises, counting is tried all the same, and what cannot be counted is not
            acknowledged.
    """

    name: str
    run: Callable[[], str | None]
    level: Level = "degraded"


@dataclass(frozen=True)
class _Found:
    reason: str | None = None
    refused: bool = False
    public: str | None = None


class Checks:
    """Runs checks every 15 seconds in a thread and keeps the latest results; cheap to read.

    Before the first round all is well.

    >>> full = Checks(Check("disk", lambda: "10 MB are free"), Check("clock", lambda: None))
    >>> full.run()
    >>> full.status, full.reasons()
    ('degraded', {'disk': '10 MB are free', 'clock': None, 'rounds': None})
    """

    every = 15.0
    """Seconds between two rounds."""

    def __init__(self, *checks: Check) -> None:
        self._checks: dict[str, Check] = {}
        self._found: dict[str, _Found] = {}
        self._ran: dict[str, float] = {}
        self._stop, self._started = threading.Event(), False
        self._thread = threading.Thread()
        self._running = threading.Lock()
        self.add(*checks)

    def add(self, *checks: Check) -> None:
        """Add checks; a check of the same name replaces the earlier one."""
        for check in checks:
            self._checks[check.name] = check
            self._found[check.name] = _Found()

    def run(self, *names: str, older: float = 0.0) -> None:
        """Run the checks of these names, or all, that did not run in the last ``older`` seconds."""
        # Who asks for some waits two seconds for a round that waits for the ledger: what is known is told.
        if not self._running.acquire(timeout=2.0 if names else -1):
            return
        try:
            for check in list(self._checks.values()):
                age = time.monotonic() - self._ran.get(check.name, float("-inf"))
                if (not names or check.name in names) and age >= older:
                    self._make(check)
        finally:
            self._running.release()

    def _make(self, check: Check) -> None:
        try:
            reason = check.run()
            found = _Found(reason, reason is not None and check.level == "refusing", reason)
        except (CalibServeError, OSError) as error:
            name = type(error).__name__
            found = _Found(str(error) or name, public=f"{name}: see the program's log")
        before, self._found[check.name] = self._found[check.name], found
        self._ran[check.name] = time.monotonic()
        if self._stop.is_set():
            return  # what is closed cannot be checked
        if found.reason is not None and before.reason is None:
            log.error("check %s: %s", check.name, found.reason)
        elif found.reason is None and before.reason is not None:
            log.warning("check %s: all is well again", check.name)

    def start(self) -> None:
        """Run all checks from now on, in a thread, until ``stop``."""
        self._started = True
        self._thread = threading.Thread(target=self._run, name="calib-checks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which may have a round to end first."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self._started = False

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.run()
            except Exception as error:  # the next round may do
                log.error("checks: %s", error)

    def reasons(self, *, public: bool = False) -> dict[str, str | None]:
        """The result of each check: None, or the reason why not all is well.

        ``public``: for everybody, without what errors say, which may name files and hosts.
        """
        found = {name: one.public if public else one.reason for name, one in list(self._found.items())}
        oldest = min(self._ran.values(), default=None)
        ago = 0.0 if oldest is None else time.monotonic() - oldest
        late = self._started and ago > 75.0
        return {**found, "rounds": f"no round of checks ended for {ago:.0f} s" if late else None}

    @property
    def refused(self) -> str | None:
        """The reason why nothing may be acknowledged, if there is one."""
        return next((one.reason for one in list(self._found.values()) if one.refused), None)

    @property
    def status(self) -> Status:
        """``ready``; ``degraded``: counting, with something wrong; ``failing``: unable to count."""
        wrong = [name for name, reason in self.reasons().items() if reason is not None]
        if any(name in self._checks and self._checks[name].level == "refusing" for name in wrong):
            return "failing"
        return "degraded" if wrong else "ready"


def counting_checks(
    ledger: Ledger,
    intake: Intake,
    *,
    program: str,
    ttl: float,
    given: Callable[[], Mapping[str, str]] = dict,
) -> list[Check]:
    """Checks of a program that counts labels in ``ledger`` until ``ttl`` seconds after a prediction.

    ``program``: what tells it from other programs of this host. ``given`` returns what it was given that all
    on the ledger should have alike.
    """
    peers, clock = _Peers(ledger, f"{program} {socket.gethostname()}", ttl, given), ledger.time.now
    return [
        Check("ledger", peers.write, "refusing"),
        Check("durability", ledger.database.trouble),
        Check("timeline", lambda: peers.failover),
        Check("disk", lambda: _disk(ledger)),
        Check("clock", peers.clock),
        Check("ttl", peers.ttl),
        Check("options", peers.options),
        Check(_REPLIES, lambda: _replies(ledger, clock())),
        Check("receipts", lambda: _ahead(intake)),
        Check("ids", _Guesses(intake, clock).run),
    ]


def note_replies(ledger: Ledger, server: str, *, now: float) -> None:
    """Note in the ledger that replies of a server do not show what it calibrates; told for five minutes.

    Args:
        ledger: Ledger of the labels.
        server: Name of the server, which tells it from others.
        now: Time, as seconds since 1970.
    """
    row = {"program": server, "what": _REPLIES, "value": str(now)}
    noted = ledger.database.insert(GIVEN).values(row)
    with ledger.transaction() as connection:
        connection.execute(noted.on_conflict_do_update(index_elements=["program", "what"], set_=row))


def _replies(ledger: Ledger, now: float) -> str | None:
    with ledger.database.reading() as connection:
        noted = connection.execute(select(GIVEN.c.value).where(GIVEN.c.what == _REPLIES)).scalars()
        told = sum(now - float(at) < _HEARD for at in noted)
    if not told:
        return None
    return (
        f"{told} servers answer without receipts, as replies do not show what they calibrate; see their logs"
    )


def _disk(ledger: Ledger) -> str | None:
    if not ledger.database.lite:
        return None
    free = shutil.disk_usage(ledger.database.path.absolute().parent).free
    return None if free > LEAST_ROOM else f"{free / 2**20:.0f} MiB are free for the ledger; free some space"


class _Peers:
    """The programs that share a ledger: each notes there when it last wrote, and its options."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        ttl: float,
        given: Callable[[], Mapping[str, str]],
    ) -> None:
        self._ledger, self._name, self._ttl, self._clock = ledger, name, ttl, ledger.time.now
        self._given, self._said = given, dict[str, str]()
        self._others: dict[str, tuple[float, float]] = {}
        self._behind: dict[str, float] = {}
        self.failover: str | None = None

    def write(self) -> None:
        """Note this program in the ledger; LedgerError where it takes no writes, or refused one lately."""
        now, name, before = self._clock(), PROGRAM.c.name, self._others
        row = {"name": self._name, "wrote_at": now, "ttl": self._ttl}
        with self._ledger.transaction() as connection:
            self._ledger.time.advance(connection)
            self.failover = note_timeline(self._ledger.database, connection)
            mine = self._ledger.database.insert(PROGRAM).values(row)
            connection.execute(mine.on_conflict_do_update(index_elements=["name"], set_=row))
            others = connection.execute(PROGRAM.select().where(name != self._name)).all()
            self._others = {one.name: (one.wrote_at, one.ttl) for one in others}
            # Those that run write again, also where their clocks are others.
            gone = or_(PROGRAM.c.wrote_at < now - DAY, PROGRAM.c.wrote_at > now + APART)
            connection.execute(PROGRAM.delete().where(gone, name != self._name))
        self._behind = {
            one: now - wrote
            for one, (wrote, _) in self._others.items()
            if one in before and wrote != before[one][0] and now - wrote > APART
        }
        if self._behind:
            self._ledger.time.doubt()
        at, why = self._ledger.refused
        if time.monotonic() - at < 15.0:  # a lock on other tables, say
            raise LedgerError(f"it refused a write lately: {why}")

    def clock(self) -> str | None:
        """A reason where clocks are apart: this one, the ledger's, or another program's."""
        now = self._clock()
        for name, (wrote, _) in self._others.items():
            if wrote - now > APART:
                return f"this host's clock is {wrote - now:.0f} s behind that of {name}; set both by NTP"
        for name, seconds in self._behind.items():
            return f"this host's clock is {seconds:.0f} s ahead of that of {name}; set both by NTP"
        return self._ledger.time.trouble(self._ledger.forgotten_until())

    def ttl(self) -> str | None:
        """A reason where another program takes labels for another time than this one."""
        now = self._clock()
        for name, (wrote, ttl) in self._others.items():
            if abs(now - wrote) < _HEARD and ttl != self._ttl:
                return (
                    f"labels are taken for {self._ttl / DAY:g} days here and for {ttl / DAY:g} by {name}, "
                    "which shares the ledger; receipts are remembered for the longer time: give both one"
                )
        return None

    def options(self) -> None:
        """Raise InputError where another program has other options; the message may name models."""
        given = dict(self._given())
        if given != self._said:
            rows = [{"program": self._name, "what": what, "value": value} for what, value in given.items()]
            with self._ledger.transaction() as connection:
                gone = GIVEN.c.program.not_in([*connection.scalars(select(PROGRAM.c.name)), LEDGER_ITSELF])
                connection.execute(GIVEN.delete().where((GIVEN.c.program == self._name) | gone))
                connection.execute(insert(GIVEN), rows)
            self._said = given
        other, name = GIVEN.alias("other"), GIVEN.c.program
        mine = and_(name == self._name, GIVEN.c.what == other.c.what, GIVEN.c.value != other.c.value)
        runs = and_(PROGRAM.c.name == other.c.program, PROGRAM.c.wrote_at > self._clock() - _HEARD)
        asked = select(other.c.program, GIVEN.c.what, other.c.value, GIVEN.c.value.label("here"))
        asked = asked.select_from(GIVEN.join(other, mine).join(PROGRAM, runs)).limit(1)
        with self._ledger.database.reading() as connection:
            found = connection.execute(asked).first()
        if found is not None:
            raise InputError(
                f"{found.program}, which shares the ledger, was given {found.what}: {found.value}, and this "
                f"program {found.here}: give both the same"
            )


class _Guesses:
    """Counts labels by unknown ids: many an hour are guesses, or their predictions come without ids."""

    def __init__(self, intake: Intake, clock: Callable[[], float]) -> None:
        self._intake, self._clock = intake, clock
        self._began, self._before = -math.inf, 0

    def run(self) -> str | None:
        unknown, now = self._intake.refused["unknown_id"], self._clock()
        told = unknown - self._before
        if now - self._began > 3600.0:
            self._began, self._before = now, unknown
        if told < 1_000:
            return None
        return (
            f"{told} labels named predictions by ids that are not known here; see who sends them, that "
            "predictions come with their ids, and that who labels those of others has the scope ids"
        )


def _ahead(intake: Intake) -> str | None:
    seconds, at = intake.ahead
    if not seconds > APART or time.monotonic() - at > TOLD_FOR:
        return None
    return (
        f"receipts are dated {seconds:.0f} s ahead of this host's clock; set the clocks of all hosts by NTP"
    )


def samples_check(samples: SampleLog) -> Check:
    """Make a check that samples can be written, and that all programs keep the same ones."""

    def run() -> str | None:
        if not os.access(samples.folder, os.W_OK | os.X_OK):
            return "the folder of samples is missing, or nothing can be written into it"
        free = shutil.disk_usage(samples.folder).free
        if free <= LEAST_ROOM:
            return f"{free / 2**20:.0f} MiB are free for samples; free some space"
        return samples.trouble

    return Check("samples", run)


def file_check(name: str, file: FollowedFile[Any]) -> Check:
    """Make a check that a followed file can be read, as the next start must.

    Args:
        name: Name of the check.
        file: File whose trouble is the reason.
    """

    def run() -> None:
        if why := file.trouble():
            raise InputError(why)  # not returned: it names the file

    return Check(name, run)
