"""Files: hashes, atomic writes, secrets, locks, code by name, and files that are followed."""

from __future__ import annotations

import errno
import hashlib
import importlib
import importlib.util
import logging
import math
import operator
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO, Generic, TypeVar

from calib_serve.core.errors import CalibServeError, InputError

LEAST_ROOM = 64 << 20
"""Bytes that are to be free where a ledger or samples are written."""

GROUP_READS = "CALIB_SERVE_GROUP_READS"
"""Set to 1 in the environment, files of secrets may be readable by their group."""

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LONGEST_SETTINGS = 16 << 20  # bytes of settings, tokens, keys and lists
MOST_PROTOBUF = 2 << 30  # bytes; weights beyond lie in files of their own
log = logging.getLogger(__name__)
T = TypeVar("T")


def sha256(source: bytes | Path) -> str:
    """The hexadecimal sha256 of bytes or of a file of any size; OSError for an unreadable file.

    >>> sha256(b"abc")[:8]
    'ba7816bf'
    """
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sha256_with(path: Path, others: Iterable[str]) -> str:
    """The sha256 of a file, and of the ``others`` in its folder that belong to it, if any."""
    hashes = [sha256(path), *(sha256(path.parent / name) for name in sorted(set(others)))]
    return hashes[0] if len(hashes) == 1 else sha256("".join(hashes).encode())


@contextmanager
def write_atomically(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, of the same suffix, renamed to it when the block succeeds.

        with write_atomically(out) as partial:
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
    with write_atomically(path, mode=mode) as partial:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_changed(files: Mapping[Path, bytes], *, force: bool) -> list[Path]:
    """Write those of the files that say something else on disk, and return their paths.

    InputError where one that is there would change, without ``force``: then nothing is written.
    """
    try:
        new = {
            path: text for path, text in files.items() if not (path.is_file() and path.read_bytes() == text)
        }
        others = [str(path) for path in new if path.exists() or path.is_symlink()]
        if others and not force:
            raise InputError(f"would change {', '.join(others)}; write to another place, or give --force")
        for path, text in new.items():
            write_whole(path, text)
    except OSError as error:
        raise InputError(f"cannot write {error.filename or ''}: {error.strerror}") from error
    return list(new)


def read_private(path: Path) -> bytes:
    """Read a file of secrets; PermissionError where others than its owner may read or change it.

    Its group may read it where the environment says so by ``GROUP_READS``: Kubernetes makes secrets readable
    by a pod's fsGroup. OSError is not wrapped.
    """
    with open_regular(path) as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        allowed = 0o740 if os.environ.get(GROUP_READS) == "1" else 0o700
        if os.name == "posix" and mode & ~allowed:
            also = "" if mode & 0o037 else f"; or let the group read it by {GROUP_READS}=1"
            raise PermissionError(f"it has mode {mode:o}; run: chmod 600 {path}{also}")
        return _whole(file, _LONGEST_SETTINGS)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read; OSError for a device or a pipe, which may be endless."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is no regular file")
    return os.fdopen(descriptor, "rb")


def read_whole(path: Path, *, limit: int = _LONGEST_SETTINGS) -> bytes:
    """Read a regular file of at most ``limit`` bytes; OSError for any other, EFBIG for a larger one."""
    with open_regular(path) as file:
        return _whole(file, limit)


def _whole(file: IO[bytes], limit: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    content = b"" if size > limit else file.read(size + 1)  # as much as is asked for is set aside at once
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"it has more than the {limit} bytes allowed")
    return content


def short_lines(file: IO[str], path: Path, *, limit: int) -> Iterator[str]:
    """Yield the lines of a text; InputError for one of over ``limit`` characters, which may be endless."""
    while line := file.readline(limit):
        if len(line) == limit and not line.endswith("\n"):
            raise InputError(f"{path} has a line of more than {limit} characters")
        yield line


