"""Foreign archives: a look at their seam, the scores of labelled requests there, and a fit on these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.artifact import Artifact, ModelFacts
from calib_serve.core.errors import InputError, ModelError
from calib_serve.core.options.base import divided
from calib_serve.core.options.data import ArchiveOptions
from calib_serve.core.options.fit import ArchiveFitOptions
from calib_serve.fit import Progress, calibrate, method_options
from calib_serve.models import LabelledRequests, read_requests
from calib_serve.scores import LABELS, Outputs, Scores
from calib_serve.torchserve.archive._archive import read_archive
from calib_serve.torchserve.archive._contents import is_calibrated
from calib_serve.torchserve.asking import (
    ForeignArchive,
    collected,
    find_seam,
    some_requests,
    unpacked,
)
from calib_serve.torchserve.seam._refutation import place_name
from calib_serve.torchserve.seam._requests import Request, alternatives
from calib_serve.torchserve.seam._seam import Known, Seam
from calib_serve.torchserve.shown import Readings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ArchiveFitKeywords


_ON_THE_MODEL = ("neural-clamping", "neural-clamping-efficient", "masked-head")


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
) -> ArchiveScores:
    """Send labelled requests through an archive's own handler, and keep the scores that pass its seam.

    The handler runs in a process of its own, as TorchServe's worker would run it, so the packages that it
    needs must be here, and its code is run. Without a ``seam`` it is that which the artifact was fitted at,
    or found with some samples. The reply to each sample has to be of its own scores.

    Args:
        archive: An archive of TorchServe.
        data: Requests and their labels, as ``read_requests`` reads them.
        splits: Splits of the data; one part of the scores for each.
        options: An ``ArchiveOptions``.
        artifact: What is to act on the scores; an archive that ``pack_around`` made has its own.
        progress: Called with a stage, and how much of it is done, of how much.

    Raises:
        InputError: For data and labels that do not fit.
        ModelError: Where the handler does not answer a sample, which it names, or its reply is of others.
    """
    asked = options or ArchiveOptions()
    requests = [read_requests(data, split) for split in splits]
    # Requests first: a folder that cannot be read should not cost unpacking an archive of gigabytes.
    with unpacked(archive) as found:
        calibration = _calibration(found, artifact)
        where, at_once = _seam_with(requests[0], found, calibration, asked)
        names = _names(found, where, requests, calibration)
        # Before the run: a wrong label should not cost one.
        several = where.kind in LABELS
        labels = [(part.label_sets if several else part.class_ids)(where.classes, names) for part in requests]
        logits = [
            collected(
                part,
                found.folder,
                where,
                batch_size=at_once,
                seconds=asked.probe_timeout,
                part=k,
                progress=progress,
            )
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
        archive=found.archive.digest(),
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
            ``candidates``, ``folds``, ``grid``, ``keep_predictions``, ``of``, ``smoothing``.

    Raises:
        InputError: For data, labels and options that do not fit, and an archive that is calibrated already.
        ModelError: Where the handler does not answer a sample, which it names.
        FitError: Where the method has no optimum.
    """
    asked, own = divided(options or ArchiveFitOptions(), keywords, method_options(), verb=calibrate_archive)
    if method in _ON_THE_MODEL:
        raise InputError(
            f"{method} needs the model itself: take its file out of {archive}, and fit with --model"
        )
    if is_calibrated(read_archive(Path(archive), verify=False)):
        raise InputError(f"{archive} is calibrated already; fit on the archive that it was made from")
    found = scores_of_archive(archive, data, splits, asked, progress=progress)
    samples, *held = found.parts
    test = held[0] if held else None
    how: dict[str, Any] = {"prior": asked.prior, "seed": asked.seed, **own}
    artifact = calibrate(samples, method=method, test=test, progress=progress, **how)
    return replace(artifact, model=found.facts)


