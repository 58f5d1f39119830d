"""What an audit found: the monitor's numbers of each group and window, and what became of every row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from calib_serve.audit.ranks import Ranks
from calib_serve.bins import Bins
from calib_serve.judgement import TOLERANCE, Verdict
from calib_serve.watch.estimates import Estimates, Missing, Number, estimate, judge
from calib_serve.watch.sums import Sums

__all__ = ["Audit", "Labels", "Measured", "Refusal"]


@dataclass(frozen=True)
class Refusal:
    """How many predictions were left out for one reason, and the id of one of them."""

    count: int
    example: str


@dataclass(frozen=True)
class Labels:
    """What became of the rows of labels.

    ``rows`` are all; ``empty`` hold no id or no label; ``without_prediction`` are of no prediction that was
    asked for, ``of_refused`` of one that was left out; ``again`` say what another row said; ``conflicting``
    are of ids whose labels differ. The others are counted.

    >>> Labels(rows=9, empty=1, without_prediction=2, of_refused=0, again=1, conflicting=2).counted
    3
    """

    rows: int
    empty: int
    without_prediction: int
    of_refused: int
    again: int
    conflicting: int

    @property
    def counted(self) -> int:
        """Those behind the numbers."""
        left_out = self.empty + self.without_prediction + self.of_refused + self.again + self.conflicting
        return self.rows - left_out


@dataclass(frozen=True)
class Measured:
    """One group of predictions in one window: ``by`` column the value, from ``since`` until before ``until``.

    Times are seconds since 1970 in UTC, None without an end. ``sums`` are those of the monitor.
    """

    by: Mapping[str, str]
    since: int | None
    until: int | None
    sums: Sums
    ranks: Ranks | None = None
    tolerance: float = TOLERANCE
    missing: Missing = "chance"

    @property
    def bins(self) -> Bins:
        """The sums over labelled predictions, weighted."""
        return self.sums.feedback

    @cached_property
    def estimates(self) -> Estimates:
        """What the labels say about all predictions, with intervals, as the monitor's page has it."""
        return estimate(self.sums, missing=self.missing)

    @cached_property
    def verdict(self) -> Verdict:
        """What they come to."""
        return judge(self.estimates, tolerance=self.tolerance)

    @property
    def brier(self) -> float:
        """The mean of (confidence - right)^2 over labelled predictions, weighted."""
        return (
            float(self.sums["calib_feedback_squared_error_total"].sum()) / self.bins.n
            if self.bins.n
            else math.nan
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON; None stands for NaN."""
        bins, found = self.bins, self.estimates
        of_labelled = {
            "accuracy": bins.accuracy(),
            "mean_confidence": bins.mean_confidence(),
            "signed_gap": bins.signed_gap(),
            "ece": bins.ece(),
            "mce": bins.mce(),
            "ace": bins.ace(),
            "brier": self.brier,
            **({} if self.ranks is None else vars(self.ranks)),
        }
        estimated = {name: getattr(found, name) for name in ("accuracy", "gap", "debiased_ece", "brier")}
        return {
            "by": dict(self.by),
            "since": _iso(self.since),
            "until": _iso(self.until),
            "predictions": int(self.sums.predictions.sum()),
            "labels": int(self.sums.labels.sum()),
            "labelled": {name: _finite(value) for name, value in of_labelled.items()},
            "estimated": {
                **{name: _number(value) for name, value in estimated.items()},
                "ece": _finite(found.ece),
                "coverage": _finite(found.coverage),
                "effective_labels": _finite(found.effective),
                "noise_floor": _finite(found.noise_floor),
            },
            "verdict": self.verdict.as_dict(),
            "bins": {name: getattr(bins, name).tolist() for name in ("count", "confidence", "correct")},
        }


@dataclass(frozen=True)
class Audit:
    """The numbers of each group and window, ``measured``, and those of all together, ``total``.

    ``predictions`` rows were in the window that was asked for, of which ``again`` said what another row of
    their id said, ``unlabelled`` had no label, and ``conflicting`` had labels that differ; ``refused`` were
    left out, by reason.
    """

    measured: tuple[Measured, ...]
    total: Measured
    predictions: int
    again: int
    unlabelled: int
    conflicting: int
    labels: Labels
    refused: Mapping[str, Refusal] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; None stands for NaN."""
        return {
            "predictions": {
                "rows": self.predictions,
                "again": self.again,
                "unlabelled": self.unlabelled,
                "conflicting": self.conflicting,
                "refused": {name: vars(one) for name, one in self.refused.items()},
            },
            "labels": {**vars(self.labels), "counted": self.labels.counted},
            "total": self.total.as_dict(),
            "groups": [one.as_dict() for one in self.measured],
        }

    def says(self) -> list[str]:
        """A sentence for each thing that is not in the numbers, for a person."""
        told = [
            (self.unlabelled, "predictions have no label"),
            (self.conflicting, "predictions have labels that differ, and count as without one"),
            (self.again, "rows repeat a prediction, and count once"),
            (self.labels.without_prediction, "labels are of no prediction here"),
            (self.labels.again, "labels repeat another, and count once"),
            (self.labels.empty, "labels hold no id or no value"),
        ]
        left_out = [
            f"{one.count:,} predictions left out for their {name}, such as of id {one.example}"
            for name, one in self.refused.items()
        ]
        return [f"{count:,} {words}" for count, words in told if count] + left_out


def _iso(time: int | None) -> str | None:
    return None if time is None else datetime.fromtimestamp(time, timezone.utc).isoformat()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(number: Number) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in vars(number).items()}
