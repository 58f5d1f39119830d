"""The sides of a report, before and after, with their measures; and the verdict that compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import are_counts, as_floats, repeated
from calib_serve.core.options.evaluate import MeasureOptions, ReportOptions
from calib_serve.core.text import p_value, percent
from calib_serve.metrics import (
    CALIBRATE,
    DEPLOY,
    MORE,
    Change,
    DecisionCurve,
    Estimate,
    Evaluation,
    LabelsEvaluation,
    Moved,
    SmoothReliability,
    Verdict,
    gain_of,
)
from calib_serve.report.prepare import Density, Histogram, Reliability, RiskCoverage

Predictions = tuple[ArrayLike, ArrayLike]
"""Probabilities (n, K) and class ids (n,); or of labels (n, L), and which of them are true (n, L)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class How(ReportOptions):
    """Options of a report, its classes' names known, with the calibration and the rows of its figures."""

    artifact: Artifact | None = None

    @property
    def measured(self) -> MeasureOptions:
        """How the samples are measured."""
        return MeasureOptions(bins=self.bins, edges=self.edges, replicates=self.replicates, seed=self.seed)

    @cached_property
    def rows(self) -> NDArray[np.intp] | None:
        """Rows of the figures: rows of weighted samples are repeated; None for all samples, once each."""
        weight = self.sample_weight
        return None if weight is None else repeated(as_floats(weight, "sample_weight"))

    @property
    def weighing(self) -> dict[str, Any]:
        """The weights and groups of the samples."""
        return {"sample_weight": self.sample_weight, "groups": self.groups}

    @property
    def weighs(self) -> bool:
        """Whether samples weigh, so that they are worth fewer than there are; counts are rows."""
        return self.sample_weight is not None and not are_counts(as_floats(self.sample_weight, "weights"))

    @cached_property
    def groups_of_rows(self) -> NDArray[Any] | None:
        """The groups of the figures' rows."""
        groups = None if self.groups is None else np.asarray(self.groups)
        return groups if groups is None or self.rows is None else groups[self.rows]


@dataclass(frozen=True, eq=False)
class Diagram:
    """A reliability diagram with its name and color; ``dense`` are the parts of a dot with most samples."""

    name: str
    color: str
    reliability: Reliability
    dense: Reliability | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparedModel(Diagram):
    """One model on the test samples: its metrics and its reliability diagram.

    ``positive`` is of P(y = 1), of two classes alone.
    """

    metrics: Any  # Evaluation | LabelsEvaluation, as the task has it
    positive: Diagram | None = None

    def estimates(self) -> dict[str, Estimate]:
        """Every number with its interval, by its name."""
        return dict(self.metrics.estimates())

    def colored(self, color: str) -> ComparedModel:
        """The same, drawn in another colour.

        Args:
            color: Name in the palette.
        """
        return replace(self, color=color, positive=self.positive and replace(self.positive, color=color))


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparedClassifier(ComparedModel):
    """A model of one class a sample, with the record of each of its figures.

    ``smooth`` is None of samples in groups, and ``benefit`` of other than two classes.
    """

    histogram: Histogram
    density: Density
    risk_coverage: RiskCoverage
    positive_auroc: Estimate | None = None
    smooth: SmoothReliability | None = None
    benefit: DecisionCurve | None = None

    def estimates(self) -> dict[str, Estimate]:
        """Every number with its interval, by its name; of two classes the AUROC of P(y = 1) as well."""
        auroc = {} if self.positive_auroc is None else {"positive_auroc": self.positive_auroc}
        return {**super().estimates(), **auroc}


def compared(
    found: Verdict,
    after: Evaluation | LabelsEvaluation,
    *,
    before: Evaluation | LabelsEvaluation | None = None,
    changes: Mapping[str, Change] | None = None,
    moved: Moved | None = None,
    artifact: Artifact | None = None,
) -> Verdict:
    """The verdict ``found`` on samples, with the changes from ``before`` and the advice that follows.

    A calibration that costs accuracy or likelihood beyond chance is not to be deployed, whatever the level.
    """
    changes = changes or {}
    refused = _refusals(changes)
    # A verdict judges one model; only the comparison knows whether the other was better.
    do = [line for line in found.do if not (refused and line == DEPLOY)]
    what, ece, floor = leading(after)
    # The bins that an artifact keeps are of the top class, and say nothing of labels.
    of_top = isinstance(after, Evaluation)
    if found.level == "off" and of_top and (known := _repair(after, artifact)):
        do = [known, *(line for line in do if line != CALIBRATE)]
    found = replace(found, do=(*refused, *do))
    if before is None:
        return found
    # The proper score also sees what the confidence hides.
    nll = changes.get("nll")
    chance = "" if nll is None else p_value(nll.p)
    likelihood = f"Negative log-likelihood {before.nll:.4f} -> {after.nll:.4f}{chance}."
    changed = (*(moved.says() if moved else ()), likelihood)
    gain = gain_of([(what, *(float(getattr(one, ece)) for one in (before, after)), getattr(after, floor))])
    return replace(found, gain=gain, changed=changed)


def leading(found: Evaluation | LabelsEvaluation) -> tuple[str, str, str]:
    """The words for what a report leads with, its error and its noise floor; of two classes P(y = 1).

    Args:
        found: Metrics of the model.
    """
    if isinstance(found, Evaluation) and found.positive_ece is not None:
        return "P(y = 1)", "positive_ece", "positive_noise_floor"
    return found.HEADLINE


def _refusals(changes: Mapping[str, Change]) -> list[str]:
    """Reasons not to deploy, each beyond chance."""
    bad = (("accuracy", -1, "accuracy fell"), ("nll", 1, "the negative log-likelihood rose"))
    # A change within chance is no reason: a fit moves every number a little.
    worse = [
        words
        for name, sign, words in bad
        if name in changes and changes[name].p < 0.05 and sign * changes[name].difference.value > 0
    ]
    return [f"Do not deploy this calibration: {' and '.join(worse)}."] if worse else []


def _repair(found: Evaluation | LabelsEvaluation, artifact: Artifact | None) -> str:
    """Advise for a calibration that does better on its own samples; else nothing."""
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
