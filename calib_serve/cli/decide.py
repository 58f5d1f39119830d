"""``calib-serve decide``: prediction sets and abstention, added to an artifact from held-out data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from calib_serve.cli import options
from calib_serve.cli.held_out import check_given, held_out
from calib_serve.errors import InputError

__all__ = ["run"]

_SETS = "Prediction sets"
_ABSTAIN = "Abstention"


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The artifact's folder.")],
    *,
    logits: Annotated[
        Path | None,
        typer.Option("--logits", help="Scores and labels that the fit has not seen: npz, csv, ..."),
    ] = None,
    model: options.Model = None,
    weights: options.Weights = None,
    data: options.Data = None,
    split: options.Split = None,
    labels: options.Labels = None,
    outputs: options.Outputs = None,
    columns: options.Columns = None,
    class_names: options.ClassNames = None,
    sample_weight: options.SampleWeight = None,
    groups: options.Groups = None,
    ignore_label: options.IgnoreLabel = None,
    coverage: Annotated[
        float | None,
        typer.Option("--coverage", help="The share of sets to hold the true class.", rich_help_panel=_SETS),
    ] = None,
    score: Annotated[
        Literal["lac", "aps", "raps"],
        typer.Option(
            "--score",
            help="lac: the smallest sets; aps: sets that grow where the model doubts; raps: aps, cut short.",
            rich_help_panel=_SETS,
        ),
    ] = "lac",
    per_class: Annotated[
        bool,
        typer.Option("--per-class", help="Promise the coverage for every class.", rich_help_panel=_SETS),
    ] = False,
    penalty: Annotated[
        float | None,
        typer.Option(
            "--penalty", help="raps: of each further rank; by default chosen.", rich_help_panel=_SETS
        ),
    ] = None,
    free_ranks: Annotated[
        int | None,
        typer.Option(
            "--free-ranks", help="raps: ranks without a penalty; by default chosen.", rich_help_panel=_SETS
        ),
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option("--risk", help="The share of answers that may be wrong.", rich_help_panel=_ABSTAIN),
    ] = None,
    level: Annotated[
        float,
        typer.Option("--level", help="How surely the risk is kept.", rich_help_panel=_ABSTAIN),
    ] = 0.95,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder the artifact is written to.")],
    seed: options.Seed = 0,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Add prediction sets, abstention, or both, with thresholds from samples that the fit has not seen.

    The probabilities stay as they are. Samples that the artifact knows from its fit are refused.
    """
    from calib_serve.artifact import Artifact, promises
    from calib_serve.cli.inspect import facts
    from calib_serve.fit.decide import decide, refuse_labels

    if out.exists() and not force:
        raise InputError(f"{out} exists; give --force to replace it, or another --out")
    check_given(logits, model)
    artifact = Artifact.load(folder)
    refuse_labels(artifact, outputs)
    samples = held_out(
        artifact,
        logits=logits,
        model=model,
        weights=weights,
        data=data,
        split=split,
        labels=labels,
        outputs=outputs,
        columns=columns,
        class_names=class_names,
        sample_weight=sample_weight,
        groups=groups,
        ignore_label=ignore_label,
    )
    found = decide(
        artifact,
        samples,
        coverage=coverage,
        risk=risk,
        level=level,
        score=score,
        per_class=per_class,
        penalty=penalty,
        free_ranks=free_ranks,
        seed=seed,
    )
    found.save(out)
    if as_json:
        typer.echo(json.dumps({"artifact": str(out), "promises": promises(found), **facts(found)}))
        return
    for sentence in promises(found):
        typer.echo(sentence)
    typer.echo(f"written to {out}")
