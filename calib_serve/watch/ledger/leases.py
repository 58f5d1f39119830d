"""Who publishes: one process at a time holds the name that it counts under.

Two that published the sums of one name would show each label twice. A process takes the first name that is
free, so one that is started again goes on under the name of the one that died.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import count
from typing import NamedTuple, Protocol

from calib_serve.errors import InputError, LedgerError

__all__ = ["Held", "Holder", "Leases", "RowLeases", "WriterLease"]

log = logging.getLogger(__name__)

LEASE = 15.0
"""Seconds without a sign of life after which a holder is taken for dead, where only the store knows of it."""

_BEATS = 4  # signs of life a lease
_LONGEST = 60  # characters of a name: it becomes part of a file's name and of a label


@dataclass(frozen=True)
class Holder:
    """A process, or several that publish between them under one ``id``; ``since``: Unix seconds."""

    id: str
    host: str
    pid: int
    since: float

    @classmethod
    def here(cls, shared: str = "") -> Holder:
        """Of this process; with those that give the same ``shared`` it holds names together."""
        return cls(shared or secrets.token_hex(8), socket.gethostname(), os.getpid(), time.time())

    def packed(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def unpacked(cls, text: str | bytes) -> Holder:
        """The holder behind ``packed``; one that nobody knows where that is damaged."""
        try:
            said = json.loads(text)
            return cls(str(said["id"]), str(said["host"]), int(said["pid"]), float(said["since"]))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            return cls("", "an unknown host", 0, 0.0)

    def __str__(self) -> str:
        try:
            since = datetime.fromtimestamp(self.since, timezone.utc).isoformat(timespec="seconds")
        except (ValueError, OverflowError, OSError):
            since = "an unknown time"
        return f"process {self.pid} on {self.host} since {since}"


class Held(NamedTuple):
    """Who holds a name, and for how many seconds still, without a sign of life; infinity: it lives."""

    holder: Holder
    left: float


class Leases(Protocol):
    """The names of one ledger's writers.

    ``seconds`` of a lease; 0 where the death of a holder is known at once.
    """

    seconds: float

    def look(self, name: str) -> Held | None:
        """Who holds the name; None also where only ``take`` can tell."""

    def take(self, name: str, holder: Holder) -> Held | None:
        """Take the name, or renew the lease on it; who else holds it, or None: it is ``holder``'s."""

    def release(self, name: str, holder: Holder) -> None:
        """Give the name back, if it is ``holder``'s."""

    def remember(self, name: str, note: bytes) -> None:
        """Keep a note for the next holder of the name."""

    def recall(self, name: str) -> bytes | None:
        """The last note."""


class _Ledger(Protocol):
    """What a lease needs of a ledger."""

    writer: str

    @property
    def leases(self) -> Leases: ...


class _State(Protocol):
    """Where leases may be kept as rows."""

    def transaction(self) -> AbstractContextManager[None]: ...
    def load(self, key: str) -> bytes | None: ...
    def store(self, key: str, value: bytes) -> None: ...


class RowLeases:
    """Leases as rows of a ledger, for systems without locks that die with their process."""

    def __init__(
        self, state: _State, *, seconds: float = LEASE, clock: Callable[[], float] = time.time
    ) -> None:
        self._state, self.seconds, self._clock = state, seconds, clock

    def look(self, name: str) -> Held | None:
        """Who holds the name."""
        try:
            said = json.loads(self._state.load(f"lease/{name}") or b"null")
            left = float(said["until"]) - self._clock()
            # Dated far ahead by a clock that has gone back, it must not be held for ever.
            return Held(Holder.unpacked(said["holder"]), left) if 0 < left <= self.seconds else None
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def take(self, name: str, holder: Holder) -> Held | None:
        """Take the name, or renew the lease on it; who else holds it."""
        with self._state.transaction():
            held = self.look(name)
            if held is None or held.holder.id == holder.id:
                row = {"holder": holder.packed(), "until": self._clock() + self.seconds}
                self._state.store(f"lease/{name}", json.dumps(row).encode())
                return None
        return held

    def release(self, name: str, holder: Holder) -> None:
        """Give the name back, if it is ``holder``'s."""
        with self._state.transaction():
            held = self.look(name)
            if held is not None and held.holder.id == holder.id:
                self._state.store(f"lease/{name}", b"null")

    def remember(self, name: str, note: bytes) -> None:
        """Keep a note for the next holder of the name."""
        self._state.store(f"published-by/{name}", note)

    def recall(self, name: str) -> bytes | None:
        """The last note."""
        return self._state.load(f"published-by/{name}")


