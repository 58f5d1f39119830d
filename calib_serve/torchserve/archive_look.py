"""A look at a foreign archive: what its handler answered to one request, and where its class scores pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.core.errors import ModelError
from calib_serve.core.options.base import changed
from calib_serve.core.options.data import ArchiveOptions
from calib_serve.scores import Outputs
from calib_serve.torchserve.archive._repacking import Seam, find_seam, unpacked
from calib_serve.torchserve.seam._refutation import place_name
from calib_serve.torchserve.seam._requests import Request, alternatives
from calib_serve.torchserve.shown import Readings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ArchiveKeywords


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
        together: Whether it answers several at once, and each score was its own request's.
        alone_because: Why not, if so.
        reply: Reply of the handler.
        shows: What replies show of their scores, in words.
        note: Why the classes have no names, where they have none.
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
    shows: tuple[str, ...]
    note: str

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
        probe: A file that the handler answers.
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
        try:
            names, note = tuple(name for *_, name in found.class_names(where.classes, where.class_names)), ""
        except ModelError as error:
            names, note = (), str(error)
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
            reply=where.replies[0],
            shows=tuple(shows(where.shown)),
            note=note,
        )


def shows(shown: Readings) -> Iterator[str]:
    """Yield what each place of a reply shows of its row, in words."""
    for label in shown.labels:
        which = "the likeliest class" if not label.rank else f"the class of rank {label.rank + 1}"
        yield f"{place_name(label.path)} names {which}"
    for one in shown.numbers:
        of = (
            ""
            if one.index is None
            else f" {one.index + 1}"
            if one.function.startswith("ranked")
            else f" of {one.index}"
        )
        yield f"{place_name(one.path)} is {one.function}{of}" + (
            f" times {one.scale:g}" if one.scale != 1 else ""
        )
    for keys in shown.keys:
        yield f"{place_name(keys.path)} maps classes to probabilities"


def _in_words(seam: Seam) -> str:
    request = Request.from_dict(dict(seam.requests[0]))
    shown = f"{request.content_type}, {len(request.body)} bytes"
    if request.content_type == "application/octet-stream" or "image" in request.content_type:
        return shown
    text = request.body.decode("utf-8", "replace")
    return f"{shown}: {text if len(text) <= 60 else text[:57] + '...'}"
