"""Foreign archives: their seam, the scores of labelled requests there, and a fit on these scores."""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, ModelFacts
from calib_serve.core.data_files import ZIP_ERRORS
from calib_serve.core.errors import InputError, ModelError
from calib_serve.core.options.base import changed, divided
from calib_serve.core.options.data import ArchiveOptions
from calib_serve.core.options.fit import ArchiveFitOptions
from calib_serve.fit import Progress, calibrate, method_options, remarked, stage
from calib_serve.models import LabelledRequests, read_requests
from calib_serve.scores import LABELS, Outputs, Scores, shows, to_probs
from calib_serve.torchserve.archive._archive import read_archive
from calib_serve.torchserve.archive._contents import is_calibrated
from calib_serve.torchserve.archive._repacking import ForeignArchive, Seam, find_seam, some_requests, unpacked
from calib_serve.torchserve.seam._host import Request, alternatives, run_trial

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ArchiveFitKeywords, ArchiveKeywords

_ON_THE_MODEL = ("neural-clamping", "neural-clamping-efficient", "masked-head", "tuned-head")


@dataclass(frozen=True, eq=False)
class ArchiveScores:
    """The scores that passed an archive's seam.

    Args:
        parts: Scores of each split that was asked for.
        facts: Facts of the model, for artifacts fitted on them.
        seam: Where they passed.
        artifact: The one that a calibrated archive applies to them, else None.
    """

    parts: tuple[Scores, ...]
    facts: ModelFacts
    seam: Seam
    artifact: Artifact | None = None


def scores_of_archive(
    archive: str | Path,
    data: str | Path,
    splits: Sequence[str | None] = (None,),
    options: ArchiveOptions | None = None,
    *,
    artifact: Artifact | None = None,
    progress: Progress | None = None,
    **keywords: Unpack[ArchiveKeywords],
) -> ArchiveScores:
    """Send labelled requests through an archive's own handler, and keep the scores that pass its seam.

    The handler runs in a process of its own, as TorchServe's worker would run it, so the packages that it
    needs must be here, and its code is run. Without a ``seam`` it is that which the artifact was fitted at,
    or found and proved with some samples.

    Args:
        archive: An archive of TorchServe.
        data: Requests and their labels, as ``read_requests`` reads them.
        splits: Splits of the data; one part of the scores for each.
        options: An ``ArchiveOptions``; keywords replace its fields.
        artifact: What is to act on the scores; an archive that ``pack_around`` made has its own.
        progress: Called with a stage, and how much of it is done, of how much.
        **keywords: Fields of ``ArchiveOptions``: ``batch_size``, ``outputs``, ``probe_timeout``, ``seam``.

    Raises:
        InputError: For data and labels that do not fit.
        ModelError: Where the handler does not answer a sample, which it names.
    """
    asked = changed(options or ArchiveOptions(), keywords, scores_of_archive)
    requests = [read_requests(data, split) for split in splits]
    # Requests first: a folder that cannot be read should not cost unpacking an archive of gigabytes.
    with unpacked(archive) as found:
        calibration = _calibration(found, artifact)
        where, at_once = _seam_with(requests[0], found, calibration, asked)
        names = _names(found, where, requests, calibration)
        # Before the run: a wrong label should not cost one.
        several = where.kind in LABELS
        labels = [(part.label_sets if several else part.class_ids)(where.classes, names) for part in requests]
        how: dict[str, Any] = {"batch_size": at_once, "probe_timeout": asked.probe_timeout}
        logits = [
            _collected(part, found, where, number=k, progress=progress, **how)
            for k, part in enumerate(requests)
        ]
    shown = tuple(name for *_, name in names) or (() if several else requests[0].names)
    if len(set(shown)) != where.classes:
        shown = ()  # Two classes of one name are told apart by the archive's own mapping, as it is packed.
    parts = [
        Scores.of_logits(z, y, where.kind, class_names=shown, name=found.archive.name)
        for z, y in zip(logits, labels, strict=True)
    ]
    rows = requests[0].rows
    facts = ModelFacts(
        sha256=found.sha256,
        source=Path(archive).name,
        input_shape=None if rows is None else rows.shape[1:],
        outputs=where.kind,
        seam=where.place,
        output=where.output,
    )
    return ArchiveScores(tuple(parts), facts, where, calibration)


