"""``calib-serve report``: what a calibration did, as one HTML file that people look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calib_serve.cli import options
from calib_serve.cli.verdict import show_verdict
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from calib_serve.artifact import Artifact
    from calib_serve.pictures import Preprocessing
    from calib_serve.report import Contents, LabelsContents

__all__ = ["run"]


def run(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The HTML file to write.")] = Path("report.html"),
    artifact: Annotated[
        Path | None, typer.Option("--artifact", metavar="DIR", help="The calibration to report on.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="DIR", help="Compare with this one instead of with none."),
    ] = None,
    logits: Annotated[
        Path | None,
        typer.Option("--logits", help="Test logits or probs, and labels: npz, npy, csv, parquet, ..."),
    ] = None,
    labels: options.Labels = None,
    outputs: options.Outputs = None,
    groups: Annotated[
        Path | None,
        typer.Option("--groups", help="An npy file of numbers or text: which samples belong together."),
    ] = None,
    model: options.Model = None,
    weights: options.Weights = None,
    data: options.Data = None,
    split: options.Split = None,
    title: Annotated[
        str, typer.Option("--title", help="The report's heading; the file's name if empty.")
    ] = "",
    plots: Annotated[
        Path | None,
        typer.Option("--plots", metavar="DIR", help="Write each figure and all numbers here as well."),
    ] = None,
    plots_as: Annotated[Literal["svg", "png"], typer.Option("--plots-as", help="svg or png.")] = "svg",
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
    from calib_serve.data import read_groups
    from calib_serve.report import prepare_labels_report, prepare_report, write_page, write_plots

    fitted = None if artifact is None else Artifact.load(artifact)
    other = None if against is None else Artifact.load(against)
    if (logits is None) == (model is None):
        raise InputError("say what to report on: --logits FILE, or --model MODEL with --data DATA")
    if logits is not None:
        name, probs, y, class_names = _of_scores(logits, split, labels, outputs)
    else:
        name, probs, y, class_names = _of_model(
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
        "class_names": class_names,
        "bins": bins,
        "tolerance": tolerance,
        "class_tolerance": class_tolerance,
        "replicates": replicates,
        "seed": seed,
    }
    contents: Contents | LabelsContents
    if y.ndim == 2:
        if groups is not None or target_risk is not None:
            raise InputError("--groups and --target-risk are for one class a sample, not for labels")
        contents = prepare_labels_report(**how)
    else:
        of_groups = None if groups is None else read_groups(groups, len(y), beside=logits)
        contents = prepare_report(**how, target_risk=target_risk, groups=of_groups)
    write_page(out, contents)
    written = [out, *(write_plots(plots, contents, kind=plots_as) if plots else [])]
    if as_json:
        typer.echo(json.dumps({"report": str(out), **contents.as_dict()}, allow_nan=False))
    else:
        _show(contents.verdict, written)


_Source = tuple[str, "Callable[[Artifact | None], Any]", Any, tuple[str, ...]]
"""A name, probabilities under an artifact or none, labels, class names."""


def _names(against: Path | None, artifact: Path | None) -> tuple[str, str]:
    if against is None or artifact is None:
        return ("before", "after") if artifact else ("", "the model")
    return against.name, artifact.name


def _of_scores(path: Path, split: str | None, labels: Path | None, outputs: Any) -> _Source:
    from calib_serve.data import read_labelled
    from calib_serve.metrics import sigmoid, softmax
    from calib_serve.scores import LABELS

    found = read_labelled(path, split=split, labels=labels, outputs=outputs)

    def probs(artifact: Artifact | None) -> Any:
        if artifact is None:
            return sigmoid(found.logits) if found.outputs in LABELS else softmax(found.logits)
        if artifact.input_shift or artifact.head:
            raise InputError(
                "this calibration changes the model itself, which its logits cannot show; "
                "name the model and its test data with --model and --data"
            )
        artifact.check_takes(found.outputs, f"the scores of {path}")
        return artifact.probs(found.logits)

    return path.stem, probs, found.labels, found.class_names


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


def _show(verdict: Any, written: list[Path]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    show_verdict(console, verdict)
    console.print(f"written to {escape(', '.join(map(str, written)))}", soft_wrap=True)
