"""The report's tables as text: metrics with intervals, and facts of the fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from calib_serve.artifact import Artifact, DecisionsEvaluation, promises
from calib_serve.core.text import (
    count,
    decimals,
    fact_lines,
    metric,
    percent,
    signed_points,
    small_p,
)
from calib_serve.metrics import Change, Estimate, LabelEvaluation, LevelEvaluation, SetEvaluation
from calib_serve.report.comparison import ComparedModel
from calib_serve.report.look import Cell, Table
from calib_serve.report.prepare import ClassRow


class Shown(NamedTuple):
    """A metric as the table names it; ``better`` when lower (-1), higher (1) or neither (0)."""

    name: str
    words: str
    explanation: str
    better: Literal[-1, 0, 1]
    percent: bool = True


SHOWN = (
    Shown("accuracy", "Accuracy", "share of predictions that are right", 1),
    Shown("mean_confidence", "Mean confidence", "what it says on average", 0),
    Shown("signed_gap", "Signed gap", "mean confidence minus accuracy; positive is overconfident", 0),
    Shown("ece", "ECE", "mean distance of confidence from accuracy, over equal-width bins", -1),
    Shown("adaptive_ece", "Adaptive ECE", "the same over bins that hold equally many", -1),
    Shown("smooth_ece", "Smooth ECE", "the same without bins", -1),
    Shown("classwise_ece", "Classwise ECE", "the same for every class's probability, averaged", -1),
    Shown("mce", "MCE", "the largest distance of any bin, however few it holds", -1),
    Shown("overconfidence_error", "Overconfidence error", "excess of confidence, times confidence", -1),
    Shown("rms_debiased", "RMS error, debiased", "root mean squared distance less what chance gives", -1),
    Shown("noise_floor", "Noise floor", "the ECE that a calibrated model shows by chance", 0),
    Shown("nll", "NLL", "negative log-likelihood, in nats", -1, percent=False),
    Shown("brier", "Brier score", "squared distance of probabilities from the truth", -1, percent=False),
    Shown("entropy", "Entropy", "mean uncertainty of the predictions, in nats", 0, percent=False),
    Shown("refinement_auroc", "AUROC right from wrong", "0.5 is a coin, 1 is perfect", 1, percent=False),
    Shown("positive_auroc", "AUROC of P(y = 1)", "class 1 from class 0; 0.5 is a coin", 1, percent=False),
    Shown("positive_ece", "ECE of P(y = 1)", "mean distance of P(y = 1) from the share of class 1", -1),
    Shown("positive_gap", "Gap of P(y = 1)", "its mean less the share of class 1", 0),
    Shown(
        "positive_brier",
        "Brier score of P(y = 1)",
        "mean of (P - y)², half the Brier score",
        -1,
        percent=False,
    ),
    Shown("positive_brier_skill", "Brier skill", "share of the loss of the classes' shares that is gone", 1),
    Shown("positive_nll_skill", "NLL skill (NCE)", "the same of the NLL", 1),
    Shown(
        "positive_cllr", "Cllr", "cost of its likelihood ratios, in bits; 1 says nothing", -1, percent=False
    ),
    Shown("positive_min_cllr", "minCllr", "the same behind the best rising map", -1, percent=False),
    Shown("positive_eer", "EER", "misses and false alarms where they are as many", -1),
    Shown("positive_min_dcf", "minDCF", "least cost of detection at a prior of 0.01", -1, percent=False),
    Shown("aurc", "AURC", "area under the risk-coverage curve", -1, percent=False),
)


SHOWN_OF_LABELS = (
    Shown("positive_ece", "ECE of P(label)", "mean distance of P from the label's share, over bins", -1),
    Shown("positive_noise_floor", "Noise floor of P(label)", "the same for a calibrated model, by chance", 0),
    Shown("nll", "NLL", "negative log-likelihood of a label, in nats", -1, percent=False),
    Shown("positive_brier", "Brier score of P(label)", "mean of (P - y)²", -1, percent=False),
    Shown("accuracy", "Accuracy", "share of decisions at 0.5 that are right", 1),
    Shown("mean_confidence", "Mean confidence", "of the decisions", 0),
    Shown("signed_gap", "Signed gap", "mean confidence minus accuracy of the decisions", 0),
    Shown("ece", "ECE of the decisions", "distance of their confidence from their accuracy", -1),
    Shown("noise_floor", "Noise floor of the decisions", "the same for a calibrated model, by chance", 0),
)


def table_of_metrics(
    shown: Sequence[Shown], sides: Sequence[ComparedModel], changes: Mapping[str, Change]
) -> Table:
    """The metrics of one or two sides with intervals, and the changes between them.

    Args:
        shown: Metrics, in the order of rows.
        sides: Of one or two models.
        changes: From the first to the second, by metric.
    """
    found = [side.estimates() for side in sides]
    changed = ("change", "p", "judgement") if len(sides) > 1 else ()
    heads = ("metric", *(side.name for side in sides), *changed)
    rows = []
    for one in shown:
        if one.name in found[-1]:
            of_sides = (_metric(side[one.name], one.percent) for side in found)
            moved = _changed(changes.get(one.name), one) if changed else []
            rows.append([Cell(one.words, one.explanation), *of_sides, *moved])
    return Table("Metrics", heads, rows)


def _metric(found: Estimate, share: bool, *, sign: bool = False) -> Cell:
    return Cell(metric(found.value, share=share, sign=sign), _interval(found, share, sign=sign))


def _changed(change: Change | None, shown: Shown) -> list[Cell]:
    if change is None:
        return [Cell(""), Cell(""), Cell("")]
    word = _word(change, shown.better)
    moved = _metric(change.difference, shown.percent, sign=True)
    return [moved, Cell(small_p(change.p)), Cell(word, style=word.split(" ")[0])]


def table_of_classes(rows: Sequence[ClassRow]) -> Table:
    """A table of the classes, sorted by the certain gap."""
    heads = ("class", "occurs", "predicted", "confidence", "right", "gap", "certain gap", "class ECE")
    return Table("Classes", heads, [_class(row) for row in rows], sorted_by="certain gap")


def _class(row: ClassRow) -> list[Cell]:
    named = (
        [
            Cell(percent(row.confidence), value=row.confidence),
            Cell(percent(row.precision), value=row.precision),
            _gap(row.gap),
        ]
        if row.predicted
        else [Cell("never", value=-1), Cell("", value=-1), Cell("", value=-2)]
    )
    worth = ["", ""] if row.worth is None else [f"worth {count(n)}" for n in row.worth]
    counts = [Cell(count(n), small, n) for n, small in zip((row.occurs, row.predicted), worth, strict=True)]
    sure = Cell(signed_points(row.certain_gap).lstrip("+"), value=row.certain_gap)
    return [Cell(row.name), *counts, *named, sure, Cell(percent(row.ece, 2), value=row.ece)]


def _gap(gap: Estimate) -> Cell:
    """A cell of signed points, with the ends of the interval where it has one."""
    ends = "" if math.isnan(gap.low) else f"{signed_points(gap.low)} to {signed_points(gap.high)}"
    return Cell(signed_points(gap.value), ends, gap.value)


def table_of_labels(rows: Sequence[tuple[str, LabelEvaluation]]) -> Table:
    """A table of the labels, the worst first."""
    heads = (
        *("label", "true", "accuracy", "mean P less share", "ECE", "ECE at least", "by chance"),
        *("Brier", "NLL"),
    )
    return Table("Labels", heads, [_label(*row) for row in rows], sorted_by="ECE at least")


def _label(name: str, row: LabelEvaluation) -> list[Cell]:
    least = row.positive_ece.low
    return [
        Cell(name),
        Cell(count(row.positives), percent(row.prevalence, 2), row.positives),
        Cell(percent(row.accuracy), value=row.accuracy.value),
        _gap(row.positive_gap),
        Cell(percent(row.positive_ece, 2), value=row.positive_ece.value),
        Cell(percent(least, 2), value=0.0 if math.isnan(least) else least),
        Cell(percent(row.positive_noise_floor, 2), value=row.positive_noise_floor),
        Cell(decimals(row.positive_brier, 4), value=row.positive_brier.value),
        Cell(decimals(row.nll, 4), value=row.nll.value),
    ]


def table_of_levels(levels: Sequence[LevelEvaluation]) -> Table:
    """A table of the levels of a tree of classes, from the top down."""
    heads = ("level", "nodes", "accuracy", "ECE", "NLL", "Brier", "verdict")
    rows = []
    for one in levels:
        shares = (_metric(value, True) for value in (one.metrics.accuracy, one.metrics.ece))
        scores = (_metric(value, False) for value in (one.metrics.nll, one.metrics.brier))
        named = Cell(str(one.level)), Cell(count(len(one.nodes)))
        rows.append([*named, *shares, *scores, Cell(one.verdict.headline)])
    return Table("Levels of the tree", heads, rows)


def _interval(estimate: Estimate, share: bool, *, sign: bool = False) -> str:
    if math.isnan(estimate.low):
        return ""
    ends = [
        metric(v, share=share, sign=sign).removesuffix("\N{NO-BREAK SPACE}%")
        for v in (estimate.low, estimate.high, estimate.debiased)
    ]
    less = "" if sign or math.isnan(estimate.debiased) else f"debiased {ends[2]}; "
    return f"{less}{ends[0]} to {ends[1]}"


def _word(change: Change, better: int) -> Literal["better", "worse", "changed", "no clear change", ""]:
    if math.isnan(change.p):
        return ""
    # A word for chance would be read as a finding.
    if change.p >= 0.05 or change.difference.value == 0:
        return "no clear change"
    if not better:
        return "changed"
    return "better" if better * change.difference.value > 0 else "worse"


def table_of_artifact(artifact: Artifact) -> Table:
    """The artifact's steps, data, fit and identity."""
    steps = tuple(f"{step.kind} {_sizes(vars(step))}".strip() for step in artifact.steps)
    known: dict[str, Any] = {
        "method": artifact.method,
        "steps": list(steps) or "none",
        "classes": artifact.classes,
        "fit": artifact.fit.as_dict(),
        "prediction sets": None if artifact.sets is None else artifact.sets.facts,
        "abstention": None if artifact.abstain is None else artifact.abstain.facts,
        "actions": None if artifact.choice is None else artifact.choice.facts,
        "contract": None if artifact.contract is None else artifact.contract.says(artifact.class_names),
        "calibration data": artifact.data,
        "model": artifact.model.as_dict(),
        "versions": artifact.versions,
        "sha256": artifact.fingerprint,
    }
    lines = [line for name, value in known.items() for line in fact_lines(name, value)]
    return Table("Artifact", ("fact", "value"), [(name, Cell(text, style="text")) for name, text in lines])


