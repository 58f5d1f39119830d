"""Leases as locks on files, which the kernel takes off a process that dies."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger.leases import Held, Holder

__all__ = ["FileLeases"]

_TRIES = 4  # others may hold a lock for a moment, to see whose it is


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
