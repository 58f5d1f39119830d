"""A model and its calibration as a TorchServe archive (.mar) that runs by itself."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError
from calib_serve.files import sha256
from calib_serve.fuse.mar_options import Kind, ModelOptions
from calib_serve.fuse.torchserve.archive import CONFIG, scratch, write_archive
from calib_serve.fuse.torchserve.contents import (
    SHADOW,
    Batching,
    artifact_files,
    config_file,
    package_files,
    shadow_files,
    shipped,
)
from calib_serve.options import AnswerOptions, PackOptions, changed
from calib_serve.pictures import Preprocessing

__all__ = ["pack"]

VERSION = "1.0"


def pack(
    model: str | Path,
    artifact: Artifact | str | Path,
    out: str | Path,
    options: PackOptions | None = None,
    *,
    name: str,
    batching: Batching | None = None,
    pictures: Preprocessing | Mapping[str, Any] | None = None,
    **given: Any,
) -> Path:
    """Write ``out/name.mar``; the same inputs give the same bytes.

    ``model``: a TorchScript, .pt2 or .onnx file, or an eager model as ``module:factory`` (or
    ``file.py:factory``, which is then included) with ``weights`` in a .safetensors file.
    Each of the ``options`` may be ``given`` as a keyword argument. ``pictures``: how pictures are prepared;
    they default to what the artifact says, and where that says nothing, pictures are refused when they are
    sent. ``shadow``: another artifact for the same logits. Raises FuseError when the model, or how pictures
    are prepared, is not what the artifact was fitted on, InputError for pictures that cannot be the model's
    inputs, and for a shadow that acts on other logits.
    """
    asked = changed(options or PackOptions(), given)
    fitted = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
    kind, path, factory, sources = _resolve(str(model), asked.weights)
    entry = Path(asked.handler) if asked.handler else shipped("handlers/calibrated_classifier.py")
    known, batching = fitted.model, batching or Batching()
    shape = _shape(asked.input_shape, fitted)
    with scratch() as folder:
        served = _fused_head(path, fitted, folder) if kind == "onnx" else path
        answers = {one.name: getattr(asked, one.name) for one in fields(AnswerOptions)}
        section = ModelOptions(
            kind=kind,
            model=f"model{path.suffix}",
            sha256=_checked_sha256(path, served, fitted),
            input_shape=shape,
            input_dtype=asked.input_dtype or known.input_dtype or "float32",
            outputs=known.returned(asked.outputs),
            factory=factory,
            workers=batching.workers,
            pictures=_pictures(pictures, shape, fitted),
            shadow="" if asked.shadow is None else SHADOW,
            **{**answers, "last_linear": asked.last_linear or known.last_linear},
        )
        section.check_artifact(fitted)
        fitted.check_takes(asked.outputs, "the model's scores")
        files: dict[str, bytes | Path] = {
            section.model: served,
            entry.name: entry,
            CONFIG: config_file(batching, section.as_dict()),
            **artifact_files(fitted, folder),
            **shadow_files(asked.shadow, fitted, folder),
            **{Path(f).name: Path(f) for f in (*sources, *asked.extra)},
            **(package_files("calib_serve.serve.classifier") if asked.standalone else {}),
        }
        return write_archive(
            Path(out) / f"{name}.mar",
            files,
            name=name,
            version=asked.version or VERSION,
            handler=entry.name,
            serializedFile=section.model,
        )


def _resolve(model: str, weights: str | Path | None) -> tuple[Kind, Path, str | None, list[Path]]:
    """Kind, model file, factory, and source files to include."""
    where, colon, function = model.rpartition(":")
    if colon and not Path(model).exists():
        if weights is None or Path(weights).suffix != ".safetensors":
            got = "none" if weights is None else str(weights)
            raise FuseError(
                f"{model} makes a network, and its archive needs the trained weights in a .safetensors file "
                f"(--weights, weights=), got {got}"
            )
        if where.endswith(".py"):
            return "eager", _file(weights), f"{Path(where).stem}:{function}", [_file(where)]
        return "eager", _file(weights), model, []
    path = _file(model)
    if path.suffix == ".onnx":
        return "onnx", path, None, []
    if path.suffix == ".pt2":
        return "exported", path, None, []
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in name for name in archive.namelist()):
                return "torchscript", path, None, []
    raise FuseError(
        f"{path} is not TorchScript, .pt2 or .onnx; an eager model is given as module:factory with weights"
    )


def _file(path: str | Path) -> Path:
    if Path(path).is_dir():
        raise FuseError(
            f"{path} is a folder; an archive is packed of a model file, and around a handler of your own for "
            "any other model, such as Hugging Face's (--from)"
        )
    if not Path(path).is_file():
        raise FuseError(f"there is no file {path}")
    return Path(path)


def _fused_head(path: Path, artifact: Artifact, folder: Path) -> Path:
    """The ONNX file to serve: with the new last layers in it, where the artifact has any."""
    if artifact.head is None:
        return path
    from calib_serve.fuse.onnx.graph import fuse_onnx  # noqa: PLC0415 - only this case needs onnx

    out = folder / "fused.onnx"
    fuse_onnx(path, artifact.only(artifact.head), out)
    return out


def _checked_sha256(path: Path, served: Path, artifact: Artifact) -> str:
    """The hash of the file that is served, once ``path`` is the model that the artifact was fitted on."""
    actual = sha256(path)
    if not artifact.model.fits(actual):
        raise FuseError(
            f"{path} is not the model that the artifact was fitted on ({actual[:12]}, not "
            f"{str(artifact.model.sha256)[:12]}); fit it again, or give that model"
        )
    return actual if served == path else sha256(served)


def _shape(given: Sequence[int | None] | None, artifact: Artifact) -> tuple[int | None, ...]:
    shape = given if given is not None else artifact.model.input_shape
    if not shape:
        raise FuseError("the artifact does not say what the model takes; give input_shape")
    return tuple(None if size is None or int(size) < 0 else int(size) for size in shape)


def _pictures(
    given: Preprocessing | Mapping[str, Any] | None, shape: Sequence[int | None], artifact: Artifact
) -> Preprocessing | Literal["unknown"]:
    """How pictures are prepared: what is given, and what the artifact was fitted on, where they agree."""
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
