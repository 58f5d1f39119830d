"""File helpers: hashes, atomic writes, importing code by name."""

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

__all__ = ["named", "sha256", "write_whole", "written_whole"]

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
