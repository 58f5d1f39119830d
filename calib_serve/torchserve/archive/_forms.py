"""The forms of an archive, each as TorchServe reads it: a .mar (zip), a folder, a .tar.gz; untrusted."""

from __future__ import annotations

import gzip
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from calib_serve.core.data_files import ZIP_ERRORS, most_unpacked, refuse_bomb
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.core.files import open_regular

MANIFEST = "MAR-INF/MANIFEST.json"

DAMAGES = (*ZIP_ERRORS, tarfile.TarError)
"""Errors of reading a damaged archive of any form."""

_LARGEST = 8 << 30  # bytes of one archive, unpacked
_MOST = 100_000  # files and folders in one
_HEADER = 16 << 20  # bytes that are read at once; only the headers of a hostile tar ask for more
_SUFFIX = re.compile(r"\.(mar|tar\.gz|tgz)\Z")


@dataclass(frozen=True)
class OpenArchive:
    """An open archive: the bytes of each file by name, in the archive's own order.

    ``serial``: reading in another order than that takes long.
    """

    path: Path
    sizes: Mapping[str, int]
    open: Callable[[str], IO[bytes]]
    serial: bool = False

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield one file's bytes, a mebibyte at a time; ModelError where it cannot be read."""
        if name not in self.sizes:
            raise ModelError(f"{self.path} has no file {name}")
        try:
            with self.open(name) as file:
                while piece := file.read(1 << 20):
                    yield piece
        except DAMAGES as error:
            raise ModelError(f"{name} in {self.path} cannot be read: {error}") from error

    def read(self, name: str, limit: int) -> bytes:
        """Read one file's bytes; ModelError where they are more than ``limit``."""
        if (size := self.sizes.get(name, 0)) > limit:
            raise ModelError(f"{name} in {self.path} has {size} bytes, more than the {limit} allowed")
        return b"".join(self.pieces(name))

    def unpacked(self, folder: Path) -> dict[str, Path]:
        """Write every file below ``folder``; FuseError where the disk has no space."""
        for name in self.sizes:
            pieces = self.pieces(name)
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("wb") as file:
                    file.writelines(pieces)
            except OSError as error:
                raise FuseError(f"{name} of {self.path} cannot be unpacked: {error}") from error
        return {name: folder / name for name in self.sizes}


@contextmanager
def opened(path: Path) -> Iterator[OpenArchive]:
    """Open the archive at ``path``, its names and sizes checked.

    Raises ModelError for what is no archive, for links, devices and names that leave its folder, and for
    what unpacks to far more than its size.
    """
    # By the name alone, as TorchServe chooses: two programs must not read two different archives.
    reader = _folder if path.is_dir() else _zip if path.suffix == ".mar" else _tar
    with ExitStack() as stack:
        try:
            form = stack.enter_context(reader(path))
        except DAMAGES as error:
            says = f"{str(error) or type(error).__name__}{_hint(path)}"
            raise ModelError(f"{path} is not a TorchServe archive that can be used: {says}") from error
        if sum(form.sizes.values()) > _LARGEST:
            raise ModelError(f"{path} unpacks to more than {_LARGEST} bytes; it is not served")
        yield form


def is_archive(path: Path) -> bool:
    """Whether ``path`` is named like an archive, or is a folder with a TorchServe manifest."""
    if path.is_dir():
        return (_root(path) / MANIFEST).is_file()
    return path.is_file() and _SUFFIX.search(path.name) is not None


def stored_archives(store: Path) -> list[Path]:
    """List every archive in a model store, in each of the forms, by name; hidden ones are left out."""
    # Without suffixes x comes before x-2: it is the default version of a server that loads both.
    return sorted(filter(is_archive, store.glob("[!.]*")), key=lambda path: _SUFFIX.sub("", path.name))


