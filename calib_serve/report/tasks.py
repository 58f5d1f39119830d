"""The two tasks of a report, multi-class and multi-label, and the numbers that each shows.

One class of K is true of a sample, or any number of L labels. All else in this room asks a ``Task``, never
which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, DecisionsEvaluation, evaluate_decisions
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.core.text import count, percent
from calib_serve.metrics import (
    Change,
    Evaluation,
    LabelsEvaluation,
    Moved,
    Verdict,
    change_of_mean,
    checked,
    checked_label_probs,
    checked_weights,
    confidence_of_labels,
    evaluate_label_probs,
    evaluate_probs,
    judge_probs,
    of_own_samples,
    paired_changes,
    smooth_reliability,
    top_label,
)
from calib_serve.report.comparison import (
    ComparedClassifier,
    ComparedModel,
    How,
    Predictions,
    compared,
    printable,
)
from calib_serve.report.figures import Picture, diagram, pictures
from calib_serve.report.look import Fact, Table
from calib_serve.report.prepare import (
    bin_count_curve,
    class_table,
    confidence_density,
    confidence_histogram,
    default_risk,
    reliability,
    reliability_of,
    risk_coverage,
    to_json,
)
from calib_serve.report.tables import (
    SHOWN,
    SHOWN_OF_LABELS,
    DecisionRows,
    Shown,
    decision_rows,
    table_of_classes,
    table_of_labels,
)
from calib_serve.scores import check_ungrouped, log_probs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ReportKeywords

Checked = tuple[NDArray[Any], NDArray[Any]]


class Task(Protocol):
    """The measures, tests, tables and words of one task."""

    one: ClassVar[str]
    """The word for one of the classes or labels."""
    shown: ClassVar[Sequence[Shown]]
    """The metrics of the table, in its order."""
    sorted_by: ClassVar[str]
    """The number by which the worst are first, in words."""
    of_metrics: ClassVar[str]
    """The note below the metrics, with a place for the number of ``bins``."""
    of_each: ClassVar[str]
    """The note below the table of each."""

    def checked(self, predictions: Predictions) -> Checked:
        """Check probabilities and labels; raise InputError or ShapeError."""

    def sides(self, pairs: Sequence[Checked], names: Sequence[str], how: How) -> tuple[ComparedModel, ...]:
        """Measure each of one or two models on the same samples."""

    def changes(self, pairs: Sequence[Checked], sides: Sequence[Any], how: How) -> Mapping[str, Change]:
        """Test the changes from the first model to the second."""

    def rest(self, pairs: Sequence[Checked], sides: Sequence[Any], how: How) -> dict[str, Any]:
        """The remaining fields of ``Contents``: ``rows``, the worst first, and the figures of classes."""

    def fact(self, contents: Contents) -> Fact:
        """The third of the figures below the verdict."""

    def each(self, contents: Contents, most: int) -> Table:
        """A table of ``most`` rows, a class or label each."""

    def pictures(self, contents: Contents) -> tuple[Picture, tuple[Picture, ...]]:
        """Draw the first diagram, and the figures below it."""

    def decisions(self, contents: Contents) -> DecisionRows | None:
        """The section of the artifact's decisions, if it has any."""

    def as_dict(self, contents: Contents) -> dict[str, Any]:
        """The fields for JSON that only this task has."""


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
            "bins": self.bins,
            "tolerance": self.tolerance,
            "sides": [{**to_json(s), "metrics": to_json(s.metrics.as_dict())} for s in self.sides],
            "changes": to_json(dict(self.changes)),
            "artifact": None if fitted is None else {"method": fitted.method, "sha256": fitted.fingerprint},
            **self.task.as_dict(self),
        }


