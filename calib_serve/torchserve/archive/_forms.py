"""The forms of an archive, each as TorchServe reads it: a .mar, which is a zip, and a folder; untrusted."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from calib_serve.core.data_files import ZIP_ERRORS, refuse_bomb
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.core.files import open_regular

MANIFEST = "MAR-INF/MANIFEST.json"

_LARGEST = 8 << 30  # bytes of one archive, unpacked
_MOST = 100_000  # files and folders in one


@dataclass(frozen=True)
class OpenArchive:
    """An open archive: the size of each file, and its bytes by name."""

    path: Path
    sizes: Mapping[str, int]
    open: Callable[[str], IO[bytes]]

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield one file's bytes, a mebibyte at a time; ModelError where it cannot be read."""
        if name not in self.sizes:
            raise ModelError(f"{self.path} has no file {name}")
        try:
            with self.open(name) as file:
                while piece := file.read(1 << 20):
                    yield piece
        except ZIP_ERRORS as error:
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
    reader = _folder if path.is_dir() else _zip
    with ExitStack() as stack:
        try:
            form = stack.enter_context(reader(path))
        except ZIP_ERRORS as error:
            says = str(error) or type(error).__name__
            raise ModelError(f"{path} is not a TorchServe archive that can be used: {says}") from error
        if sum(form.sizes.values()) > _LARGEST:
            raise ModelError(f"{path} unpacks to more than {_LARGEST} bytes; it is not served")
        yield form


def is_archive(path: Path) -> bool:
    """Whether ``path`` is named like an archive, or is a folder with a TorchServe manifest."""
    if path.is_dir():
        return (_root(path) / MANIFEST).is_file()
    return path.is_file() and path.suffix == ".mar"


def stored_archives(store: Path) -> list[Path]:
    """List every archive in a model store, in each of the forms, by name; hidden ones are left out."""
    # Without suffixes x comes before x-2: it is the default version of a server that loads both.
    return sorted(filter(is_archive, store.glob("[!.]*")), key=lambda path: path.name.removesuffix(".mar"))


def plain_name(path: Path, name: str) -> str:
    """``name`` in its plain spelling; ModelError where it leaves the folder of the archive."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\x00" in name or not pure.parts:
        raise ModelError(f"{path} names {name!r}, which leaves its folder; it is not served")
    return pure.as_posix()


@contextmanager
def _zip(path: Path) -> Iterator[OpenArchive]:
    # TorchServe goes by the name alone: two programs must not read two different archives.
    if path.suffix != ".mar":
        raise ValueError("one is a zip called .mar, or a folder; unpack a .tar.gz into one")
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