def calibrate_archive(
    archive: str | Path,
    data: str | Path,
    method: str = "auto",
    options: ArchiveFitOptions | None = None,
    *,
    splits: Sequence[str | None] = (None,),
    progress: Progress | None = None,
    **keywords: Unpack[ArchiveFitKeywords],
) -> Artifact:
    """Fit an output calibrator to the scores of an archive's own handler, for ``pack_around``.

    Args:
        archive: An archive of TorchServe, which is not calibrated yet.
        data: Requests and their labels, as ``read_requests`` reads them.
        method: A name of an output method, or "auto", as in ``calibrate``.
        options: An ``ArchiveFitOptions``; keywords replace its fields.
        splits: The split to fit on, and, if there is a second, the one that before and after are measured on,
            else held-out folds.
        progress: Called with a stage, and how much of it is done, of how much.
        **keywords: Fields of ``ArchiveFitOptions``: ``batch_size``, ``outputs``, ``prior``,
            ``probe_timeout``, ``seam``, ``seed``. Options of methods, as of ``calibrate``: ``bins``,
            ``candidates``, ``criterion``, ``folds``, ``grid``, ``keep_predictions``, ``lam``, ``level``,
            ``mu``, ``of``, ``ridge``, ``smoothing``, ``strength``, ``tolerance``.

    Raises:
        InputError: For data, labels and options that do not fit, and an archive that is calibrated already.
        ModelError: Where the handler does not answer a sample, which it names.
        FitError: Where the method has no optimum.
    """
    asked, own = divided(options or ArchiveFitOptions(), keywords, method_options(), verb=calibrate_archive)
    if method in _ON_THE_MODEL:
        raise InputError(
            f"{method} needs the model itself; whether that can be loaded says: calib-serve inspect --from "
            f"{archive} (calib_serve.torchserve.foreign.look_at_archive)"
        )
    if is_calibrated(read_archive(Path(archive), verify=False)):
        raise InputError(f"{archive} is calibrated already; fit on the archive that it was made from")
    found = scores_of_archive(archive, data, splits, asked, progress=progress)
    samples, *held = found.parts
    test = held[0] if held else None
    how: dict[str, Any] = {"prior": asked.prior, "seed": asked.seed, **own}
    artifact = calibrate(samples, method=method, test=test, progress=progress, **how)
    if found.seam.shows_scores:
        remark = (
            "the handler replies with these scores as they are: nothing shows that they are of classes, "
            "and not features; calibrated, they are log-probabilities"
        )
        artifact = remarked(artifact, after=[remark])
    return replace(artifact, model=found.facts)


def _calibration(found: ForeignArchive, given: Artifact | None) -> Artifact | None:
    """The calibration of the scores: the ``given`` artifact, or the archive's own."""
    path = found.archive.path
    if given is not None and found.artifact is not None:
        raise InputError(
            f"{path} is calibrated already; leave the artifact out, or name the original archive"
        )
    if given is not None and not given.model.fits(found.sha256 or ""):
        raise InputError(f"the model in {path} is not the one that the artifact was fitted on")
    acts = given or found.artifact
    if acts is not None and acts.model_steps:
        raise InputError(
            f"the artifact for {path} changes the model itself: the scores of its handler as it is do not "
            "tell what it serves"
        )
    return acts


