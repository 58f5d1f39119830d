"""The files of a SQLite ledger: whether they are still those that were opened, and how they are set aside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from calib_serve.errors import LedgerError

__all__ = ["Files", "quarantine"]

_PARTS = ("", "-wal", "-shm")


class Files:
    """The ledger's file and the two that SQLite keeps beside it while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: list[tuple[str, str, tuple[int, int]]] = []
        self._found = _identity(path, "")

    def opened(self) -> None:
        """Remember them as they are: they stay the same while this process has the ledger open.

        LedgerError where the ledger was replaced while it was opened, by a restore.
        """
        if self._found and self._found != _identity(self.path, ""):
            self._opened = [("", str(self.path), self._found)]
            raise self.error()
        found = [(part, f"{self.path}{part}", _identity(self.path, part)) for part in _PARTS]
        self._opened = [(part, name, of) for part, name, of in found if of]

    def changed(self, part: str | None = None) -> bool:
        """Whether one of them, or this one, is not what was opened any more."""
        try:
            for of, name, was in self._opened:
                if part in (None, of):
                    found = os.stat(name)  # noqa: PTH116  at every batch
                    if (found.st_dev, found.st_ino) != was:
                        return True
        except OSError:
            return True
        return False

    def _gone(self) -> list[str]:
        return [part for part, _, was in self._opened if _identity(self.path, part) != was]

    def check(self) -> None:
        """LedgerError where one of them is not what was opened."""
        if self.changed():
            raise self.error()

    def error(self, *, saved: bool = False) -> LedgerError:
        """What to say of it; ``saved``: what was acknowledged was written into the ledger."""
        part = next(iter(self._gone()), "")
        there = _identity(self.path, part) is not None
        if part:
            lost = "was saved into the ledger" if saved else "may be missing in part"
            how = "replaced" if there else "removed"
            return LedgerError(
                f"the {part} file of the ledger {self.path} was {how} while in use; what was acknowledged "
                f"before {lost}; restart every process that uses it"
            )
        if there:
            return LedgerError(
                f"the ledger {self.path} was replaced by another file; restart to use that one"
            )
        return LedgerError(f"the ledger {self.path} is missing; restore it, or restart to begin another")

    @property
    def journal_only(self) -> bool:
        """Whether the -wal file alone is missing: what is in it can still be saved."""
        return self._gone() == ["-wal"] and _identity(self.path, "-wal") is None


def _identity(path: Path, part: str) -> tuple[int, int] | None:
    try:
        found = path.with_name(path.name + part).stat() if part else path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def set_leftovers_aside(path: Path, *, clock: Callable[[], float] = time.time) -> None:
    """Move a -wal and -shm aside that lie there without a ledger: they are another one's."""
    # The -wal first: whoever begins a ledger at this moment makes its file before.
    left = [part for part in _PARTS[1:] if _identity(path, part)]
    if left and _identity(path, "") is None:
        _move(path, _aside(path, clock), left)


def quarantine(path: str | Path, *, clock: Callable[[], float] = time.time) -> Path:
    """Move a damaged ledger and its journal aside, so that a fresh one can start; where it went.

    Receipts and sums go together: the fresh ledger counts from zero, and each label at most once. Where it
    is cut short, the rest is set aside by the ledger that is opened next.
    """
    path = Path(path)
    aside = _aside(path, clock)
    _move(path, aside, [part for part in _PARTS if _identity(path, part)])
    return aside


def _aside(path: Path, clock: Callable[[], float]) -> Path:
    name, n = f"{path.name}.damaged-{int(clock())}", 1
    aside = path.with_name(name)
    while any(_identity(aside, part) for part in _PARTS):
        n += 1
        aside = path.with_name(f"{name}-{n}")
    return aside


def _move(path: Path, aside: Path, parts: list[str]) -> None:
    # The ledger first: what is left without it is known to be another one's, and a ledger without its
    # -wal would have lost labels in silence.
    try:
        for part in parts:
            path.with_name(path.name + part).rename(aside.with_name(aside.name + part))
    except OSError as error:
        raise LedgerError(f"cannot set the damaged ledger {path} aside: {error}") from error
