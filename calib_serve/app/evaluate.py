"""``calib-serve evaluate``: a verdict and every metric of scores, a model or an archive; a page of it all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calib_serve.app._command import Flat, Json, OfData, OfOutput, command
from calib_serve.app._data import archive_scores, file_scores, model_samples, read_tree, refuse_file_options
from calib_serve.app._show import as_metric, console, narrow_table, note, print_json, show_verdict
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import check, fields_of
from calib_serve.core.options.data import DataOptions
from calib_serve.core.options.evaluate import Edged, MeasureOptions, ReportOptions, Resampled

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from calib_serve.artifact import Artifact, DecisionsEvaluation
    from calib_serve.core.bins import Bins
    from calib_serve.fit import Refinement
    from calib_serve.metrics import (
        DecisionCurve,
        Estimate,
        Evaluation,
        LabelsEvaluation,
        LevelEvaluation,
        Verdict,
    )
    from calib_serve.report import Contents
    from calib_serve.scores import Outputs, Scores

app = command(
    "evaluate",
    "calib-serve evaluate scores.npz --split test\n"
    "calib-serve evaluate scores.npz --split test --artifact artifact --report report.html\n"
    "calib-serve evaluate images/ --split test --model model.onnx\n"
    "calib-serve evaluate requests/ --from calibrated.mar",
    details="DATA are scores with labels, with --model its inputs and their labels, or with --from the "
    "labelled requests of an archive.",
)
PREDICTIONS = ("reliability", "confidence", "accuracy")
_POSITIVE = ("reliability of P(y = 1)", "P(y = 1)", "share of class 1")
_DECISIONS = ("reliability of all labels' decisions", "confidence", "accuracy")
_LEVEL = MeasureOptions.level
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


@dataclass(frozen=True, kw_only=True)
class _Shown(Json):
    """Options of the output."""

    verbose: bool = False
    """Show every metric, test and diagram."""
    report: Path | None = None
    """Write all of it as one page, too: .html, or its first screen as .png or .svg."""


@dataclass(frozen=True, kw_only=True)
class _Options(ReportOptions):
    """Options of ``calib-serve evaluate``."""

    replicates: int = ReportOptions.replicates
    """Resamples and draws that intervals are made of, 16 or more; 0 for no such intervals."""
    artifact: Path | None = None
    """Calibrate the scores with this artifact first; the page shows them before and after."""
    against: Path | None = None
    """Another calibration that the page compares it with; by default none."""
    unknown: Path | None = None
    """Scores of samples of none of the classes, a file without labels: what tells them apart, and how often
    the artifact refuses them."""


@app.default
def _evaluate(
    data: str,
    *,
    options: Annotated[_Options, Flat] = _Options(),
    source: Annotated[DataOptions, OfData] = DataOptions(),
    shown: Annotated[_Shown, OfOutput] = _Shown(),
) -> None:
    """Judge and measure scores."""
    from calib_serve.artifact import Artifact

    of_file = source.from_ is None and source.model is None
    check(options.unknown is None or of_file, "unknown", "is a file of scores, and DATA are none")
    if options.against is not None:
        check(options.artifact is not None, "against", "wants an artifact to compare")
        check(shown.report is not None, "against", "is for the page: name --report")
    fitted = None if options.artifact is None else Artifact.load(options.artifact)
    samples = _samples(data, source, fitted, quiet=shown.json)
    calibration = samples.artifact
    found = samples.under(calibration)
    tree = None if options.tree is None else read_tree(options.tree)
    asked = replace(options, tree=tree, own=samples.own)
    contents = None if shown.report is None else _contents(samples, found, asked)
    measured = _measured(found, calibration, asked) if contents is None else _Measured.of(contents)
    # It fits again on folds, which takes longer than all the rest: only where it is shown.
    parts = _decomposed(found) if shown.verbose or shown.json else None
    apart = {} if options.unknown is None else _apart(found, options, source, calibration)
    if contents is not None and shown.report is not None:
        from calib_serve.report import write_page

        write_page(shown.report, contents)
    if shown.json:
        page = {} if contents is None else {"report": {"file": str(shown.report), **contents.as_dict()}}
        print_json({**_as_dict(measured, found, parts, apart), **page})
        return
    out = console()
    show_verdict(out, measured.verdict, every=shown.verbose)
    for one in _tables(measured, found, parts, title=samples.title, every=shown.verbose):
        out.print(one, highlight=not isinstance(one, str))
    for name, measure in apart.items():
        out.print(f"samples of no known class, {name.replace('_', ' ')}: {measure}")
    if measured.levels:
        out.print(_levels_table(measured.levels))
    if shown.report is not None:
        out.print(f"written to {shown.report}")


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples with labels, their scores ``under`` a calibration or none, and the artifact to judge."""

    title: str
    under: "Callable[[Artifact | None], Scores]"
    artifact: "Artifact | None"
    runs: bool = False
    """Whether the model itself is run, as an artifact that changes it wants."""
    own: str | None = None
    """Says that the artifact was fitted on these samples, if it was."""


