"""Pack a model with its calibration, the feedback model, or another calibration into an archive of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calib_serve.artifact import Artifact, Preprocessing
from calib_serve.core.errors import FuseError
from calib_serve.core.files import sha256, shipped
from calib_serve.core.options.base import changed, fields_of
from calib_serve.core.options.data import ProofOptions
from calib_serve.core.options.pack import AnswerOptions, FeedbackOptions, PackOptions
from calib_serve.fuse import required_proof
from calib_serve.models import is_torchscript, warn_of_torchscript
from calib_serve.torchserve.archive._archive import (
    CONFIG,
    Content,
    new_file,
    read_archive,
    scratch,
    staged,
    write_archive,
)
from calib_serve.torchserve.archive._contents import (
    SHADOW,
    artifact_files,
    artifact_of,
    class_names,
    config_file,
    is_calibrated,
    shadow_files,
    with_section,
)
from calib_serve.torchserve.mar_options import Kind, ModelOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import FeedbackKeywords, PackKeywords

FEEDBACK, VERSION = "calibration_feedback", "1.0"


def pack(
    model: str | Path,
    artifact: Artifact | str | Path,
    out: str | Path,
    options: PackOptions | None = None,
    *,
    name: str,
    pictures: Preprocessing | Mapping[str, Any] | None = None,
    **keywords: Unpack[PackKeywords],
) -> Path:
    """Write ``out/name.mar``; the same inputs give the same bytes.

    Args:
        model: A .pt2, .onnx or TorchScript file.
        artifact: The calibration, or its folder.
        out: The folder to write into.
        options: A ``PackOptions``; keywords replace its fields.
        name: The model's name in TorchServe.
        pictures: How pictures are prepared; by default as the artifact says, and where that says nothing,
            pictures are refused when they are sent.
        **keywords: Fields of ``PackOptions``: ``abstain_below``, ``against``, ``batch_size``,
            ``flush_seconds``, ``input_shape``, ``inputs``, ``last_linear``, ``max_pixels``, ``outputs``,
            ``probabilities``, ``shadow``, ``threads``, ``threshold``, ``top``, ``unproven``, ``version``,
            ``workers``.

    Returns:
        The archive's path.

    Raises:
        FuseError: Where nothing proves that the model gives the scores that were fitted (unless
            ``unproven``), or where pictures are prepared in another way.
        InputError: For pictures that cannot be the model's inputs, and a shadow that acts on other logits.
    """
    asked = changed(options or PackOptions(), keywords, pack)
    fitted = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
    kind, path = _kind_of(model), Path(model)
    if kind == "torchscript":
        warn_of_torchscript(path)
    entry, known = shipped("handlers/calibrated_classifier.py"), fitted.model
    sizes = asked.input_shape if asked.input_shape is not None else known.input_shape
    if not sizes:
        raise FuseError("the artifact does not say what the model takes; give --input-shape (input_shape=)")
    shape = tuple(None if size is None or int(size) < 0 else int(size) for size in sizes)
    proof = _proof(path, fitted, asked)
    with scratch() as folder:
        # A worker has no onnx to edit graphs with: the head goes in here.
        served = _fused_head(path, fitted, folder, asked) if kind == "onnx" else path
        answers = fields_of(AnswerOptions, asked)
        answers |= {"last_linear": asked.last_linear or known.last_linear, "workers": asked.workers or 1}
        section = ModelOptions(
            kind=kind,
            model=f"model{path.suffix}",
            sha256=sha256(served),
            proof=proof,
            input_shape=shape,
            input_dtype=known.input_dtype or "float32",
            outputs=known.returned(asked.outputs),
            pictures=_pictures(pictures, shape, fitted),
            shadow="" if asked.shadow is None else SHADOW,
            **answers,
        )
        section.check_artifact(fitted)
        fitted.check_takes(asked.outputs, "the model's scores")
        files: dict[str, Content] = {
            section.model: served,
            entry.name: entry,
            CONFIG: config_file(section.as_dict(), workers=section.workers, batch_size=asked.batch_size or 8),
            **artifact_files(fitted, folder),
            **shadow_files(asked.shadow, fitted, folder),
        }
        return write_archive(
            Path(out) / f"{name}.mar",
            files,
            name=name,
            version=asked.version or VERSION,
            handler=entry.name,
            serialized_file=section.model,
        )


def _kind_of(model: str | Path) -> Kind:
    """The kind of a model's file; FuseError where it is not one that is packed."""
    path = Path(model)
    if path.is_dir():
        raise FuseError(
            f"{path} is a folder; an archive is packed of a model file, and around a handler of your own for "
            "any other model, such as Hugging Face's (--from)"
        )
    if ":" in str(model) and not path.exists():
        raise FuseError(f"{model} makes a network; write it to a .pt2 by torch.export, and pack that file")
    if not path.is_file():
        raise FuseError(f"there is no file {path}")
    if path.suffix == ".onnx":
        return "onnx"
    if is_torchscript(path):
        return "torchscript"
    if path.suffix == ".pt2":
        return "exported"
    raise FuseError(f"{path} is not .pt2, .onnx or TorchScript; write it to a .pt2 by torch.export")


