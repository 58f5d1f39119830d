"""The names of an archive's classes, and what whoever packs or serves it should know of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError
from calib_serve.fuse.mar_options import TRIAL, ModelOptions
from calib_serve.fuse.torchserve.archive import Archive
from calib_serve.fuse.torchserve.contents import artifact_of, is_calibrated
from calib_serve.scores import LABELS

__all__ = ["MAPPING", "ClassNames", "called", "check_names", "class_names", "listed_names", "remarks"]


def remarks(archive: Archive, *, installs: bool = False) -> list[str]:
    """Sentences; ``installs``: whether the server installs what an archive requires."""
    found = []
    required = archive.model.get("requirementsFile")
    if required and not installs:
        found.append(
            f"{archive.path.name} requires packages ({required}), which the server does not install: install "
            "them on the serving host, or serve with --option install_py_dep_per_model=true"
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


MAPPING = "index_to_name.json"

_LONGEST = 16 << 20  # bytes of a mapping


@dataclass(frozen=True)
class ClassNames:
    """``names`` by which labels may call the classes, all different, or none; and what to know of them."""

    names: tuple[str, ...] = ()
    remark: str = ""


def class_names(archive: Archive, artifact: Artifact) -> ClassNames:
    """The artifact's names, else those of the archive's mapping, if it names each class.

    A name of several classes names none of them. Each of these is called by the identifier that the mapping
    lists before the name, such as a WordNet id, or as "crane (134)".
    """
    if artifact.class_names:
        return _different([(name,) for name in artifact.class_names])
    if MAPPING not in archive.files:
        return ClassNames()
    try:
        return _different(listed_names(archive, artifact.classes))
    except (ValueError, RecursionError) as error:
        return ClassNames(
            remark=f"the classes have no names, labels are class ids: {MAPPING} in {archive.path} {error}"
        )


def check_names(archive: Archive) -> None:
    """FuseError where the artifact and the mapping of a calibrated archive call a class differently."""
    artifact = artifact_of(archive)
    if not artifact.class_names or MAPPING not in archive.files:
        return
    try:
        mapping = listed_names(archive, artifact.classes)
    except (ValueError, RecursionError):
        return  # It names no classes.
    for k, (own, listed) in enumerate(zip(artifact.class_names, mapping, strict=True)):
        if own not in listed:
            raise FuseError(
                f"class {k} is {own!r} in the artifact, and {listed[-1]!r} in {MAPPING}: is the artifact of "
                "this model? Fit it with the same names, or with none"
            )


def listed_names(archive: Archive, classes: int) -> list[tuple[str, ...]]:
    """What the archive's mapping calls each class, its name last; ValueError says what it does instead."""
    try:
        found = json.loads(archive.read(MAPPING, limit=_LONGEST))
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    return called(found, classes)


def called(found: Any, classes: int) -> list[tuple[str, ...]]:
    """What a mapping in TorchServe's format calls each class; ValueError as of ``listed_names``."""
    listed = found.get("object_type_names") if isinstance(found, dict) else None
    if isinstance(listed, list):  # an older form, which TorchServe reads as well
        found = {str(k): name for k, name in enumerate(listed)}
    if not isinstance(found, dict) or set(found) != {str(k) for k in range(classes)}:
        size = f"{len(found)} classes" if isinstance(found, dict) else "none"
        raise ValueError(f"does not name the {classes} classes 0 to {classes - 1}, but {size}")
    rows = [found[str(k)] for k in range(classes)]
    rows = [row if isinstance(row, list) else [row] for row in rows]
    for k, row in enumerate(rows):
        if not row or not all(isinstance(name, str) for name in row):
            raise ValueError(f"calls class {k} {row!r}, which is no name")
    return [tuple(row) for row in rows]


def _different(rows: Sequence[Sequence[str]]) -> ClassNames:
    count = Counter(row[-1] for row in rows)
    doubled = [name for name, n in count.items() if n > 1]
    if not doubled:
        return ClassNames(tuple(count))
    first = Counter(row[0] for row in rows)
    names = [
        row[-1]
        if count[row[-1]] == 1
        else row[0]
        if first[row[0]] == 1 and row[0] not in count
        else f"{row[-1]} ({k})"
        for k, row in enumerate(rows)
    ]
    instead = [name for name, row in zip(names, rows, strict=True) if row[-1] == doubled[0]]
    remark = f"{len(doubled)} names are of several classes, such as {doubled[0]!r}: a label says {instead}"
    if len(set(names)) != len(names):
        return ClassNames(remark=f"{remark}; these are names as well, so that labels are class ids")
    return ClassNames(tuple(names), f"{remark} instead, or the class id")