def _samples(data: str, source: DataOptions, fitted: "Artifact | None", *, quiet: bool) -> _Samples:
    if source.model is not None:
        return _of_model(data, source, fitted)
    if source.from_ is not None:
        found, fitted = archive_scores(data, source, fitted, quiet=quiet)
    else:
        expected = None if fitted is None else fitted.schema
        found = file_scores(data, source, split=source.split, expected=expected)
    if fitted is None:
        return _Samples(Path(source.from_ or data).name, lambda _: found, None)
    from calib_serve.fit import seen  # fitters take longer to import than all the rest

    if fitted.model_steps:
        note(["the artifact changes the model itself; its logits must be of the changed model"])
    ordered = found.in_order(fitted.class_names)

    def under(artifact: "Artifact | None") -> "Scores":
        return ordered if artifact is None else artifact.calibrated(ordered)

    # The artifact knows its fit's samples by the scores that the model gave.
    return _Samples(Path(source.from_ or data).name, under, fitted, own=seen(fitted, found))


def _of_model(data: str, source: DataOptions, fitted: "Artifact | None") -> _Samples:
    from calib_serve.models import calibrated_probs
    from calib_serve.scores import Scores

    refuse_file_options(source, "--model")
    # Numbers do not show that logits are of labels; the artifact knows.
    outputs = source.kind or (fitted.model.outputs if fitted and fitted.is_multilabel else None)
    asked = model_samples(data, source, factory=source, artifact=fitted, outputs=outputs)
    kind: Outputs = "label_probabilities" if asked.labels.ndim == 2 else "probabilities"

    def under(artifact: "Artifact | None") -> Scores:
        probs = calibrated_probs(asked.classifier, asked.inputs, artifact)
        return Scores(probs, kind, asked.labels, asked.class_names, name=asked.name)

    return _Samples(asked.name, under, fitted, runs=True)


def _contents(samples: _Samples, found: "Scores", options: _Options) -> "Contents":
    """What a page shows of the samples: under the artifact, and before it or under another one."""
    from calib_serve.artifact import Artifact
    from calib_serve.report import prepare_report

    fitted, other = samples.artifact, None if options.against is None else Artifact.load(options.against)
    if not samples.runs and any(one is not None and one.model_steps for one in (fitted, other)):
        raise InputError(
            "this calibration changes the model itself, which its scores cannot show on a page; name the "
            "model with --model, and its test data"
        )
    before, names = None, ("", "the model")
    if fitted is not None:
        old = samples.under(other)
        before, names = (old.probs[:], old.labelled()), ("before", "after")
    if options.against is not None and options.artifact is not None:
        names = options.against.name, options.artifact.name
    asked = replace(
        options,
        names=names,
        class_names=found.class_names,
        sample_weight=found.weights,
        groups=found.clusters,
        bounds=found.bounds,
    )
    after = found.probs[:], found.labelled()
    made = prepare_report(title=samples.title, before=before, after=after, artifact=fitted, options=asked)
    # What was said of the file is a reason with a page, too.
    return replace(made, verdict=replace(made.verdict, reasons=(*made.verdict.reasons, *found.remarks)))


