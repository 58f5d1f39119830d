"""The report of a multi-label model: its numbers, its verdict, its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.bins import Edges
from calib_serve.errors import InputError, ShapeError
from calib_serve.judgement import Verdict, judge
from calib_serve.metrics import (
    Change,
    LabelEvaluation,
    LabelsEvaluation,
    decisions,
    evaluate_labels,
    log_probs,
)
from calib_serve.metrics.comparison import change_of_mean
from calib_serve.metrics.labels import checked_label_probs
from calib_serve.report.contents import Predictions, printable
from calib_serve.report.prepare import Reliability, reliability_of, to_json
from calib_serve.report.verdict import compared

__all__ = ["LabelsContents", "LabelsSide", "prepare_labels_report"]

Floats = NDArray[np.float64]

_DRAWS = 200  # the test has no meaning without any


@dataclass(frozen=True, eq=False)
class LabelsSide:
    """One model on the test samples: its metrics, and the diagram of all its decisions."""

    name: str
    color: str
    metrics: LabelsEvaluation
    reliability: Reliability


@dataclass(frozen=True, eq=False)
class LabelsContents:
    """A whole report of labels: one side, or two of the same samples; ``labels`` the worst first."""

    title: str
    sides: tuple[LabelsSide, ...]
    changes: Mapping[str, Change]
    labels: tuple[tuple[str, LabelEvaluation], ...]
    verdict: Verdict
    artifact: Artifact | None
    bins: int
    tolerance: float

    @property
    def before(self) -> LabelsSide | None:
        """The side to compare with, if any."""
        return self.sides[0] if len(self.sides) == 2 else None

    @property
    def after(self) -> LabelsSide:
        """The side that the verdict is about."""
        return self.sides[-1]

    def as_dict(self) -> dict[str, Any]:
        """Every number of the report, for JSON."""
        fitted = self.artifact
        return {
            "title": self.title,
            "verdict": self.verdict.as_dict(),
            "bins": self.bins,
            "tolerance": self.tolerance,
            "sides": [
                {
                    "name": s.name,
                    "reliability": to_json(s.reliability),
                    "metrics": to_json(s.metrics.as_dict()),
                }
                for s in self.sides
            ],
            "changes": to_json(dict(self.changes)),
            "labels": [{"name": name, **to_json(vars(row))} for name, row in self.labels],
            "artifact": None if fitted is None else {"method": fitted.method, "sha256": fitted.fingerprint},
        }


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
) -> LabelsContents:
    """Everything that the report of ``after``, or of ``before`` and ``after``, will show.

    Both are (probs (n, L), labels (n, L), each 0 or 1) of the same samples in the same order. Raises
    InputError or ShapeError where these do not match.
    """
    pairs = [checked_label_probs(*pair) for pair in ((after,) if before is None else (before, after))]
    if before is not None and pairs[0][0].shape != pairs[1][0].shape:
        raise ShapeError(f"before and after must be of the same samples, got {[p.shape for p, _ in pairs]}")
    if before is not None and not np.array_equal(pairs[0][1], pairs[1][1]):
        raise InputError("before and after have different labels; pass the same samples in the same order")
    colors = ("after",) if before is None else ("before", "after")
    sides = []
    for name, color, (probs, labels) in zip(names[-len(pairs) :], colors, pairs, strict=True):
        found = evaluate_labels(
            probs, labels, bins=bins, edges=edges, replicates=replicates or _DRAWS, seed=seed
        )
        sides.append(LabelsSide(printable(name), color, found, reliability_of(found.bins)))
    named = tuple(class_names) or (artifact.class_names if artifact else ())
    changes = {} if before is None else _changes(pairs[0][0], *pairs[1])
    metrics = sides[-1].metrics
    if len(named) not in (0, len(metrics.labels)):
        raise ShapeError(f"{len(metrics.labels)} labels but {len(named)} names")
    rows = tuple((printable(named[k]) if named else str(k), metrics.labels[k]) for k in metrics.worst())
    verdict = compared(
        judge(
            *pairs[-1],
            tolerance=tolerance,
            class_tolerance=class_tolerance,
            class_names=[printable(n) for n in named],
        ),
        metrics,
        before=sides[0].metrics if before is not None else None,
        changes=changes,
        artifact=artifact,
    )
    return LabelsContents(printable(title), tuple(sides), changes, rows, verdict, artifact, bins, tolerance)


def _changes(before: NDArray[Any], after: NDArray[Any], labels: NDArray[np.intp]) -> dict[str, Change]:
    """Paired changes of means over the labels; samples are independent."""
    first, second = (_means(np.asarray(p, np.float64), labels) for p in (before, after))
    return {name: change_of_mean(second[name] - first[name]) for name in first}


def _means(p: Floats, labels: NDArray[np.intp]) -> dict[str, Floats]:
    confidence, right = decisions(p, labels)
    columns = {
        "accuracy": right,
        "mean_confidence": confidence,
        "nll": -log_probs(np.where(labels == 1, p, 1 - p)),
        "positive_brier": (p - labels) ** 2,
    }
    return {name: np.asarray(values, np.float64).mean(axis=1) for name, values in columns.items()}
