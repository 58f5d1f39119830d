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

__all__ = ["labelled_models", "pack_feedback"]


def pack_feedback(
    out: str | Path,
    *,
    archives: Sequence[str | Path] = (),
    name: str = "calibration_feedback",
    version: str = "1.0",
    standalone: bool = False,
    ttl_days: float = 30.0,
    arl: float | None = None,
    tolerance: float | None = None,
    block: int | None = None,
    maturity: str | None = None,
    flush_seconds: float = 1.0,
    keyring: str | None = None,
    ledger: str | None = None,
) -> Path:
    """Write the archive of the feedback model; it accepts labels of the models in ``archives``.

    Labels are taken for ``ttl_days`` after their prediction. ``arl``, ``tolerance``, ``block``: those of the
    drift detector, and ``maturity`` such as "6h" or "auto" the age at which labels are in; by default
    those of ``calib-serve watch``. ``flush_seconds`` between two writes of metrics; ``keyring`` and
    ``ledger`` where the host's environment does not name them.
    """
    entry = shipped("handlers/calibration_feedback.py")
    asked = {"arl": arl, "tolerance": tolerance, "block": block, "maturity": maturity}
    given: dict[str, Any] = {"ttl_days": ttl_days, "flush_seconds": flush_seconds}
    given |= {key: value for key, value in asked.items() if value is not None}
    host = {key: value for key, value in (("keyring", keyring), ("ledger", ledger)) if value is not None}
    section: dict[str, Any] = {"models": labelled_models(archives), **given, **host}
    # One worker: one process owns the detectors. A short wait lets requests share a transaction.
    batching = Batching(workers=1, batch_size=32, delay=5)
    files: dict[str, bytes | Path] = {
        entry.name: entry,
        CONFIG: config_file(batching, section),
        **(package_files("calib_serve.serve.feedback") if standalone else {}),
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
