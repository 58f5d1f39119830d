"""``calib-serve inspect``: the facts of an artifact or an archive, or the seam of an archive's handler."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from calib_serve.app._command import Json, OfOutput, command, panel
from calib_serve.app._show import artifact_facts, artifact_tables, as_flags, command_line, console, print_json
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import fields_of
from calib_serve.core.options.data import ArchiveOptions, ModelScores, TrialOptions

if TYPE_CHECKING:
    from calib_serve.torchserve import ArchiveLook

app = command(
    "inspect",
    "calib-serve inspect artifact\ncalib-serve inspect calibrated.mar\n"
    "calib-serve inspect --from served.mar --probe request.json",
    details="Of an artifact's folder or a calibrated archive every hash is checked. With --from, the handler "
    "of an archive is run, once, and what of it can be calibrated is said.",
)


@dataclass(frozen=True, kw_only=True)
class _Asked(ArchiveOptions):
    """Options of the requests to an archive's handler."""

    from_: Path | None = None
    """An archive whose own handler is asked."""
    probe: Path | None = None
    """A request that it answers, a file."""


@app.default
def _inspect(
    path: Annotated[
        Path | None, Parameter(help="An artifact's folder, a calibrated archive, or a fused file.")
    ] = None,
    *,
    asked: Annotated[_Asked, panel("An archive's handler")] = _Asked(),
    output: Annotated[Json, OfOutput] = Json(),
) -> None:
    """Show the facts of an artifact or archive."""
    if (path is None) == (asked.from_ is None):
        raise InputError("say what to look at: a folder or an archive, or --from ARCHIVE to run its handler")
    if path is None:
        _look(asked, output)
        return
    if extra := [field.name for field in fields(asked) if getattr(asked, field.name) != field.default]:
        raise InputError(f"--{extra[0].replace('_', '-')} goes with --from")
    if path.suffix in (".onnx", ".pt2", ".pt"):
        from calib_serve.fuse import proof_in

        print_json({"model": str(path), "proof": proof_in(path)}, indent=2)
        return
    from calib_serve.torchserve import load_artifact, packed_proof

    artifact, proof = load_artifact(path), packed_proof(path)
    if output.json:
        said = {"proof": proof} if proof else {}
        print_json({"artifact": str(path), **said, **artifact_facts(artifact)})
        return
    out = console()
    if proof:
        out.print(f"proof: {proof}")
    for table in artifact_tables(artifact):
        out.print(table)


def _look(asked: _Asked, output: Json) -> None:
    """Run the handler, and print its seam, as JSON or for people."""
    from rich.table import Table

    from calib_serve.torchserve import look_at_archive

    source = asked.from_
    assert source is not None
    of_look = fields_of(ArchiveOptions, asked)
    look = look_at_archive(source, ArchiveOptions(**of_look), probe=asked.probe)
    if output.json:
        print_json({"archive": str(source), **look.as_dict()})
        return
    table = Table("fact", "value", title=f"{look.name} {look.version}", title_justify="left")
    for fact, value in _facts(look):
        table.add_row(fact, value)
    out = console()
    out.print(table)
    for line in _advice(source, look, asked):
        out.print(line)


def _facts(look: "ArchiveLook") -> list[tuple[str, str]]:
    of = "labels, of which any may be true" if look.outputs.startswith("label_") else "classes"
    shown = ", ".join(look.class_names[:5]) + (", ..." if len(look.class_names) > 5 else "")
    reply = json.dumps(look.reply)
    facts = [
        ("handler", look.handler + (", inside a calibration" if look.calibrated else "")),
        ("sha256", look.sha256 or "no model file in the manifest"),
        ("passes", f"{look.outputs}, {look.classes} {of}" + (f": {shown}" if shown else ", without names")),
        ("seam", look.seam + (f", in its {look.output}" if look.output else "")),
        ("request", look.request),
        ("reply", reply if len(reply) <= 80 else f"{reply[:77]}..."),
        ("reply shows", "\n".join(look.shows)),
        ("in batches", look.alone_because or "each score is its own request's"),
    ]
    return [(fact, value) for fact, value in facts if value]


def _advice(source: Path, look: "ArchiveLook", asked: _Asked) -> list[str]:
    """The next commands for an archive."""
    if look.calibrated:
        measure = command_line("evaluate", "DATA", "--from", source)
        return ["calibrated already; measure what it serves:", f"  {measure}"]
    same = as_flags(asked, TrialOptions)
    how = as_flags(asked, ModelScores)
    fit = command_line("fit", "DATA", "--from", source, *same, *how, "-o", "artifact")
    pack = command_line("pack", "--from", source, "--artifact", "artifact", *same, "--probe-data", "DATA")
    lines = [
        "every output method can be fitted on its scores:",
        f"  {fit}",
        f"  {pack}",
    ]
    return [*lines, "Neural Clamping and new heads change the model itself: fit on its file, in the archive"]
