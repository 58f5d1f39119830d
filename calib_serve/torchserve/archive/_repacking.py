"""Pack an existing archive again with a calibration where its class scores pass.

Its handler is asked before and after, in a process of its own: the seam is found, the replies are compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError, ModelError, OptionError
from calib_serve.core.files import shipped
from calib_serve.core.options.base import changed
from calib_serve.core.options.pack import AroundOptions
from calib_serve.fuse import Against, change_to_fitted, check_multilabel, required_proof
from calib_serve.models import read_requests
from calib_serve.scores import Outputs, same_format, to_logits
from calib_serve.torchserve.archive._archive import (
    CONFIG,
    Archive,
    Content,
    new_file,
    read_archive,
    staged,
    write_archive,
)
from calib_serve.torchserve.archive._contents import (
    artifact_files,
    check_class_mapping,
    with_section,
)
from calib_serve.torchserve.asking import (
    ForeignArchive,
    collected,
    find_seam,
    model_file,
    some_requests,
    unpacked,
    whole_number,
)
from calib_serve.torchserve.mar_options import SECTION, SHOWN, TRIAL, ModelOptions
from calib_serve.torchserve.seam._handler import INFERENCE
from calib_serve.torchserve.seam._seam import Known, Seam
from calib_serve.torchserve.seam._trial import run_trial

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import AroundKeywords

T = TypeVar("T")
_ENTRY = "calibrated_wrapper.py"
_ARTIFACT = "calibration"
_OTHER_LOOPS = ("asyncCommunication", "continuousBatching")


def pack_around(
    source: str | Path,
    artifact: Artifact | str | Path,
    out: str | Path,
    options: AroundOptions | None = None,
    *,
    name: str | None = None,
    force: bool = False,
    **keywords: Unpack[AroundKeywords],
) -> Path:
    """Write ``out/NAME-VERSION.mar``: the same handler, calibrated where its class scores pass.

    The handler is asked before and after, alone and in batches, in a process of its own: so the packages that
    it needs must be here. ``seam`` is by default as the artifact was fitted, or as found. ``untried`` asks
    nothing: the seam is then ``inference`` unless named. ``threshold`` is of receipts: replies decide as the
    handler does.

    Args:
        source: An archive, which stays.
        artifact: The calibration, or its folder.
        out: The folder to write into.
        options: An ``AroundOptions``; keywords replace its fields.
        name: The model's name in TorchServe; by default the old one.
        force: Whether another archive of that name is replaced; ``source`` never is.
        **keywords: Fields of ``AroundOptions``: ``against``, ``batch_size``, ``flush_seconds``,
            ``outputs``, ``probe_data``, ``probe_timeout``, ``receipts``, ``seam``,
            ``threshold``, ``unproven``, ``untried``, ``version``, ``workers``.

    Raises:
        ModelError: Where the handler does not answer, or its scores are not found.
        FuseError: Where the archive or the artifact does not fit, or a reply does not hold.
    """
    asked = changed(options or AroundOptions(), keywords, pack_around)
    fitted = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
    with unpacked(source) as found:
        old = found.archive
        _check_original(found)
        name, version = name or old.name, asked.version or f"{old.version}-calibrated"
        target, config = new_file(source, out, name=name, version=version), _config(old, asked)
        section, seam = _calibrated(found, fitted, asked, config)
        # Never over a file that the manifest does not call a configuration.
        free = f"calibrated-{CONFIG}" if CONFIG in old.files else CONFIG
        config_name = str(old.model.get("configFile") or free)
        with old.contents() as kept, staged(out, force=force) as stage:
            kept.pop(config_name, None)
            files = {**kept, config_name: with_section(config, section.as_dict())}
            written = write_archive(
                stage / target.name,
                {**files, **_added(found, fitted, seam, kept)},
                name=name,
                version=version,
                manifest=old.manifest,
                handler=_ENTRY,
                config_file=config_name,
            )
            # The written archive is read and asked again, as a worker will.
            made = read_archive(written, verify=False)
            check_class_mapping(made)
            if seam is not None:
                _compare_calibrated(made.unpack(found.folder.with_name("after")), seam, fitted, asked)
    return target


def _check_original(found: ForeignArchive) -> None:
    """Raise FuseError for an archive that is calibrated, or that TorchServe runs in a way of its own."""
    old, source = found.archive, found.archive.path
    if SECTION in old.config or _ENTRY in old.files:
        raise FuseError(f"{source} is calibrated already; pack the archive that it was made from")
    if (runtime := old.manifest.get("runtime", "python")) not in ("python", "python3"):
        raise FuseError(f"{source} is for the runtime {runtime!r}; only a handler in Python can be wrapped")
    # There, replies are made token by token or out of order, and no batch has its rows.
    if modes := [key for key in _OTHER_LOOPS if old.config.get(key)]:
        raise FuseError(f"{source} runs with {modes[0]}, where replies are not made batch by batch")


def _calibrated(
    found: ForeignArchive, fitted: Artifact, asked: AroundOptions, config: Mapping[str, Any]
) -> tuple[ModelOptions, Seam | None]:
    """Find the seam, unless untried, and what proves its scores; return the handler's options with them."""
    old, known = found.archive, fitted.model
    place = _as_fitted("seam", asked.place, known.seam)
    output = _as_fitted("output", asked.output, known.output)
    # An artifact that was not fitted at a seam says nothing of the kind of scores that pass here.
    kind: Outputs | None = _as_fitted("outputs", asked.outputs, None if known.seam is None else known.outputs)
    proof, seam = _proof(old, fitted, asked), None
    if not asked.untried:
        samples = [] if asked.probe_data is None else some_requests(read_requests(asked.probe_data))
        at_once = whole_number(old, config, "batchSize")
        seam = find_seam(
            found.folder,
            Known(place, output, kind, fitted.classes, fitted.is_multilabel),
            samples,
            input_shape=known.input_shape,
            batch_size=at_once,
            seconds=asked.probe_timeout,
        )
        _check_kind(seam, fitted, asked.outputs)
        if isinstance(proof, Against):
            requests = read_requests(str(asked.probe_data))
            scores = collected(requests, found.folder, seam, batch_size=1, seconds=asked.probe_timeout)
            proof = proof.prove(np.asarray(scores, np.float64), old.path)
        if at_once > 1 and seam.alone_because:
            raise FuseError(
                f"{old.path} is served in batches, of which it is not known which score is whose: "
                f"{seam.alone_because}. Served one at a time it can be calibrated: --batch-size 1"
            )
    section = ModelOptions(
        kind="wrapped",
        model=model_file(old),
        sha256=found.sha256 or "",
        proof=str(proof),
        wraps=found.handler,
        seam=seam.place if seam else place or INFERENCE,
        output=seam.output if seam else output or "",
        receipts=asked.receipts,
        workers=whole_number(old, config, "minWorkers"),
        artifact=_ARTIFACT,
        outputs=seam.kind if seam else asked.outputs or known.outputs or "logits",
        threshold=asked.threshold,
        flush_seconds=asked.flush_seconds,
    )
    section.check_artifact(fitted)
    return section, seam


