"""The metrics of a sample of predictions under any weights, for the bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.bins import Bins, Edges, check_binning
from calib_serve.metrics import smooth
from calib_serve.metrics.classwise import Residuals
from calib_serve.metrics.equal_mass import Ranked, cumulative, tie_ends
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.scores import Scores

__all__ = ["Sample"]

Floats = NDArray[np.float64]

_BLOCK = 1 << 16  # weights processed together: intermediate arrays stay in a core's cache


class Sample:
    """Scores with everything that resampling does not change: bins, ties, grid nodes, residuals."""

    def __init__(self, scores: Scores, bins: int, edges: Edges) -> None:
        check_binning(bins, edges)
        self.scores = scores
        self.bins = bins
        inner = np.searchsorted(scores.confidence, np.linspace(0, 1, bins + 1)[1:-1], side=edges)
        self.bin_ends = np.concatenate([[0], inner, [scores.n]])
        ends = tie_ends(scores.confidence)
        self.tie_ends = ends if len(ends) <= scores.n else slice(None)
        self.node, self.share = smooth.on_grid(scores.confidence)
        self.rank = np.empty(scores.n, np.intp)
        self.rank[scores.order] = np.arange(scores.n)
        self.residuals = Residuals.of(scores.probs, bins=bins, edges=edges)

    def tally(self) -> Bins:
        """The bins of the whole sample."""
        count = np.diff(self.bin_ends)
        starts = self.bin_ends[:-1][count > 0]
        sums = np.zeros((2, self.bins))
        for row, column in zip(sums, (self.scores.confidence, self.scores.correct), strict=True):
            row[count > 0] = np.add.reduceat(column, starts)
        return Bins(count.astype(np.float64), *sums)

    def values(self) -> dict[str, float]:
        """Every metric that is not a plain mean."""
        found = self._top_label(np.ones((1, self.scores.n)), self.scores.correct)
        values = {name: float(value[0]) for name, value in found.items()}
        return {**values, "classwise_ece": self.residuals.ece(self.scores.labels)}

    def auroc_error(self) -> float:
        """The standard error of the whole sample's refinement AUROC."""
        rights = cumulative(self.scores.correct)
        ranks = np.arange(self.scores.n + 1.0)
        whole = Separation(rights=rights[self.tie_ends], wrongs=(ranks - rights)[self.tie_ends])
        return float(whole.auroc_error())

    def metrics(self, weights: Floats) -> dict[str, Floats]:
        """These metrics (r,) with predictions, by rising confidence, drawn weights (r, n) times."""
        found = _in_blocks(lambda part: self._top_label(weights[part], self.scores.correct), weights.shape)
        classwise = self.residuals.resampled(self.scores.labels, weights[:, self.rank])
        return {**found, "classwise_ece": classwise}

    def relabelled(self, labels: NDArray[np.intp]) -> dict[str, Floats]:
        """These metrics (r,) for other labels (r, n), by row of the probabilities."""
        correct = self.scores.predicted == labels[:, self.scores.order]
        once = np.ones((1, self.scores.n))
        found = _in_blocks(lambda part: self._top_label(once, correct[part]), labels.shape)
        return {**found, "classwise_ece": np.array([self.residuals.ece(y) for y in labels])}

    def _top_label(self, weights: Floats, correct: NDArray[Any]) -> dict[str, Floats]:
        """Top-label metrics of weights (r, n) and correct (n,), or of weights (1, n) and correct (r, n)."""
        right = weights * correct
        confidence = weights * self.scores.confidence
        gaps = (confidence - right) / self.scores.n
        sums = np.broadcast_arrays(*(cumulative(s) for s in (weights, confidence, right)))
        ranks = [s[:, self.tie_ends] for s in sums]
        return {
            **_binned(*(np.diff(s[:, self.bin_ends]) for s in sums)),
            **_equal_mass(ranks, self.bins),
            **_separation(Separation(rights=ranks[2], wrongs=ranks[0] - ranks[2])),
            "smooth_ece": self._smooth(gaps),
        }

    def _smooth(self, gaps: Floats) -> Floats:
        upper = gaps * self.share
        mass = np.zeros((len(gaps), smooth.NODES + 1))
        starts = np.flatnonzero(np.diff(self.node, prepend=-1))
        nodes = self.node[starts]
        mass[:, nodes] = np.add.reduceat(gaps - upper, starts, axis=1)
        mass[:, nodes + 1] += np.add.reduceat(upper, starts, axis=1)
        return smooth.smoothed(mass)


def _in_blocks(metrics: Callable[[slice], dict[str, Floats]], shape: tuple[int, ...]) -> dict[str, Floats]:
    step = max(1, _BLOCK // shape[1])
    parts = [metrics(slice(start, start + step)) for start in range(0, shape[0], step)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _binned(count: Floats, confidence: Floats, correct: Floats) -> dict[str, Floats]:
    drawn = [Bins(*sums) for sums in zip(count, confidence, correct, strict=True)]
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


def _equal_mass(ranks: list[Floats], bins: int) -> dict[str, Floats]:
    drawn = [Ranked(*sums) for sums in zip(*ranks, strict=True)]
    return {
        "adaptive_ece": np.array([ranked.ece(bins) for ranked in drawn]),
        "sweep_ece": np.array([ranked.sweep_ece() for ranked in drawn]),
    }


def _separation(by_confidence: Separation) -> dict[str, Floats]:
    aurc = by_confidence.aurc()
    return {
        "refinement_auroc": by_confidence.auroc(),
        "aupr_correct": by_confidence.aupr_right(),
        "aupr_incorrect": by_confidence.aupr_wrong(),
        "aurc": aurc,
        "e_aurc": aurc - by_confidence.best_aurc(),
    }
