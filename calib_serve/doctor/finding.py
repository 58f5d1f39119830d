"""What a check says, and what it was asked about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Asked", "Finding", "Level", "note", "ok", "wrong"]

Level = Literal["ok", "note", "wrong"]
"""``note``: works, and should be known. ``wrong``: something will fail."""


@dataclass(frozen=True)
class Finding:
    """One line of the report: ``about`` what, ``what`` was found, and what to ``do``, if anything."""

    level: Level
    about: str
    what: str
    do: str = ""

    def as_dict(self) -> dict[str, str]:
        """As JSON holds it."""
        return asdict(self)


@dataclass(frozen=True)
class Asked:
    """What to look at: the ``extras`` that the host is for, or those that are installed where it is empty.

    ``config``: a config.properties with TorchServe's ports. ``port``: that of the watch. ``folder``: where
    ``calib-serve serve`` runs. ``ledger``: a file or an address.
    """

    extras: tuple[str, ...] = ()
    config: Path | None = None
    port: int = 9300
    folder: Path | None = None
    store: Path | None = None
    keyring: Path | None = None
    ledger: str | None = None


def ok(about: str, what: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", about, what)


def note(about: str, what: str, do: str = "") -> Finding:
    """It works, and should be known."""
    return Finding("note", about, what, do)


def wrong(about: str, what: str, do: str) -> Finding:
    """Something will fail; ``do`` says what mends it."""
    return Finding("wrong", about, what, do)