class _Multiclass:
    """One class of K is true of a sample."""

    one: ClassVar[str] = "class"
    shown: ClassVar[Sequence[Shown]] = SHOWN
    sorted_by: ClassVar[str] = "gap"
    of_metrics: ClassVar[str] = (
        "ECE, MCE and their kin over {} bins. Chance alone makes an error larger: its debiased value, with "
        "the interval of the true error, is below it."
    )
    of_each: ClassVar[str] = (
        "Confidence, right and gap are of the predictions that name the class; gaps are in points, positive "
        "where it is overconfident. Class ECE is of the class's own probability over all samples. The "
        "intervals hold at 95 % for all classes at once."
    )

    def checked(self, predictions: Predictions) -> Checked:
        return checked(*predictions)

    def sides(self, pairs: Sequence[Checked], names: Sequence[str], how: How) -> tuple[ComparedModel, ...]:
        drawn = _drawn(pairs, how)
        # One target for both sides: half the error of the first.
        target = default_risk(top_label(*drawn[0])[1]) if how.target_risk is None else how.target_risk

        def side(name: str, color: str, pair: Checked, rows: Checked) -> ComparedClassifier:
            found = evaluate_probs(*pair, sample_weight=how.sample_weight, groups=how.groups, **how.measured)
            return ComparedClassifier(
                name,
                color,
                metrics=found,
                reliability=reliability(*rows, bins=how.bins, edges=how.edges),
                histogram=confidence_histogram(*rows),
                density=confidence_density(*rows),
                risk_coverage=risk_coverage(*rows, target=target, groups=how.groups_of_rows),
                bin_counts=bin_count_curve(*rows, edges=how.edges),
                positive=None if found.positive_bins is None else reliability_of(found.positive_bins),
                smooth=None
                if how.groups is not None  # its band is of samples that do not depend on one another
                else smooth_reliability(*rows, replicates=min(how.replicates, 200), seed=how.seed),
            )

        return tuple(map(side, names, ("before", "after")[-len(pairs) :], pairs, drawn))

    def changes(self, pairs: Sequence[Checked], sides: Sequence[Any], how: How) -> Mapping[str, Change]:
        before, after = _drawn(pairs, how)
        changes = paired_changes(before[0], *after, groups=how.groups_of_rows, **how.measured)
        if how.sample_weight is None:
            return changes
        # Tests take rows repeated by their weights, and metrics the weights themselves.
        old, new = (side.metrics.estimates() for side in sides)
        return {name: change.moved(new[name].value - old[name].value) for name, change in changes.items()}

    def rest(self, pairs: Sequence[Checked], sides: Sequence[Any], how: How) -> dict[str, Any]:
        drawn = _drawn(pairs[-1:], how)[0]
        moved = None
        if len(pairs) > 1:
            weighing: dict[str, Any] = {"sample_weight": how.sample_weight, "groups": how.groups}
            moved = Moved.of_probs(pairs[0][0], *pairs[1], **weighing)
        return {
            "rows": class_table(*drawn, class_names=how.class_names, bins=how.bins, edges=how.edges),
            "moved": moved,
            "decisions": None
            if how.artifact is None
            else evaluate_decisions(how.artifact, *drawn, groups=how.groups_of_rows),
        }

    def fact(self, contents: Contents) -> Fact:
        metrics: Evaluation = contents.after.metrics
        if contents.moved is not None:
            return Fact(
                "Classes changed", percent(contents.moved.share), f"of {count(metrics.n)} predictions"
            )
        return Fact("Predictions", count(metrics.n), f"{metrics.classes} classes")

    def each(self, contents: Contents, most: int) -> Table:
        return table_of_classes(contents.rows[:most])

    def pictures(self, contents: Contents) -> tuple[Picture, tuple[Picture, ...]]:
        sides: Any = contents.sides
        return diagram(sides), pictures(sides)

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


def _drawn(pairs: Sequence[Checked], how: How) -> list[Checked]:
    """The rows of figures and paired tests, repeated by their weights."""
    rows = how.rows
    return list(pairs) if rows is None else [(p[rows], y[rows]) for p, y in pairs]


