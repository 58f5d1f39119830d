"""TorchServe archives: written reproducibly, and read as untrusted input."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

from calib_serve.core.data_files import ZIP_ERRORS, refuse_bomb
from calib_serve.core.errors import FuseError, IntegrityError, ModelError
from calib_serve.core.files import open_regular, sha256, write_atomically
from calib_serve.scores import read_yaml
from calib_serve.torchserve.mar_options import SECTION

MANIFEST = "MAR-INF/MANIFEST.json"
HASHES = "MAR-INF/SHA256.json"
CONFIG = "model-config.yaml"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_LARGEST = 8 << 30  # bytes of one archive, unpacked
_LONGEST = 1 << 20  # bytes of its manifest, its configuration, its list of hashes
_DATE = (1980, 1, 1, 0, 0, 0)  # the oldest a zip can hold: no clock in the bytes
# What TorchServe takes as text; the first five name files.
_FILES = ("handler", "serializedFile", "modelFile", "requirementsFile", "configFile")
_TEXTS = (*_FILES, "modelName", "modelVersion", "version", "description", "envelope")


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

    def unpack(self, folder: Path) -> None:
        """Write every file below ``folder``; FuseError where the disk has no space."""
        for name in self.sizes:
            pieces = self.pieces(name)
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("wb") as file:
                    file.writelines(pieces)
            except OSError as error:
                raise FuseError(f"{name} of {self.path} cannot be unpacked: {error}") from error


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
    if len(entries) > (most := 100_000):
        raise ModelError(f"{path} holds more than {most} files; it is not served")
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


@dataclass(frozen=True)
class StreamedFile:
    """A file's content that need not be in memory: its size, and a function that yields its bytes."""

    size: int
    pieces: Callable[[], Iterable[bytes]]


Content = bytes | Path | StreamedFile


@dataclass(frozen=True)
class Archive:
    """An archive's metadata.

    ``manifest``: all that it says, of which ``model`` are the entries for the model (handler,
    serializedFile ...); ``config``: its model-config; ``hashes`` by file, empty for an archive that we did
    not pack.
    """

    path: Path
    name: str
    version: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    files: tuple[str, ...]
    hashes: Mapping[str, str]

    @property
    def model(self) -> Mapping[str, Any]:
        """The manifest's entries for the model."""
        model: Mapping[str, Any] = self.manifest["model"]
        return model

    def read(self, name: str, *, limit: int = 1 << 30) -> bytes:
        """Read one file's bytes, at most ``limit``."""
        with opened(self.path) as form:
            return form.read(name, limit)

    def unpack(self, folder: Path) -> Path:
        """Write every file below ``folder``, as TorchServe does; return it."""
        with opened(self.path) as form:
            form.unpack(folder)
        return folder

    def digest(self) -> str:
        """The sha256 of all files that make its answers: but manifest, hashes and configuration."""
        with self.contents() as kept:
            others = sorted(kept.keys() - {str(self.model.get("configFile", ""))})
            return sha256("".join(f"{content_digest(kept[name])}  {name}\n" for name in others).encode())

    @contextmanager
    def contents(self) -> Iterator[dict[str, Content]]:
        """Yield every file except manifest and hashes, to be written into another archive in the block."""
        with opened(self.path) as form:
            yield {
                name: StreamedFile(size, partial(form.pieces, name))
                for name, size in form.sizes.items()
                if name not in (MANIFEST, HASHES)
            }