def _seam_with(
    data: LabelledRequests,
    found: ForeignArchive,
    calibration: Artifact | None,
    asked: ArchiveOptions,
) -> tuple[Seam, int]:
    """Find and prove the seam with some of the samples; return it and the number to ask at once."""
    known = found.options or (ModelFacts() if calibration is None else calibration.model)
    wanted = asked.batch_size or found.batch_size
    first, *others = some_requests(data)
    try:
        where = find_seam(
            found.folder,
            requests=first,
            others=others,
            classes=None if calibration is None else calibration.classes,
            seam=asked.place or known.seam,
            output=known.output if asked.output is None else asked.output,
            kind=asked.outputs or (known.outputs if known.seam else None),
            batch_size=max(wanted, found.batch_size),
            seconds=asked.probe_timeout,
        )
    except ModelError as error:
        raise ModelError(f"asked with {data.called(0)}: {error}") from error
    if asked.batch_size not in (None, 1) and not (where.batches and where.in_order):
        why = where.alone_because or "scores pass on several threads, in no order that is known"
        raise InputError(
            f"{found.archive.path} is to be asked one request at a time: {why}; leave the batch size out"
        )
    return where, wanted if where.batches and where.in_order else 1


def _collected(
    data: LabelledRequests,
    found: ForeignArchive,
    seam: Seam,
    *,
    number: int,
    batch_size: int,
    probe_timeout: float,
    progress: Progress | None,
) -> NDArray[np.float32]:
    out = found.folder.with_name(f"scores_{number}.npy")
    rows = None if data.rows is None else _on_disk(data.rows, found.folder.with_name(f"rows_{number}.npy"))
    job = {
        "files": [] if data.rows is not None else [str(file) for file in data.files],
        "rows": None if rows is None else str(rows),
        "form": seam.form,
        "out": str(out),
        "seam": seam.place,
        "output": seam.output,
        "kind": seam.kind,
        "columns": seam.columns,
        "padded": seam.padded,
        "bare": seam.bare,
        "batch_size": batch_size,
    }
    told = stage(progress, "scores") or (lambda done, of: None)
    run_trial(found.folder, "scores", job, seconds=probe_timeout, progress=told)
    logits: NDArray[np.float32] = np.load(out, mmap_mode="r")
    return logits


def _on_disk(rows: NDArray[np.generic], path: Path) -> Path:
    """The path where the handler's process reads the rows: the mapped file, or a copy."""
    if isinstance(rows, np.memmap) and rows.filename is not None:
        return Path(rows.filename).resolve()
    np.save(path, rows)
    return path


def _names(
    found: ForeignArchive, seam: Seam, given: Sequence[LabelledRequests], calibration: Artifact | None
) -> list[tuple[str, ...]]:
    """List the names of each class in the archive, else in its calibration; empty where unknown."""
    try:
        names = found.class_names(seam.classes, seam.class_names)
    except ModelError:
        if any(part.names for part in given):
            raise  # Names that cannot be matched are not to be guessed.
        return []
    return names or [(name,) for name in (() if calibration is None else calibration.class_names)]


# --- What one request shows -------------------------------------------------------------------------


@dataclass(frozen=True)
class ArchiveLook:
    """An archive's handler and what one request showed of it.

    Args:
        name: Name of the model.
        version: Its version.
        handler: Its file or module.
        envelope: Of the requests, or None.
        code: File of an eager model.
        model_file: Serialized file of the model.
        sha256: Of the model's file.
        calibrated: Whether ``pack_around`` made the archive.
        batch_size: Most requests of a batch.
        classes: Number of classes.
        class_names: Names of the classes (K,).
        seam: As in ``pack_around``.
        output: As in ``pack_around``.
        outputs: As in ``pack_around``.
        one_score: Whether a single score is all of a row.
        request: Request that was answered, in words.
        body: Whether the handler takes it as a body alone, as an envelope passes it on.
        together: Whether it answers several at once, and it is proved which score is whose.
        alone_because: Why not, if so.
        reply: Reply of the handler.
        confidence: Whether the reply shows one.
        note: Why the classes have no names, where they have none.
        model: Options of ``calib-serve fit`` that load the archive's model, unpacked into the folder
            ``parts``, for methods that need it; None where it cannot be loaded.
    """

    name: str
    version: str
    handler: str
    envelope: str | None
    code: str | None
    model_file: str | None
    sha256: str | None
    calibrated: bool
    batch_size: int
    classes: int
    class_names: tuple[str, ...]
    seam: str
    output: str
    outputs: Outputs
    one_score: bool
    request: str
    body: bool
    together: bool
    alone_because: str
    reply: Any
    confidence: bool
    note: str
    model: str | None

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)