def _calibration(found: ForeignArchive, given: Artifact | None) -> Artifact | None:
    """The calibration of the scores: the ``given`` artifact, or the archive's own."""
    path = found.archive.path
    if given is not None and found.artifact is not None:
        raise InputError(
            f"{path} is calibrated already; leave the artifact out, or name the original archive"
        )
    if given is not None and given.model.sha256 and given.model.sha256 != found.sha256:
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
    """Find the seam with some of the samples; return it and the number to ask at once."""
    facts = found.options or (ModelFacts() if calibration is None else calibration.model)
    wanted = asked.batch_size or found.batch_size
    known = Known(
        asked.place or facts.seam,
        facts.output if asked.output is None else asked.output,
        asked.outputs or (facts.outputs if facts.seam else None),
        None if calibration is None else calibration.classes,
        None if calibration is None else calibration.is_multilabel,
    )
    try:
        where = find_seam(
            found.folder,
            known,
            some_requests(data),
            batch_size=max(wanted, found.batch_size),
            seconds=asked.probe_timeout,
        )
    except ModelError as error:
        raise ModelError(f"asked with {data.called(0)}: {error}") from error
    threads = "" if where.in_order else "scores pass on several threads, in no order that is known"
    alone_because = where.alone_because or threads
    if alone_because and asked.batch_size not in (None, 1):
        raise InputError(
            f"{found.archive.path} is to be asked one request at a time: {alone_because}; leave the batch "
            "size out"
        )
    return where, 1 if alone_because else wanted


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


@dataclass(frozen=True)
class ArchiveLook:
    """An archive's handler and what one request showed of it.

    Args:
        name: Name of the model.
        version: Its version.
        handler: Its file or module.
        sha256: Of the model's file, or None.
        calibrated: Whether ``pack_around`` made the archive.
        classes: Number of classes.
        class_names: Names of the classes (K,); () where they have none.
        seam: As in ``pack_around``.
        output: As in ``pack_around``.
        outputs: As in ``pack_around``.
        request: Request that was answered, in words.
        alone_because: Why it is not asked several at once; "" where each score was its own request's.
        reply: Reply of the handler.
        shows: What replies show of their scores, in words.
    """

    name: str
    version: str
    handler: str
    sha256: str | None
    calibrated: bool
    classes: int
    class_names: tuple[str, ...]
    seam: str
    output: str
    outputs: Outputs
    request: str
    alone_because: str
    reply: Any
    shows: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)


def look_at_archive(
    archive: str | Path,
    options: ArchiveOptions | None = None,
    *,
    probe: str | Path | None = None,
) -> ArchiveLook:
    """Ask the archive's own handler, in a process of its own, and say what was found; its code is run.

    Args:
        archive: An archive of TorchServe; of one that ``pack_around`` made, the handler inside is asked.
        options: An ``ArchiveOptions``.
        probe: A file that the handler answers.

    Raises:
        ModelError: Where the handler answers nothing, or no class scores are found.
    """
    asked = options or ArchiveOptions()
    with unpacked(archive) as found:
        where = find_seam(
            found.folder,
            Known(asked.place, asked.output, asked.outputs),
            [] if probe is None else [alternatives(Path(probe))],
            batch_size=asked.batch_size or 2,
            seconds=asked.probe_timeout,
        )
        names: tuple[str, ...] = ()
        with suppress(ModelError):  # what does not name every class names none
            names = tuple(name for *_, name in found.class_names(where.classes, where.class_names))
        return ArchiveLook(
            name=found.archive.name,
            version=found.archive.version,
            handler=found.handler,
            sha256=found.sha256,
            calibrated=found.artifact is not None,
            classes=where.classes,
            class_names=names,
            seam=where.place,
            output=where.output,
            outputs=where.kind,
            request=_in_words(where),
            alone_because=where.alone_because,
            reply=where.replies[0],
            shows=tuple(shows(where.shown)),
        )


def shows(shown: Readings) -> Iterator[str]:
    """Yield what each place of a reply shows of its row, in words."""
    for label in shown.labels:
        which = "the likeliest class" if not label.rank else f"the class of rank {label.rank + 1}"
        yield f"{place_name(label.path)} names {which}"
    for one in shown.numbers:
        of = "" if one.index is None else f" of {one.index}"
        if one.index is not None and one.function.startswith("ranked"):
            of = f" {one.index + 1}"
        times = "" if one.scale == 1 else f" times {one.scale:g}"
        yield f"{place_name(one.path)} is {one.function}{of}{times}"
    for keys in shown.keys:
        yield f"{place_name(keys.path)} maps classes to probabilities"


def _in_words(seam: Seam) -> str:
    request = Request.from_dict(dict(seam.requests[0]))
    words = f"{request.content_type}, {len(request.body)} bytes"
    if "json" in request.content_type or "text" in request.content_type:
        text = request.body.decode("utf-8", "replace")
        words += f": {text if len(text) <= 60 else text[:57] + '...'}"
    return words + (", as a body alone (behind an envelope)" if seam.bare else "")
