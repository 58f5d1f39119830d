"""Re-pack an existing archive with a calibration where its class scores pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from calib_serve.artifact import Artifact
from calib_serve.data import read_requests
from calib_serve.errors import FuseError
from calib_serve.fuse.mar_options import SECTION, TRIAL, ModelOptions
from calib_serve.fuse.torchserve.archive import (
    CONFIG,
    Archive,
    Content,
    digest,
    new_file,
    read_archive,
    scratch,
    staged,
    unpack,
    write_archive,
)
from calib_serve.fuse.torchserve.contents import artifact_files, package_files, shipped, with_section
from calib_serve.fuse.torchserve.names import check_names
from calib_serve.fuse.torchserve.seam_trial import check_kind, find_seam, prove_seam, some_of
from calib_serve.options import AroundOptions, changed
from calib_serve.scores import Outputs
from calib_serve.seam import INFERENCE, Request, alternatives

__all__ = ["number", "pack_around", "wrappable"]

T = TypeVar("T")
_ENTRY = "calibrated_wrapper.py"
_ARTIFACT = "calibration"
_OTHER_LOOPS = ("asyncCommunication", "continuousBatching")
# Handlers of TorchServe's own that have no classifier inside; all others can be wrapped by name.
_NO_CLASSIFIER = ("image_segmenter", "object_detector", "trt_llm_handler", "vllm_handler")


def pack_around(
    source: str | Path,
    artifact: Artifact | str | Path,
    out: str | Path,
    options: AroundOptions | None = None,
    *,
    name: str | None = None,
    force: bool = False,
    **given: Any,
) -> Path:
    """Write ``out/NAME-VERSION.mar``: the same handler, calibrated where its class scores pass.

    ``source``: an archive of any form, which stays. ``name``, ``version``: by default the old name, and the
    old version with "-calibrated" behind it, so that TorchServe can serve both at once. The manifest's
    other entries, all files and the configuration are kept; ``workers``, ``batch_size`` and ``batch_delay``
    (milliseconds) change the latter, ``extra`` files are added.

    The handler is a file of the archive, or one of TorchServe's own by name, such as ``image_classifier``. It
    is asked before and after, alone and in batches, in a process of its own: so the packages that it needs
    must be here. Each of the ``options`` may be ``given`` as a keyword argument. It is asked some of
    ``probe_data`` (data that ``read_requests`` reads), else ``probe`` and others made from it, else made-up
    ones. ``seam`` names the place where its class scores pass, a dotted path from the handler such as
    "model", and behind a colon where they lie in what passes there, as in "model:logits"; by default as the
    artifact was fitted, or as found. ``untried`` asks nothing, and proves nothing: the seam is then
    ``inference`` unless named, and what it returns must be a tensor of scores. ``threshold``: from which
    probability on receipts of a multi-label model say that a label is predicted; its replies decide as the
    handler does. Another archive of that name that is there is replaced only with ``force``, and ``source``
    never. Raises ModelError or FuseError where the seam is not found, or the reply does not hold.
    """
    asked = changed(options or AroundOptions(), given)
    old = read_archive(Path(source))
    fitted = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
    handler = wrappable(str(old.model.get("handler", "")), old.files, source)
    if SECTION in old.config or _ENTRY in old.files:
        raise FuseError(f"{source} is calibrated already; pack the archive that it was made from")
    at = fitted.model.seam is not None
    seam = _as_fitted("seam", asked.place, fitted.model.seam)
    output = _as_fitted("output", asked.output, fitted.model.output)
    kind: Outputs | None = _as_fitted("outputs", asked.outputs, fitted.model.outputs if at else None)
    if (runtime := old.manifest.get("runtime", "python")) not in ("python", "python3"):
        raise FuseError(f"{source} is for the runtime {runtime!r}; only a handler in Python can be wrapped")
    if modes := [key for key in _OTHER_LOOPS if old.config.get(key)]:
        raise FuseError(f"{source} runs with {modes[0]}, where replies are not made batch by batch")
    name, version = name or old.name, asked.version or f"{old.version}-calibrated"
    target = new_file(source, out, name=name, version=version)
    config = _config(old, asked.workers, asked.batch_size, asked.batch_delay)
    config_name = _config_name(old)
    with scratch() as folder, old.contents() as kept, staged(out, force=force) as stage:
        digest_of_model = _model_digest(old, kept, fitted)
        found = None
        if not asked.untried:
            samples = _samples(asked.probe, asked.probe_data)
            found = find_seam(
                unpack(old, folder / "before"),
                requests=samples[0] if samples else (),
                others=samples[1:],
                input_shape=fitted.model.input_shape,
                classes=fitted.classes,
                seam=seam,
                output=output,
                kind=kind,
                batch_size=number(old, config, "batchSize"),
                seconds=asked.probe_timeout,
            )
            check_kind(found, fitted, asked.outputs)
            if number(old, config, "batchSize") > 1 and not found.batches:
                raise FuseError(
                    f"{source} is served in batches, of which it is not proved which score is whose: "
                    f"{found.alone_because}. Served one at a time it can be calibrated: --batch-size 1"
                )
        section = ModelOptions(
            kind="wrapped",
            model=str(old.model.get("serializedFile", "")),
            sha256=digest_of_model,
            wraps=handler,
            seam=found.place if found else seam or INFERENCE,
            output=found.output if found else output or "",
            padded=found is not None and found.padded,
            batches=found is None or found.batches,
            receipts=asked.receipts,
            workers=number(old, config, "minWorkers"),
            artifact=_ARTIFACT,
            outputs=found.kind if found else asked.outputs or fitted.model.outputs or "logits",
            threshold=asked.threshold,
            last_linear=asked.last_linear or fitted.model.last_linear,
            flush_seconds=asked.flush_seconds,
        )
        section.check_artifact(fitted)
        added: dict[str, Content] = {
            **artifact_files(fitted, folder, name=_ARTIFACT),
            **(package_files("calib_serve.serve.wrapped") if asked.standalone else {}),
            **({} if found is None else {TRIAL: found.as_request()}),
            _ENTRY: shipped(f"handlers/{_ENTRY}"),
        }
        kept.pop(config_name, None)
        written = write_archive(
            stage / target.name,
            {**_joined(kept, added, asked.extra), config_name: with_section(config, section.as_dict())},
            name=name,
            version=version,
            manifest=old.manifest,
            handler=_ENTRY,
            configFile=config_name,
        )
        made = read_archive(written, verify=False)
        check_names(made)
        if found is not None:
            after = unpack(made, folder / "after")
            (after / TRIAL).unlink()  # a handler that keeps its answers has not answered this yet
            prove_seam(after, found, fitted, in_body=asked.receipts == "body", seconds=asked.probe_timeout)
    return target


def _samples(probe: str | Path | None, probe_data: str | Path | None) -> list[tuple[Request, ...]]:
    """What to ask, each in the forms that it may be sent in."""
    if probe_data is None:
        return [] if probe is None else [alternatives(Path(probe))]
    return some_of(read_requests(probe_data))


def _config(
    old: Archive, workers: int | None, batch_size: int | None, batch_delay: int | None
) -> dict[str, Any]:
    """The old configuration with what is given in place."""
    asked = {
        "minWorkers": workers,
        "maxWorkers": workers,
        "batchSize": batch_size,
        "maxBatchDelay": batch_delay,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    if odd := [key for key, value in given.items() if value < 1]:
        raise FuseError(f"{odd[0]} must be at least 1, got {given[odd[0]]}")
    return {**old.config, **given}


def _config_name(old: Archive) -> str:
    """Where the configuration goes; never over a file that the manifest does not call one."""
    return str(old.model.get("configFile") or (f"calibrated-{CONFIG}" if CONFIG in old.files else CONFIG))


def number(old: Archive, config: Mapping[str, Any], key: str) -> int:
    """An entry of a configuration of TorchServe's, by default 1."""
    try:
        return int(config.get(key, 1))
    except (TypeError, ValueError, OverflowError) as error:
        raise FuseError(f"{key} in {old.path} is not a number: {error}") from error


