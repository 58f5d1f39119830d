"""The contents of our archives: the artifact, the settings, the package's own files, the class names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.scores import LABELS
from calib_serve.torchserve.archive._archive import Archive, is_archive, opened, read_archive, scratch
from calib_serve.torchserve.mar_options import SECTION, TRIAL, ModelOptions

SHADOW = "shadow"
"""Where in an archive the artifact lies that runs in the shadow of the served one."""

MAPPING = "index_to_name.json"
_LONGEST_MAPPING = 16 << 20  # bytes


def is_calibrated(archive: Archive) -> bool:
    """Whether the archive serves a model that this package calibrated."""
    section = archive.config.get(SECTION)
    return isinstance(section, Mapping) and "kind" in section


def artifact_of(archive: Archive) -> Artifact:
    """Load the artifact inside an archive, checked as any artifact; ModelError where there is none."""
    if not is_calibrated(archive):
        raise ModelError(
            f"{archive.path} holds no calibration; to run its handler and see what of it can be calibrated: "
            f"calib-serve inspect --from {archive.path}"
        )
    folder = archive.config[SECTION].get("artifact", "artifact")
    if not isinstance(folder, str) or not folder:
        raise ModelError(f"{archive.path} does not say where its artifact is, but {folder!r}")
    # Only the artifact's own files are unpacked: a model may have gigabytes.
    with opened(archive.path) as form, scratch() as copy:
        for name in form.sizes:
            if name.startswith(f"{folder}/"):
                with (copy / Path(name).name).open("wb") as file:
                    file.writelines(form.pieces(name))
        return Artifact.load(copy)


def load_artifact(path: str | Path) -> Artifact:
    """Load an artifact, every hash checked.

    Args:
        path: The artifact's folder, or a TorchServe archive that holds it.

    Raises:
        ArtifactError: For an artifact that cannot be used; ModelError for an archive that cannot be read.
    """
    return artifact_of(read_archive(Path(path))) if is_archive(Path(path)) else Artifact.load(path)


def packed_proof(path: str | Path) -> str:
    """What proves that an archive's model gives the scores that were fitted; "" for an artifact's folder.

    Args:
        path: The artifact's folder, or an archive that holds it.
    """
    if not is_archive(Path(path)):
        return ""
    return ModelOptions.read(read_archive(Path(path), verify=False).config).proof


def artifact_files(artifact: Artifact, folder: Path, *, name: str = "artifact") -> dict[str, bytes | Path]:
    """Save the artifact below ``folder``; return its two files by their names in the archive."""
    saved = artifact.save(folder / name)
    return {f"{name}/{path.name}": path for path in sorted(saved.iterdir())}


def shadow_files(
    shadow: Artifact | str | Path | None, served: Artifact, folder: Path
) -> dict[str, bytes | Path]:
    """Save an artifact that runs in the shadow of ``served``, if any; InputError where it cannot."""
    if shadow is None:
        return {}
    found = shadow if isinstance(shadow, Artifact) else Artifact.load(shadow)
    found.check_beside(served)
    return artifact_files(found, folder, name=SHADOW)


def config_file(section: Mapping[str, Any], *, workers: int, batch_size: int) -> bytes:
    """Write model-config.yaml: TorchServe's settings for the model, and the section for this package."""
    ours = {SECTION: dict(section)}
    text = yaml.safe_dump(ours, sort_keys=False, allow_unicode=True, default_flow_style=None)
    return (
        "# Workers never grow or shrink by themselves; each holds its own copy of the model.\n"
        f"minWorkers: {workers}\nmaxWorkers: {workers}\n"
        "# So many requests share one call of the model, if they come within so many milliseconds.\n"
        f"batchSize: {batch_size}\nmaxBatchDelay: 5\n"
        "# Seconds after which a worker that does not answer is replaced.\n"
        "responseTimeout: 120\n"
        "# Read by calib_serve alone; see calib_serve.torchserve.mar_options.ModelOptions.\n"
        f"{text}"
    ).encode()


