"""``calib-serve inspect``: what an artifact holds and how it came to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options
from calib_serve.cli.from_archive import show_look
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from calib_serve.artifact import Artifact, Step

__all__ = ["facts", "metric", "run", "tables"]


def run(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR|ARCHIVE", help="An artifact's folder, or a calibrated archive."),
    ] = None,
    *,
    source: options.Source = None,
    probe: Annotated[
        Path | None, typer.Option("--probe", help="With --from: a request that it answers.")
    ] = None,
    probe_timeout: options.ProbeTimeout = None,
    seam: options.Seam = None,
    output: options.Output = None,
    outputs: options.Outputs = None,
    as_json: options.AsJson = False,
) -> None:
    """Check the hashes of an artifact, or of an archive and the artifact in it, and show what it holds.

    With --from ARCHIVE: run an archive's own handler, once, and say what of it can be calibrated.
    """
    if source is not None:
        if folder is not None:
            raise InputError(
                "look at a folder or archive, or with --from at an archive's handler; not at both"
            )
        from calib_serve.archive_look import look_at_archive

        look = look_at_archive(
            source,
            probe=probe,
            seam=seam,
            output=output,
            outputs=outputs,
            **({} if probe_timeout is None else {"probe_timeout": probe_timeout}),
        )
        show_look(source, look, as_json=as_json)
        return
    told = {"probe": probe, "seam": seam, "output": output, "outputs": outputs}
    if extra := [name for name, value in told.items() if value is not None]:
        raise InputError(f"--{extra[0]}: goes with --from")
    if folder is None:
        raise InputError("say what to look at: a folder or an archive, or --from ARCHIVE to run its handler")
    from calib_serve.fuse.torchserve import load_artifact

    artifact = load_artifact(folder)
    if as_json:
        typer.echo(json.dumps({"artifact": str(folder), **facts(artifact)}))
        return
    from rich.console import Console

    console = Console(markup=False)
    for table in tables(artifact):
        console.print(table)


def facts(artifact: Artifact) -> dict[str, Any]:
    """All that is known of an artifact, as JSON holds it; steps by their kind and shapes."""
    reference, sets = artifact.reference, artifact.sets
    return {
        "fingerprint": artifact.fingerprint,
        "method": artifact.method,
        "classes": artifact.classes,
        "class_names": list(artifact.class_names),
        "steps": [{"kind": step.kind, **_sizes(step)} for step in artifact.steps],
        "fit": artifact.fit,
        "sets": None if sets is None else {**sets.facts, "threshold": sets.threshold.tolist()},
        "abstain": None if artifact.abstain is None else artifact.abstain.facts,
        "contract": None if artifact.contract is None else artifact.contract.facts,
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
    """The same for people: facts with certificates, candidates, and metrics."""
    from rich.table import Table

    known = facts(artifact)
    before, after = known.pop("before"), known.pop("after")
    scores = dict(known["fit"].get("selection", {})).pop("scores", [])
    if scores:
        selection = {k: v for k, v in known["fit"]["selection"].items() if k != "scores"}
        known["fit"] = {**known["fit"], "selection": selection}
    what = "labels" if artifact.is_multilabel else "classes"
    table = Table(
        "fact", "value", title=f"{artifact.method}, {artifact.classes} {what}", title_justify="left"
    )
    for name, value in known.items():
        for key, text in _lines(name, value):
            table.add_row(key, text)
    shown = [table, *([_candidates(scores)] if scores else [])]
    return [*shown, _measured(artifact)] if before or after else shown


def _measured(artifact: Artifact) -> Table:
    """Metrics before and after, with their intervals."""
    from rich.table import Table

    on = artifact.data.get("measured_on", "held-out samples")
    table = Table("metric", "before", "after", title=f"measured on {on}", title_justify="left")
    for name in artifact.after or artifact.before:
        ends = (artifact.before.get(name), artifact.after.get(name))
        table.add_row(name, *(_estimate(name, end) for end in ends))
    return table


def metric(name: str, value: float) -> str:
    r"""A metric as every command shows it: entropy and NLL in nats, all others in percent.

    >>> metric("nll", 0.25), metric("ece", 0.0475)
    ('0.2500', '4.75\xa0%')
    """
    from calib_serve.words import percent

    return f"{value:.4f}" if name in ("nll", "entropy") else percent(value, 2)


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


def _estimate(name: str, value: Any) -> str:
    if not isinstance(value, dict) or value.get("value") is None:
        return "" if value is None or isinstance(value, dict) else str(value)
    low, high = value.get("low"), value.get("high")
    interval = "" if low is None or high is None else f" [{metric(name, low)}, {metric(name, high)}]"
    return f"{metric(name, value['value'])}{interval}"


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
