"""Live estimates of a model: calibration and accuracy of all served predictions, from some labels.

Which predictions get a label is rarely chance alone: a queue of unsure ones is reviewed, others are sampled.
So bins are weighed by the predictions served in them, which are all counted, and labels only say what holds
inside a bin, each weighed by one over the chance with which it was asked for (Hajek 1971). What no label
covers is not guessed: estimates are of the covered part, and ``bounds`` say what the rest could change.
The verdict on them is that of ``calib_serve.metrics``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError
from calib_serve.metrics import quantile_of, student_quantile
from calib_serve.monitor._bin_gaps import LEAST, BinGaps, Noise, bin_gaps, noisy_error
from calib_serve.monitor.drift.statistics import wilson
from calib_serve.receipts import Sums

Missing = Literal["chance", "unknown"]


@dataclass(frozen=True)
class Number:
    """An estimate; all NaN where it is unknown.

    Args:
        value: Point estimate.
        se: Its standard error.
        low: Lower end of its 95 % interval.
        high: Upper end of its 95 % interval.
    """

    value: float
    se: float
    low: float
    high: float


NOT_KNOWN = Number(math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class BinRow:
    """A bin: confidences in (lower, upper], and the accuracy behind them with its 95 % interval.

    ``covered``: it holds enough labels to count in the estimates. ``noise``: the variance that the gap of a
    calibrated model has. NaN without labels.
    """

    lower: float
    upper: float
    served: float
    labels: float
    effective: float
    confidence: float
    accuracy: float
    low: float
    high: float
    covered: bool
    noise: float = 0.0


@dataclass(frozen=True)
class Estimates:
    """Estimates over the covered part of the served predictions; ``estimate`` says how they are made.

    Args:
        weighed_by: Whether bins weigh by the predictions served or by the weights of labels.
        missing: "chance" where labels are missing by confidence or by draw, else "unknown".
        served: Number of predictions served.
        labels: Number of labels.
        effective: Number of labels of a uniform sample, all independent, that would tell as much.
        label_share: Labels over predictions served.
        coverage: Share of the predictions in bins with enough labels.
        confidence: Mean confidence of all predictions, without noise.
        covered_confidence: The same of the covered ones.
        accuracy: Accuracy of the covered ones.
        gap: Mean confidence minus accuracy of the covered ones.
        brier: Mean of (confidence - correct)^2 of the covered ones.
        ece: Plain ECE over all bins with labels.
        debiased_ece: The part of it that is no chance, at least 0.
        unclipped_ece: The same, also below 0.
        noise_floor: ECE that a calibrated model would show.
        groups: Number of random groups of labels that errors are computed by; 0 without groups.
        design_effect: How much more the gap varies than with independent labels, at least 1.
        effect: The same of tests, larger where few groups tell it.
        bounds: Bounds of all predictions, where outcomes that are not covered are anything.
        worst: The same, where every outcome without a label is anything.
        bins: A row a bin.
    """

    weighed_by: Literal["predictions", "labels"]
    missing: Missing
    served: float
    labels: float
    effective: float
    label_share: float
    coverage: float
    confidence: float
    covered_confidence: float
    accuracy: Number
    gap: Number
    brier: Number
    ece: float
    debiased_ece: Number
    unclipped_ece: float
    noise_floor: float
    groups: int
    design_effect: float
    effect: float
    bounds: Bounds
    worst: Bounds
    bins: tuple[BinRow, ...]


def estimate(
    sums: Sums, *, groups: Sequence[Sums] = (), least: float = LEAST, missing: Missing = "chance"
) -> Estimates:
    """Estimate the calibration of all served predictions from the labels of some.

    Bins are weighed by the predictions served, P_b = N_b / N, or by the weights of labels where no
    predictions are counted (``weighed_by`` says which).

    Args:
        sums: Sums of predictions and labels.
        groups: Sums of up to 32 random groups of the labels that belong together (those of one patient or
            session fall into one): with them standard errors hold although such labels move together.
        least: Number of effective labels that a bin must hold.
        missing: "chance" where labels are missing by confidence or by draw; "unknown" where they may be
            missing for what the outcome was: then only ``worst`` holds for sure.

    >>> c = np.repeat([0.75, 0.95], 100)
    >>> y = np.tile(np.repeat([1.0, 0.0], [70, 30]), 2)
    >>> found = estimate(Sums.served(c) + Sums.labelled(c, y))
    >>> round(found.gap.value, 3), round(found.gap.low, 2), round(found.gap.high, 2)
    (0.15, 0.09, 0.22)
    """
    if not least >= 1:
        raise InputError(f"least is a number of labels a bin, at least 1, got {least}")
    if missing not in ("chance", "unknown"):
        raise InputError(f"missing must be 'chance' or 'unknown', got {missing!r}")
    found = bin_gaps(sums, groups, least=least)
    counted = found.weighed_by == "predictions"
    total, labels = float(found.served.sum()), float(found.labels.sum())
    part, coverage = _covered(found)
    confidence = _mean(found.confidence, found.served / total if total else found.served)
    accuracy, lean = part.accuracy, np.nan_to_num(2 * found.accuracy - 1)
    gap = part.gap
    debiased, unclipped = part.ece(gap)
    seen = _labelled(found)
    return Estimates(
        weighed_by=found.weighed_by,
        missing=missing,
        served=total if counted else 0.0,
        labels=labels,
        effective=part.effective,
        label_share=labels / total if total and counted else math.nan,
        coverage=coverage,
        confidence=confidence,
        covered_confidence=_mean(found.confidence, part.share),
        accuracy=accuracy,
        gap=gap,
        brier=part.number(
            found.brier, found.brier_noise, lean * np.nan_to_num(2 * found.confidence - 1), least=0.0
        ),
        ece=_mean(np.abs(found.gap), seen),
        debiased_ece=debiased,
        unclipped_ece=unclipped,
        noise_floor=_mean(
            np.sqrt(2 / math.pi * found.calibrated * np.nan_to_num(part.design_effect, nan=1)), seen
        ),
        groups=found.groups,
        design_effect=part.design_effect,
        effect=part.effect,
        bounds=bounds_of_covered((accuracy.low, accuracy.high), coverage, confidence),
        worst=bounds_of_labelled(sums, confidence),
        bins=_rows(found),
    )


def estimated_gap(sums: Sums) -> Number:
    """Estimate the gap alone: a small part of the work, for the many slices of a version."""
    return _covered(bin_gaps(sums))[0].gap


def estimated_accuracy(sums: Sums) -> Number:
    """The accuracy that ``estimate`` finds, alone: for the clauses of contracts, over many windows."""
    return _covered(bin_gaps(sums))[0].accuracy


def _labelled(found: BinGaps) -> Floats:
    """The shares (bins,) of served predictions, in bins that hold any label."""
    return np.where(np.isfinite(found.gap), found.served, 0.0)


def _covered(found: BinGaps) -> tuple[_Part, float]:
    """The covered bins, and the share of served predictions in them."""
    total = float(found.served.sum())
    coverage = float(found.served[found.covered].sum()) / total if total else 0.0
    share = np.where(found.covered, found.served, 0.0) / (coverage * total if coverage else 1.0)
    return _Part(found, share), coverage


@dataclass(frozen=True, eq=False)
class _Part:
    """The covered bins and their ``share`` (bins,) of the predictions served in them, 0 elsewhere."""

    found: BinGaps
    share: Floats

    @property
    def empty(self) -> bool:
        return not self.share.any()

    @property
    def design_effect(self) -> float:
        alone = float(self.share**2 @ self.found.gap_noise.independent)
        return max(self._variance(self.found.gap_noise) / alone, 1.0) if alone > 0 else math.nan

    @property
    def effective(self) -> float:
        if self.empty:
            return 0.0
        on = self.found.covered
        alone = self.found.effective[on] * self.found.gap_noise.inflation
        return 1 / float((self.share[on] ** 2 / alone).sum()) / self.design_effect

    @property
    def effect(self) -> float:
        if not self.found.groups:
            return 1.0
        few = student_quantile(0.95, max(self.found.groups - 1, 1)) / quantile_of(0.95)
        return self.design_effect * few**2

    @property
    def accuracy(self) -> Number:
        # Where few predictions are wrong, the true number may be larger than seen, but hardly smaller.
        lean = np.nan_to_num(2 * self.found.accuracy - 1)
        return self.number(self.found.accuracy, self.found.accuracy_noise, -lean, least=0.0)

    @property
    def gap(self) -> Number:
        lean = np.nan_to_num(2 * self.found.accuracy - 1)
        return self.number(self.found.gap, self.found.gap_noise, lean, least=-1.0)

    def number(self, means: Floats, noise: Noise, lean: Floats, *, least: float) -> Number:
        """The mean over bins, in [least, 1]. ``lean`` (bins,): how its variance changes with the mean.

        The interval holds each truth from which the estimate is t of that truth's standard errors away,
        as Wilson's (1927) does for one share.
        """
        if self.empty:
            return NOT_KNOWN
        value, variance, on = _mean(means, self.share), self._variance(noise), self.found.covered
        if self.found.weighed_by == "labels":  # then it is chance as well how many fall into each bin
            apart = self.share[on] ** 2 / self.found.effective[on] * (means[on] - value) ** 2
            variance += float(apart.sum())
        t, n = student_quantile(0.95, max(self._freedom(noise), 1.0)), np.maximum(self.found.effective, 1.0)
        moved = float((self.share**3 * np.diag(noise.covariance) * lean / n).sum()) / max(variance, 1e-300)
        half, shift = t * math.sqrt(variance + (t * moved / 2) ** 2), t * t * moved / 2
        low, high = max(value + shift - half, least), min(value + shift + half, 1.0)
        return Number(value, math.sqrt(variance), min(low, value), max(high, value))

    def ece(self, gap: Number) -> tuple[Number, float]:
        """The debiased ECE, and its value before it is clipped at 0."""
        if self.empty:
            return NOT_KNOWN, math.nan
        on, noise = self.found.covered, self.found.gap_noise
        t = student_quantile(0.95, max(self._freedom(noise), 1.0))
        seen = noisy_error(self.found.gap[on], noise.covariance[np.ix_(on, on)], self.share[on], z=t)
        # The error of all bins is at least that of their mean, which is known better.
        size, below = abs(gap.value), gap.value - gap.low if gap.value > 0 else gap.high - gap.value
        value = max(seen.value, size) if size > below else seen.value
        # 2.24 / 1.96: 2.5 % in all for a mean that may be off to either side.
        low = max(seen.low, size - 1.14 * below)
        high = min(max(seen.high, gap.high, -gap.low, value), 1.0)
        return Number(min(max(value, 0.0), 1.0), (high - low) / (2 * t), low, high), value

    def _variance(self, noise: Noise) -> float:
        return float(self.share @ noise.covariance @ self.share)

    def _freedom(self, noise: Noise) -> float:
        """Degrees of freedom of the variance (Satterthwaite 1946)."""
        grouped = float(self.share @ noise.grouped @ self.share)
        rest = self.share**2 * np.diag(noise.covariance - noise.grouped)
        doubt = float((rest**2 / np.maximum(self.found.effective, 1.0)).sum())
        doubt += grouped**2 / max(self.found.groups - 1, 1)
        return self._variance(noise) ** 2 / doubt if doubt > 0 else math.inf


def _mean(values: Floats, share: Floats) -> float:
    on = share > 0
    return float(values[on] @ share[on] / share[on].sum()) if on.any() else math.nan


def _rows(found: BinGaps) -> tuple[BinRow, ...]:
    edges = np.linspace(0, 1, len(found.served) + 1)
    noise = found.gap_noise
    alone = np.maximum(noise.independent, 1e-18)
    effective = found.effective * noise.inflation / np.maximum(np.diag(noise.covariance) / alone, 1.0)
    low, high = wilson(found.accuracy * effective, effective)
    return tuple(
        BinRow(
            lower=float(edges[b]),
            upper=float(edges[b + 1]),
            served=float(found.served[b]),
            labels=float(found.labels[b]),
            effective=float(found.effective[b]),
            confidence=float(found.confidence[b]),
            accuracy=float(found.accuracy[b]),
            low=float(low[b]),
            high=float(high[b]),
            covered=bool(found.covered[b]),
            noise=float(found.calibrated[b]),
        )
        for b in range(len(found.served))
    )


@dataclass(frozen=True)
class Bounds:
    """Bounds of accuracy and gap of all served predictions under any unseen outcomes (Manski 1989).

    ``unseen``: the share of predictions whose outcomes are put at all wrong and at all right.
    """

    accuracy: tuple[float, float]
    gap: tuple[float, float]
    unseen: float

    @property
    def useful(self) -> bool:
        """Whether the bounds exclude at least half of the possible accuracies."""
        return self.accuracy[1] - self.accuracy[0] <= 0.5

    @property
    def says(self) -> str:
        """The bounds in a sentence.

        >>> Bounds((0.8, 0.9), (-0.05, 0.05), unseen=0.1).says
        'With the 10 % of predictions not known all wrong, or all right, accuracy is 80.0 or 90.0 %.'
        """
        return self.says_of("")

    def says_of(self, event: str) -> str:
        """The bounds in a sentence: of the share of an event, where one is named, else of accuracy.

        Args:
            event: Name of the event, or "".
        """
        low, high = (100 * x for x in self.accuracy)
        share = f"{100 * self.unseen:.0f} %"
        what = f"the share of {event}" if event else "accuracy"
        if not self.useful:
            return f"Outcomes of {share} of the predictions are not known: {what} could be nearly anything."
        every = f"not {event}, or all {event}" if event else "wrong, or all right"
        return f"With the {share} of predictions not known all {every}, {what} is {low:.1f} or {high:.1f} %."


def bounds_of_covered(accuracy: tuple[float, float], coverage: float, confidence: float) -> Bounds:
    """Bound by the interval ``accuracy`` of the covered part, and the rest all wrong, or all right."""
    low, high = accuracy if coverage else (0.0, 0.0)
    return _bounds(coverage * low, coverage * high + 1 - coverage, confidence, unseen=1 - coverage)


def bounds_of_labelled(sums: Sums, confidence: float) -> Bounds:
    """Bound with every unlabelled prediction wrong, or right: labels may be missing for any reason."""
    if not sums.predictions.any():
        return _bounds(0.0, 1.0, confidence, unseen=1.0)
    total = float(np.maximum(sums.predictions, sums.labels).sum())
    weight, squared = sums["calib_feedback_weight_total"], sums["calib_feedback_weight_squared"]
    right, heavy = sums["calib_feedback_correct_total"], sums["calib_feedback_correct_weighted"]
    low = _count(right, heavy) / total
    high = 1 - _count(weight - right, squared - heavy) / total
    return _bounds(low, max(high, low), confidence, unseen=max(1 - float(sums.labels.sum()) / total, 0.0))


def _count(weights: NDArray[np.float64], squares: NDArray[np.float64]) -> float:
    """Count the labels behind these sums of weights, at least: exact where a bin's are equal (Cauchy)."""
    on = squares > 1e-9
    return float((weights[on] ** 2 / squares[on]).sum())


def _bounds(low: float, high: float, confidence: float, *, unseen: float) -> Bounds:
    return Bounds((low, high), (confidence - high, confidence - low), unseen)
