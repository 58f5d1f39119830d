"""``calib-serve evaluate``: every metric of logits, or of an archive's handler, with intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calib_serve.cli import options
from calib_serve.cli.from_archive import scores_and_calibration
from calib_serve.cli.verdict import show_verdict
from calib_serve.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table
    from rich.text import Text

    from calib_serve.artifact import Artifact, DecisionsEvaluation
    from calib_serve.bins import Bins
    from calib_serve.data import LabelledScores
    from calib_serve.metrics import Evaluation, LabelsEvaluation
    from calib_serve.workflows.refinement import Refinement

    Floats = NDArray[np.float64]

__all__ = ["run"]

_PREDICTIONS = ("reliability", "confidence", "accuracy")
_POSITIVE = ("reliability of P(y = 1)", "P(y = 1)", "share of class 1")
_DECISIONS = ("reliability of all labels' decisions", "confidence", "accuracy")
_LABELS_SHOWN = 30
_WIDTH = 40  # characters of the reliability sketch: 2.5 % each


def run(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Logits or probs, and labels: npz, npy, csv, ...")
    ] = None,
    *,
    source: options.Source = None,
    model: Annotated[str | None, typer.Option("--model", hidden=True)] = None,
    data: options.Data = None,
    seam: options.Seam = None,
    output: options.Output = None,
    outputs: options.Outputs = None,
    batch_size: options.RequestsAtOnce = None,
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
    tolerance: options.Tolerance = 0.02,
    class_tolerance: options.ClassTolerance = None,
    seed: options.Seed = 0,
    every: Annotated[bool, typer.Option("--all", help="Show every metric.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Give a verdict, and measure calibration and refinement, each metric with its interval."""
    from calib_serve.artifact import Artifact
    from calib_serve.data import read_labelled
    from calib_serve.judgement import judge
    from calib_serve.metrics import Evaluation

    if model is not None:
        raise InputError(
            "evaluate measures scores; of a model say: calib-serve report --model MODEL --data DATA, which "
            "needs no artifact"
        )
    of_source = {"seam": seam, "output": output, "batch_size": batch_size}
    if source is not None:
        if file is not None or labels is not None:
            raise InputError(
                "measure a FILE (and its --labels), or --from ARCHIVE with --data DATA; not both"
            )
        if data is None:
            raise InputError("--from needs --data: the inputs to measure it on, and their labels")
        found, calibration = scores_and_calibration(
            source, data, artifact, split=split, quiet=as_json, outputs=outputs, **of_source
        )
    elif file is None:
        raise InputError("say what to measure: FILE of logits, or --from ARCHIVE with --data DATA")
    else:
        if extra := [name for name, value in {"data": data, **of_source}.items() if value is not None]:
            raise InputError(f"--{extra[0].replace('_', '-')}: goes with --from, not with a file of logits")
        found = read_labelled(file, split=split, labels=labels, outputs=outputs)
        calibration = None if artifact is None else Artifact.load(artifact)
    how: dict[str, Any] = {
        "bins": bins,
        "edges": edges,
        "replicates": replicates,
        "level": level,
        "seed": seed,
    }
    probs = _probabilities(found, calibration)
    result = _measured(found, probs, how, as_they_are=calibration is None)
    verdict = judge(
        probs,
        found.labels,
        tolerance=tolerance,
        class_tolerance=class_tolerance,
        class_names=found.class_names,
    )
    parts = _decomposed(found, calibration, probs, level=level, seed=seed)
    decisions = _decisions(found, calibration, probs, level)
    if as_json:
        told = {
            **result.as_dict(),
            "verdict": verdict.as_dict(),
            **({"decomposition": parts.as_dict()} if parts else {}),
            **(decisions.as_dict() if decisions else {}),
        }
        typer.echo(json.dumps(told))
        return
    from rich.console import Console

    console = Console(markup=False)
    title = (file or source or Path()).name
    show_verdict(console, verdict)
    if isinstance(result, Evaluation):
        counts = f"{result.n} predictions, {result.classes} classes"
        console.print(metrics_table(result, title=f"{title}: {counts}", level=level, every=every))
        if parts is not None:
            console.print(parts.says(), highlight=False)
        console.print(reliability_table(result.bins))
        if result.positive_bins is not None:
            console.print(reliability_table(result.positive_bins, of=_POSITIVE))
        for sentence in decisions.says(found.class_names) if decisions else ():
            console.print(sentence, highlight=False)
        return
    counts = f"{result.n} samples, {len(result.labels)} labels"
    console.print(metrics_table(result, title=f"{title}: {counts}", level=level, every=every))
    console.print(labels_table(result, found.class_names))
    console.print(reliability_table(result.bins, of=_DECISIONS))