def _sizes(fields: Mapping[str, Any]) -> str:
    shown = []
    for name, value in fields.items():
        if getattr(value, "shape", None) == ():
            shown.append(f"{name} {float(value):.6g}")
        elif hasattr(value, "shape"):
            shown.append(f"{name} {' by '.join(map(str, value.shape))}")
        elif isinstance(value, (str, float)):
            shown.append(f"{name} {value}")
    return f"({', '.join(shown)})" if shown else ""


@dataclass(frozen=True)
class DecisionRows:
    """Sentences and two tables: sets by their size, and the classes most surely missed."""

    promised: tuple[str, ...]
    measured: tuple[str, ...]
    tables: tuple[Table, ...]


def decision_rows(artifact: Artifact, found: DecisionsEvaluation, class_names: Sequence[str]) -> DecisionRows:
    """The section on an artifact's decisions; ``class_names`` (K,) or ()."""
    names = tuple(class_names)
    tables = () if found.sets is None else _tables_of_sets(found.sets, names)
    return DecisionRows(tuple(promises(artifact)), tuple(found.says(names)), tables)


def _tables_of_sets(sets: SetEvaluation, names: tuple[str, ...]) -> tuple[Table, ...]:
    sizes = [
        (
            f"{group.smallest} to {group.largest}" if group.largest > group.smallest else str(group.smallest),
            count(group.count),
            group.coverage.percent(),
        )
        for group in sets.by_size
    ]
    worst = [(names[k] if names else str(k), sets.by_class[k].percent()) for k in sets.worst_classes()[:10]]
    return (
        Table("Sets by size", ("classes in the set", "sets", "hold the true class"), sizes),
        Table("Sets by class", ("true class", "its sets hold it"), worst),
    )
