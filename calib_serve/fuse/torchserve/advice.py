"""What whoever packs or serves an archive should know of it, since nothing fails over it at once."""

from __future__ import annotations

import json

from calib_serve.fuse.mar_options import TRIAL, ModelOptions
from calib_serve.fuse.torchserve.archive import Archive
from calib_serve.fuse.torchserve.contents import artifact_of, is_calibrated
from calib_serve.fuse.torchserve.names import class_names
from calib_serve.scores import LABELS

__all__ = ["remarks"]


def remarks(archive: Archive, *, installs: bool = False) -> list[str]:
    """Sentences; ``installs``: whether the server installs what an archive requires."""
    found = []
    required = archive.model.get("requirementsFile")
    if required and not installs:
        found.append(
            f"{archive.path.name} requires packages ({required}), which the server does not install: install "
            "them on the serving host, or serve with --set install_py_dep_per_model=true"
        )
    if is_calibrated(archive) and (remark := class_names(archive, artifact_of(archive)).remark):
        found.append(f"{archive.path.name}: {remark}")
    if is_calibrated(archive):
        found += _of_seam(archive)
    return found


def _of_seam(archive: Archive) -> list[str]:
    """Where a re-packed archive is calibrated, and what its trial could not see to."""
    options = ModelOptions.read(archive.config)
    if options.kind != "wrapped":
        return []
    at = f"{options.seam}, {options.output}" if options.output else options.seam
    where = f"calibrated at {at} ({options.outputs}); "
    if options.outputs in LABELS:
        where += f"a label is predicted from {options.threshold:g} on, by its receipt; "
    where += (
        "receipts and confidences are in the headers x-calib-receipt and x-calib-confidence"
        if options.receipts == "header"
        else "replies are {prediction, confidence, receipt}"
    )
    if TRIAL not in archive.files:
        return [where, f"{archive.path.name} was not tried: whether its calibration is reached is not known"]
    bare = json.loads(archive.read(TRIAL))["bare"]
    return [where, *([_ENVELOPE.format(archive.path.name)] if bare else [])]


_ENVELOPE = "{} answers a body alone, so it needs service_envelope=body, json or kserve in config.properties"