def look_at_archive(
    archive: str | Path,
    options: ArchiveOptions | None = None,
    *,
    probe: str | Path | None = None,
    **keywords: Unpack[ArchiveKeywords],
) -> ArchiveLook:
    """Ask the archive's own handler, in a process of its own, and say what was found; its code is run.

    Args:
        archive: An archive of TorchServe; of one that ``pack_around`` made, the handler inside is asked.
        options: An ``ArchiveOptions``; keywords replace its fields.
        probe: A file that the handler answers; by default a made-up request.
        **keywords: Fields of ``ArchiveOptions``: ``batch_size``, ``outputs``, ``probe_timeout``, ``seam``.

    Raises:
        ModelError: Where the handler answers nothing, or no class scores are found.
    """
    asked = changed(options or ArchiveOptions(), keywords, look_at_archive)
    with unpacked(archive) as found:
        where = find_seam(
            found.folder,
            requests=() if probe is None else alternatives(Path(probe)),
            seam=asked.place,
            output=asked.output,
            kind=asked.outputs,
            batch_size=asked.batch_size or 2,
            seconds=asked.probe_timeout,
        )
        names, note = _listed(found, where)
        model = found.archive.model
        return ArchiveLook(
            name=found.archive.name,
            version=found.archive.version,
            handler=found.handler,
            envelope=model.get("envelope"),
            code=model.get("modelFile"),
            model_file=model.get("serializedFile"),
            sha256=found.sha256,
            calibrated=found.artifact is not None,
            batch_size=found.batch_size,
            classes=where.classes,
            class_names=names,
            seam=where.place,
            output=where.output,
            outputs=where.kind,
            one_score=where.columns == 1,
            request=_in_words(where),
            body=where.bare,
            together=where.batches,
            alone_because=where.alone_because,
            reply=where.reply,
            confidence=any(shows(where.reply, p) for p in _told(where)),
            note=note,
            model=_loadable(found, where),
        )


def _listed(found: ForeignArchive, seam: Seam) -> tuple[tuple[str, ...], str]:
    try:
        return tuple(name for *_, name in found.class_names(seam.classes, seam.class_names)), ""
    except ModelError as error:
        return (), str(error)


def _told(seam: Seam) -> list[float]:
    """List the probabilities that a reply may show: the likeliest class's, or those of labels."""
    probs = to_probs(seam.rows[:1], seam.kind)[0]
    return [float(p) for p in probs] if seam.kind in LABELS else [float(probs.max())]


def _in_words(seam: Seam) -> str:
    request = Request.from_dict(dict(seam.requests[0]))
    shown = f"{request.content_type}, {len(request.body)} bytes"
    if request.content_type == "application/octet-stream" or "image" in request.content_type:
        return shown
    text = request.body.decode("utf-8", "replace")
    return f"{shown}: {text if len(text) <= 60 else text[:57] + '...'}"


def _loadable(found: ForeignArchive, seam: Seam) -> str | None:
    """Name the command that fits the model itself, where the handler could then run a changed one."""
    model = found.archive.model
    file, code = model.get("serializedFile"), model.get("modelFile")
    if file is None or "model" not in seam.places:
        return None
    if code is not None:
        made = [
            node.name
            for node in ast.parse(found.archive.read(code)).body
            if isinstance(node, ast.ClassDef)
        ]  # fmt: skip
        return f"--model parts/{code}:{made[0]} --weights parts/{file}" if len(made) == 1 else None
    try:
        with zipfile.ZipFile(io.BytesIO(found.archive.read(file))) as packed:
            script = any(name.partition("/")[2].startswith("code/") for name in packed.namelist())
    except ZIP_ERRORS:
        return None
    return f"--model parts/{file}" if script else None
