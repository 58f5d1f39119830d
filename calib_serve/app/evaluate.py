"""``calib-serve evaluate``: every metric of scores, or of an archive's handler, with intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calib_serve.app._command import Flat, Json, OfData, OfOutput, command
from calib_serve.app._data import archive_scores, file_scores, read_tree
from calib_serve.app._show import as_metric, console, narrow_table, note, print_json, show_verdict
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import check
from calib_serve.core.options.data import ArchiveData
from calib_serve.core.options.evaluate import MeasureOptions, TreeOptions, VerdictOptions

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from calib_serve.artifact import Artifact, DecisionsEvaluation
    from calib_serve.core.bins import Bins
    from calib_serve.fit import Refinement
    from calib_serve.metrics import Estimate, Evaluation, LabelsEvaluation, LevelEvaluation
    from calib_serve.scores import Scores

app = command(
    "evaluate",
    "calib-serve evaluate scores.npz --split test\n"
    "calib-serve evaluate scores.npz --split test --artifact artifact\n"
    "calib-serve evaluate requests/ --from calibrated.mar",
    details="DATA are scores with labels, or with --from the labelled requests of an archive. What a model "
    "gives for its inputs is judged by calib-serve report --model.",
)
_PREDICTIONS = ("reliability", "confidence", "accuracy")
_POSITIVE = ("reliability of P(y = 1)", "P(y = 1)", "share of class 1")
_DECISIONS = ("reliability of all labels' decisions", "confidence", "accuracy")
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


@dataclass(frozen=True, kw_only=True)
class _Options(VerdictOptions, TreeOptions):
    """Options of ``calib-serve evaluate``."""

    artifact: Path | None = None
    """Calibrate the scores with this artifact first."""
    unknown: Path | None = None
    """Scores of samples of none of the classes, a file without labels: what tells them apart, and how often
    the artifact refuses them."""


@app.default
def _evaluate(
    data: str,
    *,
    options: Annotated[_Options, Flat] = _Options(),
    source: Annotated[ArchiveData, OfData] = ArchiveData(),
    shown: Annotated[_Shown, OfOutput] = _Shown(),
) -> None:
    """Judge and measure scores."""
    from calib_serve.metrics import decision_curve, evaluate, evaluate_labels, judge, of_own_samples

    calibration = None if options.artifact is None else _loaded(options.artifact)
    one_file = options.unknown is None or source.from_ is None
    check(one_file, "unknown", "is a file of scores, and DATA are requests of an archive")
    if source.from_ is not None:
        found, calibration = archive_scores(data, source, calibration, quiet=shown.json)
    else:
        expected = None if calibration is None else calibration.schema
        found = file_scores(data, source, split=source.split, expected=expected)
    # Before it is calibrated: the artifact knows its fit's samples by the scores that the model gave.
    own = None if calibration is None else _own(calibration, found)
    found = _calibrated(found, calibration)
    result = evaluate_labels(found) if found.is_multilabel else evaluate(found)
    verdict = judge(found, tolerance=options.tolerance, class_tolerance=options.class_tolerance)
    verdict = of_own_samples(verdict, own) if own else verdict
    level = MeasureOptions.level
    # It fits again on folds, which takes longer than all the rest: only where it is shown.
    parts = _decomposed(found, level=level) if shown.verbose or shown.json else None
    decisions = _decisions(found, calibration, level)
    levels = () if options.tree is None else _levels(found, options, own)
    apart = {} if options.unknown is None else _apart(found, options, source, calibration)
    if shown.json:
        weighing: dict[str, Any] = {"sample_weight": found.weights, "groups": found.clusters, "level": level}
        of_two = not found.is_multilabel and found.classes == 2
        curve = decision_curve(found.probs[:], found.labelled(), **weighing) if of_two else None
        print_json(
            {
                **result.as_dict(),
                "verdict": verdict.as_dict(),
                **({"decomposition": parts.as_dict()} if parts else {}),
                **(decisions.as_dict() if decisions else {}),
                **({"decision_curve": curve.as_dict()} if curve else {}),
                **({"unknown": {name: one.as_dict() for name, one in apart.items()}} if apart else {}),
                **({"levels": [one.as_dict() for one in levels]} if levels else {}),
            }
        )
        return
    out = console()
    show_verdict(out, verdict, every=shown.verbose)
    title = Path(source.from_ or data).name
    for one in _shown(result, found, parts, decisions, title=title, level=level, every=shown.verbose):
        out.print(one, highlight=not isinstance(one, str))
    for name, measure in apart.items():
        out.print(f"samples of no known class, {name.replace('_', ' ')}: {measure}")
    if levels:
        out.print(_levels_table(levels, level=level))


def _apart(
    found: "Scores", options: _Options, source: ArchiveData, calibration: "Artifact | None"
) -> "dict[str, Estimate]":
    from calib_serve.metrics import open_set
    from calib_serve.scores import Schema

    expected = found.schema if calibration is None else calibration.schema
    said = None if source.schema is None else Schema.load(source.schema)
    bare = None if said is None else replace(said, labels=None, on=None)
    unlabelled = replace(source, labels=None, schema=bare)
    other = file_scores(str(options.unknown), unlabelled, split=None, expected=expected)
    other = _calibrated(other, calibration)
    if found.is_multilabel or other.classes != found.classes:
        raise InputError(f"--unknown is of {other.classes} classes, DATA of {found.classes}, or of labels")
    abstain = None if calibration is None else calibration.abstain
    known, unknown = (scores.probs[:].max(axis=1) for scores in (found, other))
    threshold = None if abstain is None else abstain.threshold
    return open_set(known, unknown, threshold=threshold)


def _levels(found: "Scores", options: _Options, own: str | None) -> "tuple[LevelEvaluation, ...]":
    from calib_serve.metrics import Tree, evaluate_levels

    names = found.class_names or tuple(map(str, range(found.classes)))
    return evaluate_levels(found, Tree.of(read_tree(options.tree), names), MeasureOptions(), options, own)


def _loaded(folder: Path) -> "Artifact":
    from calib_serve.artifact import Artifact

    return Artifact.load(folder)


def _own(calibration: "Artifact", found: "Scores") -> str | None:
    from calib_serve.fit import seen  # fitters take longer to import than all the rest

    return seen(calibration, found)


def _shown(
    result: "Evaluation | LabelsEvaluation",
    found: "Scores",
    parts: "Refinement | None",
    decisions: "DecisionsEvaluation | None",
    *,
    title: str,
    level: float,
    every: bool,
) -> "Iterator[Table | str]":
    """Yield the tables after the verdict: the metrics, and the diagram it is about, or ``every`` one."""
    from calib_serve.metrics import Evaluation

    if not isinstance(result, Evaluation):
        counts = f"{result.n} samples, {len(result.labels)} labels"
        yield _metrics_table(result, title=f"{title}: {counts}", level=level, every=every)
        yield _labels_table(result, found.class_names)
        yield reliability_table(result.bins, of=_DECISIONS)
        return
    counts = f"{result.n} predictions, {result.classes} classes"
    yield _metrics_table(result, title=f"{title}: {counts}", level=level, every=every)
    if result.positive_bins is not None:
        yield reliability_table(result.positive_bins, of=_POSITIVE)
    if every or result.positive_bins is None:
        yield reliability_table(result.bins)
    yield from (parts.says(),) if parts else ()
    yield from decisions.says(found.class_names) if decisions else ()


def _calibrated(found: "Scores", calibration: "Artifact | None") -> "Scores":
    """The scores unchanged, or calibrated."""
    if calibration is None:
        return found
    if calibration.model_steps:
        note(["the artifact changes the model itself; its logits must be of the changed model"])
    return calibration.calibrated(found)


def _decisions(found: "Scores", calibration: "Artifact | None", level: float) -> "DecisionsEvaluation | None":
    """Measure the artifact's sets, abstention and actions; None where it has none of them."""
    from calib_serve.artifact import evaluate_decisions
    from calib_serve.core.arrays import repeated

    rules = () if calibration is None else (calibration.sets, calibration.abstain, calibration.choice)
    if calibration is None or all(rule is None for rule in rules):
        return None
    # Their exact intervals count samples: as a report has them, rows that weigh are there as often.
    found = found if found.weights is None else found.take(repeated(found.weights))
    return evaluate_decisions(
        calibration, found.probs[:], found.labelled(), level=level, groups=found.clusters
    )


