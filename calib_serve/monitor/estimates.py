"""Live estimates of a model: calibration and accuracy of all served predictions, from some labels.

Which predictions get a label is rarely chance alone: a queue of unsure ones is reviewed, others are sampled.
So bins are weighed by the predictions served in them, which are all counted. A labelled prediction is known
and counts as itself; the unlabelled rest of its bin is estimated by labels, each weighed by the chance with
which it was asked for (``standing``). So with all labels in, each number is a plain count, whatever the
weights. What no label covers is not guessed: estimates are of the covered part, and ``bounds`` say what the
rest could change.

The counts of a window are certain; intervals are about the process that it is a sample of, as the next window
is: with all labels in they are those of a sample of that size.
The verdict on them is that of ``calib_serve.metrics``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError
from calib_serve.metrics import quantile_of, student_quantile
from calib_serve.monitor._bin_gaps import BinGaps, Noise, bin_gaps, noisy_error
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

    ``covered``: it holds enough labels, or all. Confidence and accuracy are of the ``counted`` ones: all that
    were served in a covered bin, else the labelled ones. ``noise``: the variance that the gap of a calibrated
    model has. NaN without labels.
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
    counted: float
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
        coverage: Share of the predictions in bins with enough labels, or with a label.
        confidence: Mean confidence of all predictions, without noise.
        covered_confidence: The same of these covered ones.
        accuracy: Accuracy of the covered ones.
        gap: Mean confidence minus accuracy of the covered ones.
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


def estimate(sums: Sums, *, groups: Sequence[Sums] = (), missing: Missing = "chance") -> Estimates:
    """Estimate the calibration of all served predictions from the labels of some.

    Bins are weighed by the predictions served, P_b = N_b / N, or by the weights of labels where no
    predictions are counted (``weighed_by`` says which).

    Args:
        sums: Sums of predictions and labels.
        groups: Sums of up to 32 random groups of the labels that belong together (those of one patient or
            session fall into one): with them standard errors hold although such labels move together.
        missing: "chance" where labels are missing by confidence or by draw; "unknown" where they may be
            missing for what the outcome was: then only ``worst`` holds for sure.

    >>> c = np.repeat([0.75, 0.95], 100)
    >>> y = np.tile(np.repeat([1.0, 0.0], [70, 30]), 2)
    >>> found = estimate(Sums.served(c) + Sums.labelled(c, y))
    >>> round(found.gap.value, 3), round(found.gap.low, 2), round(found.gap.high, 2)
    (0.15, 0.09, 0.22)
    """
    if missing not in ("chance", "unknown"):
        raise InputError(f"missing must be 'chance' or 'unknown', got {missing!r}")
    gaps = bin_gaps(sums, groups)
    counted = gaps.weighed_by == "predictions"
    total, labels = float(gaps.served.sum()), float(gaps.labels.sum())
    part, coverage = _covered(gaps)
    worst = _bounds_of_labelled(gaps)
    accuracy, gap = part.accuracy(worst.accuracy), part.gap(worst.gap)
    debiased, unclipped = part.ece(gap)
    seen = np.where(np.isfinite(gaps.gap), gaps.served, 0.0)  # of bins that hold any label
    return Estimates(
        weighed_by=gaps.weighed_by,
        missing=missing,
        served=total if counted else 0.0,
        labels=labels,
        effective=part.effective,
        label_share=labels / total if total and counted else math.nan,
        coverage=coverage,
        confidence=worst.confidence,
        covered_confidence=_mean(gaps.confidence, part.share),
        accuracy=accuracy,
        gap=gap,
        ece=_within(_mean(np.abs(gaps.gap), seen), *_ece_bounds(gaps)),
        debiased_ece=debiased,
        unclipped_ece=unclipped,
        noise_floor=_mean(
            np.sqrt(2 / math.pi * gaps.calibrated * np.nan_to_num(part.design_effect, nan=1)), seen
        ),
        groups=gaps.groups,
        design_effect=part.design_effect,
        effect=part.effect,
        bounds=_bounds_of_covered((accuracy.low, accuracy.high), coverage, worst.confidence),
        worst=worst,
        bins=_rows(gaps),
    )


def estimated_gap(sums: Sums) -> Number:
    """Estimate the gap alone: a small part of the work, for the many slices of a version."""
    gaps = bin_gaps(sums)
    return _covered(gaps)[0].gap(_bounds_of_labelled(gaps).gap)


def estimated_accuracy(sums: Sums) -> Number:
    """The accuracy that ``estimate`` finds, alone: for the clauses of contracts, over many windows."""
    gaps = bin_gaps(sums)
    return _covered(gaps)[0].accuracy(_bounds_of_labelled(gaps).accuracy)


def _covered(gaps: BinGaps) -> tuple[_Part, float]:
    """The covered predictions, and their share."""
    total, counted = float(gaps.served.sum()), float(gaps.counted.sum())
    return _Part(gaps, gaps.counted / (counted or 1.0)), counted / total if total else 0.0


@dataclass(frozen=True, eq=False)
class _Part:
    """What is counted in each bin, and its ``share`` (bins,) of all of that."""

    gaps: BinGaps
    share: Floats

    @property
    def empty(self) -> bool:
        return not self.share.any()

    @property
    def design_effect(self) -> float:
        alone = float(self.share**2 @ self.gaps.gap_noise.independent)
        return max(self._variance(self.gaps.gap_noise) / alone, 1.0) if alone > 0 else math.nan

    @property
    def effective(self) -> float:
        if self.empty:
            return 0.0
        on = self.share > 0
        alone = self.gaps.effective[on] * self.gaps.gap_noise.inflation
        return 1 / float((self.share[on] ** 2 / alone).sum()) / self.design_effect

    @property
    def effect(self) -> float:
        if not self.gaps.groups:
            return 1.0
        few = student_quantile(0.95, max(self.gaps.groups - 1, 1)) / quantile_of(0.95)
        return self.design_effect * few**2

    def accuracy(self, allowed: tuple[float, float]) -> Number:
        # Where few predictions are wrong, the true number may be larger than seen, but hardly smaller.
        lean = np.nan_to_num(2 * self.gaps.accuracy - 1)
        return self.number(self.gaps.accuracy, self.gaps.accuracy_noise, -lean, least=0.0, allowed=allowed)

    def gap(self, allowed: tuple[float, float]) -> Number:
        lean = np.nan_to_num(2 * self.gaps.accuracy - 1)
        return self.number(self.gaps.gap, self.gaps.gap_noise, lean, least=-1.0, allowed=allowed)

    def number(
        self,
        means: Floats,
        noise: Noise,
        lean: Floats,
        *,
        least: float,
        allowed: tuple[float, float],
    ) -> Number:
        """The mean over bins, in [least, 1]. ``lean`` (bins,): how its variance changes with the mean.

        The interval, of the process, holds each truth from which the estimate is t of that truth's standard
        errors away, as Wilson's (1927) does for one share. ``allowed``: where known labels let the mean of
        all that was served be; ends lie no further out than chance takes so many (Hoeffding 1963).
        """
        if self.empty:
            return NOT_KNOWN
        on, gaps = self.share > 0, self.gaps
        value, variance = _within(_mean(means, self.share), *allowed), self._variance(noise)
        # It is chance as well how many predictions fall into each bin.
        drawn = self.share[on] / gaps.served.sum() * noise.inflation
        if gaps.weighed_by == "labels":
            drawn = self.share[on] ** 2 / gaps.effective[on]
        variance += float((drawn * (means[on] - value) ** 2).sum())
        t, n = student_quantile(0.95, max(self._freedom(noise), 1.0)), np.maximum(gaps.effective, 1.0)
        moved = float((self.share**3 * np.diag(noise.covariance) * lean / n).sum()) / max(variance, 1e-300)
        half, shift = t * math.sqrt(variance + (t * moved / 2) ** 2), t * t * moved / 2
        reach = (1 - least) * math.sqrt(math.log(2 / 0.05) / 2 * noise.inflation / gaps.served.sum())
        low = max(value + shift - half, least, allowed[0] - reach)
        high = min(value + shift + half, 1.0, allowed[1] + reach)
        return Number(value, math.sqrt(variance), min(low, value), max(high, value))

    def ece(self, gap: Number) -> tuple[Number, float]:
        """The debiased ECE, and its value before it is clipped at 0."""
        if self.empty:
            return NOT_KNOWN, math.nan
        on, noise = self.share > 0, self.gaps.gap_noise
        t = student_quantile(0.95, max(self._freedom(noise), 1.0))
        seen = noisy_error(self.gaps.gap[on], noise.covariance[np.ix_(on, on)], self.share[on], z=t)
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
        doubt = float((rest**2 / np.maximum(self.gaps.effective, 1.0)).sum())
        doubt += grouped**2 / max(self.gaps.groups - 1, 1)
        return self._variance(noise) ** 2 / doubt if doubt > 0 else math.inf


def _within(value: float, low: float, high: float) -> float:
    """The value, no further out than the ends; NaN stays NaN."""
    return value if math.isnan(value) else min(max(value, low), high)


def _mean(values: Floats, share: Floats) -> float:
    on = share > 0
    return float(values[on] @ share[on] / share[on].sum()) if on.any() else math.nan


def _wilson(p: Floats, n: Floats) -> tuple[Floats, Floats]:
    """Intervals (low, high) of shares p of n trials, of 95 % (Wilson 1927); NaN of no trials."""
    z = 1.96
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return np.maximum(middle - half, 0), np.minimum(middle + half, 1)


def _rows(gaps: BinGaps) -> tuple[BinRow, ...]:
    edges = np.linspace(0, 1, len(gaps.served) + 1)
    noise = gaps.gap_noise
    alone = np.maximum(noise.independent, 1e-18)
    effective = gaps.effective * noise.inflation / np.maximum(np.diag(noise.covariance) / alone, 1.0)
    low, high = _wilson(gaps.accuracy, effective)
    counted = gaps.served, gaps.labels, gaps.effective, gaps.confidence, gaps.accuracy
    columns = (edges[:-1], edges[1:], *counted, low, high, gaps.covered, gaps.counted, gaps.calibrated)
    return tuple(BinRow(*row) for row in zip(*(one.tolist() for one in columns), strict=True))


@dataclass(frozen=True)
class Bounds:
    """Bounds of accuracy and gap of all served predictions under any unseen outcomes (Manski 1989).

    ``unseen``: the share of predictions whose outcomes are put at all wrong and at all right.
    ``confidence``: the mean one of all predictions.
    """

    accuracy: tuple[float, float]
    gap: tuple[float, float]
    unseen: float
    confidence: float = math.nan

    def says(self, event: str = "") -> str:
        """The bounds in a sentence: of the share of an ``event``, where one is named, else of accuracy.

        >>> Bounds((0.8, 0.9), (-0.05, 0.05), unseen=0.1).says()
        'With the 10 % of predictions not known all wrong, or all right, accuracy is 80.0 or 90.0 %.'
        """
        low, high = (100 * x for x in self.accuracy)
        share = f"{100 * self.unseen:.0f} %"
        what = f"the share of {event}" if event else "accuracy"
        if not self.accuracy[1] - self.accuracy[0] <= 0.5:  # also NaN
            return f"Outcomes of {share} of the predictions are not known: {what} could be nearly anything."
        every = f"not {event}, or all {event}" if event else "wrong, or all right"
        return f"With the {share} of predictions not known all {every}, {what} is {low:.1f} or {high:.1f} %."


def _bounds_of_covered(accuracy: tuple[float, float], coverage: float, confidence: float) -> Bounds:
    """Bound by the interval ``accuracy`` of the covered part, and the rest all wrong, or all right."""
    low, high = accuracy if coverage else (0.0, 0.0)
    return _bounds(coverage * low, coverage * high + 1 - coverage, confidence, unseen=1 - coverage)


def _bounds_of_labelled(gaps: BinGaps) -> Bounds:
    """Bound with every unlabelled prediction wrong, or right: labels may be missing for any reason."""
    confidence, total = _mean(gaps.said, gaps.served), float(gaps.served.sum())
    if gaps.weighed_by == "labels" or not total:
        return _bounds(0.0, 1.0, confidence, unseen=1.0)
    labels, right = float(gaps.labels.sum()), float(gaps.known.sum())
    return _bounds(right / total, 1 - (labels - right) / total, confidence, unseen=1 - labels / total)


def _ece_bounds(gaps: BinGaps) -> tuple[float, float]:
    """Bound the ECE of all predictions likewise, bin by bin."""
    on = gaps.served > 0
    if gaps.weighed_by == "labels" or not on.any():
        return 0.0, 1.0
    served, labels, right, said = (one[on] for one in (gaps.served, gaps.labels, gaps.known, gaps.said))
    over, under = said - right / served, said - 1 + (labels - right) / served
    least = np.maximum(np.maximum(under, -over), 0.0)
    return _mean(least, served), _mean(np.maximum(np.abs(over), np.abs(under)), served)


def _bounds(low: float, high: float, confidence: float, *, unseen: float) -> Bounds:
    return Bounds((low, high), (confidence - high, confidence - low), unseen, confidence)
