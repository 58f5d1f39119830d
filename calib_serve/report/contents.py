"""Collect all numbers of a report, and its verdict, before drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_floats, repeated
from calib_serve.artifact import Artifact, DecisionsEvaluation, evaluate_decisions
from calib_serve.bins import Edges
from calib_serve.errors import InputError, ShapeError
from calib_serve.metrics import (
    Change,
    Evaluation,
    LabelEvaluation,
    LabelsEvaluation,
    SmoothReliability,
    decisions,
    log_probs,
    paired_changes,
    smooth_reliability,
)
from calib_serve.metrics.comparison import Moved, change_of_mean
from calib_serve.metrics.evaluation import evaluate_probs
from calib_serve.metrics.labels import checked_label_probs, evaluate_label_probs
from calib_serve.metrics.samples import checked, checked_weights, top_label
from calib_serve.report.prepare import (
    BinCountCurve,
    ClassRow,
    Density,
    Histogram,
    Reliability,
    RiskCoverage,
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
from calib_serve.verdict import CALIBRATE, DEPLOY, MORE, Verdict, gain_of, of_own_samples
from calib_serve.verdict.decide import judge_probs
from calib_serve.words import p_value, percent

Predictions = tuple[ArrayLike, ArrayLike]
"""Probabilities (n, K) and class ids (n,)."""

Checked = tuple[NDArray[Any], NDArray[Any]]
OneSide = TypeVar("OneSide", "Side", "LabelsSide")

_LONGEST = 80  # characters of a name
_BAND = 200  # resamples of the smooth diagram's band


@dataclass(frozen=True, eq=False)
class Side:
    """One model on the test samples: its metrics, and what each figure shows of it.

    ``positive`` is of P(y = 1), of two classes alone.
    """

    name: str
    color: str
    metrics: Evaluation
    reliability: Reliability
    histogram: Histogram
    density: Density
    risk_coverage: RiskCoverage
    bin_counts: BinCountCurve
    positive: Reliability | None = None
    smooth: SmoothReliability | None = None


@dataclass(frozen=True, eq=False)
class LabelsSide:
    """One model on the test samples: its metrics, and the diagram of all its decisions."""

    name: str
    color: str
    metrics: LabelsEvaluation
    reliability: Reliability


@dataclass(frozen=True, eq=False, kw_only=True)
class _Report(Generic[OneSide]):
    """A whole report: one side, or two of the same samples with what changed between them."""

    title: str
    sides: tuple[OneSide, ...]
    changes: Mapping[str, Change]
    verdict: Verdict
    artifact: Artifact | None
    bins: int
    tolerance: float

    @property
    def before(self) -> OneSide | None:
        """The side to compare with, if any."""
        return self.sides[0] if len(self.sides) == 2 else None

    @property
    def after(self) -> OneSide:
        """The side that the verdict is about."""
        return self.sides[-1]

    def as_dict(self) -> dict[str, Any]:
        """Return every number of the report, for JSON."""
        fitted = self.artifact
        return {
            "title": self.title,
            "verdict": self.verdict.as_dict(),
            "bins": self.bins,
            "tolerance": self.tolerance,
            "sides": [{**to_json(s), "metrics": to_json(s.metrics.as_dict())} for s in self.sides],
            "changes": to_json(dict(self.changes)),
            "artifact": None if fitted is None else {"method": fitted.method, "sha256": fitted.fingerprint},
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Contents(_Report[Side]):
    """A report of a model of one class a sample, with its ``classes``, the worst first."""

    classes: tuple[ClassRow, ...]
    class_names: tuple[str, ...] = ()
    decisions: DecisionsEvaluation | None = None
    moved: Moved | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return every number of the report, for JSON."""
        classes = [{**to_json(row), "certain_gap": row.certain_gap} for row in self.classes]
        decisions = self.decisions.as_dict() if self.decisions else {}
        moved = None if self.moved is None else self.moved.as_dict()
        return {**super().as_dict(), "classes": classes, "decisions": decisions, "moved": moved}


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelsContents(_Report[LabelsSide]):
    """A report of a multi-label model, with its ``labels``, the worst first."""

    labels: tuple[tuple[str, LabelEvaluation], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return every number of the report, for JSON."""
        return {
            **super().as_dict(),
            "labels": [{"name": name, **to_json(vars(row))} for name, row in self.labels],
        }


def printable(text: str) -> str:
    r"""Return a user's text on one line, without control and direction characters, and not too long.

    >>> printable("cat\x00\u202egod")
    'cat��god'
    """
    clean = "".join(ch if ch.isprintable() else "\N{REPLACEMENT CHARACTER}" for ch in str(text))
    return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 1]}…"


def prepare_report(
    *,
    title: str,
    after: Predictions,
    before: Predictions | None = None,
    artifact: Artifact | None = None,
    names: tuple[str, str] = ("before", "after"),
    class_names: Sequence[str] = (),
    bins: int = 15,
    edges: Edges = "right",
    tolerance: float = 0.02,
    class_tolerance: float | None = None,
    target_risk: float | None = None,
    replicates: int = 1000,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    own: str | None = None,
) -> Contents:
    """Prepare all that the report of ``after``, or of ``before`` and ``after``, will show.

    Both are (probs (n, K), labels (n,)) of the same samples in the same order. ``tolerance`` is the
    acceptable mean gap, ``class_tolerance`` that of a class alone, ``target_risk`` the share of errors to
    abstain down to. ``sample_weight`` (n,) are weights: figures and paired tests are of rows that are there
    as often (``calib_serve.arrays.repeated``). ``groups`` (n,) say which samples belong together,
    such as those of one patient; ``own`` says that the artifact was fitted on these samples, if it was.
    Raises InputError or ShapeError where these do not match.
    """
    if before is not None:
        _refuse_other_samples(checked(*before), checked(*after))
    pairs = [after] if before is None else [before, after]
    # Figures and paired tests are of rows: weights become rows that are there as often.
    rows = slice(None) if sample_weight is None else repeated(as_floats(sample_weight, "sample_weight"))
    drawn = [(p[rows], y[rows]) for p, y in (checked(*pair) for pair in pairs)]
    of_drawn = None if groups is None else np.asarray(groups)[rows]
    colors = ["after"] if before is None else ["before", "after"]
    if target_risk is None:
        # One target for both sides: half the error of the first.
        target_risk = default_risk(top_label(*drawn[0])[1])
    options: dict[str, Any] = {"bins": bins, "edges": edges, "replicates": replicates, "seed": seed}
    measured = [
        evaluate_probs(*pair, sample_weight=sample_weight, groups=groups, **options) for pair in pairs
    ]
    sides = tuple(
        _side(printable(name), color, found, pair, target_risk=target_risk, groups=of_drawn, **options)
        for name, color, found, pair in zip(names[-len(pairs) :], colors, measured, drawn, strict=True)
    )
    changes = {} if before is None else paired_changes(drawn[0][0], *drawn[1], groups=of_drawn, **options)
    if changes and sample_weight is not None:
        changes = _of_metrics(changes, *measured)
    moved = None
    if before is not None:
        moved = Moved.of_probs(before[0], *after, sample_weight=sample_weight, groups=groups)
    named = tuple(printable(n) for n in class_names or (artifact.class_names if artifact else ()))
    classes = class_table(*drawn[-1], class_names=named, bins=bins, edges=edges)
    verdict = compared(
        judge_probs(
            *after,
            tolerance=tolerance,
            class_tolerance=class_tolerance,
            sample_weight=sample_weight,
            groups=groups,
            class_names=named,
        ),
        sides[-1].metrics,
        before=sides[0].metrics if before is not None else None,
        changes=changes,
        moved=moved,
        artifact=artifact,
    )
    verdict = of_own_samples(verdict, own) if own else verdict
    return Contents(
        title=printable(title),
        sides=sides,
        changes=changes,
        classes=classes,
        verdict=verdict,
        artifact=artifact,
        bins=bins,
        tolerance=tolerance,
        class_names=named,
        moved=moved,
        decisions=None if artifact is None else evaluate_decisions(artifact, *drawn[-1], groups=of_drawn),
    )


def _refuse_other_samples(before: Checked, after: Checked) -> None:
    (p, y), (q, z) = before, after
    if p.shape != q.shape:
        raise ShapeError(f"before and after must be of the same samples, got {p.shape} and {q.shape}")
    if not np.array_equal(y, z):
        raise InputError("before and after have different labels; pass the same samples in the same order")


def _of_metrics(changes: Mapping[str, Change], old: Evaluation, new: Evaluation) -> dict[str, Change]:
    """Return tests of rows that are there as often as they weigh, as changes of the weighted metrics."""
    first, second = old.estimates(), new.estimates()
    return {name: change.moved(second[name].value - first[name].value) for name, change in changes.items()}


def _side(
    name: str,
    color: str,
    found: Evaluation,
    predictions: Checked,
    *,
    target_risk: float | None,
    bins: int,
    edges: Edges,
    replicates: int,
    seed: int,
    groups: ArrayLike | None,
) -> Side:
    probs, labels = predictions
    positive = None if found.positive_bins is None else reliability_of(found.positive_bins)
    return Side(
        name,
        color,
        metrics=found,
        reliability=reliability(probs, labels, bins=bins, edges=edges),
        histogram=confidence_histogram(probs, labels),
        density=confidence_density(probs, labels),
        risk_coverage=risk_coverage(probs, labels, target=target_risk, groups=groups),
        bin_counts=bin_count_curve(probs, labels, edges=edges),
        positive=positive,
        smooth=None
        if groups is not None  # its band is of samples that do not depend on one another
        else smooth_reliability(probs, labels, replicates=min(replicates, _BAND), seed=seed),
    )


Floats = NDArray[np.float64]

_DRAWS = 200  # the test has no meaning without any


def prepare_labels_report(
    *,
    title: str,
    after: Predictions,
    before: Predictions | None = None,
    artifact: Artifact | None = None,
    names: tuple[str, str] = ("before", "after"),
    class_names: Sequence[str] = (),
    bins: int = 15,
    edges: Edges = "right",
    tolerance: float = 0.02,
    class_tolerance: float | None = None,
    replicates: int = _DRAWS,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
) -> LabelsContents:
    """Prepare all that the report of ``after``, or of ``before`` and ``after``, will show.

    Both are (probs (n, L), labels (n, L), each 0 or 1) of the same samples in the same order, which may
    weigh (n,). Raises InputError or ShapeError where these do not match.
    """
    pairs = [checked_label_probs(*pair) for pair in ((after,) if before is None else (before, after))]
    if before is not None:
        _refuse_other_samples(*pairs)
    colors = ("after",) if before is None else ("before", "after")
    sides = []
    for name, color, (probs, labels) in zip(names[-len(pairs) :], colors, pairs, strict=True):
        found = evaluate_label_probs(
            probs,
            labels,
            bins=bins,
            edges=edges,
            replicates=replicates or _DRAWS,
            seed=seed,
            sample_weight=sample_weight,
        )
        sides.append(LabelsSide(printable(name), color, found, reliability_of(found.bins)))
    named = tuple(class_names) or (artifact.class_names if artifact else ())
    weight = checked_weights(sample_weight, len(pairs[-1][0]))
    changes = {} if before is None else _changes(pairs[0][0], *pairs[1], weight)
    metrics = sides[-1].metrics
    if len(named) not in (0, len(metrics.labels)):
        raise ShapeError(f"{len(metrics.labels)} labels but {len(named)} names")
    rows = tuple((printable(named[k]) if named else str(k), metrics.labels[k]) for k in metrics.worst())
    verdict = compared(
        judge_probs(
            *pairs[-1],
            tolerance=tolerance,
            class_tolerance=class_tolerance,
            sample_weight=sample_weight,
            class_names=[printable(n) for n in named],
        ),
        metrics,
        before=sides[0].metrics if before is not None else None,
        changes=changes,
        artifact=artifact,
    )
    return LabelsContents(
        title=printable(title),
        sides=tuple(sides),
        changes=changes,
        labels=rows,
        verdict=verdict,
        artifact=artifact,
        bins=bins,
        tolerance=tolerance,
    )


def _changes(
    before: NDArray[Any], after: NDArray[Any], labels: NDArray[np.intp], weight: Floats | None
) -> dict[str, Change]:
    """Return paired changes of means over the labels; samples are independent."""
    first, second = (_means(np.asarray(p, np.float64), labels) for p in (before, after))
    return {name: change_of_mean(second[name] - first[name], weight=weight) for name in first}


def _means(p: Floats, labels: NDArray[np.intp]) -> dict[str, Floats]:
    confidence, right = decisions(p, labels)
    columns = {
        "accuracy": right,
        "mean_confidence": confidence,
        "nll": -log_probs(np.where(labels == 1, p, 1 - p)),
        "positive_brier": (p - labels) ** 2,
    }
    return {name: np.asarray(values, np.float64).mean(axis=1) for name, values in columns.items()}


_CHANCE = 0.05


def compared(
    found: Verdict,
    after: Evaluation | LabelsEvaluation,
    *,
    before: Evaluation | LabelsEvaluation | None = None,
    changes: Mapping[str, Change] | None = None,
    moved: Moved | None = None,
    artifact: Artifact | None = None,
) -> Verdict:
    """Return the verdict ``found`` on samples with what changed from ``before``, and what that says to do.

    A calibration that costs accuracy or likelihood beyond chance is not to be deployed, whatever the level.
    """
    refused = _refusals(changes or {})
    do = [line for line in found.do if not (refused and line == DEPLOY)]
    if found.level == "off" and isinstance(after, Evaluation) and (known := _repair(after, artifact)):
        do = [known, *(line for line in do if line != CALIBRATE)]
    found = replace(found, do=(*refused, *do))
    if before is None:
        return found
    changed = (
        *(moved.says() if moved else ()),
        _likelihood(before.nll, after.nll, (changes or {}).get("nll")),
    )
    return replace(found, gain=gain_of([_ece(before, after)]), changed=changed)


def _ece(
    before: Evaluation | LabelsEvaluation, after: Evaluation | LabelsEvaluation
) -> tuple[str, float, float, float]:
    if isinstance(before, LabelsEvaluation) and isinstance(after, LabelsEvaluation):
        return "P(label)", before.positive_ece, after.positive_ece, after.positive_noise_floor
    return "", float(before.ece), float(after.ece), float(after.noise_floor)


def _likelihood(old: float, new: float, change: Change | None) -> str:
    """Say what became of the proper score, which also sees what the confidence hides."""
    chance = "" if change is None else p_value(change.p)
    return f"Negative log-likelihood {old:.4f} -> {new:.4f}{chance}."


def _refusals(changes: Mapping[str, Change]) -> list[str]:
    """Return reasons not to deploy, each beyond chance."""
    bad = (("accuracy", -1, "accuracy fell"), ("nll", 1, "the negative log-likelihood rose"))
    # A change within chance is no reason: a fit moves every number a little.
    worse = [
        words
        for name, sign, words in bad
        if name in changes and changes[name].p < _CHANCE and sign * changes[name].difference.value > 0
    ]
    return [f"Do not deploy this calibration: {' and '.join(worse)}."] if worse else []


def _repair(found: Evaluation, artifact: Artifact | None) -> str:
    """Say what else to do where the calibration's own samples are known; else nothing."""
    reference = None if artifact is None else artifact.reference
    if reference is None or not reference.n:
        return ""
    # Calibrated where it was fitted, and off by far more where it is tested.
    learned = max(reference.ece() - reference.noise_floor(), 0.0)
    beyond = found.ece.value - found.noise_floor.value
    if beyond > max(2 * learned, reference.ece()):
        return (
            f"The test data differ from the calibration data, where the error is {percent(reference.ece())}: "
            "fit again on samples of the data that it meets now."
        )
    return MORE
