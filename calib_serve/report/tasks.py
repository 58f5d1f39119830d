"""The two tasks of a report, multi-class and multi-label, and the numbers that each shows.

One class of K is true of a sample, or any number of L labels. All else in this room asks a ``Task``, never
which one it is: for its words, for ``sides``, measured on the same samples, for ``changes`` between two, and
for what a page shows of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, DecisionsEvaluation, evaluate_decisions
from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.options.base import fields_of
from calib_serve.core.options.evaluate import MeasureOptions, ReportOptions
from calib_serve.core.text import count, decimals, percent, printable
from calib_serve.metrics import (
    Change,
    Evaluation,
    LabelsEvaluation,
    LevelEvaluation,
    Moved,
    Tops,
    Tree,
    Verdict,
    change_of_mean,
    checked,
    checked_label_probs,
    checked_weights,
    confidence_of_labels,
    decision_curve,
    evaluate_label_probs,
    evaluate_levels,
    evaluate_probs,
    group_codes,
    judge,
    judge_probs,
    measures_of_decisions,
    of_own_samples,
    paired_changes,
    smooth_reliability,
    top_label,
)
from calib_serve.report.comparison import (
    ComparedClassifier,
    ComparedModel,
    Diagram,
    How,
    Predictions,
    compared,
    leading,
)
from calib_serve.report.figures import Picture, diagram, diagrams, pictures
from calib_serve.report.look import Fact, Table
from calib_serve.report.prepare import (
    Density,
    class_table,
    confidence_density,
    confidence_histogram,
    default_risk,
    dense_bin,
    event_auroc,
    of_rows,
    reliability_of,
    risk_coverage,
    to_json,
    within,
)
from calib_serve.report.tables import (
    SHOWN,
    SHOWN_OF_LABELS,
    DecisionRows,
    decision_rows,
    table_of_classes,
    table_of_labels,
)
from calib_serve.scores import Scores, check_ungrouped, log_probs

Checked = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Contents:
    """A whole report: one side, or two of the same samples with what changed between them.

    Args:
        title: Heading.
        task: Measures, tests, tables and words of its task.
        sides: Of one or two models.
        changes: Changes from the first to the second, by metric.
        rows: Of the classes or labels, the worst first.
        verdict: On the last side.
        artifact: The calibration, if any.
        bins: Number of bins.
        tolerance: Acceptable mean gap.
        class_names: Names of the classes (K,).
        decisions: Measures of the artifact's sets and abstention.
        moved: Predictions that changed class.
        other: Verdict on the first of two models; None of one model and its calibration.
        worth: How many samples they are worth, where they weigh; else 0.
        levels: Of the last side, where its classes are in a tree.
    """

    title: str
    task: Task
    sides: tuple[Any, ...]
    changes: Mapping[str, Change]
    rows: tuple[Any, ...]
    verdict: Verdict
    artifact: Artifact | None
    bins: int
    tolerance: float
    class_names: tuple[str, ...] = ()
    decisions: DecisionsEvaluation | None = None
    moved: Moved | None = None
    other: Verdict | None = None
    worth: int = 0
    levels: tuple[LevelEvaluation, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict, behind that on the first of two models."""
        return (self.verdict,) if self.other is None else (self.other, self.verdict)

    @property
    def before(self) -> Any:
        """The side to compare with, or None."""
        return self.sides[0] if len(self.sides) == 2 else None

    @property
    def after(self) -> Any:
        """The side that the verdict is about."""
        return self.sides[-1]

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON: every number of the report."""
        fitted = self.artifact
        return {
            "title": self.title,
            "verdict": self.verdict.as_dict(),
            **({} if self.other is None else {"other_verdict": self.other.as_dict()}),
            "bins": self.bins,
            "tolerance": self.tolerance,
            "sides": [{**to_json(s), "metrics": to_json(s.metrics.as_dict())} for s in self.sides],
            "changes": to_json(dict(self.changes)),
            **({"levels": [one.as_dict() for one in self.levels]} if self.levels else {}),
            "artifact": None if fitted is None else {"method": fitted.method, "sha256": fitted.fingerprint},
            **self.task.as_dict(self),
        }


class _Multiclass:
    """One class of K is true of a sample."""

    one = "class"
    shown = SHOWN
    sorted_by = "gap"
    of_metrics = (
        "ECE, MCE and their kin over {} bins. Chance alone makes an error larger: its debiased value, with "
        "the interval of the true error, is below it."
    )
    of_each = (
        "Confidence, right and gap are of the predictions that name the class; gaps are in points, positive "
        "where it is overconfident. Class ECE is of the class's own probability over all samples. The "
        "intervals hold at 95 % for all classes at once."
    )

    def checked(self, predictions: Predictions) -> Checked:
        return checked(*predictions)

    def sides(self, pairs: Sequence[Checked], names: Sequence[str], how: How) -> tuple[ComparedModel, ...]:
        drawn = _drawn(pairs, how)
        # One target for both sides: half the error of the first.
        target = default_risk(top_label(*drawn[0])[1])
        colors = _colors(len(pairs), how)
        tops = _curves(names, colors, [top_label(*p) for p in drawn], [p.max(axis=1) for p, _ in pairs], how)
        of_two = pairs[0][0].shape[1] == 2
        events = [(p[:, 1], y == 1) for p, y in drawn] if of_two else []
        positive = _curves(names, colors, events, [p[:, 1] for p, _ in pairs], how)

        def side(i: int, pair: Checked, rows: Checked) -> ComparedClassifier:
            found = evaluate_probs(*pair, how.measured, **how.weighing)
            if of_two:
                found = replace(found, **measures_of_decisions(*pair, **how.weighing))
            return ComparedClassifier(
                names[i],
                colors[i],
                metrics=found,
                reliability=tops[i].reliability,
                dense=tops[i].dense,
                histogram=confidence_histogram(*rows),
                density=_of_all(confidence_density(*rows), pair) if how.weighs else confidence_density(*rows),
                risk_coverage=risk_coverage(*rows, target=target, groups=how.groups_of_rows),
                positive=positive[i] if of_two else None,
                positive_auroc=event_auroc(pair[0][:, 1], pair[1] == 1, **_weighing(pair[1], how))
                if of_two
                else None,
                smooth=None
                if how.groups is not None  # its band is of samples that do not depend on one another
                else smooth_reliability(*rows, replicates=min(how.replicates, 200), seed=how.seed),
                benefit=decision_curve(*pair, **how.weighing) if of_two else None,
            )

        return tuple(map(side, range(len(pairs)), pairs, drawn))

    def changes(self, pairs: Sequence[Checked], sides: Sequence[Any], how: How) -> Mapping[str, Change]:
        before, after = _drawn(pairs, how)
        asked = fields_of(MeasureOptions, how.measured)
        changes = paired_changes(before[0], *after, groups=how.groups_of_rows, **asked)
        if how.sample_weight is not None:
            # Tests take rows repeated by their weights, and metrics the weights themselves.
            old, new = (side.metrics.estimates() for side in sides)
            changes = {k: change.moved(new[k].value - old[k].value) for k, change in changes.items()}
        if pairs[0][0].shape[1] == 2:
            events = (Tops(y, p[:, 1], (y == 1).astype(np.float64)) for p, y in pairs)
            changes["positive_auroc"] = Moved.between(*events, **_weighing(pairs[0][1], how)).auroc[2]
        return changes

    def rest(self, pairs: Sequence[Checked], sides: Sequence[Any], how: How) -> dict[str, Any]:
        drawn = _drawn(pairs[-1:], how)[0]
        moved = None if len(pairs) == 1 else Moved.of_probs(pairs[0][0], *pairs[1], **how.weighing)
        return {
            "rows": class_table(
                *drawn,
                class_names=how.class_names,
                bins=how.bins,
                edges=how.edges,
                every=pairs[-1] if how.weighs else None,
            ),
            "moved": moved,
            "decisions": None
            if how.artifact is None
            else evaluate_decisions(how.artifact, *drawn, groups=how.groups_of_rows),
        }

    def fact(self, contents: Contents) -> Fact:
        metrics: Evaluation = contents.after.metrics
        if metrics.positive_bins is not None:
            sums = metrics.positive_bins
            share = f"share of class 1: {percent(sums.accuracy())}"
            before = None if contents.before is None else contents.before.metrics.positive_bins
            old = None if before is None else percent(before.mean_confidence())
            return _fact(contents, "Mean P(y = 1)", percent(sums.mean_confidence()), share, old)
        if contents.moved is not None:
            return Fact(
                "Classes changed" if contents.other is None else "Classes differ",
                percent(contents.moved.share),
                f"of {count(metrics.n)} predictions",
            )
        return Fact("Predictions", count(metrics.n), f"{metrics.classes} classes")

    def each(self, contents: Contents, most: int) -> Table:
        return table_of_classes(contents.rows[:most])

    def pictures(self, contents: Contents) -> tuple[Picture, tuple[Picture, ...]]:
        sides: Any = contents.sides
        # What hides errors that cancel, such as a share of class 1 that changed, comes second.
        first, *folded = diagrams(sides)
        return first, (*folded, *pictures(sides))

    def decisions(self, contents: Contents) -> DecisionRows | None:
        fitted = contents.artifact
        if fitted is None or contents.decisions is None or not (contents.decisions or fitted.contract):
            return None
        return decision_rows(fitted, contents.decisions, contents.class_names)

    def as_dict(self, contents: Contents) -> dict[str, Any]:
        return {
            "classes": [{**to_json(row), "certain_gap": row.certain_gap} for row in contents.rows],
            "decisions": contents.decisions.as_dict() if contents.decisions else {},
            "moved": None if contents.moved is None else contents.moved.as_dict(),
        }


def _colors(sides: int, how: How) -> tuple[str, ...]:
    """Colours of sides: raw scores and calibrated ones, or what no artifact calibrated here."""
    return ("before", "after") if sides == 2 else ("before" if how.artifact is None else "after",)


def _of_all(density: Density, pair: Checked) -> Density:
    right = int(top_label(*pair)[1].sum())
    return replace(density, n_right=right, n_wrong=len(pair[1]) - right)


def _weighing(labels: NDArray[Any], how: How) -> dict[str, Any]:
    n = len(labels)
    return {"weight": checked_weights(how.sample_weight, n), "groups": group_codes(how.groups, n)}


def _curves(
    names: Sequence[str], colors: Sequence[str], rows: Sequence[Any], every: Sequence[Any], how: How
) -> list[Diagram]:
    """Diagrams of the rows of figures, with how many of ``every`` sample each dot is where these weigh."""
    edges: dict[str, Any] = {"edges": how.edges}
    found = [reliability_of(Bins.tally(*pair, bins=how.bins, **edges)) for pair in rows]
    span = dense_bin(found)
    curves: list[Diagram] = []
    for name, color, data, pair, probs in zip(names, colors, found, rows, every, strict=False):
        p, came = pair
        dense = within(p, came, span, **edges)
        counted = of_rows(data, probs, **edges) if how.weighs else data
        if how.weighs and dense is not None:
            dense = of_rows(dense, probs, **edges)
        curves.append(Diagram(name, color, counted, dense))
    return curves


def _drawn(pairs: Sequence[Checked], how: How) -> list[Checked]:
    """The rows of figures and paired tests, repeated by their weights."""
    rows = how.rows
    return list(pairs) if rows is None else [(p[rows], y[rows]) for p, y in pairs]


class _Multilabel:
    """Any number of L labels may be true of a sample."""

    one = "label"
    shown = SHOWN_OF_LABELS
    sorted_by = "ECE"
    of_metrics = (
        "Means over the labels; ECE over {} bins of [0, 1]. Those of decisions are of all labels together: "
        "the larger of P and 1 - P, and whether the decision at 0.5 is right."
    )
    of_each = (
        "All are of the label's own probability P over all samples. Gaps are in points, positive where P is "
        "too high. Intervals hold at 95 % for each label alone."
    )

    def checked(self, predictions: Predictions) -> Checked:
        return checked_label_probs(*predictions)

    def sides(self, pairs: Sequence[Checked], names: Sequence[str], how: How) -> tuple[ComparedModel, ...]:
        check_ungrouped(how.groups)
        weight = how.sample_weight
        found = [evaluate_label_probs(*pair, how.measured, sample_weight=weight) for pair in pairs]
        colors = _colors(len(pairs), how)
        return tuple(
            ComparedModel(name, color, reliability_of(metrics.bins), metrics=metrics)
            for name, color, metrics in zip(names, colors, found, strict=True)
        )

    def changes(self, pairs: Sequence[Checked], sides: Sequence[Any], how: How) -> Mapping[str, Change]:
        weight = checked_weights(how.sample_weight, len(pairs[0][0]))
        first, second = (_means_over_labels(np.asarray(p, np.float64), y) for p, y in pairs)
        return {name: change_of_mean(second[name] - first[name], weight=weight) for name in first}

    def rest(self, pairs: Sequence[Checked], sides: Sequence[Any], how: How) -> dict[str, Any]:
        found, names = sides[-1].metrics, how.class_names
        if len(names) not in (0, len(found.labels)):
            raise ShapeError(f"{len(found.labels)} labels but {len(names)} names")
        return {"rows": tuple((names[k] if names else str(k), found.labels[k]) for k in found.worst())}

    def fact(self, contents: Contents) -> Fact:
        metrics: LabelsEvaluation = contents.after.metrics
        return Fact("Samples", count(metrics.n), f"{len(metrics.labels)} labels each")

    def each(self, contents: Contents, most: int) -> Table:
        return table_of_labels(contents.rows[:most])

    def pictures(self, contents: Contents) -> tuple[Picture, tuple[Picture, ...]]:
        title = "Do the decisions' confidences mean what they say?"
        return diagram(contents.sides, title=title), ()

    def decisions(self, contents: Contents) -> DecisionRows | None:
        return None

    def as_dict(self, contents: Contents) -> dict[str, Any]:
        return {"labels": [{"name": name, **to_json(vars(row))} for name, row in contents.rows]}


def _means_over_labels(p: Floats, labels: NDArray[np.intp]) -> dict[str, Floats]:
    """Each sample's means over its labels (n,); samples are independent, their labels are not."""
    confidence, right = confidence_of_labels(p, labels)
    columns = {
        "accuracy": right,
        "mean_confidence": confidence,
        "nll": -log_probs(np.where(labels == 1, p, 1 - p)),
        "positive_brier": (p - labels) ** 2,
    }
    return {name: np.asarray(values, np.float64).mean(axis=1) for name, values in columns.items()}


