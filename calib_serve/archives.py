"""From an existing TorchServe archive and labelled requests to its scores and an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, ModelFacts
from calib_serve.data import LabelledRequests, read_requests
from calib_serve.errors import InputError, ModelError
from calib_serve.fit.calibrate import calibrate
from calib_serve.fit.progress import Progress, stage
from calib_serve.fuse.torchserve import (
    ForeignArchive,
    Seam,
    find_seam,
    is_calibrated,
    read_archive,
    some_of,
    unpacked,
)
from calib_serve.options.base import changed, divided
from calib_serve.options.data import ArchiveFitOptions, ArchiveOptions
from calib_serve.scores import LABELS, Scores
from calib_serve.seam import run_trial

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
    options: ArchiveOptions | None = None,
    *,
    artifact: Artifact | None = None,
    progress: Progress | None = None,
    **given: Any,
) -> ArchiveScores:
    """Send labelled requests through an archive's own handler, and keep the scores that pass its seam.

    The handler runs in a process of its own, as TorchServe's worker would run it, so the packages that it
    needs must be here, and its code is run. ``data``: what ``read_requests`` reads; ``splits`` of it.
    ``artifact``: one that is to act on the scores; an archive that ``pack_around`` made has its own. Each of
    the ``options`` may be ``given`` as a keyword argument; without a ``seam`` it is that which the artifact
    was fitted at, or found and proved with some samples. Raises InputError for data and labels that do not
    fit, ModelError where the handler does not answer a sample, which it names.
    """
    asked = changed(options or ArchiveOptions(), given)
    requests = [read_requests(data, split) for split in splits]
    with unpacked(archive) as found:
        calibration = _calibration(found, artifact)
        where, at_once = _seam_with(requests[0], found, calibration, asked)
        names = _names(found, where, requests, calibration)
        # Before the run: a wrong label should not cost one.
        several = where.kind in LABELS
        truths = [(part.label_sets if several else part.class_ids)(where.classes, names) for part in requests]
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
        for z, y in zip(logits, truths, strict=True)
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
    **given: Any,
) -> Artifact:
    """Fit an output calibrator to the scores of an archive's own handler, for ``pack_around``.

    ``data`` as in ``scores_of_archive``, ``method`` as in ``calibrate``. Each of the ``options`` may be
    ``given`` as a keyword argument, beside the method's own options. ``splits``: the one to fit on, and, if
    there is a second, the one that before and after are measured on, else held-out folds.
    """
    if method in _ON_THE_MODEL:
        raise InputError(
            f"{method} needs the model itself; whether that can be loaded says: calib-serve inspect --from "
            f"{archive} (calib_serve.archives.look_at_archive)"
        )
    if is_calibrated(read_archive(Path(archive), verify=False)):
        raise InputError(f"{archive} is calibrated already; fit on the archive that it was made from")
    asked, own = divided(options or ArchiveFitOptions(), given)
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
    asked: ArchiveOptions,
) -> tuple[Seam, int]:
    """The seam, found and proved with some of the samples; how many to ask at once."""
    known = found.options or (ModelFacts() if calibration is None else calibration.model)
    wanted = asked.batch_size or found.batch_size
    first, *others = some_of(data)
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
