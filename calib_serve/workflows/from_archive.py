"""From an existing TorchServe archive and labelled requests to its scores and an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, ModelFacts
from calib_serve.data import LabelledRequests, read_requests
from calib_serve.errors import InputError, ModelError
from calib_serve.fuse.torchserve import (
    SECONDS,
    ForeignArchive,
    Seam,
    find_seam,
    is_calibrated,
    read_archive,
    some_of,
    unpacked,
)
from calib_serve.priors import Given
from calib_serve.scores import LABELS, Outputs, Scores
from calib_serve.seam import run_trial
from calib_serve.workflows.fit_scores import calibrate
from calib_serve.workflows.options import Progress, stage

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.workflows.options import OutputOptions

__all__ = ["ArchiveScores", "calibrate_archive", "scores_of_archive"]

_ON_THE_MODEL = ("neural-clamping", "neural-clamping-efficient", "masked-head", "tuned-head")


@dataclass(frozen=True, eq=False)
class ArchiveScores:
    """What passed an archive's seam: the ``parts``, one for each split asked for.

    ``facts`` are what an artifact fitted on them must know of the model; ``artifact`` is the one that a
    calibrated archive applies to them, else None.
    """

    parts: tuple[Scores, ...]
    facts: ModelFacts
    seam: Seam
    artifact: Artifact | None = None


def scores_of_archive(
    archive: str | Path,
    data: str | Path,
    splits: Sequence[str | None] = (None,),
    *,
    artifact: Artifact | None = None,
    seam: str | None = None,
    output: str | None = None,
    outputs: Outputs | None = None,
    batch_size: int | None = None,
    probe_timeout: float = SECONDS,
    progress: Progress | None = None,
) -> ArchiveScores:
    """Send labelled requests through an archive's own handler, and keep the scores that pass its seam.

    The handler runs in a process of its own, as TorchServe's worker would run it, so the packages that it
    needs must be here, and its code is run. ``data``: what ``read_requests`` reads; ``splits`` of it.
    ``artifact``: one that is to act on the scores; an archive that ``pack_around`` made has its own.
    ``seam``, ``output`` and ``outputs`` as in ``pack_around``; default: as the artifact was fitted, or as
    found and proved with some samples. ``batch_size``: requests at once; default: the archive's, if it is
    proved which row of a batch is whose. ``probe_timeout``: seconds that an answer may take. Raises
    InputError for data and labels that do not fit, ModelError where the handler does not answer a sample,
    which it names.
    """
    given = [read_requests(data, split) for split in splits]
    with unpacked(archive) as found:
        calibration = _calibration(found, artifact)
        where, at_once = _seam_with(
            given[0],
            found,
            calibration,
            seam=seam,
            output=output,
            kind=outputs,
            batch_size=batch_size,
            probe_timeout=probe_timeout,
        )
        names = _names(found, where, given, calibration)
        # Before the run: a wrong label should not cost one.
        several = where.kind in LABELS
        truths = [(part.label_sets if several else part.class_ids)(where.classes, names) for part in given]
        logits = [
            _collected(
                part,
                found,
                where,
                number=k,
                batch_size=at_once,
                probe_timeout=probe_timeout,
                progress=progress,
            )
            for k, part in enumerate(given)
        ]
    shown = tuple(name for *_, name in names) or (() if several else given[0].names)
    if len(set(shown)) != where.classes:
        shown = ()  # Two classes of one name are told apart by the archive's own mapping, as it is packed.
    parts = [
        Scores.of_logits(z, y, where.kind, class_names=shown, name=found.archive.name)
        for z, y in zip(logits, truths, strict=True)
    ]
    rows = given[0].rows
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
    *,
    split: str | None = None,
    eval_split: str | None = None,
    seam: str | None = None,
    output: str | None = None,
    outputs: Outputs | None = None,
    batch_size: int | None = None,
    probe_timeout: float = SECONDS,
    prior: Given | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[OutputOptions],
) -> Artifact:
    """Fit an output calibrator to the scores of an archive's own handler, for ``pack_around``.

    ``data``, ``seam``, ``output``, ``outputs``, ``batch_size`` and ``probe_timeout`` as in
    ``scores_of_archive``; ``method``, ``prior`` and ``options`` as in ``calibrate``. Before and after are
    measured on ``eval_split``, else on held-out folds.
    """
    if method in _ON_THE_MODEL:
        raise InputError(
            f"{method} needs the model itself; whether that can be loaded says: calib-serve inspect --from "
            f"{archive}"
        )
    if is_calibrated(read_archive(Path(archive), verify=False)):
        raise InputError(f"{archive} is calibrated already; fit on the archive that it was made from")
    splits = (split,) if eval_split is None else (split, eval_split)
    found = scores_of_archive(
        archive,
        data,
        splits,
        seam=seam,
        output=output,
        outputs=outputs,
        batch_size=batch_size,
        probe_timeout=probe_timeout,
        progress=progress,
    )
    given, *held = found.parts
    artifact = calibrate(
        given,
        method=method,
        test=held[0] if held else None,
        prior=prior,
        seed=seed,
        progress=progress,
        **options,
    )
    if found.seam.shows_scores:
        remark = (
            "the handler replies with these scores as they are: nothing shows that they are of classes, "
            "and not features; calibrated, they are log-probabilities"
        )
        artifact = replace(
            artifact, fit={**artifact.fit, "remarks": [*artifact.fit.get("remarks", ()), remark]}
        )
    return replace(artifact, model=found.facts)


def _calibration(found: ForeignArchive, given: Artifact | None) -> Artifact | None:
    """What acts on the scores: the ``given`` artifact, or the archive's own."""
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
    *,
    seam: str | None,
    output: str | None,
    kind: Outputs | None,
    batch_size: int | None,
    probe_timeout: float,
) -> tuple[Seam, int]:
    """The seam, found and proved with some of the samples; how many to ask at once."""
    known = found.options or (ModelFacts() if calibration is None else calibration.model)
    wanted = batch_size or found.batch_size
    first, *others = some_of(data)
    try:
        where = find_seam(
            found.folder,
            requests=first,
            others=others,
            classes=None if calibration is None else calibration.classes,
            seam=seam or known.seam,
            output=known.output if output is None else output,
            kind=kind or (known.outputs if known.seam else None),
            batch_size=max(wanted, found.batch_size),
            seconds=probe_timeout,
        )
    except ModelError as error:
        raise ModelError(f"asked with {data.called(0)}: {error}") from error
    if batch_size not in (None, 1) and not (where.batches and where.in_order):
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
    run_trial(
        found.folder,
        "scores",
        seconds=probe_timeout,
        files=[] if data.rows is not None else [str(file) for file in data.files],
        rows=None if rows is None else str(rows),
        form=seam.form,
        out=str(out),
        seam=seam.place,
        output=seam.output,
        kind=seam.kind,
        columns=seam.columns,
        padded=seam.padded,
        bare=seam.bare,
        batch_size=batch_size,
        progress=stage(progress, "scores") or (lambda done, of: None),
    )
    logits: NDArray[np.float32] = np.load(out, mmap_mode="r")
    return logits


def _on_disk(rows: NDArray[np.generic], path: Path) -> Path:
    """Where the handler's process reads the rows: where they are mapped from, or a copy."""
    if isinstance(rows, np.memmap) and rows.filename is not None:
        return Path(rows.filename).resolve()
    np.save(path, rows)
    return path


def _names(
    found: ForeignArchive, seam: Seam, given: Sequence[LabelledRequests], calibration: Artifact | None
) -> list[tuple[str, ...]]:
    """What each class is called in the archive, else in what calibrates it; empty where nothing says it."""
    try:
        names = found.class_names(seam.classes, seam.class_names)
    except ModelError:
        if any(part.names for part in given):
            raise  # Names that cannot be matched are not to be guessed.
        return []
    return names or [(name,) for name in (() if calibration is None else calibration.class_names)]
