"""A calibrated archive with another calibration in it, under a new version; all else is unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.fuse.torchserve.archive import new_file, read_archive, scratch, staged, write_archive
from calib_serve.fuse.torchserve.contents import (
    SHADOW,
    artifact_files,
    artifact_of,
    is_calibrated,
    package_files,
    shadow_files,
    with_section,
)

__all__ = ["recalibrated", "same_model", "served_artifact"]

_PACKAGE = "calib_serve/"


def served_artifact(source: str | Path) -> tuple[Artifact, str, str]:
    """(artifact, model's name, version) of an archive that ``calib-serve pack`` wrote."""
    archive = read_archive(Path(source))
    if not is_calibrated(archive):
        raise FuseError(f"{source} is not calibrated; pack it with: calib-serve pack --from {source}")
    return artifact_of(archive), archive.name, archive.version


def same_model(one: str | Path, other: str | Path) -> bool:
    """Whether two archives that ``calib-serve pack`` wrote hold the same model, by the SHA-256 of its file.

    Of a wrapped handler that names no model file, by those of all files but our own.
    """
    return _model(Path(one)) == _model(Path(other))


def _model(path: Path) -> str | dict[str, str]:
    archive = read_archive(path, verify=False)
    options = ModelOptions.read(archive.config)
    ours = (f"{options.artifact}/", _PACKAGE, "MAR-INF/", *_folders(options.shadow))
    config = archive.manifest["model"]["configFile"]
    return options.sha256 or {
        name: told for name, told in archive.hashes.items() if name != config and not name.startswith(ours)
    }


def recalibrated(
    source: str | Path,
    artifact: Artifact,
    out: str | Path,
    *,
    version: str,
    shadow: Artifact | None = None,
    force: bool = False,
) -> Path:
    """Write ``out/NAME-VERSION.mar``: the model, handler and options of ``source``.

    ``shadow`` runs in the shadow of ``artifact``; the one of ``source`` stays behind.

    Only output steps may differ: an input shift or a head is part of the model that is served. Sets and
    abstention are those of the new artifact, or none.
    Raises InputError for a shadow that acts on other logits, FuseError where an inner step differs, where
    ``version`` is that of ``source``, and, without ``force``, where another archive of that name is there.
    """
    served, name, old_version = served_artifact(source)
    if version == old_version:
        raise FuseError(
            f"{source} is version {version} already; receipts tell versions apart, so name a new one"
        )
    same = artifact.model.sha256 in (None, served.model.sha256)
    if not same or artifact.classes != served.classes or not artifact.has_model_steps_of(served):
        raise FuseError(
            f"the artifact changes more than the output of the model in {source}; pack it from --model"
        )
    archive = read_archive(Path(source), verify=False)
    target = new_file(source, out, name=name, version=version)
    options = ModelOptions.read(archive.config)
    options.check_artifact(artifact)
    beside = SHADOW if shadow is not None else ""
    changed = {}
    if options.shadow != beside:
        section = replace(options, shadow=beside).as_dict()
        changed[archive.manifest["model"]["configFile"]] = with_section(archive.config, section)
    with scratch() as copy, archive.contents() as kept, staged(out, force=force) as stage:
        gone = _folders(options.shadow)
        if carried := [name for name in kept if name.startswith(_PACKAGE)]:
            # The package that it carries may be of before, and know no shadows or contracts.
            gone += (_PACKAGE,)
        others = {name: file for name, file in kept.items() if not name.startswith(gone)}
        if own := [name for name in others if name.startswith(_folders(beside))]:
            raise FuseError(
                f"{source} has files of its own where a shadow lies, such as {own[0]}; rename them"
            )
        entry = "calib_serve.serve.wrapped" if options.wraps else "calib_serve.serve.classifier"
        write_archive(
            stage / target.name,
            {
                **others,
                **(package_files(entry) if carried else {}),
                **artifact_files(artifact, copy, name=options.artifact),
                **shadow_files(shadow, artifact, copy),
                **changed,
            },
            name=name,
            version=version,
            manifest=archive.manifest,
        )
    return target


def _folders(name: str) -> tuple[str, ...]:
    """What the names of the files in a folder of the archive begin with; none of no folder."""
    return (f"{name}/",) if name else ()
