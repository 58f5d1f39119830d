"""``calib-serve report``: what a calibration did, as one HTML file that people look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional

import typer

from calib_serve.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calib_serve.artifact import Artifact

__all__ = ["run"]


def run(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The HTML file to write.")] = Path("report.html"),
    artifact: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, also on 3.10
        typer.Option("--artifact", metavar="DIR", help="The calibration to report on."),
    ] = None,
    against: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--against", metavar="DIR", help="Compare with this one instead of with none."),
    ] = None,
    logits: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--logits", help="Test logits or probs, and labels: npz, npy, csv, parquet, safetensors."
        ),
    ] = None,
    labels: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--labels", help="Labels in an npy file of their own."),
    ] = None,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--model", help="The deployed model, instead of its logits."),
    ] = None,
    weights: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--weights", help="The weights of a model that is a factory, module:factory."),
    ] = None,
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--data", help="The test data for --model."),
    ] = None,
    split: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--split", help="Which split of the file, such as test."),
    ] = None,
    title: Annotated[
        str, typer.Option("--title", help="The report's heading; the file's name if empty.")
    ] = "",
    plots: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--plots", metavar="DIR", help="Write each figure and all numbers here as well."),
    ] = None,
    plots_as: Annotated[str, typer.Option("--plots-as", help="svg or png.")] = "svg",
    bins: Annotated[int, typer.Option("--bins", min=1, help="How many confidence bins.")] = 15,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="The mean gap that users can live with, as a fraction.")
    ] = 0.02,
    target_risk: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--target-risk", help="The share of errors to abstain down to; half of them if not given."
        ),
    ] = None,
    replicates: Annotated[int, typer.Option("--replicates", min=0, help="Bootstrap resamples.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="The seed of everything that is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report's numbers as JSON.")] = False,
) -> None:
    """Write one self-contained HTML file: the verdict first, then every figure and number behind it."""
    kind: Literal["svg", "png"] = "png" if plots_as == "png" else "svg"
    if plots_as != kind:
        raise InputError(f"--plots-as must be svg or png, got {plots_as!r}")
    if against is not None and artifact is None:
        raise InputError("--against wants --artifact: the calibration to report on")
    from calib_serve.report import prepare_report, write_page, write_plots

    source = _source(logits=logits, labels=labels, model=model, weights=weights, data=data, split=split)
    calibrations = _calibrations(artifact, against)
    sides = [(source.probs(calibration), source.labels) for calibration in calibrations]
    contents = prepare_report(
        title=title or source.name,
        before=sides[0] if len(sides) == 2 else None,
        after=sides[-1],
        artifact=calibrations[-1],
        names=_names(against, artifact),
        class_names=source.class_names,
        bins=bins,
        tolerance=tolerance,
        target_risk=target_risk,
        replicates=replicates,
        seed=seed,
    )
    write_page(out, contents)
    written = [out, *(write_plots(plots, contents, kind=kind) if plots else [])]
    if as_json:
        typer.echo(json.dumps({"report": str(out), **contents.as_dict()}, allow_nan=False))
    else:
        _show(contents.verdict, written)


def _calibrations(artifact: Path | None, against: Path | None) -> list[Artifact | None]:
    """What to compare: with nothing, or with another; None stands for no calibration."""
    from calib_serve.artifact import Artifact

    if artifact is None:
        return [None]
    return [Artifact.load(against) if against else None, Artifact.load(artifact)]


def _names(against: Path | None, artifact: Path | None) -> tuple[str, str]:
    if against is None or artifact is None:
        return ("before", "after") if artifact else ("", "the model")
    return against.name, artifact.name


class _Logits(NamedTuple):
    """Test logits from a file."""

    name: str
    logits: NDArray[Any]
    labels: NDArray[Any]
    class_names: tuple[str, ...]

    def probs(self, artifact: Artifact | None) -> NDArray[Any]:
        from calib_serve.metrics import softmax

        if artifact is None:
            return softmax(self.logits)
        if artifact.input_shift or artifact.head:
            raise InputError(
                "this calibration changes the model itself, which its logits cannot show; "
                "name the model and its test data with --model and --data"
            )
        return artifact.probs(self.logits)


class _Model(NamedTuple):
    """Test data and the model that is deployed."""

    name: str
    model: Any
    inputs: NDArray[Any]
    labels: NDArray[Any]
    class_names: tuple[str, ...]

    def probs(self, artifact: Artifact | None) -> NDArray[Any]:
        from calib_serve.metrics import softmax

        if artifact is None:
            return softmax(self.model.logits(self.inputs))
        if artifact.head is None:
            return artifact.probs(self.model.logits(self.inputs, shift=artifact.input_shift))
        features = self.model.features(self.inputs, shift=artifact.input_shift)
        return artifact.probs(artifact.head(features))


def _source(
    *,
    logits: Path | None,
    labels: Path | None,
    model: str | None,
    weights: Path | None,
    data: str | None,
    split: str | None,
) -> _Logits | _Model:
    if (logits is None) == (model is None):
        raise InputError("say what to report on: --logits FILE, or --model MODEL with --data DATA")
    if logits is not None:
        from calib_serve.data.logits_file import read_logits

        found = read_logits(logits, split=split, labels=labels)
        if found.labels is None:
            raise InputError(f"{logits} has no labels; name an npy file of labels with --labels")
        return _Logits(logits.stem, found.logits, found.labels, found.class_names)
    if data is None:
        raise InputError("--model needs --data: the images or arrays to test it on")
    from calib_serve.data import load_data
    from calib_serve.model import load_model

    samples = load_data(data, split=split)
    classifier = load_model(str(model), weights=weights, input_shape=samples.inputs.shape[1:])
    samples.check(classifier.input_shape, classifier.classes)
    return _Model(Path(str(model)).stem, classifier, samples.inputs, samples.labels, samples.class_names)


def _show(verdict: Any, written: list[Path]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    style = {"calibrated": "green", "close": "green", "unproven": "yellow", "off": "red"}[verdict.level]
    console.print(f"[bold {style}]{escape(verdict.headline)}[/]")
    for sentence in (*verdict.changed, *verdict.do):
        console.print(f"- {escape(sentence)}")
    console.print(f"written to {escape(', '.join(map(str, written)))}", soft_wrap=True)