def write_archive(
    path: Path,
    files: Mapping[str, Content],
    *,
    name: str,
    version: str,
    manifest: Mapping[str, Any] | None = None,
    handler: str | None = None,
    serialized_file: str | None = None,
    config_file: str | None = None,
) -> Path:
    """Write a .mar reproducibly: the same files give the same bytes.

    ``files``: the content by name in the archive; ``manifest``: an older one, whose other entries are
    kept; ``handler``, ``serialized_file`` and ``config_file`` are entries of its ``model``. The write is
    atomic, and takes no more memory for large files than for small ones.
    """
    for what, text in (("name", name), ("version", version)):
        if not _NAME.match(text):
            raise FuseError(
                f"a {what} is letters, digits, '_', '.', '-', at most 100, the first a letter or digit; "
                f"got {text!r}: give another ({what}, --{what})"
            )
    if manifest is None and CONFIG in files:
        config_file = CONFIG
    given = {"configFile": config_file, "handler": handler, "serializedFile": serialized_file}
    given = {key: value for key, value in given.items() if value is not None}
    kept = manifest or {}
    model = {**kept.get("model", {}), "modelName": name, "modelVersion": version, **given}
    whole = {"runtime": "python", "archiverVersion": "0.12.0", **kept, "model": model}
    content = {**files, MANIFEST: json.dumps(whole, indent=2).encode()}
    # Hashes cover the manifest, too: a worker notices every addition or change after packing.
    hashes = {entry: content_digest(content[entry]) for entry in sorted(content)}
    content[HASHES] = json.dumps(hashes, indent=2).encode()
    try:
        with (
            write_atomically(path) as partial_file,
            zipfile.ZipFile(partial_file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        ):
            # In one order, and with one date: the same files give the same bytes.
            for entry in sorted(content):
                _add(archive, entry, content[entry])
    except OSError as error:
        raise FuseError(f"cannot write {path}: {error}") from error
    return path


def read_archive(path: Path, *, verify: bool = True) -> Archive:
    """Read an archive, and check it: safe names, no bomb, hashes as packed.

    Args:
        path: The archive, a .mar.
        verify: Whether to compare the hashes.

    Raises:
        IntegrityError: Where a file has changed.
        ModelError: Where the archive is invalid or unsafe.
    """
    path = Path(path)
    with opened(path) as form:
        try:
            if MANIFEST not in form.sizes:
                raise ValueError(f"it has no {MANIFEST}")
            names = tuple(sorted(form.sizes))
            manifest = _read_manifest(path, form.read(MANIFEST, _LONGEST))
            hashes = json.loads(form.read(HASHES, _LONGEST)) if HASHES in names else {}
            if verify and hashes:
                _verify(form, hashes)
            model = manifest["model"]
            config = read_yaml(form.read(model["configFile"], _LONGEST)) if "configFile" in model else {}
            if verify and not hashes and SECTION in (config or {}):
                raise IntegrityError(f"{path} has lost its list of hashes; pack it again")
            # As TorchServe calls a model that has no name or version.
            name = model.get("modelName") or re.sub(r"[^A-Za-z0-9_]|^_", "_", path.stem)
            version = model.get("modelVersion", "1.0")
            return Archive(path, name, version, manifest, dict(config or {}), names, hashes)
        except (*ZIP_ERRORS, yaml.YAMLError) as error:
            raise ModelError(f"{path} is not a TorchServe archive that can be used: {error}") from error


def _read_manifest(path: Path, text: bytes) -> dict[str, Any]:
    """Read the manifest; what TorchServe takes as text is text, with numbers as they are written."""

    def refuse(constant: str) -> None:
        raise ValueError(f"its manifest has {constant}, which is not JSON")

    manifest = json.loads(text, parse_constant=refuse)
    written = json.loads(text, parse_float=str, parse_int=str)["model"]
    texts = {key: written[key] for key in _TEXTS if written.get(key) is not None}
    if odd := [key for key, value in texts.items() if not isinstance(value, str)]:
        raise ValueError(f"{odd[0]} in its manifest is not text, but {texts[odd[0]]!r}")
    texts |= {key: plain_name(path, texts[key]) for key in _FILES if texts.get(key)}
    return {**manifest, "model": {k: v for k, v in manifest["model"].items() if k not in _TEXTS} | texts}


def _verify(form: OpenArchive, hashes: Mapping[str, str]) -> None:
    # A file that was added is as bad as one that was changed: Python would import it.
    if set(form.sizes) != set(hashes) | {HASHES}:
        raise IntegrityError(f"{form.path} has files that its list of hashes does not, or lacks some")
    for name, expected in hashes.items():
        if _digest(form.pieces(name)) != expected:
            raise IntegrityError(f"{name} in {form.path} was changed after it was packed; pack it again")


def content_digest(content: Content) -> str:
    """The hexadecimal sha256 of a file's content."""
    return _digest(_pieces(content))


def _digest(pieces: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def _pieces(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
    elif isinstance(content, StreamedFile):
        yield from content.pieces()
    else:
        with content.open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece


def _add(archive: zipfile.ZipFile, name: str, content: Content) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o100644 << 16
    info.create_system = 3
    # The size is set before writing: a file beyond 4 GiB has another header.
    if isinstance(content, Path):
        info.file_size = content.stat().st_size
    else:
        info.file_size = content.size if isinstance(content, StreamedFile) else len(content)
    with archive.open(info, "w") as target:
        for piece in _pieces(content):
            target.write(piece)


@contextmanager
def staged(out: str | Path, *, force: bool) -> Iterator[Path]:
    """Yield a folder to write archives to; when the block succeeds, they are put in place.

    Args:
        out: Folder to put them into, made if missing; one with the same content stays as it is.
        force: Whether to put them in place of others of the same name, which may be served.

    Raises:
        FuseError: Where another archive of that name is there, without ``force``: then nothing is done.
    """
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        # In the same folder, so that a rename puts it in place at once; hidden from a server that looks
        # there.
        stage = tempfile.TemporaryDirectory(prefix=".", dir=out, ignore_cleanup_errors=True)
    except OSError as error:
        raise FuseError(f"cannot write to {out}: {error}") from error
    with stage as folder:
        yield Path(folder)
        for written in sorted(Path(folder).iterdir()):
            _place(written, Path(out) / written.name, force=force)


def new_file(source: str | Path, out: str | Path, *, name: str, version: str) -> Path:
    """The path for an archive made from ``source``, never its own (FuseError)."""
    target = Path(out) / f"{name}-{version}.mar"
    if target.exists() and target.samefile(source):
        raise FuseError(
            f"{target} is what it is made from, and would be lost; give another version, name or folder"
        )
    return target


def _place(written: Path, target: Path, *, force: bool) -> None:
    try:
        if os.path.lexists(target):
            # The same bytes: a pipeline that packs again changes nothing.
            if target.is_file() and filecmp.cmp(written, target, shallow=False):
                return
            if not force:
                raise FuseError(
                    f"{target} is there and may be served; give another version, name or folder, or "
                    "replace it by force (--force)"
                )
        written.replace(target)
    except OSError as error:
        raise FuseError(f"cannot write {target}: {error}") from error


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder; FuseError where the disk has no space."""
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise FuseError(
            f"no temporary files: {error}; free some space, or set TMPDIR to another disk"
        ) from error