@dataclass(frozen=True, eq=False)
class _Measured:
    """What is said of scores: the verdict, and the metrics behind it."""

    verdict: "Verdict"
    metrics: "Evaluation | LabelsEvaluation"
    decisions: "DecisionsEvaluation | None"
    levels: "tuple[LevelEvaluation, ...]"
    curve: "DecisionCurve | None" = None

    @classmethod
    def of(cls, contents: "Contents") -> "_Measured":
        """What a page shows, once more: nothing is measured twice."""
        side, decisions = contents.after, contents.decisions or None
        curve = getattr(side, "benefit", None)  # of classes
        return cls(contents.verdict, side.metrics, decisions, contents.levels, curve)


def _measured(found: "Scores", calibration: "Artifact | None", options: _Options) -> _Measured:
    from calib_serve.metrics import Tree, evaluate, evaluate_labels, evaluate_levels, judge, of_own_samples

    how = {**fields_of(Edged, options), **fields_of(Resampled, options)}
    metrics = evaluate_labels(found, **how) if found.is_multilabel else evaluate(found, **how)
    verdict = judge(found, tolerance=options.tolerance, class_tolerance=options.class_tolerance)
    verdict = of_own_samples(verdict, options.own) if options.own else verdict
    levels: tuple[LevelEvaluation, ...] = ()
    if options.tree is not None:
        tree = Tree.of(options.tree, found.class_names or tuple(map(str, range(found.classes))))
        levels = evaluate_levels(found, tree, MeasureOptions(**how), options, options.own)
    return _Measured(verdict, metrics, _decisions(found, calibration), levels)


def _as_dict(
    measured: _Measured,
    found: "Scores",
    parts: "Refinement | None",
    apart: "dict[str, Estimate]",
) -> dict[str, Any]:
    """Every number as plain values for JSON."""
    from calib_serve.metrics import decision_curve

    weighing: dict[str, Any] = {"sample_weight": found.weights, "groups": found.clusters, "level": _LEVEL}
    of_two = not found.is_multilabel and found.classes == 2
    curve = measured.curve
    if of_two and curve is None:
        curve = decision_curve(found.probs[:], found.labelled(), **weighing)
    return {
        **measured.metrics.as_dict(),
        "verdict": measured.verdict.as_dict(),
        **({"decomposition": parts.as_dict()} if parts else {}),
        **(measured.decisions.as_dict() if measured.decisions else {}),
        **({"decision_curve": curve.as_dict()} if curve else {}),
        **({"unknown": {name: one.as_dict() for name, one in apart.items()}} if apart else {}),
        **({"levels": [one.as_dict() for one in measured.levels]} if measured.levels else {}),
    }


def _apart(
    found: "Scores", options: _Options, source: DataOptions, calibration: "Artifact | None"
) -> "dict[str, Estimate]":
    from calib_serve.metrics import open_set
    from calib_serve.scores import Schema

    expected = found.schema if calibration is None else calibration.schema
    said = None if source.schema is None else Schema.load(source.schema)
    bare = None
    if said is not None:  # it has neither labels nor what else lies beside the rows of DATA
        bare = replace(said, labels=None, groups=None, sample_weight=None, by=None)
    unlabelled = replace(source, labels=None, schema=bare)
    other = file_scores(str(options.unknown), unlabelled, split=None, expected=expected)
    other = other if calibration is None else calibration.calibrated(other)
    if found.is_multilabel or other.classes != found.classes:
        raise InputError(f"--unknown is of {other.classes} classes, DATA of {found.classes}, or of labels")
    abstain = None if calibration is None else calibration.abstain
    known, unknown = (scores.probs[:].max(axis=1) for scores in (found, other))
    threshold = None if abstain is None else abstain.threshold
    return open_set(known, unknown, threshold=threshold)


