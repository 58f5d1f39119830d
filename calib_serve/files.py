"""File helpers: hashes, atomic writes, files of secrets, locks, importing code by name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import operator
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = [
    "GROUP_READS", "alone", "make_private", "named", "private_folder", "read_private", "sha256",
    "write_whole", "written_whole",
]  # fmt: skip

GROUP_READS = "CALIB_SERVE_GROUP_READS"
"""Set to 1 in the environment, files of secrets may be readable by their group."""


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PIECE = 1 << 20  # bytes of a file that are hashed at once


def sha256(source: bytes | Path) -> str:
    """The hexadecimal sha256 of bytes or of a file of any size; OSError for an unreadable file.

    >>> sha256(b"abc")[:8]
    'ba7816bf'
    """
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def written_whole(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """A temporary path beside ``path``, of the same suffix, renamed to ``path`` when the block succeeds.

        with written_whole(out) as partial:
            model.save(partial)

    Creates the folder, syncs to disk, and removes the temporary file on failure. ``mode`` applies from the
    first byte on, such as 0o600 for secrets; the block must then write into the existing file. OSError is not
    wrapped: the caller reports what could not be written.
    """
    partial = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode is not None:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()


def write_whole(path: Path, content: bytes | str, *, mode: int | None = None) -> None:
    """Write bytes, or text as UTF-8, to ``path`` atomically; raises OSError."""
    with written_whole(path, mode=mode) as partial:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode())


def read_private(path: Path) -> bytes:
    """A file of secrets; PermissionError where others than its owner may read or change it.

    Its group may read it where the environment says so by ``GROUP_READS``: Kubernetes makes secrets readable
    by a pod's fsGroup. OSError is not wrapped.
    """
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        allowed = 0o740 if os.environ.get(GROUP_READS) == "1" else 0o700
        if os.name == "posix" and mode & ~allowed:
            also = "" if mode & 0o037 else f"; or let the group read it by {GROUP_READS}=1"
            raise PermissionError(f"it has mode {mode:o}; run: chmod 600 {path}{also}")
        return file.read()


def make_private(path: Path) -> None:
    """Make an empty file that its owner alone may use, where there is none; raises OSError."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def private_folder(path: Path) -> None:
    """Make a folder that its owner alone may enter, with those above it, if it is missing; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Inside, no other process or thread is inside for the same ``path``: others wait.

    By a lock on a file beside it, which goes with the last one out; a process that dies lets go of it. Raises
    OSError. Where the system has no such locks (Windows), nobody waits.
    """
    if fcntl is None:
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    held = _locked(lock)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(held)


def _locked(lock: Path) -> int:
    """A descriptor of the lock's file, locked."""
    while True:
        held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                # Whoever had it before removed the file: then another one is the lock by now.
                if os.path.samestat(os.fstat(held), lock.stat()):
                    return held
        except BaseException:
            os.close(held)
            raise
        os.close(held)


def named(spec: str) -> Any:
    """The object that ``package.module:name`` or ``path/to/file.py:name`` names; runs the module's code.

    A name may have dots: an attribute of an attribute.

    >>> named("math:tau") > 6
    True
    """
    where, _, name = spec.rpartition(":")
    return operator.attrgetter(name)(_module(where))


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    found = importlib.util.spec_from_file_location(Path(where).stem, where)
    if found is None or found.loader is None:
        raise ImportError(f"cannot import {where}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