def with_section(config: Mapping[str, Any], section: Mapping[str, Any]) -> bytes:
    """Write a model-config.yaml with this section for this package."""
    text: str = yaml.safe_dump({**config, SECTION: dict(section)}, sort_keys=False, allow_unicode=True)
    return text.encode()


def remarks(archive: Archive, *, installs: bool = False) -> list[str]:
    """List remarks on an archive, for the user.

    Args:
        archive: Archive as it was read; it may be of others.
        installs: Whether the server installs the packages that it requires.
    """
    found = []
    required = archive.model.get("requirementsFile")
    if required and not installs:
        found.append(
            f"{archive.path.name} requires packages ({required}), which the server does not install: install "
            "them on the serving host, or serve with --option install_py_dep_per_model=true"
        )
    if not is_calibrated(archive):
        return found
    if remark := class_names(archive, artifact_of(archive)).remark:
        found.append(f"{archive.path.name}: {remark}")
    options = ModelOptions.read(archive.config)
    if options.proof.startswith("unproven"):
        found.append(f"{archive.path.name} is {options.proof}")
    return found + (_of_seam(archive, options) if options.kind == "wrapped" else [])


def _of_seam(archive: Archive, options: ModelOptions) -> list[str]:
    """Say where a re-packed archive is calibrated, and what its trial could not prove."""
    at = f"{options.seam}, {options.output}" if options.output else options.seam
    where = f"calibrated at {at} ({options.outputs}); "
    if options.outputs in LABELS:
        where += f"a label is predicted from {options.threshold:g} on, by its receipt; "
    if options.receipts == "header":
        where += "receipts and confidences are in the headers x-calib-receipt and x-calib-confidence"
    else:
        where += "replies are {prediction, confidence, receipt}"
    if TRIAL not in archive.files:
        return [where, f"{archive.path.name} was not tried: whether its calibration is reached is not known"]
    if not json.loads(archive.read(TRIAL))["bare"]:
        return [where]
    needs = "service_envelope=body, json or kserve in config.properties"
    return [where, f"{archive.path.name} answers a body alone, so it needs {needs}"]


@dataclass(frozen=True)
class ClassNames:
    """Distinct ``names`` by which labels may call the classes, or none; and a remark on them."""

    names: tuple[str, ...] = ()
    remark: str = ""


def class_names(archive: Archive, artifact: Artifact) -> ClassNames:
    """The artifact's names, else those of the archive's mapping, if it names each class.

    A name of several classes names none of them: each of these is called as "crane (134)".
    """
    if artifact.class_names:
        return _distinct([(name,) for name in artifact.class_names])
    if MAPPING not in archive.files:
        return ClassNames()
    try:
        return _distinct(listed_names(archive, artifact.classes))
    except (ValueError, RecursionError) as error:
        return ClassNames(
            remark=f"the classes have no names, labels are class ids: {MAPPING} in {archive.path} {error}"
        )


def check_class_mapping(archive: Archive) -> None:
    """Raise FuseError where the artifact and the mapping of an archive call a class differently."""
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
    """List the names that the archive's mapping gives each class, the shown one last; ValueError if bad."""
    try:
        found = json.loads(archive.read(MAPPING, limit=_LONGEST_MAPPING))
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    return names_in(found, classes)


def names_in(found: Any, classes: int) -> list[tuple[str, ...]]:
    """List the names that a mapping in TorchServe's format gives each class; ValueError if bad."""
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


def _distinct(rows: Sequence[Sequence[str]]) -> ClassNames:
    count = Counter(row[-1] for row in rows)
    doubled = [name for name, n in count.items() if n > 1]
    if not doubled:
        return ClassNames(tuple(count))
    names = [row[-1] if count[row[-1]] == 1 else f"{row[-1]} ({k})" for k, row in enumerate(rows)]
    instead = [name for name, row in zip(names, rows, strict=True) if row[-1] == doubled[0]]
    remark = f"{len(doubled)} names are of several classes, such as {doubled[0]!r}: a label says {instead}"
    if len(set(names)) != len(names):
        return ClassNames(remark=f"{remark}; these are names as well, so that labels are class ids")
    return ClassNames(tuple(names), f"{remark} instead, or the class id")
