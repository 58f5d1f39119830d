"""``calib-serve inspect``: what an artifact holds and how it came to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from calib_serve.artifact import Artifact, Step

__all__ = ["run"]


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR|MAR", help="An artifact's folder, or an archive.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check the hashes of an artifact, or of an archive and the artifact in it, and show what it holds."""
    artifact = _load(folder)
    if as_json:
        typer.echo(json.dumps({"artifact": str(folder), **facts(artifact)}))
        return
    from rich.console import Console

    console = Console()
    for table in tables(artifact):
        console.print(table)


def _load(path: Path) -> Artifact:
    if path.suffix == ".mar":
        from calib_serve.fuse.torchserve import artifact_of, read_archive

        return artifact_of(read_archive(path))
    from calib_serve.artifact import Artifact

    return Artifact.load(path)


def facts(artifact: Artifact) -> dict[str, Any]:
    """All that is known of an artifact, as JSON holds it; steps by their kind and shapes."""
    reference = artifact.reference
    return {
        "fingerprint": artifact.fingerprint,
        "method": artifact.method,
        "classes": artifact.classes,
        "class_names": list(artifact.class_names),
        "steps": [{"kind": step.kind, **_sizes(step)} for step in artifact.steps],
        "fit": artifact.fit,
        "data": artifact.data,
        "model": artifact.model.as_dict(),
        "before": artifact.before,
        "after": artifact.after,
        "reference": None
        if reference is None
        else {"n": reference.n, "accuracy": reference.accuracy(), "ece": reference.ece()},
        "versions": artifact.versions,
    }


def tables(artifact: Artifact) -> list[Table]:
    """The same for people: one table of facts, and one of metrics where there are any."""
    from rich.table import Table

    known = facts(artifact)
    before, after = known.pop("before"), known.pop("after")
    scores = dict(known["fit"].get("selection", {})).pop("scores", [])
    if scores:
        selection = {k: v for k, v in known["fit"]["selection"].items() if k != "scores"}
        known["fit"] = {**known["fit"], "selection": selection}
    table = Table(
        "fact", "value", title=f"{artifact.method}, {artifact.classes} classes", title_justify="left"
    )
    for name, value in known.items():
        for key, text in _lines(name, value):
            table.add_row(key, text)
    shown = [table, *([_candidates(scores)] if scores else [])]
    if not before and not after:
        return shown
    held_out = Table("metric", "before", "after", title="held out", title_justify="left")
    for name in after or before:
        held_out.add_row(name, _estimate(before.get(name)), _estimate(after.get(name)))
    return [*shown, held_out]


def _candidates(scores: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table("candidate", "score", "above best", "refused", title="candidates", title_justify="left")
    for row in scores:
        score, above, error = (row.get(name) for name in ("score", "above_best", "standard_error"))
        table.add_row(
            row["method"],
            "" if score is None else f"{score:.5f}",
            "" if above is None else f"{above:.5f} ± {error:.5f}",
            row.get("refused", ""),
        )
    return table


def _lines(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in _lines(f"{name}.{key}", item)]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [line for i, item in enumerate(value) for line in _lines(f"{name}[{i}]", item)]
    if value in (None, [], ""):
        return []
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return [(name, text if len(text) <= 80 else f"{text[:77]}...")]


def _estimate(value: Any) -> str:
    if isinstance(value, dict) and value.get("value") is not None:
        low, high = value.get("low"), value.get("high")
        interval = "" if low is None or high is None else f" [{low:.4f}, {high:.4f}]"
        return f"{value['value']:.4f}{interval}"
    return "" if value is None else str(value)


def _sizes(step: Step) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for name, value in vars(step).items():
        if hasattr(value, "shape"):
            sizes[name] = float(value) if value.ndim == 0 else list(value.shape)
        elif isinstance(value, tuple):
            sizes[name] = [list(item.shape) for item in value]
        elif value is not None:
            sizes[name] = value
    return sizes
