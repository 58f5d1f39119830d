"""``calib-serve report``: the effect of a calibration, as one HTML file for people."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from calib_serve.app._command import Flat, Json, OfData, OfOutput, command
from calib_serve.app._data import file_scores, model_samples, read_tree, refuse_file_options
from calib_serve.app._show import console, print_json, show_verdict
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import check
from calib_serve.core.options.data import ModelData
from calib_serve.core.options.evaluate import ReportOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from calib_serve.artifact import Artifact

app = command(
    "report",
    "calib-serve report scores.npz --split test --artifact artifact -o report.html\n"
    "calib-serve report images/ --split test --model model.onnx",
    details="DATA are test scores with labels, or with --model its inputs and their labels.",
)


@dataclass(frozen=True, kw_only=True)
class _Options(ReportOptions):
    """Options of ``calib-serve report``."""

    artifact: Path | None = None
    """The calibration to report on."""
    against: Path | None = None
    """Another calibration to compare it with; by default none."""

    def _check(self) -> None:
        check(self.against is None or self.artifact is not None, "against", "wants an artifact to compare")


@dataclass(frozen=True, kw_only=True)
class _Written(Json):
    """Options of the output: the report's place."""

    out: Annotated[Path, Parameter(name=("-o", "--out"))] = Path("report.html")
    """The file to write: .html, or its first screen as .png or .svg."""


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples of a report, and their probabilities under an artifact or none."""

    name: str
    probs: "Callable[[Artifact | None], Any]"
    labels: Any
    class_names: tuple[str, ...]
    beside: dict[str, Any]


@app.default
def _report(
    data: str,
    *,
    options: Annotated[_Options, Flat] = _Options(),
    source: Annotated[ModelData, OfData] = ModelData(),
    written: Annotated[_Written, OfOutput] = _Written(),
) -> None:
    """Write one self-contained file: the verdict first, then every figure and number behind it."""
    from calib_serve.artifact import Artifact
    from calib_serve.report import prepare_report, write_page

    fitted = None if options.artifact is None else Artifact.load(options.artifact)
    other = None if options.against is None else Artifact.load(options.against)
    samples = (_of_scores if source.model is None else _of_model)(data, source, fitted)
    y = samples.labels
    how: dict[str, Any] = {
        "title": samples.name,
        "before": None if fitted is None else (samples.probs(other), y),
        "after": (samples.probs(fitted), y),
        "artifact": fitted,
        "options": options,
        "names": _names(options),
        "tree": read_tree(options.tree),
        "class_names": samples.class_names,
    }
    contents = prepare_report(**how, **samples.beside)
    write_page(written.out, contents)
    if written.json:
        print_json({"report": str(written.out), **contents.as_dict()})
        return
    out = console()
    show_verdict(out, contents.verdict)
    out.print(f"written to {written.out}")


def _names(options: _Options) -> tuple[str, str]:
    if options.against is None or options.artifact is None:
        return ("before", "after") if options.artifact else ("", "the model")
    return options.against.name, options.artifact.name


def _of_scores(data: str, source: ModelData, fitted: "Artifact | None") -> _Samples:
    """Read scores, and put them into the artifact's order of classes."""
    expected = None if fitted is None else fitted.schema
    scores = file_scores(data, source, split=source.split, expected=expected)
    found = scores if fitted is None else scores.in_order(fitted.class_names)

    def probs(artifact: "Artifact | None") -> Any:
        if artifact is None:
            return found.probs[:]
        if artifact.model_steps:
            raise InputError(
                "this calibration changes the model itself, which its scores cannot show; name the model "
                "with --model, and its test data"
            )
        return artifact.probs(found)

    own = None
    if fitted is not None:  # a report on samples of the fit says so
        from calib_serve.fit import seen  # fitters take longer to import than all the rest

        own = seen(fitted, scores)
    bounds = found.bounds if fitted is None or found.bounds is None else fitted.calibrated(found).bounds
    beside = {"groups": scores.clusters, "sample_weight": scores.weights, "own": own, "bounds": bounds}
    return _Samples(found.name, probs, found.labelled(), found.class_names, beside)


def _of_model(data: str, source: ModelData, fitted: "Artifact | None") -> _Samples:
    from calib_serve.models import calibrated_probs

    refuse_file_options(source, "--model")
    # Numbers do not show that logits are of labels; the artifact knows.
    outputs = source.kind or (fitted.model.outputs if fitted and fitted.is_multilabel else None)
    asked = model_samples(data, source, artifact=fitted, outputs=outputs)

    def probs(artifact: "Artifact | None") -> Any:
        return calibrated_probs(asked.classifier, asked.inputs, artifact)

    return _Samples(asked.name, probs, asked.labels, asked.class_names, {})