def _tables(
    measured: _Measured, found: "Scores", parts: "Refinement | None", *, title: str, every: bool
) -> "Iterator[Table | str]":
    """Yield the tables after the verdict: the metrics, and the diagram it is about, or ``every`` one."""
    from calib_serve.metrics import Evaluation

    result = measured.metrics
    if not isinstance(result, Evaluation):
        counts = f"{result.n} samples, {len(result.labels)} labels"
        yield _metrics_table(result, title=f"{title}: {counts}", every=every)
        yield _labels_table(result, found.class_names)
        yield reliability_table(result.bins, of=_DECISIONS)
        return
    counts = f"{result.n} predictions, {result.classes} classes"
    yield _metrics_table(result, title=f"{title}: {counts}", every=every)
    if result.positive_bins is not None:
        yield reliability_table(result.positive_bins, of=_POSITIVE)
    if every or result.positive_bins is None:
        yield reliability_table(result.bins)
    yield from (parts.says(),) if parts else ()
    yield from measured.decisions.says(found.class_names) if measured.decisions else ()


def _decisions(found: "Scores", calibration: "Artifact | None") -> "DecisionsEvaluation | None":
    """Measure the artifact's sets, abstention and actions; None where it has none of them."""
    from calib_serve.artifact import evaluate_decisions
    from calib_serve.core.arrays import repeated

    rules = () if calibration is None else (calibration.sets, calibration.abstain, calibration.choice)
    if calibration is None or all(rule is None for rule in rules):
        return None
    # Their exact intervals count samples: as a report has them, rows that weigh are there as often.
    found = found if found.weights is None else found.take(repeated(found.weights))
    return evaluate_decisions(
        calibration, found.probs[:], found.labelled(), level=_LEVEL, groups=found.clusters
    )


def _decomposed(found: "Scores") -> "Refinement | None":
    """Measure the part of the losses that recalibration would remove; None for multi-label scores."""
    from calib_serve.fit import recalibrated_losses

    if found.is_multilabel:
        return None
    return recalibrated_losses(found, level=_LEVEL)


def _metrics_table(result: "Evaluation | LabelsEvaluation", *, title: str, every: bool) -> "Table":
    """Make a table of the first metrics, or every one, with intervals; shares and errors in percent."""
    from rich.table import Table

    table = Table(title=title)
    table.add_column("metric")
    for name in ("value", "debiased", f"{_LEVEL:.4g} low", "high"):
        table.add_column(name, justify="right")
    for name, estimate in result.estimates().items():
        if not every and name not in _FIRST:
            continue
        ends = (estimate.value, estimate.debiased, estimate.low, estimate.high)
        table.add_row(name, *(as_metric(name, x) for x in ends))
    return table


def _levels_table(levels: "Sequence[LevelEvaluation]") -> "Table":
    """Make a table of the levels of a tree, from the top down."""
    heads = ("level", "nodes", "accuracy", "ece", f"{_LEVEL:.4g} low", "high", "nll", "brier", "verdict")
    table = narrow_table(*heads, title="level by level of the tree")
    for one in levels:
        m = one.metrics
        shown = [("ece", x) for x in (m.accuracy, m.ece, m.ece.low, m.ece.high)]
        cells = [as_metric(*pair) for pair in (*shown, ("nll", m.nll), ("brier", m.brier))]
        table.add_row(str(one.level), str(len(one.nodes)), *cells, one.verdict.level.replace("_", " "))
    return table


def _labels_table(result: "LabelsEvaluation", names: Sequence[str]) -> "Table":
    """Make a table of the labels that are most surely miscalibrated, one a row."""
    from rich.table import Table

    shown = result.worst()[:30]
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
        cells = [as_metric(name, getattr(row, name)) for name in columns]
        table.add_row(names[k] if names else str(k), *cells, as_metric("ece", row.positive_ece.low))
    return table


def reliability_table(bins: "Bins", *, of: tuple[str, str, str] = PREDICTIONS) -> "Table":
    """Draw a reliability diagram in characters: bars are accuracy, the mark is mean confidence."""
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


def _bar(accuracy: float, confidence: float) -> "Text":
    from rich.text import Text

    length, mark = round(accuracy * _WIDTH), min(round(confidence * _WIDTH), _WIDTH)
    bar = Text("█" * length + " " * (_WIDTH + 1 - length), style="blue")
    return Text.assemble(bar[:mark], ("|", "bold red"), bar[mark + 1 :])