def _proof(file: Path, artifact: Artifact, asked: PackOptions) -> str:
    """Prove a model's file by its hash, or by its scores for the rows to compare it with; say what proves it.

    FuseError where they differ, or nothing proves it.
    """
    proof = required_proof(artifact, lambda: sha256(file), file, asked, asked.inputs)
    if isinstance(proof, str):
        return proof
    from calib_serve.models import load_model  # noqa: PLC0415 - which brings torch

    proof = proof.taking(["inputs"])
    inputs = proof.inputs["inputs"]
    how: dict[str, Any] = {"input_shape": inputs.shape[1:], "device": "cpu"}
    model = load_model(str(file), outputs=artifact.model.returned(asked.outputs), **how)
    return proof.prove(np.asarray(model.logits(inputs), np.float64), file)


def _fused_head(path: Path, artifact: Artifact, folder: Path, asked: PackOptions) -> Path:
    """The ONNX file to serve: with the artifact's new last layers in it, where it has any."""
    if artifact.head is None:
        return path
    from calib_serve.fuse import fuse_onnx  # noqa: PLC0415 - only this case needs onnx

    out = folder / "fused.onnx"
    how: dict[str, Any] = fields_of(ProofOptions, asked)
    fuse_onnx(path, artifact.only(artifact.head), out, inputs=asked.inputs, **how)
    return out


def _pictures(
    given: Preprocessing | Mapping[str, Any] | None, shape: Sequence[int | None], artifact: Artifact
) -> Preprocessing | Literal["unknown"]:
    """The preparation of pictures: as given and as the artifact was fitted, where they agree."""
    fitted = artifact.model.pictures
    known = fitted and fitted.for_input(shape)
    if given is None:
        return known or "unknown"
    wanted = Preprocessing.of(given).for_input(shape)
    if known not in (None, wanted):
        raise FuseError(
            f"the artifact was fitted on pictures prepared by {known.as_dict()}, not by {wanted.as_dict()}; "
            "leave that out, or fit it again on pictures prepared as they are served"
        )
    return wanted


def pack_feedback(
    out: str | Path,
    options: FeedbackOptions | None = None,
    *,
    archives: Sequence[str | Path] = (),
    name: str = FEEDBACK,
    version: str = VERSION,
    **keywords: Unpack[FeedbackKeywords],
) -> Path:
    """Write the archive of the feedback model.

    Args:
        out: The folder to write into.
        options: A ``FeedbackOptions``; keywords replace its fields.
        archives: The calibrated archives whose labels it accepts.
        name: The model's name in TorchServe.
        version: The model's version.
        **keywords: Fields of ``FeedbackOptions``: ``arl``, ``block``, ``flush_seconds``,
            ``maturity``, ``tolerance``, ``ttl_days``.

    Returns:
        The archive's path.

    Raises:
        FuseError: For an archive that is not calibrated.
    """
    asked = changed(options or FeedbackOptions(), keywords, pack_feedback)
    for path in archives:
        if not is_calibrated(read_archive(Path(path), verify=False)):
            raise FuseError(
                f"{path} is not calibrated, and labels come with the receipts of one that is; pack it with: "
                f"calib-serve pack --from {path}"
            )
    entry = shipped("handlers/calibration_feedback.py")
    own = {name: value for name, value in vars(asked).items() if value is not None}
    section: dict[str, Any] = {"models": labelled_models(archives), **own}
    # One worker: one process owns the detectors. A short wait lets requests share a transaction.
    files: dict[str, Content] = {
        entry.name: entry,
        CONFIG: config_file(section, workers=1, batch_size=32),
    }
    return write_archive(Path(out) / f"{name}.mar", files, name=name, version=version, handler=entry.name)


