"""The files and folders of a server: for their owner alone, writable, on a disk of this host with room."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from calib_serve.doctor.finding import Asked, Finding, note, ok, wrong
from calib_serve.doctor.mounts import mount_of
from calib_serve.doctor.world import World
from calib_serve.files import GROUP_READS

__all__ = ["folder", "keyring", "ledger", "store"]

_MIB = 1 << 20
_ROOM = 256 * _MIB  # what the check "disk" of a running watch asks for, too
_PARTS = re.compile(r"^(.*?)\?(?:.*&)?parts=(\d{1,3})(?:&.*)?$")


def keyring(asked: Asked, world: World) -> Iterator[Finding]:
    """The keys that sign receipts."""
    path = asked.keyring or _in(asked.folder, "keyring.json")
    if path is None:
        return
    if path.exists():
        yield from _secret("keyring", path, world)
    elif asked.keyring is not None:
        yield wrong("keyring", f"{path} is not there", f"calib-serve keys new {path}")


def ledger(asked: Asked, world: World) -> Iterator[Finding]:
    """The record of accepted labels, where it is a file; a database is not asked."""
    where = asked.ledger or str(_in(asked.folder, "ledger.sqlite") or "")
    if not where:
        return
    if "://" in where:
        yield note(
            "ledger", "it is in a database, which is not asked here", "calib-serve ledger verify asks it"
        )
        return
    found = _PARTS.match(where)
    parts = [Path(where)] if found is None else [Path(f"{found[1]}.{n}") for n in range(1, int(found[2]) + 1)]
    for path in parts:
        yield from _ledger_file(path, world)


def store(asked: Asked, world: World) -> Iterator[Finding]:
    """The model store: what lies there is code that the server runs."""
    path = asked.store
    if path is None:
        return
    if not path.is_dir():
        yield wrong("model store", f"{path} is no folder", "calib-serve pack -o writes one")
        return
    open_to = _others_write(path)
    if open_to:
        yield wrong(
            "model store",
            f"{path} may be written by {open_to}: an archive is code, and who writes one there runs it",
            f"chmod go-w {path}",
        )
    elif not os.access(path, os.R_OK | os.X_OK):
        yield wrong("model store", f"{path} cannot be read by this user", "run the server as its owner")
    else:
        yield ok("model store", f"{path}, {len(list(path.glob('*.mar')))} archives")
    yield from _room("model store", path)


def folder(asked: Asked, world: World) -> Iterator[Finding]:
    """Where ``calib-serve serve`` runs, and the file of TorchServe's tokens in it."""
    path = asked.folder
    if path is None:
        return
    if not path.exists():
        yield note(
            "folder", f"{path} is not there", "nothing: calib-serve serve makes it, for its owner alone"
        )
        return
    if not path.is_dir():
        yield wrong("folder", f"{path} is no folder", "name another one")
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        yield wrong("folder", f"{path} has mode {mode:o}: it holds tokens and keys", f"chmod 700 {path}")
    elif not _is_writable(path, world):
        yield wrong("folder", f"{path} cannot be written by this user", "run the server as its owner")
    else:
        yield ok("folder", f"{path}, for its owner alone")
    yield from _room("folder", path)
    tokens = path / "key_file.json"
    if tokens.exists():
        yield from _secret("key file", tokens, world)


def _secret(about: str, path: Path, world: World) -> Iterator[Finding]:
    mode = stat.S_IMODE(path.stat().st_mode)
    allowed = 0o740 if world.environment.get(GROUP_READS) == "1" else 0o700
    replaced = _others_write(path.absolute().parent)
    if os.name == "posix" and mode & ~allowed:
        yield wrong(about, f"{path} has mode {mode:o}: others may use its secrets", f"chmod 600 {path}")
    elif not os.access(path, os.R_OK):
        yield wrong(about, f"{path} cannot be read by this user", "run the server as its owner")
    elif replaced:
        yield wrong(
            about,
            f"{path} lies in a folder that may be written by {replaced}, who can put another in its place",
            f"chmod go-w {path.absolute().parent}",
        )
    else:
        yield ok(about, f"{path}, for its owner alone")


def _ledger_file(path: Path, world: World) -> Iterator[Finding]:
    parent = path.absolute().parent
    if not parent.is_dir():
        yield note("ledger", f"{parent} is not there", "nothing: it is made with the ledger")
        return
    mount = mount_of(path, world)
    if mount is not None and mount.is_of_network:
        yield wrong(
            "ledger",
            f"{path} lies on {mount.point}, a {mount.kind} of the network: SQLite's locks do not hold there, "
            "and labels would be lost or counted twice",
            "put it on a disk of this host, or count in a Redis: --ledger redis://HOST:6379/0",
        )
        return
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    if os.name == "posix" and mode & 0o077:
        yield wrong("ledger", f"{path} has mode {mode:o}: others may read or change it", f"chmod 600 {path}")
    elif not _is_writable(parent, world) or (path.exists() and not _is_writable(path, world)):
        yield wrong(
            "ledger",
            f"{path} and its folder cannot both be written by this user; SQLite keeps a journal beside it",
            "run the watch as their owner, or choose a folder that is mounted to be written",
        )
    else:
        yield ok("ledger", f"{path}, {'for its owner alone' if path.exists() else 'which will be made'}")
    size = path.stat().st_size if path.exists() else 0
    yield from _room("ledger", parent, wanted=max(_ROOM, 2 * size))


def _room(about: str, path: Path, wanted: int = _ROOM) -> Iterator[Finding]:
    free = shutil.disk_usage(path).free
    if free < wanted:
        yield wrong(
            about,
            f"{free / _MIB:.0f} MiB are free at {path}",
            f"free some space, up to {wanted / _MIB:.0f} MiB at least",
        )
    if hasattr(os, "statvfs"):
        told = os.statvfs(path)
        if told.f_files and not told.f_favail:  # some file systems count none
            yield wrong(
                about, f"no more file can be made at {path}: its inodes are used up", "delete some files"
            )


def _is_writable(path: Path, world: World) -> bool:
    mount = mount_of(path, world)
    return os.access(path, os.W_OK) and (mount is None or "ro" not in mount.options)


def _others_write(path: Path) -> str | None:
    """Who may write there beside the owner; in a sticky folder nobody may touch what is another's."""
    if os.name != "posix":
        return None
    mode = path.stat().st_mode
    if mode & 0o002 and not mode & stat.S_ISVTX:
        return "anybody"
    return "its group" if mode & 0o020 and not mode & stat.S_ISVTX else None


def _in(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name
