"""``calib-serve evaluate``: every metric of a file of logits or probabilities, with intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from calib_serve.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from calib_serve.bins import Bins, Edges
    from calib_serve.metrics import Evaluation

__all__ = ["run"]

_WIDTH = 40  # characters of the reliability sketch: 2.5 % each


def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Logits or probs, and labels: npz, npy, csv, ...")
    ],
    *,
    artifact: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, also on 3.10
        typer.Option("--artifact", metavar="DIR", help="Calibrate the logits with this artifact first."),
    ] = None,
    split: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--split", help="Which split of the file, such as cal or test."),
    ] = None,
    labels: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--labels", help="Labels in an npy file of their own."),
    ] = None,
    bins: Annotated[int, typer.Option("--bins", min=1, help="How many confidence bins.")] = 15,
    edges: Annotated[
        str, typer.Option("--edges", help="Which end a bin holds: right is (lo, hi], left [lo, hi).")
    ] = "right",
    replicates: Annotated[
        int, typer.Option("--replicates", min=0, help="Bootstrap resamples; 0 for no such intervals.")
    ] = 1000,
    level: Annotated[float, typer.Option("--level", help="The intervals' level.")] = 0.95,
    seed: Annotated[int, typer.Option("--seed", help="The seed of the resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Measure calibration and refinement, each metric with its confidence interval."""
    from calib_serve.artifact import Artifact
    from calib_serve.data.logits_file import read_logits
    from calib_serve.metrics import evaluate, evaluate_logits

    if edges not in ("right", "left"):
        raise InputError(f"--edges must be right or left, got {edges!r}")
    closed: Edges = "left" if edges == "left" else "right"
    found = read_logits(file, split=split, labels=labels)
    if found.labels is None:
        raise InputError(f"{file} has no labels; name an npy file of labels with --labels")
    if artifact is None:
        result = evaluate_logits(
            found.logits, found.labels, bins=bins, edges=closed, replicates=replicates, level=level, seed=seed
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
            probs, found.labels, bins=bins, edges=closed, replicates=replicates, level=level, seed=seed
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

    table = Table(title=f"{title}: {result.n} predictions, {result.classes} classes")
    table.add_column("metric")
    for name in ("value", f"{level:.4g} low", "high"):
        table.add_column(name, justify="right")
    for name, estimate in result.estimates().items():
        in_nats = name in ("nll", "entropy")
        numbers = (estimate.value, estimate.low, estimate.high)
        table.add_row(name, *(f"{x:.4f}" if in_nats else f"{100 * x:.2f} %" for x in numbers))
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
