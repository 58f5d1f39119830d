"""Re-pack an existing archive with a calibration around its inference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from calib_serve.artifact import Artifact, Outputs
from calib_serve.errors import FuseError
from calib_serve.files import sha256
from calib_serve.fuse.mar_options import SECTION, ModelOptions
from calib_serve.fuse.torchserve.archive import (
    CONFIG,
    HASHES,
    MANIFEST,
    read_archive,
    scratch,
    write_archive,
)
from calib_serve.fuse.torchserve.contents import artifact_files, package_files
from calib_serve.fuse.torchserve.shipped_files import shipped

__all__ = ["pack_around"]

_ENTRY = "calibrated_wrapper.py"
# Handlers of TorchServe's own that have no classifier inside; all others can be wrapped by name.
_NO_CLASSIFIER = ("image_segmenter", "object_detector", "trt_llm_handler", "vllm_handler")
_KEPT = ("description", "envelope", "modelFile", "requirementsFile", "serializedFile")


def pack_around(
    source: str | Path,
    artifact: Artifact | str | Path,
    out: str | Path,
    *,
    name: str | None = None,
    standalone: bool = False,
    outputs: Outputs | None = None,
    last_linear: str | None = None,
    flush_seconds: float = 1.0,
) -> Path:
    """Write ``out/name.mar`` (default: the old name): the same handler, its inference calibrated.

    The handler must be a class with ``inference``: a file of the archive, or one of TorchServe's own by
    name, such as ``image_classifier``, whose packages (torchvision, captum) the serving host must have.
    What its postprocess receives has the same form as before. ``outputs`` says what its model returns
    and ``last_linear`` which layer makes that; default: what the artifact says. ``flush_seconds``
    between two writes of metrics.
    """
    old = read_archive(Path(source))
    fitted = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
    handler = _wrappable(str(old.model.get("handler", "")), old.files, source)
    if SECTION in old.config or _ENTRY in old.files:
        raise FuseError(f"{source} is calibrated already; pack the archive that it was made from")
    serialized = old.model.get("serializedFile", "")
    digest = sha256(old.read(serialized)) if serialized else ""
    if not fitted.model.fits(digest):
        raise FuseError(f"{serialized} in {source} is not the model that the artifact was fitted on")
    try:
        workers = int(old.config.get("minWorkers", 1))
    except (TypeError, ValueError, OverflowError) as error:
        raise FuseError(f"minWorkers in {source} is not a number: {error}") from error
    section = ModelOptions(
        kind="wrapped",
        model=serialized,
        sha256=digest,
        wraps=handler,
        workers=workers,
        artifact="calibration",
        outputs=outputs or fitted.model.outputs or "logits",
        last_linear=last_linear or fitted.model.last_linear,
        flush_seconds=flush_seconds,
    )
    config = yaml.safe_dump({**old.config, SECTION: section.as_dict()}, sort_keys=False, allow_unicode=True)
    entry = shipped(f"handlers/{_ENTRY}")
    with scratch() as folder:
        kept = {entry: old.read(entry) for entry in old.files if entry not in (MANIFEST, HASHES)}
        return write_archive(
            Path(out) / f"{name or old.name}.mar",
            {
                **kept,
                **artifact_files(fitted, folder, name="calibration"),
                **(package_files("calib_serve.serve.wrapped") if standalone else {}),
                _ENTRY: entry,
                CONFIG: config.encode(),
            },
            name=name or old.name,
            version=old.version,
            handler=_ENTRY,
            **{key: value for key, value in old.model.items() if key in _KEPT},
        )


def _wrappable(handler: str, files: Sequence[str], source: object) -> str:
    module = handler.rpartition("/")[2].removesuffix(".py")
    if not module:
        raise FuseError(f"{source} names no handler in its manifest; there is nothing to wrap")
    if ":" in handler:
        raise FuseError(f"the handler {handler!r} is a function; only a class with inference can be wrapped")
    carried = any(name.rpartition("/")[2] == f"{module}.py" for name in files)
    if module in _NO_CLASSIFIER and not carried:
        raise FuseError(f"TorchServe's {module} is no classifier: it has no class probabilities to calibrate")
    if handler.endswith(".py") and not carried:
        raise FuseError(f"{source} names the handler {handler} but does not carry it")
    return handler