class _Multilabel:
    """Any number of L labels may be true of a sample."""

    one: ClassVar[str] = "label"
    shown: ClassVar[Sequence[Shown]] = SHOWN_OF_LABELS
    sorted_by: ClassVar[str] = "ECE"
    of_metrics: ClassVar[str] = (
        "Means over the labels; ECE over {} bins of [0, 1]. Those of decisions are of all labels together: "
        "the larger of P and 1 - P, and whether the decision at 0.5 is right."
    )
    of_each: ClassVar[str] = (
        "All are of the label's own probability P over all samples. Gaps are in points, positive where P is "
        "too high. Intervals hold at 95 % for each label alone."
    )

    def checked(self, predictions: Predictions) -> Checked:
        return checked_label_probs(*predictions)

    def sides(self, pairs: Sequence[Checked], names: Sequence[str], how: How) -> tuple[ComparedModel, ...]:
        check_ungrouped(how.groups)
        if how.target_risk is not None:
            raise InputError("--target-risk (target_risk=) is for one class a sample, not for labels")
        how_to = {**how.measured, "sample_weight": how.sample_weight}
        found = [evaluate_label_probs(*pair, **how_to) for pair in pairs]
        colors = ("before", "after")[-len(pairs) :]
        return tuple(
            ComparedModel(name, color, metrics, reliability_of(metrics.bins))
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
        return diagram(contents.sides, title="Do the decisions' confidences mean what they say?"), ()

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


def facts(contents: Contents) -> tuple[Fact, ...]:
    """The three figures below the verdict."""
    after, before = contents.after.metrics, contents.before
    what, ece, floor = after.HEADLINE

    def share(name: str) -> tuple[str, str]:
        return percent(getattr(after, name)), "" if before is None else percent(getattr(before.metrics, name))

    (now, then), (right, once) = share(ece), share("accuracy")
    return (
        Fact(
            f"ECE of {what}" if what else "ECE", now, f"chance alone: {percent(getattr(after, floor))}", then
        ),
        Fact("Accuracy", right, f"confidence {percent(after.mean_confidence)}", once),
        contents.task.fact(contents),
    )


def prepare_report(
    *,
    title: str,
    after: Predictions,
    before: Predictions | None = None,
    artifact: Artifact | None = None,
    options: ReportOptions | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Contents:
    """Prepare the contents of the report of ``after``, or of ``before`` and ``after``.

    Args:
        title: The report's heading.
        after: Probabilities (n, K) and class ids (n,); of a multi-label model both (n, L), labels 0 or 1.
        before: The same of another model, or of none calibrated, on the same samples in the same order.
        artifact: The calibration that the report is of.
        options: A ``ReportOptions``; keywords replace its fields.
        **keywords: Fields of ``ReportOptions``: ``bins``, ``edges``, ``seed``, ``replicates``, ``tolerance``,
            ``class_tolerance``, ``target_risk``, ``names``, ``class_names``, ``sample_weight``, ``groups``,
            ``own``.

    Raises:
        InputError: Where probabilities, labels or options do not match; ShapeError for other shapes.
    """
    asked = changed(options or ReportOptions(), keywords, prepare_report)
    # The shape of labels tells: class ids are (n,), truths of labels (n, L).
    task: Task = _Multilabel() if np.ndim(after[1]) == 2 else _Multiclass()
    pairs = [task.checked(pair) for pair in ((after,) if before is None else (before, after))]
    _refuse_other_samples(pairs)
    named = tuple(printable(n) for n in asked.class_names or (artifact.class_names if artifact else ()))
    how = How(
        bins=asked.bins,
        edges=asked.edges,
        replicates=asked.replicates,
        seed=asked.seed,
        target_risk=asked.target_risk,
        sample_weight=asked.sample_weight,
        groups=asked.groups,
        class_names=named,
        artifact=artifact,
    )
    sides = task.sides(pairs, [printable(name) for name in asked.names[-len(pairs) :]], how)
    changes = task.changes(pairs, sides, how) if before is not None else {}
    rest = task.rest(pairs, sides, how)
    judged = judge_probs(
        *pairs[-1],
        tolerance=asked.tolerance,
        class_tolerance=asked.class_tolerance,
        sample_weight=asked.sample_weight,
        groups=asked.groups,
        class_names=named,
    )
    verdict = compared(
        judged,
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
        **rest,
    )


def _refuse_other_samples(pairs: Sequence[Checked]) -> None:
    (p, y), (q, z) = pairs[0], pairs[-1]
    if p.shape != q.shape:
        raise ShapeError(f"before and after must be of the same samples, got {p.shape} and {q.shape}")
    if not np.array_equal(y, z):
        raise InputError("before and after have different labels; pass the same samples in the same order")