def _proof(archive: Archive, artifact: Artifact, asked: AroundOptions) -> Against | str:
    """The scores to compare those of the samples in probe_data with, or the words for an archive's proof."""
    inputs = None
    if asked.against is not None:
        if asked.probe_data is None:
            raise OptionError("against", "is of the samples in probe_data, and none are given")
        requests = read_requests(asked.probe_data)
        inputs = {"inputs": np.arange(len(requests)) if requests.rows is None else requests.rows}
    # Rows that a fit kept are of a model's inputs, and not of requests.
    return required_proof(replace(artifact, kept=None), archive.digest, archive.path, asked, inputs)


def _added(
    found: ForeignArchive, fitted: Artifact, seam: Seam | None, kept: Mapping[str, Content]
) -> dict[str, Content]:
    """The files of ours around somebody else's handler; FuseError where they take the place of one kept."""
    added: dict[str, Content] = {
        **artifact_files(fitted, found.folder.parent, name=_ARTIFACT),
        _ENTRY: shipped(f"handlers/{_ENTRY}"),
    }
    if seam is not None:
        added |= {TRIAL: seam.as_request(), SHOWN: json.dumps(seam.shown.as_dict()).encode()}
    if lost := [name for name in added if name in kept]:
        raise FuseError(f"{found.archive.path} has a file {lost[0]} already, which would be lost; rename it")
    return added


