"""The archive of the feedback model, which receives labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calib_serve.fuse.torchserve.archive import CONFIG, read_archive, write_archive
from calib_serve.fuse.torchserve.contents import (
    Batching,
    artifact_of,
    config_file,
    is_calibrated,
    package_files,
    shipped,
)
from calib_serve.fuse.torchserve.names import class_names
from calib_serve.options import FeedbackOptions, changed

__all__ = ["labelled_models", "pack_feedback"]

NAME, VERSION = "calibration_feedback", "1.0"


def pack_feedback(
    out: str | Path,
    options: FeedbackOptions | None = None,
    *,
    archives: Sequence[str | Path] = (),
    name: str = NAME,
    version: str = VERSION,
    **given: Any,
) -> Path:
    """Write the archive of the feedback model; it accepts labels of the models in ``archives``.

    Each of the ``options`` may be ``given`` as a keyword argument.
    """
    asked = changed(options or FeedbackOptions(), given)
    entry = shipped("handlers/calibration_feedback.py")
    own = {name: value for name, value in vars(asked).items() if name != "standalone" and value is not None}
    section: dict[str, Any] = {"models": labelled_models(archives), **own}
    # One worker: one process owns the detectors. A short wait lets requests share a transaction.
    batching = Batching(workers=1, batch_size=32, delay=5)
    files: dict[str, bytes | Path] = {
        entry.name: entry,
        CONFIG: config_file(batching, section),
        **(package_files("calib_serve.serve.feedback") if asked.standalone else {}),
    }
    return write_archive(Path(out) / f"{name}.mar", files, name=name, version=version, handler=entry.name)


def labelled_models(archives: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Name, version, class count and names of every calibrated archive among ``archives``.

    ``multilabel`` and the ``contract``, where it has one.

    The names are the artifact's, else those of the archive's index_to_name.json.
    """
    found = []
    for path in archives:
        archive = read_archive(Path(path), verify=False)
        if is_calibrated(archive):
            artifact = artifact_of(archive)
            found.append(
                {
                    "name": archive.name,
                    "version": archive.version,
                    "classes": artifact.classes,
                    "class_names": list(class_names(archive, artifact).names),
                    **({"multilabel": True} if artifact.is_multilabel else {}),
                    **({"contract": artifact.contract.facts} if artifact.contract else {}),
                }
            )
    return found
