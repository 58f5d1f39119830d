"""Checks of a SQLite ledger: whether its file is the one that was opened, and whether there is room."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from calib_serve.watch.checks import Check

__all__ = ["sqlite_checks"]

_MIB = 1 << 20
_ROOM = 256 * _MIB  # bytes to be free at least, and twice the ledger: its conversion copies what it holds
_LONG = 512 * _MIB  # bytes of a journal that is not folded into the ledger, as somebody reads on and on


def sqlite_checks(
    path: Path, *, there: Callable[[], None], set_aside: Callable[[], list[str]]
) -> list[Check]:
    """The checks of the ledger at ``path``; ``there`` raises where it is not the file that was opened.

    ``set_aside``: what was damaged.
    """
    return [
        Check("file", there, "refusing"),
        Check("disk", lambda: _disk(path)),
        Check("journal", lambda: _journal(path)),
        Check("damage", lambda: _damage(set_aside())),
    ]


def _disk(path: Path) -> str | None:
    size = sum(part.stat().st_size for part in (path, _wal(path)) if part.exists())
    free, wanted = shutil.disk_usage(path.parent).free, max(_ROOM, 2 * size)
    if free >= wanted:
        return None
    return (
        f"{free / _MIB:.0f} MiB are free beside the ledger, which takes {size / _MIB:.0f} MiB; "
        f"free some space, up to {wanted / _MIB:.0f} MiB"
    )


def _journal(path: Path) -> str | None:
    wal = _wal(path)
    size = wal.stat().st_size if wal.exists() else 0
    if size <= max(_LONG, path.stat().st_size):
        return None
    return f"the ledger's journal has grown to {size / _MIB:.0f} MiB; another program keeps it open to read"


def _damage(found: list[str]) -> str | None:
    if not found:
        return None
    return (
        f"{len(found)} rows of the ledger were damaged and set aside; calib-serve ledger verify says which. "
        "Restore a backup, or count on without them: calib-serve ledger prune --set-aside"
    )


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")