def _decomposed(found: "Scores", *, level: float) -> "Refinement | None":
    """Measure the part of the losses that recalibration would remove; None for multi-label scores."""
    from calib_serve.fit import recalibrated_losses

    if found.is_multilabel:
        return None
    return recalibrated_losses(found, level=level)


def _metrics_table(
    result: "Evaluation | LabelsEvaluation", *, title: str, level: float, every: bool = True
) -> "Table":
    """Make a table of the first metrics, or every one, with intervals; shares and errors in percent."""
    from rich.table import Table

    table = Table(title=title)
    table.add_column("metric")
    for name in ("value", "debiased", f"{level:.4g} low", "high"):
        table.add_column(name, justify="right")
    for name, estimate in result.estimates().items():
        if not every and name not in _FIRST:
            continue
        ends = (estimate.value, estimate.debiased, estimate.low, estimate.high)
        table.add_row(name, *(as_metric(name, x) for x in ends))
    return table


def _levels_table(levels: "Sequence[LevelEvaluation]", *, level: float) -> "Table":
    """Make a table of the levels of a tree, from the top down."""
    heads = ("level", "nodes", "accuracy", "ece", f"{level:.4g} low", "high", "nll", "brier", "verdict")
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


def reliability_table(bins: "Bins", *, of: tuple[str, str, str] = _PREDICTIONS) -> "Table":
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
