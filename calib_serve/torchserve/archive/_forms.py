"""A TorchServe archive as it lies on disk, a .mar, which is a zip: read as untrusted input."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

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

    Raises ModelError for what is no archive, for links and names that leave its folder, and for what unpacks
    to far more than its size.
    """
    with ExitStack() as stack:
        try:
            # TorchServe goes by the name alone: two programs must not read two different archives.
            if path.suffix != ".mar" or path.is_dir():
                raise ValueError("one is a zip called .mar; make it with torch-model-archiver")
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_regular(path))))
            refuse_bomb(archive)
            found = _entries(path, archive)
        except ZIP_ERRORS as error:
            says = str(error) or type(error).__name__
            raise ModelError(f"{path} is not a TorchServe archive that can be used: {says}") from error
        sizes = {name: entry.file_size for name, entry in found.items()}
        if sum(sizes.values()) > _LARGEST:
            raise ModelError(f"{path} unpacks to more than {_LARGEST} bytes; it is not served")
        yield OpenArchive(path, sizes, lambda name: archive.open(found[name]))


def _entries(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The files of an archive by their checked names; none may come twice, in any spelling."""
    entries, found, seen = archive.infolist(), dict[str, zipfile.ZipInfo](), set[str]()
    if len(entries) > _MOST:
        raise ModelError(f"{path} holds more than {_MOST} files; it is not served")
    for entry in entries:
        name = plain_name(path, entry.filename)
        if name in seen:
            raise ModelError(f"{path} holds a file twice; two programs may read two different ones")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise ModelError(f"{path} holds a symbolic link, {name!r}; it is not served")
        seen.add(name)
        if not entry.is_dir():
            found[name] = entry
    return found


def is_archive(path: Path) -> bool:
    """Whether ``path`` is a file that is named like an archive."""
    return path.is_file() and path.suffix == ".mar"


def stored_archives(store: Path) -> list[Path]:
    """List every archive in a model store by name; hidden ones are left out."""
    # Without suffixes x comes before x-2: it is the default version of a server that loads both.
    return sorted(filter(is_archive, store.glob("[!.]*")), key=lambda path: path.stem)


def plain_name(path: Path, name: str) -> str:
    """``name`` in its plain spelling; ModelError where it leaves the folder of the archive."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\x00" in name or not pure.parts:
        raise ModelError(f"{path} names {name!r}, which leaves its folder; it is not served")
    return pure.as_posix()