Task = Union[_Multiclass, _Multilabel]
"""What is asked of a sample: which class, or which labels."""


def facts(contents: Contents) -> tuple[Fact, ...]:
    """The three figures below the verdict; of two classes those of P(y = 1)."""
    new, before = contents.after.estimates(), contents.before
    old = None if before is None else before.estimates()
    metrics = contents.after.metrics
    of_two = "positive_auroc" in new
    what, ece, floor = leading(metrics)

    def fact(words: str, name: str, note: str, show: Any = percent) -> Fact:
        return _fact(contents, words, show(new[name].value), note, old and show(old[name].value))

    accuracy = f"accuracy {percent(metrics.accuracy)}"
    return (
        fact(f"ECE of {what}" if what else "ECE", ece, f"chance alone: {percent(getattr(metrics, floor))}"),
        fact("AUROC of P(y = 1)", "positive_auroc", accuracy, decimals)
        if of_two
        else fact("Accuracy", "accuracy", f"confidence {percent(metrics.mean_confidence)}"),
        contents.task.fact(contents),
    )


def _fact(contents: Contents, name: str, value: str, note: str, old: str | None) -> Fact:
    """A figure with what it was before; of two models beside one another, as neither is before."""
    if contents.other is None or not old:
        return Fact(name, value, note, old or "")
    return Fact(name, f"{old} · {value}", " · ".join(side.name for side in contents.sides))