def _config(old: Archive, asked: AroundOptions) -> dict[str, Any]:
    """Put the given settings into the old configuration."""
    said = {"minWorkers": asked.workers, "maxWorkers": asked.workers, "batchSize": asked.batch_size}
    return {**old.config, **{key: value for key, value in said.items() if value is not None}}


def _as_fitted(option: str, asked: T | None, fitted: T | None) -> T | None:
    """The option as ``asked``, else as ``fitted``; FuseError where these differ."""
    if asked is not None and fitted is not None and asked != fitted:
        raise FuseError(
            f"the artifact was fitted with {option} {str(fitted)!r}, and is to act with {str(asked)!r}; "
            f"leave --{option} out, or fit again with it: calib-serve fit --from"
        )
    return fitted if asked is None else asked


def _check_kind(seam: Seam, artifact: Artifact, asked: Outputs | None) -> None:
    """Raise FuseError where the artifact's steps give other probabilities for scores of the seam's kind."""
    what = f"{seam.kind} pass the seam {seam.place!r}"
    check_multilabel(artifact, seam.kind, what)
    # An artifact that does not record its kind of scores is taken to be fitted on what is asked, or logits.
    if artifact.model.outputs is not None or not (asked or seam.kind == "logits"):
        change_to_fitted(artifact, seam.kind, what, can=())


def _compare_calibrated(folder: Path, seam: Seam, artifact: Artifact, asked: AroundOptions) -> None:
    """Send the requests to the calibrated archive in ``folder``, and compare with the original's replies.

    Raises FuseError where a calibrated confidence is not the artifact's for the scores of that request, where
    a reply has another format.
    """
    (folder / TRIAL).unlink()  # a handler that keeps its answers has not answered this yet
    # In reverse, too: a handler that mixes up its rows answers one of the two orders wrongly.
    some = seam.requests[: len(seam.batched[0])] if seam.batched else ()
    ordered = [list(some), list(reversed(some))] if some else []
    batches = [*([request] for request in seam.requests), *ordered]
    rows = [*(row[None] for row in seam.rows), *seam.batched]
    before = [*([reply] for reply in seam.replies), *([None] * len(batch) for batch in ordered)]
    try:
        job = {"batches": [[dict(request) for request in batch] for batch in batches], "bare": seam.bare}
        got = run_trial(folder, "answer", job, seconds=asked.probe_timeout)
        for answer, scores, replies in zip(got, rows, before, strict=True):
            each = zip(scores, answer["headers"], replies, answer["replies"], strict=True)
            for row, headers, first, reply in each:
                # Its replies hold the original's as "prediction" where receipts are in the body.
                now = reply["prediction"] if asked.receipts == "body" else reply
                _check_one(seam, artifact, row, headers, first=first, now=now)
    except ModelError as error:
        raise FuseError(f"the handler {seam.handler} cannot be calibrated: {error}") from error


def _check_one(
    seam: Seam,
    artifact: Artifact,
    row: NDArray[np.float64],
    headers: Mapping[str, str],
    *,
    first: Any,
    now: Any,
) -> None:
    """Compare one reply with the uncalibrated reply ``first``, if any, and with the artifact."""
    if "x-calib-confidence" not in headers:
        raise ModelError(f"nothing passes the seam {seam.place!r} once it is calibrated")
    if first is not None and not same_format(first, now):
        raise ModelError(f"the reply changes its format, from {first!r:.200} to {now!r:.200}")
    probs = artifact.of_logits(to_logits(row[None], seam.kind))[0]
    served = [float(text) for text in headers["x-calib-confidence"].split(",")]
    wanted = [float(probs.max())]
    if artifact.is_multilabel:
        labels = [int(text) for text in headers["x-calib-label"].split(",")]
        wanted = [max(float(probs[k]), 1 - float(probs[k])) for k in labels]
        served = [max(c, 1 - c) for c in served]  # by any threshold
    for one, other in zip(served, wanted, strict=True):
        if not abs(one - other) < 1e-4:
            raise ModelError(f"the calibrated handler's confidence is {one:.6f}, the artifact's {other:.6f}")
