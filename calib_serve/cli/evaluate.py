"""``calib-serve evaluate``: every metric of logits, or of an archive's handler, with intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calib_serve.cli import options
from calib_serve.cli.from_archive import scores_and_calibration
from calib_serve.cli.verdict import show_verdict
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from calib_serve.artifact import Artifact, DecisionsEvaluation
    from calib_serve.bins import Bins
    from calib_serve.metrics import Evaluation, LabelsEvaluation
    from calib_serve.scores import Scores
    from calib_serve.workflows.refinement import Refinement

__all__ = ["run"]

_PREDICTIONS = ("reliability", "confidence", "accuracy")
_POSITIVE = ("reliability of P(y = 1)", "P(y = 1)", "share of class 1")
_DECISIONS = ("reliability of all labels' decisions", "confidence", "accuracy")
_LABELS_SHOWN = 30
_WIDTH = 40  # characters of the reliability sketch: 2.5 % each

_FIRST = (
    "accuracy",
    "mean_confidence",
    "ece",
    "noise_floor",
    "positive_ece",
    "positive_noise_floor",
    "nll",
    "brier",
    "refinement_auroc",
)


def run(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Scores, and labels: npz, csv, parquet, ...")
    ] = None,
    *,
    source: options.Source = None,
    model: Annotated[str | None, typer.Option("--model", hidden=True)] = None,
    data: options.Data = None,
    probe_timeout: options.ProbeTimeout = None,
    seam: options.Seam = None,
    output: options.Output = None,
    outputs: options.Outputs = None,
    batch_size: options.RequestsAtOnce = None,
    artifact: Annotated[
        Path | None, typer.Option("--artifact", metavar="DIR", help="Calibrate the logits with this first.")
    ] = None,
    split: options.Split = None,
    labels: options.Labels = None,
    columns: options.Columns = None,
    class_names: options.ClassNames = None,
    sample_weight: options.SampleWeight = None,
    groups: options.Groups = None,
    ignore_label: options.IgnoreLabel = None,
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
    every: Annotated[bool, typer.Option("--all", help="Show every metric, test and diagram.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Give a verdict, and measure calibration and refinement, each metric with its interval."""
    from calib_serve.artifact import Artifact
    from calib_serve.judgement import judge, of_own_samples
    from calib_serve.metrics import evaluate, evaluate_labels
    from calib_serve.workflows.decide import seen

    if model is not None:
        raise InputError(
            "evaluate measures scores; of a model say: calib-serve report --model MODEL --data DATA, which "
            "needs no artifact"
        )
    of_source = {"seam": seam, "output": output, "batch_size": batch_size, "probe_timeout": probe_timeout}
    if source is not None:
        if file is not None or labels is not None:
            raise InputError(
                "measure a FILE (and its --labels), or --from ARCHIVE with --data DATA; not both"
            )
        if data is None:
            raise InputError("--from needs --data: the inputs to measure it on, and their labels")
        found, calibration = scores_and_calibration(
            source,
            data,
            artifact,
            split=split,
            quiet=as_json,
            outputs=outputs,
            **{name: value for name, value in of_source.items() if value is not None},
        )
    elif file is None:
        raise InputError("say what to measure: FILE of logits, or --from ARCHIVE with --data DATA")
    else:
        if extra := [name for name, value in {"data": data, **of_source}.items() if value is not None]:
            raise InputError(f"--{extra[0].replace('_', '-')}: goes with --from, not with a file of logits")
        calibration = None if artifact is None else Artifact.load(artifact)
        found = options.read_scores(
            file, split=split, labels=labels, outputs=outputs, columns=columns, class_names=class_names,
            sample_weight=sample_weight, groups=groups, ignore_label=ignore_label,
            expected=None if calibration is None else calibration.model.outputs,
        )  # fmt: skip
    how: dict[str, Any] = {
        "bins": bins,
        "edges": edges,
        "replicates": replicates,
        "level": level,
        "seed": seed,
    }
    own = None if calibration is None else seen(calibration, found)
    found = _calibrated(found, calibration)
    result = evaluate_labels(found, **how) if found.is_multilabel else evaluate(found, **how)
    verdict = judge(found, tolerance=tolerance, class_tolerance=class_tolerance)
    verdict = of_own_samples(verdict, own) if own else verdict
    parts = _decomposed(found, level=level, seed=seed) if every or as_json else None
    decisions = _decisions(found, calibration, level)
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
    show_verdict(console, verdict, every=every)
    title = (file or source or Path()).name
    for one in _shown(result, found, parts, decisions, title=title, level=level, every=every):
        console.print(one, highlight=not isinstance(one, str))


def _shown(
    result: Evaluation | LabelsEvaluation,
    found: Scores,
    parts: Refinement | None,
    decisions: DecisionsEvaluation | None,
    *,
    title: str,
    level: float,
    every: bool,
) -> Iterator[Table | str]:
    """What follows the verdict: the metrics, and a diagram of what it speaks of, or ``every`` one."""
    from calib_serve.metrics import Evaluation

    if not isinstance(result, Evaluation):
        counts = f"{result.n} samples, {len(result.labels)} labels"
        yield metrics_table(result, title=f"{title}: {counts}", level=level, every=every)
        yield labels_table(result, found.class_names)
        yield reliability_table(result.bins, of=_DECISIONS)
        return
    counts = f"{result.n} predictions, {result.classes} classes"
    yield metrics_table(result, title=f"{title}: {counts}", level=level, every=every)
    if result.positive_bins is not None:
        yield reliability_table(result.positive_bins, of=_POSITIVE)
    if every or result.positive_bins is None:
        yield reliability_table(result.bins)
    yield from (parts.says(),) if parts else ()
    yield from decisions.says(found.class_names) if decisions else ()


def _calibrated(found: Scores, calibration: Artifact | None) -> Scores:
    """The scores as they are, or as the calibration makes them."""
    if calibration is None:
        return found
    if calibration.model_steps:
        options.tell(["the artifact changes the model itself; its logits must be of the changed model"])
    return calibration.calibrated(found)


def _decisions(found: Scores, calibration: Artifact | None, level: float) -> DecisionsEvaluation | None:
    """What the artifact's sets and abstention do, if it has any."""
    from calib_serve.artifact import evaluate_decisions

    if calibration is None or (calibration.sets is None and calibration.abstain is None):
        return None
    return evaluate_decisions(calibration, found.probs[:], found.labelled(), level=level, groups=found.groups)


def _decomposed(found: Scores, *, level: float, seed: int) -> Refinement | None:
    """What of the losses recalibration would remove; of labels nothing is told."""
    from calib_serve.workflows.refinement import recalibrated_losses

    if found.is_multilabel:
        return None
    return recalibrated_losses(found, level=level, seed=seed)


def metrics_table(
    result: Evaluation | LabelsEvaluation, *, title: str, level: float, every: bool = True
) -> Table:
    """The metrics to know first, or every one, and their intervals; shares and errors in percent."""
    from rich.table import Table

    from calib_serve.cli.inspect import metric

    table = Table(title=title)
    table.add_column("metric")
    for name in ("value", "debiased", f"{level:.4g} low", "high"):
        table.add_column(name, justify="right")
    for name, estimate in result.estimates().items():
        if not every and name not in _FIRST:
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