def judge_pair(pair: Predictions, asked: ReportOptions) -> Verdict:
    """The verdict on probabilities and labels, by the options of their report."""
    beside: dict[str, Any] = {"groups": asked.groups, "class_names": asked.class_names}
    p, y = pair
    if asked.bounds is None:
        return judge_probs(p, y, asked, **beside, sample_weight=asked.sample_weight)
    told: dict[str, Any] = {"labels": y, "weights": asked.sample_weight, "bounds": asked.bounds, **beside}
    scored = Scores(np.asarray(p), "probabilities", **told)
    return judge(scored, tolerance=asked.tolerance, class_tolerance=asked.class_tolerance)


def prepare_report(
    *,
    title: str,
    after: Predictions,
    before: Predictions | None = None,
    artifact: Artifact | None = None,
    options: ReportOptions | None = None,
) -> Contents:
    """Prepare the contents of the report of ``after``, or of ``before`` and ``after``.

    Args:
        title: The report's heading.
        after: Probabilities (n, K) and class ids (n,); of a multi-label model both (n, L), labels 0 or 1.
        before: The same of another model, or of none calibrated, on the same samples in the same order.
        artifact: The calibration that the report is of.
        options: Options of the report; None: the defaults.

    Raises:
        InputError: Where probabilities, labels or options do not match; ShapeError for other shapes.
    """
    asked = options or ReportOptions()
    # The shape of labels tells: class ids are (n,), truths of labels (n, L).
    task: Task = _Multilabel() if np.ndim(after[1]) == 2 else _Multiclass()
    pairs = [task.checked(pair) for pair in ((after,) if before is None else (before, after))]
    _refuse_other_samples(pairs)
    named = tuple(printable(n) for n in asked.class_names or (artifact.class_names if artifact else ()))
    how = How(**{**fields_of(ReportOptions, asked), "class_names": named}, artifact=artifact)
    sides = task.sides(pairs, [printable(name) for name in asked.names[-len(pairs) :]], how)
    changes = task.changes(pairs, sides, how) if before is not None else {}
    rest = task.rest(pairs, sides, how)
    verdict = compared(
        judge_pair(pairs[-1], how),
        sides[-1].metrics,
        before=sides[0].metrics if before is not None else None,
        changes=changes,
        moved=rest.get("moved"),
        artifact=artifact,
    )
    return Contents(
        title=printable(title),
        task=task,
        sides=sides,
        changes=changes,
        verdict=of_own_samples(verdict, asked.own) if asked.own else verdict,
        artifact=artifact,
        bins=asked.bins,
        tolerance=asked.tolerance,
        class_names=named,
        worth=len(how.rows) if how.weighs and how.rows is not None else 0,
        levels=() if how.tree is None else _levels(pairs[-1], how),
        **rest,
    )


def _levels(pair: Checked, how: How) -> tuple[LevelEvaluation, ...]:
    p, y = pair
    names = how.class_names or tuple(map(str, range(p.shape[1])))
    beside: dict[str, Any] = {"weights": how.sample_weight, "groups": how.groups}
    of_labels = y.ndim > 1
    scores = Scores(p, "label_probabilities" if of_labels else "probabilities", y, names, **beside)
    return evaluate_levels(scores, Tree.of(how.tree, names), how.measured, how, how.own)


def _refuse_other_samples(pairs: Sequence[Checked]) -> None:
    (p, y), (q, z) = pairs[0], pairs[-1]
    if p.shape != q.shape:
        raise ShapeError(f"before and after must be of the same samples, got {p.shape} and {q.shape}")
    if not np.array_equal(y, z):
        raise InputError("before and after have different labels; pass the same samples in the same order")
