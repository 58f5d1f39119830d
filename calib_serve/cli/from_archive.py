"""What ``fit``, ``evaluate`` and ``inspect`` do with an archive that somebody else packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.scores import Scores
    from calib_serve.archive_look import ArchiveLook

__all__ = ["fitted_on_archive", "scores_and_calibration", "show_look"]


def fitted_on_archive(
    source: Path, split: str | None, eval_split: str | None, *, quiet: bool, data: str, **how: Any
) -> Artifact:
    """What is fitted to the scores of an archive's handler."""
    from calib_serve.cli.progress import stages
    from calib_serve.archives import calibrate_archive

    with stages(quiet=quiet) as progress:
        return calibrate_archive(source, data, split=split, eval_split=eval_split, progress=progress, **how)


def scores_and_calibration(
    source: Path, data: str, artifact: Path | None, *, split: str | None, quiet: bool, **how: Any
) -> tuple[Scores, Artifact | None]:
    """The scores of an archive's handler, and what calibrates them: ``artifact``, or the archive's own."""
    from calib_serve.artifact import Artifact
    from calib_serve.cli.progress import stages
    from calib_serve.archives import scores_of_archive

    given = None if artifact is None else Artifact.load(artifact)
    with stages(quiet=quiet) as progress:
        found = scores_of_archive(source, data, (split,), artifact=given, progress=progress, **how)
    return found.parts[0], found.artifact


def show_look(source: Path, look: ArchiveLook, *, as_json: bool) -> None:
    """All that was found, as JSON, or for people."""
    if as_json:
        typer.echo(json.dumps({"archive": str(source), **look.as_dict()}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("fact", "value", title=f"{look.name} {look.version}", title_justify="left")
    for fact, value in _facts(look):
        table.add_row(fact, value)
    console = Console(highlight=False, markup=False)
    console.print(table)
    for line in _advice(source, look):
        console.print(line, soft_wrap=True)


def _facts(look: ArchiveLook) -> list[tuple[str, str]]:
    of = "labels, of which any may be true" if look.outputs.startswith("label_") else "classes"
    one_of_two = look.one_score and look.classes == 2
    scores = "one score for two classes" if one_of_two else f"{look.classes} {of}"
    shown = ", ".join(look.class_names[:5]) + (", ..." if len(look.class_names) > 5 else "")
    model = " and ".join(file for file in (look.code, look.model_file) if file)
    reply = json.dumps(look.reply)
    facts = [
        ("handler", look.handler + (", inside a calibration" if look.calibrated else "")),
        ("envelope", look.envelope or ""),
        ("model", model or "no model file in the manifest"),
        ("sha256", look.sha256 or ""),
        ("classes", f"{look.classes}" + (f": {shown}" if shown else ", without names")),
        ("seam", look.seam + (f", in its {look.output}" if look.output else "")),
        ("passes", f"{look.outputs}, {scores}"),
        ("request", look.request + (", as a body alone (behind an envelope)" if look.body else "")),
        ("reply", reply if len(reply) <= 80 else f"{reply[:77]}..."),
        ("in batches", "each score is its own request's" if look.together else look.alone_because),
        ("confidence", "in the reply" if look.confidence else "not in the reply"),
        ("note", look.note),
    ]
    return [(fact, value) for fact, value in facts if value]


def _advice(source: Path, look: ArchiveLook) -> list[str]:
    """What can be fitted, as commands."""
    if look.calibrated:
        measure = f"  calib-serve evaluate --from {source} --data DATA"
        return ["calibrated already; measure what it serves:", measure]
    lines = [
        "every output method can be fitted on its scores:",
        f"  calib-serve fit --from {source} --data DATA -o artifact",
        f"  calib-serve pack --from {source} --artifact artifact",
    ]
    if look.model is None:
        return [*lines, "Neural Clamping and new heads need a torch model that calib-serve can load"]
    unpack, model = [f"  python -m zipfile -e {source} parts"], look.model
    if source.is_dir():
        unpack, model = [], look.model.replace("parts/", f"{source}/")
    elif source.name.endswith("gz"):
        unpack = [f"  mkdir parts && tar xzf {source} -C parts --strip-components 1"]
    return [
        *lines,
        "Neural Clamping and new heads, on inputs as its preprocess makes them:",
        *unpack,
        f"  calib-serve fit {model} --data INPUTS --method neural-clamping -o artifact",
    ]
