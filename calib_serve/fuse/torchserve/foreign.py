"""An archive unpacked to be asked: its own handler, also where a calibration of ours is around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError, ModelError
from calib_serve.files import sha256
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.fuse.torchserve.archive import Archive, read_archive, scratch, unpack
from calib_serve.fuse.torchserve.contents import artifact_of, is_calibrated
from calib_serve.fuse.torchserve.forms import MANIFEST
from calib_serve.fuse.torchserve.names import MAPPING, called, listed_names
from calib_serve.fuse.torchserve.repacking import number, wrappable

__all__ = ["ForeignArchive", "unpacked"]


@dataclass(frozen=True)
class ForeignArchive:
    """``folder`` holds the archive's files, and beside it is room; ``handler`` is the one to ask.

    ``sha256`` of its serialized file, None where it has none; ``batch_size`` of its requests. ``artifact``
    and ``options``, of an archive that ``pack_around`` made: what calibrates its scores, and where.
    """

    archive: Archive
    folder: Path
    handler: str
    sha256: str | None
    batch_size: int
    artifact: Artifact | None = None
    options: ModelOptions | None = None

    def class_names(self, classes: int, mapping: Any = None) -> list[tuple[str, ...]]:
        """What each class is called, the name that replies show last; empty where no class has a name.

        From the archive's index_to_name.json, else from the handler's own ``mapping``. Raises ModelError
        where that does not name every class.
        """
        try:
            if MAPPING in self.archive.files:
                return listed_names(self.archive, classes)
            return called(mapping, classes) if mapping else []
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{MAPPING} in {self.archive.path} {error}") from error


@contextmanager
def unpacked(source: str | Path) -> Iterator[ForeignArchive]:
    """The archive at ``source``, unpacked into a temporary folder.

    Raises ModelError and FuseError for an archive that is unsafe, or has no classifier's handler.
    """
    archive = read_archive(Path(source))
    options = ModelOptions.read(archive.config) if is_calibrated(archive) else None
    if options is not None and options.kind != "wrapped":
        raise ModelError(
            f"{source} was packed from a model, not around a handler; take its model file and use --model"
        )
    handler = str(archive.model.get("handler", "") if options is None else options.wraps)
    handler = wrappable(handler, archive.files, source)
    serialized = archive.model.get("serializedFile")
    if serialized and serialized not in archive.files:
        raise FuseError(f"{source} names the model {serialized} but does not carry it")
    with scratch() as folder:
        copy = unpack(archive, folder / "archive")
        if options is not None:
            manifest = {**archive.manifest, "model": {**archive.model, "handler": handler}}
            (copy / MANIFEST).write_text(json.dumps(manifest), "utf-8")
        yield ForeignArchive(
            archive,
            copy,
            handler,
            sha256(copy / serialized) if serialized else None,
            max(1, number(archive, archive.config, "batchSize")),
            artifact=None if options is None else artifact_of(archive),
            options=options,
        )