def plain_name(path: Path, name: str) -> str:
    """``name`` in its plain spelling; ModelError where it leaves the folder of the archive."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\x00" in name or not pure.parts:
        raise ModelError(f"{path} names {name!r}, which leaves its folder; it is not served")
    return pure.as_posix()


@contextmanager
def _zip(path: Path) -> Iterator[OpenArchive]:
    with open_regular(path) as packed, zipfile.ZipFile(packed) as archive:
        found = {}
        entries = archive.infolist()
        for entry, name in _named(path, ((entry, entry.filename) for entry in entries)):
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise ModelError(f"{path} holds a symbolic link, {name!r}; it is not served")
            if not entry.is_dir():
                found[name] = entry
        sizes = {name: entry.file_size for name, entry in found.items()}
        refuse_bomb(archive)
        yield OpenArchive(path, sizes, lambda name: archive.open(found[name]))


@contextmanager
def _folder(path: Path) -> Iterator[OpenArchive]:
    root = _root(path)
    files: dict[str, Path] = {}
    for file, name in _named(path, _walk(root)):
        # What a link names may be read, but only from this folder.
        outside = file.is_symlink() and not file.resolve().is_relative_to(root.resolve())
        if outside or not file.is_file():
            raise ModelError(f"{path} holds {name!r}, a link or a device; put the file itself there")
        files[name] = file
    sizes = {name: file.stat().st_size for name, file in files.items()}
    yield OpenArchive(path, sizes, lambda name: files[name].open("rb"))


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    def refuse(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if name != "__pycache__")  # left by workers
        links = [name for name in folders if Path(place, name).is_symlink()]
        for name in (*links, *sorted(files)):
            yield Path(place, name), Path(place, name).relative_to(root).as_posix()


def _root(path: Path) -> Path:
    """The one folder that a folder holds, where TorchServe looks into it, else the folder itself."""
    within = [*path.iterdir()]
    lone = len(within) == 1 and within[0].is_dir() and not within[0].is_symlink()
    return within[0] if lone else path


@contextmanager
def _tar(path: Path) -> Iterator[OpenArchive]:
    limit = min(_LARGEST, most_unpacked(path.stat().st_size))
    with open_regular(path) as packed, gzip.GzipFile(fileobj=packed) as file:
        bounded = _Bounded(cast("IO[bytes]", file), limit)
        with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r:") as archive:
            found = {}
            for member, name in _named(path, ((member, _below_first(member)) for member in archive)):
                if not member.isreg() or member.issparse() or member.size < 0:
                    raise ModelError(f"{path} holds {name!r}, a link or a device; it is not served")
                found[name] = member
            bounded.seek(archive.offset)  # the module stops at a damaged header, and says nothing
            if bounded.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise ValueError(f"it is damaged after {len(found)} files")
            sizes = {name: member.size for name, member in found.items()}
            read = lambda name: cast("IO[bytes]", archive.extractfile(found[name]))  # noqa: E731
            yield OpenArchive(path, sizes, read, serial=True)


def _below_first(member: tarfile.TarInfo) -> str | None:
    """Drop the name up to its first slash, as TorchServe does; None for a folder."""
    if member.isdir():
        return None
    below = member.name.partition("/")[2]
    return member.name if member.name.startswith("/") or not below else below


@dataclass(frozen=True)
class _Bounded:
    """A file that yields at most ``limit`` bytes, in small pieces."""

    file: IO[bytes]
    limit: int

    def read(self, size: int) -> bytes:
        self._check(self.tell() + size)
        if not 0 <= size <= _HEADER:
            raise ValueError(f"it has a header of {size} bytes")
        return self.file.read(size)

    def seek(self, position: int) -> int:
        self._check(position)
        return self.file.seek(position)

    def tell(self) -> int:
        return self.file.tell()

    def _check(self, position: int) -> None:
        if position > self.limit + _HEADER:
            raise ValueError(f"it unpacks to more than {self.limit} bytes, as a bomb does")


def _named(path: Path, entries: Iterable[tuple[Any, str | None]]) -> Iterator[tuple[Any, str]]:
    """Yield each named entry with its checked name; no name may come twice, in any spelling."""
    seen: set[str] = set()
    for count, (entry, given) in enumerate(entries):
        if count >= _MOST:
            raise ModelError(f"{path} holds more than {_MOST} files; it is not served")
        if given is None:
            continue
        name = plain_name(path, given)
        if name in seen:
            raise ModelError(f"{path} holds a file twice; two programs may read two different ones")
        seen.add(name)
        yield entry, name


def _hint(path: Path) -> str:
    """Hint at a file's true format: TorchServe goes by the name alone."""
    try:
        with open_regular(path) as file:
            start = file.read(4)
    except OSError:
        return ""
    if path.suffix == ".mar" and start.startswith(b"\x1f\x8b"):
        return "; it looks like a .tar.gz, and must be called so for TorchServe to read it"
    if path.suffix != ".mar" and start == b"PK\x03\x04":
        return "; it is a zip, which must be called .mar for TorchServe to read it"
    return ""