class WriterLease:
    """The right to publish what is counted under a name; ``ledger`` counts under it from then on.

    ``name``: the one to have; with ``strict`` no other, else the first free one of it, ``2``, ``3`` and so
    on, or of ``a``, ``a-2``, ``a-3``. ``shared``: processes that give the same hold names together. Waits
    for a holder that may have just died, as long as a lease lasts. InputError where it is not to be had.
    """

    def __init__(self, ledger: _Ledger, *, name: str = "", strict: bool = False, shared: str = "") -> None:
        if len(name) > _LONGEST or not name.isprintable():
            raise InputError(f"a writer's name has at most {_LONGEST} printable characters, got {name!r}")
        self._ledger, self._leases, self.asked = ledger, ledger.leases, name
        self._shared = bool(shared)
        self.holder, self.name, self.lost = Holder.here(shared), name, 0
        self._lock, self._stop = threading.RLock(), threading.Event()
        self._got(self._first(strict=strict))
        if self._leases.seconds:
            threading.Thread(target=self._beat, name="calib-lease", daemon=True).start()

    def _names(self) -> Iterator[str]:
        yield self.asked
        yield from (f"{self.asked}-{n}" if self.asked else str(n) for n in count(2))

    def _got(self, name: str) -> None:
        self.name = self._ledger.writer = name
        self._sure = time.monotonic()

    def _first(self, *, strict: bool) -> str:
        ends: dict[str, float] = {}  # when each lease ends, unless it is renewed
        while True:
            unsure = False
            for name in self._names():
                held = self._leases.look(name)
                if held is None and not unsure:
                    held = self._leases.take(name, self.holder)
                    if held is None:
                        return name
                if held is None:
                    break  # free; but the one before may turn out to be
                if held.holder.id == self.holder.id and self._leases.take(name, self.holder) is None:
                    return name  # it is shared
                end = time.monotonic() + held.left
                alive = end > ends.setdefault(name, end) + self._leases.seconds / (2 * _BEATS)
                if strict and (alive or math.isinf(held.left)):
                    raise InputError(
                        f"the writer name {name!r} of this ledger is held by {held.holder}; "
                        "each process that shares a ledger has a name of its own, which it finds without one"
                    )
                unsure |= not alive and not math.isinf(held.left)
                if strict:
                    break
            time.sleep(min(0.2, self._leases.seconds / 10 or 0.05))

    def hold(self) -> str:
        """The name to publish under: as before, or another where this process stood still for too long.

        LedgerError where nobody knows whose it is.
        """
        with self._lock:
            try:
                held = self._leases.take(self.name, self.holder)
            except LedgerError:
                if time.monotonic() - self._sure < self._leases.seconds:
                    return self.name  # nobody else can have it yet
                raise
            if held is None:
                self._sure = time.monotonic()
                return self.name
            before, self.lost = self.name, self.lost + 1
            self._got(next(n for n in self._names() if self._leases.take(n, self.holder) is None))
            log.error("the writer name %r went to %s; this process goes on as %r", before, held[0], self.name)
            return self.name

    def _beat(self) -> None:
        while not self._stop.wait(self._leases.seconds / _BEATS):
            # Lost or not is seen by whoever publishes next.
            with contextlib.suppress(LedgerError), self._lock:
                if not self._stop.is_set() and self._leases.take(self.name, self.holder) is None:
                    self._sure = time.monotonic()

    def close(self) -> None:
        """Give the name back."""
        self._stop.set()
        with contextlib.suppress(LedgerError), self._lock:
            if not self._shared:
                self._leases.release(self.name, self.holder)