def _probabilities(found: LabelledScores, calibration: Artifact | None) -> Floats:
    """Of the scores as they are, or calibrated."""
    from calib_serve.metrics import sigmoid, softmax
    from calib_serve.scores import LABELS

    if calibration is None:
        return sigmoid(found.logits) if found.outputs in LABELS else softmax(found.logits)
    if calibration.model_steps:
        typer.echo(
            "calib-serve: the artifact changes the model itself; its logits must be of the changed model",
            err=True,
        )
    calibration.check_takes(found.outputs, f"the scores of {found.name}")
    return calibration.probs(found.logits)


def _measured(
    found: LabelledScores, probs: Floats, how: dict[str, Any], *, as_they_are: bool
) -> Evaluation | LabelsEvaluation:
    from calib_serve.metrics import evaluate, evaluate_labels, evaluate_logits
    from calib_serve.scores import LABELS

    if found.outputs in LABELS:
        return evaluate_labels(probs, found.labels, **how)
    if as_they_are:
        return evaluate_logits(found.logits, found.labels, **how)
    return evaluate(probs, found.labels, **how)


def _decisions(
    found: LabelledScores, calibration: Artifact | None, probs: Floats, level: float
) -> DecisionsEvaluation | None:
    """What the artifact's sets and abstention do, if it has any."""
    from calib_serve.artifact import evaluate_decisions

    if calibration is None or (calibration.sets is None and calibration.abstain is None):
        return None
    return evaluate_decisions(calibration, probs, found.labels, level=level)


def _decomposed(
    found: LabelledScores, calibration: Artifact | None, probs: Floats, *, level: float, seed: int
) -> Refinement | None:
    """What of the losses recalibration would remove; of labels nothing is told."""
    from calib_serve.metrics import log_probs
    from calib_serve.scores import LABELS
    from calib_serve.workflows.refinement import recalibrated_losses

    if found.outputs in LABELS:
        return None
    logits = found.logits if calibration is None else log_probs(probs)
    return recalibrated_losses(logits, found.labels, level=level, seed=seed)


def metrics_table(
    result: Evaluation | LabelsEvaluation, *, title: str, level: float, every: bool = True
) -> Table:
    """The metrics to know first, or every one, and their intervals; shares and errors in percent."""
    from rich.table import Table

    from calib_serve.cli.inspect import FIRST, metric

    table = Table(title=title)
    table.add_column("metric")
    for name in ("value", "debiased", f"{level:.4g} low", "high"):
        table.add_column(name, justify="right")
    for name, estimate in result.estimates().items():
        if not every and name not in FIRST:
            continue
        ends = (estimate.value, estimate.debiased, estimate.low, estimate.high)
        table.add_row(name, *("" if math.isnan(x) else metric(name, x) for x in ends))
    return table


def labels_table(result: LabelsEvaluation, names: Sequence[str]) -> Table:
    """The labels that are most surely miscalibrated, one a row."""
    from rich.table import Table

    from calib_serve.cli.inspect import metric

    shown = result.worst()[:_LABELS_SHOWN]
    left = len(result.labels) - len(shown)
    table = Table(title="label by label, the worst first" + (f"; {left} more by --json" if left else ""))
    table.add_column("label")
    columns = {
        "prevalence": "true",
        "accuracy": "accuracy",
        "positive_gap": "gap",
        "positive_ece": "ECE",
        "positive_brier": "Brier",
        "nll": "NLL",
    }
    for words in (*columns.values(), "ECE, low"):
        table.add_column(words, justify="right")
    for k in shown:
        row = result.labels[k]
        cells = [metric(name, getattr(row, name)) for name in columns]
        table.add_row(names[k] if names else str(k), *cells, metric("ece", row.positive_ece.low))
    return table


def reliability_table(bins: Bins, *, of: tuple[str, str, str] = _PREDICTIONS) -> Table:
    """A reliability diagram in characters: bars are accuracy, the mark is mean confidence."""
    from rich.table import Table

    title, said, true = of
    table = Table(title=f"{title}: bars are {true}, | is {said}")
    table.add_column(said, no_wrap=True)
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
