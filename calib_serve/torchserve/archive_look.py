"""A look at a foreign archive: what its handler answered to one request, and where its class scores pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
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
    words = f"{request.content_type}, {len(request.body)} bytes"
    if "json" in request.content_type or "text" in request.content_type:
        text = request.body.decode("utf-8", "replace")
        words += f": {text if len(text) <= 60 else text[:57] + '...'}"
    return words + (", as a body alone (behind an envelope)" if seam.bare else "")
