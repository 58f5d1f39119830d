"""``calib-serve evaluate``: every metric of a file of logits or probabilities, with intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calib_serve.cli import options

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from calib_serve.bins import Bins
    from calib_serve.metrics import Evaluation

__all__ = ["run"]

_WIDTH = 40  # characters of the reliability sketch: 2.5 % each


def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Logits or probs, and labels: npz, npy, csv, ...")
    ],
    *,
    artifact: Annotated[
        Path | None, typer.Option("--artifact", metavar="DIR", help="Calibrate the logits with this first.")
    ] = None,
    split: options.Split = None,
    labels: options.Labels = None,
    bins: Annotated[int, typer.Option("--bins", min=1, help="How many confidence bins.")] = 15,
    edges: Annotated[
        Literal["right", "left"],
        typer.Option("--edges", help="Which end a bin holds: right is (lo, hi], left [lo, hi)."),
    ] = "right",
    replicates: options.Replicates = 1000,
    level: Annotated[float, typer.Option("--level", help="The intervals' level.")] = 0.95,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Measure calibration and refinement, each metric with its confidence interval."""
    from calib_serve.artifact import Artifact
    from calib_serve.data import read_labelled
    from calib_serve.metrics import evaluate, evaluate_logits

    found = read_labelled(file, split=split, labels=labels)
    if artifact is None:
        result = evaluate_logits(
            found.logits, found.labels, bins=bins, edges=edges, replicates=replicates, level=level, seed=seed
        )
    else:
        calibration = Artifact.load(artifact)
        if calibration.input_shift or calibration.head:
            typer.echo(
                "calib-serve: the artifact changes the model itself; its logits must be of the changed model",
                err=True,
            )
        probs = calibration.probs(found.logits)
        result = evaluate(
            probs, found.labels, bins=bins, edges=edges, replicates=replicates, level=level, seed=seed
        )
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
        return
    from rich.console import Console

    console = Console()
    console.print(metrics_table(result, title=file.name, level=level))
    console.print(reliability_table(result.bins))


def metrics_table(result: Evaluation, *, title: str, level: float) -> Table:
    """Each metric and its interval; shares and errors in percent."""
    from rich.table import Table

    from calib_serve.cli.inspect import metric

    table = Table(title=f"{title}: {result.n} predictions, {result.classes} classes")
    table.add_column("metric")
    for name in ("value", f"{level:.4g} low", "high"):
        table.add_column(name, justify="right")
    for name, estimate in result.estimates().items():
        table.add_row(name, *(metric(name, x) for x in (estimate.value, estimate.low, estimate.high)))
    return table


def reliability_table(bins: Bins) -> Table:
    """A reliability diagram in characters: bars are accuracy, the mark is mean confidence."""
    from rich.table import Table

    table = Table(title="reliability: bars are accuracy, | is confidence")
    table.add_column("confidence", no_wrap=True)
    table.add_column("n", justify="right")
    table.add_column("0 %" + " " * (_WIDTH - 7) + "100 %", no_wrap=True)
    table.add_column("gap", justify="right")
    for i, count in enumerate(bins.count):
        if count:
            confidence, accuracy = bins.confidence[i] / count, bins.correct[i] / count
            table.add_row(
                f"{i / len(bins):.3f}-{(i + 1) / len(bins):.3f}",
                f"{count:.0f}",
                _bar(float(accuracy), float(confidence)),
                f"{100 * (confidence - accuracy):+.1f}",
            )
    return table


def _bar(accuracy: float, confidence: float) -> Text:
    from rich.text import Text

    length, mark = round(accuracy * _WIDTH), min(round(confidence * _WIDTH), _WIDTH)
    bar = Text("█" * length + " " * (_WIDTH + 1 - length), style="blue")
    return Text.assemble(bar[:mark], ("|", "bold red"), bar[mark + 1 :])
