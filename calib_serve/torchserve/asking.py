"""A foreign archive whose handler is asked in a process of its own: its seam, and the scores there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.core.files import sha256
from calib_serve.fit import Progress, stage
from calib_serve.models import LabelledRequests
from calib_serve.torchserve.archive._archive import HASHES, MANIFEST, Archive, read_archive, scratch
from calib_serve.torchserve.archive._contents import (
    MAPPING,
    artifact_of,
    is_calibrated,
    listed_names,
    names_in,
)
from calib_serve.torchserve.mar_options import ModelOptions
from calib_serve.torchserve.seam._requests import Request, alternatives
from calib_serve.torchserve.seam._seam import Known, Seam
from calib_serve.torchserve.seam._trial import run_trial

# Handlers of TorchServe's own that have no classifier inside; all others can be wrapped by name.
_NO_CLASSIFIER = ("image_segmenter", "object_detector", "trt_llm_handler", "vllm_handler")


@dataclass(frozen=True)
class ForeignArchive:
    """A foreign archive, unpacked in ``folder``, with free space beside it; ``handler`` is its handler.

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
        """List what each class is called, the name that replies show last; empty where none has a name.

        From the archive's index_to_name.json, else from the handler's own ``mapping``. Raises ModelError
        where that does not name every class.
        """
        try:
            if MAPPING in self.archive.files:
                return listed_names(self.archive, classes)
            return names_in(mapping, classes) if mapping else []
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{MAPPING} in {self.archive.path} {error}") from error


@contextmanager
def unpacked(source: str | Path) -> Iterator[ForeignArchive]:
    """Unpack the archive at ``source`` into a temporary folder.

    Raises ModelError and FuseError for an archive that is unsafe, or has no classifier's handler.
    """
    archive = read_archive(Path(source))
    options = ModelOptions.read(archive.config) if is_calibrated(archive) else None
    handler = _wrappable(str(archive.model.get("handler", "")), archive.files, source)
    if options is not None and options.kind != "wrapped":
        raise ModelError(
            f"{source} was packed from a model, not around a handler; take its model file and use --model"
        )
    if options is not None:
        handler = _wrappable(str(options.wraps), archive.files, source)
    serialized = model_file(archive)
    with scratch() as folder:
        copy = archive.unpack(folder / "archive")
        if options is not None:
            manifest = {**archive.manifest, "model": {**archive.model, "handler": handler}}
            (copy / MANIFEST).write_text(json.dumps(manifest), "utf-8")
        yield ForeignArchive(
            archive,
            copy,
            handler,
            sha256(copy / serialized) if serialized else None,
            max(1, whole_number(archive, archive.config, "batchSize")),
            artifact=None if options is None else artifact_of(archive),
            options=options,
        )


def some_requests(data: LabelledRequests) -> list[tuple[Request, ...]]:
    """Pick some samples from first to last, each in the forms that it may be sent in."""
    some = np.unique(np.linspace(0, len(data) - 1, 8).astype(int)).tolist()
    return [alternatives(data.files[i] if data.rows is None else data.rows[i]) for i in some]


def find_seam(
    folder: Path,
    known: Known,
    samples: Sequence[Sequence[Request]],
    *,
    input_shape: Sequence[int | None] | None = None,
    batch_size: int,
    seconds: float,
) -> Seam:
    """Find the seam of the archive unpacked in ``folder``, by asking its handler in a process.

    ``samples``, each in the same forms that it may be sent in; without any, arrays of ``input_shape`` are
    made up. ``seconds`` that an answer may take. Raises ModelError, which says what was tried.
    """
    job = {
        "known": asdict(known),
        "samples": [[request.as_dict() for request in forms] for forms in samples],
        "shape": input_shape,
        "batch_size": batch_size,
    }
    return Seam.from_dict(run_trial(folder, "look", job, seconds=seconds))


def collected(
    data: LabelledRequests,
    folder: Path,
    seam: Seam,
    *,
    batch_size: int,
    seconds: float,
    part: int = 0,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Send samples to the handler of the archive unpacked in ``folder``; return the logits at its seam."""
    out, rows = folder.with_name(f"scores_{part}.npy"), None
    if isinstance(data.rows, np.memmap) and data.rows.filename is not None:
        rows = Path(data.rows.filename).resolve()
    elif data.rows is not None:
        rows = folder.with_name(f"rows_{part}.npy")
        np.save(rows, data.rows)
    job = {
        "seam": seam.as_dict(),
        "files": [str(file) for file in data.files] if rows is None else [],
        "rows": None if rows is None else str(rows),
        "out": str(out),
        "batch_size": batch_size,
    }
    run_trial(folder, "scores", job, seconds=seconds, progress=stage(progress, "scores"))
    logits: NDArray[np.float32] = np.load(out, mmap_mode="r")
    return logits


def whole_number(old: Archive, config: Mapping[str, Any], key: str) -> int:
    """Read an entry of a TorchServe configuration, by default 1."""
    try:
        return int(config.get(key, 1))
    except (TypeError, ValueError, OverflowError) as error:
        raise FuseError(f"{key} in {old.path} is not a number: {error}") from error


def model_file(archive: Archive) -> str:
    """Name the archive's model file, "" where it has none; FuseError where it does not carry it."""
    name = str(archive.model.get("serializedFile") or "")
    # Manifest and hashes are written anew: they are no model.
    if name and (name not in archive.files or name in (MANIFEST, HASHES)):
        raise FuseError(f"{archive.path} names the model {name} but does not carry it")
    return name


def _wrappable(handler: str, files: Sequence[str], source: object) -> str:
    """The handler of an archive with these ``files``; FuseError where it cannot be calibrated."""
    # A handler may be named FILE, FILE.py or FILE.py:FUNCTION, in a folder or not.
    module = handler.partition(":")[0].rpartition("/")[2].removesuffix(".py")
    if not module:
        raise FuseError(f"{source} names no handler in its manifest; there is nothing to wrap")
    carried = any(name.rpartition("/")[2] == f"{module}.py" for name in files)
    if module in _NO_CLASSIFIER and not carried:
        raise FuseError(f"TorchServe's {module} is no classifier: it has no class probabilities to calibrate")
    if ".py" in handler and not carried:
        raise FuseError(f"{source} names the handler {handler} but does not carry it")
    return handler