def make_private(path: Path) -> None:
    """Make an empty file that its owner alone may use, where there is none; raises OSError."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def private_folder(path: Path) -> None:
    """Make a folder that its owner alone may enter, with those above it, if it is missing; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def own_folder(path: Path) -> Path:
    """A folder below ``path`` that this user alone may enter, made if it is missing.

    PermissionError where another user could put one of his own there. OSError is not wrapped.
    """
    private_folder(path)
    if not hasattr(os, "geteuid"):  # Windows
        return path
    user = os.geteuid()
    found = path.resolve() / f"user-{user}"
    found.mkdir(mode=0o700, exist_ok=True)
    above, mine = path.stat(), found.lstat()
    open_to_all = above.st_mode & 0o002 and not above.st_mode & stat.S_ISVTX
    # Root gives pods their volumes, which are open to all there.
    if above.st_uid not in (0, user) or (above.st_uid and open_to_all):
        raise PermissionError(f"{path} is another user's, or all may change it; give a folder of your own")
    if not stat.S_ISDIR(mine.st_mode) or mine.st_uid != user or mine.st_mode & 0o077:
        raise PermissionError(f"{found} is not for its owner, user {user}, alone; move it away")
    return found


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Keep other processes and threads out while inside for the same ``path``: they wait.

    By a lock on a file beside it, which goes with the last one out; a process that dies lets go of it. Raises
    OSError. Where the system has no such locks (Windows), nobody waits.
    """
    if fcntl is None:
        yield
        return
    file = path.with_name(f".{path.name}.lock")
    held = _locked(file)
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()
        os.close(held)


def _locked(file: Path) -> int:
    """Open the lock's file and lock it; return its descriptor."""
    while True:
        held = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                # Whoever had it before removed the file: then another one is the lock by now.
                if os.path.samestat(os.fstat(held), file.stat()):
                    return held
        except BaseException:
            os.close(held)
            raise
        os.close(held)


def shipped(name: str) -> Path:
    """Find a file of a checkout that the package brings along, such as "config.properties"."""
    package = Path(__file__).parent.parent
    for root in (package / "_shipped", package.parent):
        if (root / name).is_file():
            return root / name
    raise CalibServeError(f"{name} is missing from this installation; install calib-serve again")


def import_object(spec: str) -> Any:
    """Import the object named ``package.module:name`` or ``path/to/file.py:name``; runs its module's code.

    A name may have dots: an attribute of an attribute.

    >>> import_object("math:tau") > 6
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


class FollowedFile(Generic[T]):
    """The result of ``read`` for the file at ``path``, read again after a change; for any thread.

    The file is looked at when it is used, at most every so many seconds, and at once after ``again``. One of
    which ``read`` raises an error of ours leaves what was read before: that is logged once, told by
    ``trouble``, and ``failed`` is called at each try. The first time the error is raised. ``clock``: seconds
    that never go back.
    """

    def __init__(
        self,
        path: str | Path,
        read: Callable[[Path], T],
        *,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._make, self._every, self._clock = Path(path), read, every, clock
        self.failed = failed
        file = self._identity()
        self._read = _Read(file, read(self._path))
        self._due, self._asked = clock() + every, False

    def current(self) -> T:
        """The result for the file as it is at this moment."""
        if self._clock() >= self._due:
            self._look(again=True)
        return self._read.made

    def changed(self) -> T:
        """The result, after a look at the file now; a broken file is not tried again."""
        self._look(again=False)
        return self._read.made

    def again(self) -> None:
        """Read the file again at the next use, also where it looks unchanged; may be called by a signal."""
        self._asked, self._due = True, -math.inf

    def trouble(self) -> str | None:
        """The reason why the file cannot be used, if so: the last good result still holds."""
        self.current()
        return self._read.why

    def _look(self, *, again: bool) -> None:
        # Without a lock: where two threads read at once, the next look finds what the later one missed.
        self._due = self._clock() + self._every
        asked, self._asked = self._asked, False
        file, before = self._identity(), self._read
        if file == before.file and not asked and not (before.why and again):
            return
        try:
            self._read = _Read(file, self._make(self._path))
        except CalibServeError as error:
            self._read = _Read(file, before.made, str(error))
            if before.why != str(error):
                log.error("%s stays as it was read before: %s", self._path.name, error)
            self.failed()
        else:
            log.info("read %s again", self._path)

    def _files(self) -> Iterable[Path]:
        """The files that are read; a subclass may read several below ``path``."""
        return (self._path,)

    def _identity(self) -> object:
        """The identity of the files' content and mode, by their times and numbers; None if one is missing."""
        try:
            found = [(path, path.stat()) for path in self._files()]
        except OSError:
            return None
        return [(path, s.st_dev, s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for path, s in found]


@dataclass(frozen=True)
class _Read(Generic[T]):
    """The result for a file, the file's identity, and the reason why a later file could not be read."""

    file: object
    made: T
    why: str | None = None
