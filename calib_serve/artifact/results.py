"""What an artifact keeps of its fit: metrics and selection as typed values, and a few of the scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from calib_serve.arrays import frame, html_table
from calib_serve.artifact.steps import Head, InputShift, LogitMap, Step
from calib_serve.errors import SchemaError
from calib_serve.metrics import Estimate

if TYPE_CHECKING:
    from pandas import DataFrame

Metrics = Mapping[str, Estimate]


@dataclass(frozen=True)
class Score:
    """A candidate on held-out folds: its score, how far it is above the best, and if refused, why."""

    method: str
    score: float = math.nan
    above_best: float = math.nan
    standard_error: float = math.nan
    refused: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the manifest; what was not computed is left out."""
        facts = {k: v for k, v in vars(self).items() if not (isinstance(v, float) and math.isnan(v))}
        return {k: v for k, v in facts.items() if v is not None}


@dataclass(frozen=True)
class Selection:
    """How a method was chosen by cross-validation: ``chosen`` is the simplest close enough to ``best``.

    ``scores`` are of every candidate, in the order in which they were tried. One was refused where the
    ``level`` interval shows that accuracy or refinement falls by more than ``tolerance``.
    """

    criterion: str
    rule: str
    folds: int
    seed: int
    tolerance: float
    level: float
    best: str
    chosen: str
    scores: tuple[Score, ...]

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {**vars(self), "scores": [score.as_dict() for score in self.scores]}


def selected(fit: Mapping[str, Any]) -> Selection | None:
    """The selection among an artifact's facts of the fit, or None; SchemaError if it is invalid."""
    facts = fit.get("selection")
    if facts is None:
        return None
    try:
        scores = tuple(Score(**score) for score in facts["scores"])
        known = {field.name: facts[field.name] for field in fields(Selection)}
        return Selection(**{**known, "scores": scores})
    except (LookupError, TypeError) as error:
        raise SchemaError(
            f"the artifact's selection is not one we read ({error}); fit the artifact again"
        ) from error


def measured(facts: Mapping[str, Any]) -> dict[str, Estimate]:
    """Metrics by name from a manifest's values; an unknown number is NaN.

    >>> measured({"ece": {"value": 0.1, "low": None}})
    {'ece': 0.1000}
    >>> measured({"ece": {"value": 0.1, "low": 0.0, "high": 0.09, "debiased": 0.05}})
    {'ece': 0.1000 (debiased 0.0500) [0.0000, 0.0900]}
    """
    found = {}
    for name, fact in facts.items():
        held = fact if isinstance(fact, Mapping) else {"value": fact}
        numbers = [held.get(end) for end in ("value", "low", "high", "debiased")]
        if all(number is None or isinstance(number, (int, float)) for number in numbers):
            found[name] = Estimate(*(math.nan if number is None else float(number) for number in numbers))
    return found


def temperature_of(steps: Sequence[Step]) -> float | None:
    """T where the output steps are one division by it, else None.

    >>> temperature_of([LogitMap.temperature(2.0)])
    2.0
    """
    match [step for step in steps if not isinstance(step, (InputShift, Head))]:
        case [LogitMap(weight=weight, bias=None)] if weight.ndim == 0:
            return 1 / float(weight)
    return None


def as_text(
    method: str, classes: int, steps: Sequence[Step], before: Metrics, after: Metrics, *, labels: bool = False
) -> str:
    """One line: method, classes, steps, and the ECE (of labels' probabilities) where it was measured."""
    kinds = ", ".join(step.kind for step in steps) or "none"
    name = "positive_ece" if labels else "ece"
    eces = [found[name] for found in (before, after) if name in found]
    ece = f", ECE {' -> '.join(f'{value:.4f}' for value in eces)}" if eces else ""
    return f"{method}, {classes} {'labels' if labels else 'classes'}, steps: {kinds}{ece}"


def as_html(title: str, before: Metrics, after: Metrics) -> str:
    """A table of the metrics before and after; empty where one was not measured."""
    rows = [
        (name, *(str(found[name]) if name in found else "" for found in (before, after)))
        for name in dict.fromkeys((*before, *after))
    ]
    return html_table(title, ("metric", "before", "after"), rows)


def as_frame(before: Metrics, after: Metrics) -> DataFrame:
    """One row per metric: before and after, each with the ends of its interval; NaN where not measured."""
    sides = {"before": before, "after": after}
    names = list(dict.fromkeys(name for found in sides.values() for name in found))
    columns: dict[str, list[float]] = {}
    for side, found in sides.items():
        rows = [found.get(name, Estimate(math.nan)) for name in names]
        columns[side] = [row.value for row in rows]
        columns[f"{side}_low"] = [row.low for row in rows]
        columns[f"{side}_high"] = [row.high for row in rows]
    return frame(columns, names, name="metric")