def _model_digest(old: Archive, kept: Mapping[str, Content], artifact: Artifact) -> str:
    """The hash of the archive's model file, "" where it has none, once it is the artifact's."""
    serialized = str(old.model.get("serializedFile", ""))
    if serialized and serialized not in kept:
        raise FuseError(f"{old.path} names the model {serialized} but does not carry it")
    found = digest(kept[serialized]) if serialized else ""
    if not artifact.model.fits(found):
        raise FuseError(f"{serialized} in {old.path} is not the model that the artifact was fitted on")
    return found


def _joined(
    kept: Mapping[str, Content], added: Mapping[str, Content], extra: Sequence[str | Path]
) -> dict[str, Content]:
    """All files; FuseError where one would take the place of another."""
    files: dict[str, Content] = {**kept}
    for name, content in [*((Path(file).name, Path(file)) for file in extra), *added.items()]:
        if isinstance(content, Path) and not content.is_file():
            raise FuseError(f"there is no file {content}")
        if name in files:
            raise FuseError(f"the archive has a file {name} already, which would be lost; rename one of them")
        files[name] = content
    return files


def _as_fitted(option: str, told: T | None, fitted: T | None) -> T | None:
    """What is ``told``, else as the artifact was ``fitted``; FuseError where these differ."""
    if told is not None and fitted is not None and told != fitted:
        raise FuseError(
            f"the artifact was fitted with {option} {str(fitted)!r}, and is to act with {str(told)!r}; leave "
            f"--{option} out, or fit again with it: calib-serve fit --from"
        )
    return fitted if told is None else told


def wrappable(handler: str, files: Sequence[str], source: object) -> str:
    """The handler of an archive with these ``files``; FuseError where it cannot be calibrated."""
    module = handler.partition(":")[0].rpartition("/")[2].removesuffix(".py")
    if not module:
        raise FuseError(f"{source} names no handler in its manifest; there is nothing to wrap")
    carried = any(name.rpartition("/")[2] == f"{module}.py" for name in files)
    if module in _NO_CLASSIFIER and not carried:
        raise FuseError(f"TorchServe's {module} is no classifier: it has no class probabilities to calibrate")
    if ".py" in handler and not carried:
        raise FuseError(f"{source} names the handler {handler} but does not carry it")
    return handler
