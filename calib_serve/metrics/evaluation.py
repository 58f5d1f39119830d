"""Every metric of (probs, labels) at once, each with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.bins import Bins, Edges, bin_index
from calib_serve.errors import InputError
from calib_serve.metrics import smooth
from calib_serve.metrics.classwise import Residuals
from calib_serve.metrics.equal_mass import Ranked
from calib_serve.metrics.intervals import (
    Estimate,
    bootstrap_interval,
    mean_interval,
    quantile_of,
    resamples,
    wilson_interval,
)
from calib_serve.metrics.logits import softmax
from calib_serve.metrics.proper import checked_logits, nll_per_sample
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.scores import Scores, row_blocks

__all__ = ["Evaluation", "evaluate", "evaluate_logits"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` found: counts, the bins, and an Estimate of each metric.

    Fractions, not percent; ``nll`` and ``entropy`` in nats.
    """

    n: int
    classes: int
    bins: Bins
    accuracy: Estimate
    mean_confidence: Estimate
    signed_gap: Estimate
    ece: Estimate
    adaptive_ece: Estimate
    classwise_ece: Estimate
    mce: Estimate
    ace: Estimate
    overconfidence_error: Estimate
    underconfidence_error: Estimate
    rms: Estimate
    rms_debiased: Estimate
    sweep_ece: Estimate
    smooth_ece: Estimate
    noise_floor: Estimate
    nll: Estimate
    brier: Estimate
    brier_top_label: Estimate
    entropy: Estimate
    refinement_auroc: Estimate
    aupr_correct: Estimate
    aupr_incorrect: Estimate
    aurc: Estimate
    e_aurc: Estimate

    def estimates(self) -> dict[str, Estimate]:
        """The metrics by name."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: e for name, e in named.items() if isinstance(e, Estimate)}

    def as_dict(self) -> dict[str, Any]:
        """For JSON: n, classes, and each metric as {value, low, high}."""
        counts = {"n": self.n, "classes": self.classes}
        return {**counts, **{name: e.as_dict() for name, e in self.estimates().items()}}


def evaluate(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    edges: Edges = "right",
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """All metrics of probabilities (n, K) and class ids (n,), with intervals of the given level.

    Means and shares have analytic intervals; the others are bootstrapped from ``replicates``
    resamples, and have none when that is 0.

    >>> e = evaluate([[0.7, 0.3], [0.6, 0.4]], [0, 1], bins=10, replicates=0)
    >>> e.accuracy.value, e.ece.value
    (0.5, 0.45)
    """
    scores = Scores.of(probs, labels)
    return _evaluate(scores, bins, edges, replicates, level, seed)


def evaluate_logits(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    edges: Edges = "right",
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """As ``evaluate``, of logits (n, K): the NLL stays finite where a probability rounds to 0."""
    z = checked_logits(logits)
    scores = Scores.of(softmax(z), labels, nll=nll_per_sample(z, labels))
    return _evaluate(scores, bins, edges, replicates, level, seed)


def _evaluate(
    scores: Scores, bins: int, edges: Edges, replicates: int, level: float, seed: int
) -> Evaluation:
    quantile_of(level)  # refuses a level that is none
    if replicates < 0:
        raise InputError(f"replicates must be 0 or more, got {replicates}")
    sample = Sample(scores, bins, edges)
    value = {name: float(v[0]) for name, v in sample.metrics(np.ones((1, scores.n))).items()}
    blocks = [sample.metrics(drawn) for drawn in resamples(scores.n, replicates, seed=seed)]
    found = _analytic(scores, level)
    for name in value.keys() - found.keys():
        drawn = np.concatenate([block[name] for block in blocks]) if blocks else np.empty(0)
        highest = 1.0 if name != "rms_debiased" else math.inf
        found[name] = bootstrap_interval(value[name], drawn, level=level, lowest=0.0, highest=highest)
    return Evaluation(n=scores.n, classes=scores.classes, bins=sample.tally(), **found)


def _analytic(scores: Scores, level: float) -> dict[str, Estimate]:
    return {
        "accuracy": wilson_interval(float(scores.correct.sum()), scores.n, level=level),
        "mean_confidence": mean_interval(scores.confidence, level=level),
        "signed_gap": mean_interval(scores.confidence - scores.correct, level=level),
        "nll": mean_interval(scores.nll, level=level),
        "brier": mean_interval(scores.brier, level=level),
        "brier_top_label": mean_interval((scores.confidence - scores.correct) ** 2, level=level),
        "entropy": mean_interval(scores.entropy, level=level),
    }


class Sample:
    """Scores with all that resampling leaves unchanged: bins, ties, grid nodes, residuals.

    ``metrics(weights)`` takes how often each prediction was drawn (r, n) and gives each metric (r,).
    """

    def __init__(self, scores: Scores, bins: int, edges: Edges) -> None:
        self.scores = scores
        self.bins = bins
        self.columns = np.stack([np.ones(scores.n), scores.confidence, scores.correct])
        self.in_bin = bin_index(np.minimum(scores.confidence, 1), bins=bins, edges=edges)
        self.node, self.share = smooth.on_grid(scores.confidence)
        self.listed = Residuals.of(scores.probs, scores.labels, bins=bins, edges=edges)

    def tally(self) -> Bins:
        """The bins of the whole sample."""
        return Bins(*(_sums(c[None], self.in_bin, self.bins)[0] for c in self.columns))

    def metrics(self, weights: Floats) -> dict[str, Floats]:
        """Every metric that needs more than a mean."""
        weighted = [weights * column for column in self.columns]
        return {
            **self._binned(weighted),
            **self._ranked(weighted),
            "smooth_ece": self._smooth(weighted),
            "classwise_ece": self._classwise(weights),
        }

    def _binned(self, weighted: list[Floats]) -> dict[str, Floats]:
        sums = [_sums(w, self.in_bin, self.bins) for w in weighted]
        drawn = [Bins(*row) for row in zip(*sums, strict=True)]
        return {
            "ece": np.array([b.ece() for b in drawn]),
            "mce": np.array([b.mce() for b in drawn]),
            "ace": np.array([b.ace() for b in drawn]),
            "overconfidence_error": np.array([b.overconfidence_error() for b in drawn]),
            "underconfidence_error": np.array([b.underconfidence_error() for b in drawn]),
            "rms": np.array([b.l2() for b in drawn]),
            "rms_debiased": np.sqrt([max(b.debiased_l2_squared(), 0) for b in drawn]),
            "noise_floor": np.array([b.noise_floor() for b in drawn]),
        }

    def _ranked(self, weighted: list[Floats]) -> dict[str, Floats]:
        mass, confidence, right = (np.add.reduceat(w, self.scores.ties, axis=1) for w in weighted)
        ranked = [Ranked.of_groups(*row) for row in zip(mass, confidence, right, strict=True)]
        separation = Separation(right, mass - right)
        return {
            "adaptive_ece": np.array([r.ece(self.bins) for r in ranked]),
            "sweep_ece": np.array([r.sweep_ece() for r in ranked]),
            "refinement_auroc": separation.auroc(),
            "aupr_correct": separation.aupr_right(),
            "aupr_incorrect": separation.aupr_wrong(),
            "aurc": separation.aurc(),
            "e_aurc": separation.e_aurc(),
        }

    def _smooth(self, weighted: list[Floats]) -> Floats:
        residual = (weighted[1] - weighted[2]) / self.scores.n
        size = smooth.NODES + 1
        mass = _sums(residual * (1 - self.share), self.node, size)
        return smooth.smooth(mass + _sums(residual * self.share, self.node + 1, size))

    def _classwise(self, weights: Floats) -> Floats:
        n, classes = self.scores.n, self.scores.classes
        total = np.zeros((len(weights), classes))
        ordered = self.scores.probs[self.scores.order]
        for rows, block in row_blocks(ordered):
            block[np.arange(len(block)), self.scores.labels[self.scores.order[rows]]] -= 1
            total += weights[:, rows] @ block
        rank = np.empty(n, np.intp)
        rank[self.scores.order] = np.arange(n)
        drawn = weights[:, rank[self.listed.row]] * self.listed.residual
        above = _sums(drawn, self.listed.code, classes * self.bins).reshape(-1, classes, self.bins)
        above[:, :, 0] += total - above.sum(axis=2)
        return np.asarray(np.abs(above).sum(axis=(1, 2)) / (n * classes))


def _sums(values: Floats, group: NDArray[np.intp], size: int) -> Floats:
    """Sums (r, size) of values (r, n) whose ``group`` (n,) never falls."""
    sums = np.zeros((len(values), size))
    if len(group):
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        sums[:, group[starts]] = np.add.reduceat(values, starts, axis=1)
    return sums