def labelled_models(archives: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Name, version, class count and names of every calibrated archive among ``archives``."""
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


def served_artifact(source: str | Path) -> tuple[Artifact, str, str]:
    """(artifact, model's name, version) of an archive that ``calib-serve pack`` wrote."""
    archive = read_archive(Path(source))
    if not is_calibrated(archive):
        raise FuseError(f"{source} is not calibrated; pack it with: calib-serve pack --from {source}")
    return artifact_of(archive), archive.name, archive.version


def same_model(one: str | Path, other: str | Path) -> bool:
    """Whether two archives of ours hold the same model, by the SHA-256 of its file.

    Of a wrapped handler that names no model file, by those of all files but our own.

    Args:
        one: An archive.
        other: Another one.
    """
    return _model(Path(one)) == _model(Path(other))


def _model(path: Path) -> str | dict[str, str]:
    archive = read_archive(path, verify=False)
    options = ModelOptions.read(archive.config)
    ours = (f"{options.artifact}/", "MAR-INF/", *_folders(options.shadow))
    config = archive.model["configFile"]
    return options.sha256 or {
        name: digest
        for name, digest in archive.hashes.items()
        if name != config and not name.startswith(ours)
    }


def recalibrated(
    source: str | Path,
    artifact: Artifact,
    out: str | Path,
    *,
    version: str,
    force: bool = False,
) -> Path:
    """Write ``out/NAME-VERSION.mar``: the model, handler and options of another archive.

    Only output steps may differ: an input shift or a head is part of the model that is served. Sets and
    abstention are those of the new artifact, or none.

    Args:
        source: The other archive, whose shadow stays behind.
        artifact: The new calibration.
        out: Folder.
        version: Version of the model in the new archive.
        force: Whether to replace another archive of that name.

    Raises:
        FuseError: Where an inner step differs, where ``version`` is that of ``source``, and where another
            archive of that name is there.
    """
    served, name, old_version = served_artifact(source)
    if version == old_version:
        raise FuseError(
            f"{source} is version {version} already; receipts tell versions apart, so name a new one"
        )
    # Another model's output steps would act on scores that they were not fitted on.
    same = artifact.model.sha256 in (None, served.model.sha256)
    if not same or artifact.classes != served.classes or not artifact.has_model_steps_of(served):
        raise FuseError(
            f"the artifact changes more than the output of the model in {source}; pack it from --model"
        )
    archive = read_archive(Path(source), verify=False)
    target = new_file(source, out, name=name, version=version)
    options = ModelOptions.read(archive.config)
    options.check_artifact(artifact)
    files: dict[str, Content] = {}
    if options.shadow:
        section = replace(options, shadow="").as_dict()
        files[archive.model["configFile"]] = with_section(archive.config, section)
    with scratch() as copy, archive.contents() as kept, staged(out, force=force) as stage:
        files |= artifact_files(artifact, copy, name=options.artifact)
        others = {n: file for n, file in kept.items() if not n.startswith(_folders(options.shadow))}
        write_archive(
            stage / target.name,
            {**others, **files},
            name=name,
            version=version,
            manifest=archive.manifest,
        )
    return target


def _folders(name: str) -> tuple[str, ...]:
    """The prefix of file names in a folder of the archive, as a tuple; () for no folder."""
    return (f"{name}/",) if name else ()
