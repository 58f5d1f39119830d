"""Who publishes: one process at a time holds the name that it counts under.

Two that published the sums of one name would show each label twice. A process takes the first name that is
free, so one that is started again goes on under the name of the one that died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote

from calib_serve.errors import InputError, LedgerError

__all__ = ["FileLeases", "Held", "Holder", "Leases", "WriterLease"]

log = logging.getLogger(__name__)

LEASE = 15.0
"""Seconds without a sign of life after which a holder is taken for dead, where only the store knows of it."""

_TRIES = 4  # others may hold a lock on a file for a moment, to see whose it is
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


class FileLeases:
    """The writers of the ledger at ``path``: a file beside it for each, with its holder and its note.

    They hold between containers of one host that share the folder. The files stay: whoever deletes one while
    it is held takes the name away.
    """

    seconds = 0.0

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._open: dict[str, int] = {}

    def _file(self, name: str) -> Path:
        return self._path.with_name(f"{self._path.name}.writer{name and '-'}{quote(name, safe='')}")

    def look(self, name: str) -> Held | None:
        """Nothing: only ``take`` can tell."""
        del name
        return None

    def take(self, name: str, holder: Holder) -> Held | None:
        """Take the name; who else holds it."""
        with self._errors(name):
            if name in self._open:
                if self._is_there(name, self._open[name]):
                    ours = Holder.unpacked(_read(self._open[name])["holder"])
                    return None if ours.id == holder.id else Held(ours, math.inf)
                os.close(self._open.pop(name))
            for _ in range(_TRIES):
                file = os.open(self._file(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if _locked(file, holder) and self._is_there(name, file):
                    self._open[name] = file
                    return None
                found = _read(file)["holder"]
                os.close(file)
                time.sleep(0.01)
        return Held(Holder.unpacked(found), math.inf)

    def _is_there(self, name: str, file: int) -> bool:
        try:
            found = self._file(name).stat()
        except FileNotFoundError:
            return False
        ours = os.fstat(file)
        return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

    def release(self, name: str, holder: Holder) -> None:
        """Give the name back."""
        del holder
        if (file := self._open.pop(name, None)) is not None:
            os.close(file)

    def remember(self, name: str, note: bytes) -> None:
        """Keep a note for the next holder of the name."""
        with self._errors(name):
            if (file := self._open.get(name)) is not None:
                _write(file, {**_read(file), "note": note.decode()})

    def recall(self, name: str) -> bytes | None:
        """The last note."""
        with self._errors(name):
            file = self._open.get(name)
            note = "" if file is None else _read(file)["note"]
        return note.encode() or None

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerError(
                f"who writes the ledger cannot be kept in {self._file(name)}: {error}"
            ) from error


def _locked(file: int, holder: Holder) -> bool:
    """Whether ``holder`` has the file, alone or with others of its id, as long as it is open."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(file, {**_read(file), "holder": holder.packed()})
    with contextlib.suppress(BlockingIOError):
        # Not one step with the former: another may have come between, and is then in the file.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return Holder.unpacked(_read(file)["holder"]).id == holder.id
    return False


def _read(file: int) -> dict[str, str]:
    try:
        said = json.loads(os.pread(file, 1 << 16, 0) or b"{}")
        return {"holder": str(said.get("holder", "")), "note": str(said.get("note", ""))}
    except (ValueError, AttributeError, RecursionError):
        return {"holder": "", "note": ""}


def _write(file: int, said: dict[str, str]) -> None:
    data = json.dumps(said).encode()
    os.pwrite(file, data, 0)
    os.ftruncate(file, len(data))


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
