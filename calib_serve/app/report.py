"""``calib-serve report``: what a calibration did, as one HTML file that people look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options
from calib_serve.cli.verdict import show_verdict
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from calib_serve.artifact import Artifact
    from calib_serve.pictures import Preprocessing
    from calib_serve.report import Contents, LabelsContents
    from calib_serve.scores import Scores

__all__ = ["run"]


def run(
    *,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="The file to write: .html, or its first screen as .png or .svg."),
    ] = Path("report.html"),
    artifact: Annotated[
        Path | None, typer.Option("--artifact", metavar="DIR", help="The calibration to report on.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="DIR", help="Compare with this one instead of with none."),
    ] = None,
    logits: Annotated[
        Path | None,
        typer.Option("--logits", help="Test scores, and labels: npz, csv, parquet, ..."),
    ] = None,
    labels: options.Labels = None,
    outputs: options.Outputs = None,
    columns: options.Columns = None,
    class_names: options.ClassNames = None,
    sample_weight: options.SampleWeight = None,
    groups: options.Groups = None,
    ignore_label: options.IgnoreLabel = None,
    model: options.Model = None,
    weights: options.Weights = None,
    data: options.Data = None,
    split: options.Split = None,
    title: Annotated[
        str, typer.Option("--title", help="The report's heading; the file's name if empty.")
    ] = "",
    bins: Annotated[int, typer.Option("--bins", min=1, help="How many confidence bins.")] = 15,
    tolerance: options.Tolerance = 0.02,
    class_tolerance: options.ClassTolerance = None,
    target_risk: Annotated[
        float | None,
        typer.Option(
            "--target-risk", help="The share of errors to abstain down to; half of them if not given."
        ),
    ] = None,
    replicates: options.Replicates = 1000,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Write one self-contained HTML file: the verdict first, then every figure and number behind it."""
    if against is not None and artifact is None:
        raise InputError("--against wants --artifact: the calibration to report on")
    from calib_serve.artifact import Artifact
    from calib_serve.fit.decide import seen
    from calib_serve.report import prepare_labels_report, prepare_report, write_page

    fitted = None if artifact is None else Artifact.load(artifact)
    other = None if against is None else Artifact.load(against)
    if (logits is None) == (model is None):
        raise InputError("say what to report on: --logits FILE, or --model MODEL with --data DATA")
    beside: dict[str, Any] = {}
    if logits is not None:
        scores = options.read_scores(
            logits, split=split, labels=labels, outputs=outputs, columns=columns, class_names=class_names,
            sample_weight=sample_weight, groups=groups, ignore_label=ignore_label,
            expected=None if fitted is None else fitted.model.outputs,
        )  # fmt: skip
        name, probs, y, names_of_classes = _of_scores(scores, fitted)
        beside = {
            "groups": scores.groups,
            "sample_weight": scores.weights,
            "own": None if fitted is None else seen(fitted, scores),
        }
    else:
        if given := [n for n, v in {"--columns": columns, "--groups": groups}.items() if v is not None]:
            raise InputError(f"{given[0]}: for a file of scores (--logits), not for --model")
        name, probs, y, names_of_classes = _of_model(
            str(model),
            weights,
            data,
            split,
            prepared=None if fitted is None else fitted.model.pictures,
            # Numbers do not show that logits are of labels; the artifact knows.
            outputs=outputs or (fitted.model.outputs if fitted and fitted.is_multilabel else None),
        )
    how: dict[str, Any] = {
        "title": title or name,
        "before": None if fitted is None else (probs(other), y),
        "after": (probs(fitted), y),
        "artifact": fitted,
        "names": _names(against, artifact),
        "class_names": names_of_classes,
        "bins": bins,
        "tolerance": tolerance,
        "class_tolerance": class_tolerance,
        "replicates": replicates,
        "seed": seed,
    }
    contents: Contents | LabelsContents
    if y.ndim == 2:
        if beside.get("groups") is not None or target_risk is not None:
            raise InputError("--groups and --target-risk are for one class a sample, not for labels")
        contents = prepare_labels_report(**how, sample_weight=beside.get("sample_weight"))
    else:
        contents = prepare_report(**how, target_risk=target_risk, **beside)
    write_page(out, contents)
    if as_json:
        typer.echo(json.dumps({"report": str(out), **contents.as_dict()}, allow_nan=False))
    else:
        _show(contents.verdict, out)


_Source = tuple[str, "Callable[[Artifact | None], Any]", Any, tuple[str, ...]]
"""A name, probabilities under an artifact or none, labels, class names."""


def _names(against: Path | None, artifact: Path | None) -> tuple[str, str]:
    if against is None or artifact is None:
        return ("before", "after") if artifact else ("", "the model")
    return against.name, artifact.name


def _of_scores(scores: Scores, fitted: Artifact | None) -> _Source:
    """Scores in the artifact's order of classes, and their probabilities under it, another or none."""
    found = scores if fitted is None else scores.in_order(fitted.class_names)

    def probs(artifact: Artifact | None) -> Any:
        if artifact is None:
            return found.probs[:]
        if artifact.input_shift or artifact.head:
            raise InputError(
                "this calibration changes the model itself, which its logits cannot show; "
                "name the model and its test data with --model and --data"
            )
        return artifact.probs(found)

    return found.name, probs, found.labelled(), found.class_names


def _of_model(
    model: str,
    weights: Path | None,
    data: str | None,
    split: str | None,
    *,
    prepared: Preprocessing | None,
    outputs: Any,
) -> _Source:
    if data is None:
        raise InputError("--model needs --data: the images or arrays to test it on")
    from calib_serve.model import calibrated_probs, load_model, weights_remarks
    from calib_serve.model.load import model_data
    from calib_serve.scores import LABELS

    of_pictures = Path(data, "labels.csv").is_file()
    (samples,) = model_data(model, data, [split], pictures=prepared if of_pictures else None)
    options.tell(samples.remarks)
    classifier = load_model(model, weights=weights, input_shape=samples.inputs.shape[1:], outputs=outputs)
    options.tell(weights_remarks(model, weights))
    multilabel = classifier.outputs in LABELS
    samples.check(classifier.input_shape, classifier.classes, multilabel=multilabel)

    def probs(artifact: Artifact | None) -> Any:
        return calibrated_probs(classifier, samples.inputs, artifact)

    return Path(model).stem, probs, samples.labels, samples.class_names


def _show(verdict: Any, out: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    show_verdict(console, verdict)
    console.print(f"written to {escape(str(out))}", soft_wrap=True)
