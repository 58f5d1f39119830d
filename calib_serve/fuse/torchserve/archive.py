"""TorchServe archives: written reproducibly, read as untrusted input."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

from calib_serve.artifact.manifest import read_yaml
from calib_serve.errors import FuseError, IntegrityError, ModelError
from calib_serve.files import sha256, written_whole
from calib_serve.fuse.mar_options import SECTION
from calib_serve.npz import ZIP_ERRORS, refuse_bomb

__all__ = ["HASHES", "MANIFEST", "Archive", "read_archive", "scratch", "write_archive"]

MANIFEST = "MAR-INF/MANIFEST.json"
HASHES = "MAR-INF/SHA256.json"
CONFIG = "model-config.yaml"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_LARGEST = 8 << 30  # bytes of one archive, unpacked
_LONGEST = 1 << 20  # bytes of its manifest, its configuration, its list of hashes
_DATE = (1980, 1, 1, 0, 0, 0)  # the oldest a zip can hold: no clock in the bytes


@dataclass(frozen=True)
class Archive:
    """An archive's metadata.

    ``model``: the manifest's entries for it (handler, serializedFile ...); ``config``: its
    model-config; ``hashes`` by file, empty for an archive that we did not pack.
    """

    path: Path
    name: str
    version: str
    model: Mapping[str, str]
    config: Mapping[str, Any]
    files: tuple[str, ...]
    hashes: Mapping[str, str]

    def read(self, name: str) -> bytes:
        """One file's bytes."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return archive.read(name)
        except ZIP_ERRORS as error:
            raise ModelError(f"{name} in {self.path} cannot be read: {error}") from error


def write_archive(
    path: Path, files: Mapping[str, bytes | Path], *, name: str, version: str, **model: str | None
) -> Path:
    """Write a .mar reproducibly: the same files give the same bytes.

    ``files``: bytes or where they lie, by name in the archive; ``model``: more of the manifest's
    ``model`` entries (handler, serializedFile, modelFile). The write is atomic.
    """
    for text in (name, version):
        if not _NAME.match(text):
            raise FuseError(f"a name or version is letters, digits, '_', '.', '-', at most 100; got {text!r}")
    manifest = {
        "runtime": "python",
        "model": {
            "modelName": name,
            "modelVersion": version,
            **{key: value for key, value in sorted(model.items()) if value is not None},
            **({"configFile": CONFIG} if CONFIG in files else {}),
        },
        "archiverVersion": "0.12.0",
    }
    content = {**files, MANIFEST: json.dumps(manifest, indent=2).encode()}
    hashes = {entry: sha256(content[entry]) for entry in sorted(content)}
    content[HASHES] = json.dumps(hashes, indent=2).encode()
    try:
        with (
            written_whole(path) as partial,
            zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        ):
            for entry in sorted(content):
                _add(archive, entry, content[entry])
    except OSError as error:
        raise FuseError(f"cannot write {path}: {error}") from error
    return path


def read_archive(path: Path, *, verify: bool = True) -> Archive:
    """The checked content of a .mar: no path that leaves its folder, no zip bomb, hashes as packed.

    Raises ModelError for an invalid or unsafe archive, IntegrityError for changed files.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_entries(path, entries)
            refuse_bomb(archive)
            manifest = json.loads(_text(archive, MANIFEST))
            names = tuple(sorted(e.filename for e in entries if not e.is_dir()))
            hashes = json.loads(_text(archive, HASHES)) if HASHES in names else {}
            if verify:
                _verify(path, archive, hashes, names)
            model = {str(key): _inside(path, str(value)) for key, value in manifest["model"].items()}
            config = read_yaml(_text(archive, model["configFile"])) if "configFile" in model else {}
            if verify and not hashes and SECTION in (config or {}):
                raise IntegrityError(f"{path} has lost its list of hashes; pack it again")
            return Archive(
                Path(path),
                model["modelName"],
                model.get("modelVersion", "1.0"),
                model,
                dict(config or {}),
                names,
                hashes,
            )
    except (*ZIP_ERRORS, yaml.YAMLError) as error:
        raise ModelError(f"{path} is not a TorchServe archive that can be used: {error}") from error


def _text(archive: zipfile.ZipFile, name: str) -> bytes:
    """A file of the archive that is read whole; one of these is a page or two."""
    if (size := archive.getinfo(name).file_size) > _LONGEST:
        raise ValueError(f"{name} has {size} bytes, more than the {_LONGEST} allowed")
    return archive.read(name)


def _check_entries(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    if sum(entry.file_size for entry in entries) > _LARGEST:
        raise ModelError(f"{path} unpacks to more than {_LARGEST} bytes; it is not served")
    names = [entry.filename for entry in entries]
    if len(set(names)) != len(names):
        raise ModelError(f"{path} holds a file twice; two programs may read two different ones")
    for entry in entries:
        _inside(path, entry.filename)
        if (entry.external_attr >> 16) & 0o170000 == 0o120000:
            raise ModelError(f"{path} holds a symbolic link, {entry.filename!r}; it is not served")


def _inside(path: Path, name: str) -> str:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\x00" in name:
        raise ModelError(f"{path} names {name!r}, which leaves its folder; it is not served")
    return name


def _verify(path: Path, archive: zipfile.ZipFile, hashes: Mapping[str, str], names: tuple[str, ...]) -> None:
    if not hashes:
        return
    if set(names) != set(hashes) | {HASHES}:
        raise IntegrityError(f"{path} has files that its list of hashes does not, or lacks some")
    for name, expected in hashes.items():
        with archive.open(name) as file:
            if _digest(file) != expected:
                raise IntegrityError(f"{name} in {path} was changed after it was packed; pack it again")


def _add(archive: zipfile.ZipFile, name: str, content: bytes | Path) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o100644 << 16
    info.create_system = 3
    source = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
    info.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
    with source, archive.open(info, "w") as target:
        while piece := source.read(1 << 20):
            target.write(piece)


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder; FuseError where there is no space for it."""
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise FuseError(
            f"no temporary files: {error}; free some space, or set TMPDIR to another disk"
        ) from error


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()
