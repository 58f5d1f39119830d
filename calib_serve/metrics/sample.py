"""The metrics of a sample of predictions: under any weights, and under any truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from calib_serve.bins import Bins, Edges, check_binning
from calib_serve.metrics.calibration import NODES, Ranked, Residuals, cumulative, on_grid, smoothed, tie_ends
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.samples import PerSample
from calib_serve.metrics.truths import Event

__all__ = ["Sample"]

Floats = NDArray[np.float64]

_BLOCK = 1 << 16  # weights processed together: intermediate arrays stay in a core's cache


class Sample:
    """Scores with everything that resampling does not change: bins, ties, grid nodes, residuals."""

    def __init__(self, scores: PerSample, bins: int, edges: Edges) -> None:
        check_binning(bins, edges)
        self.scores = scores
        self.bins = bins
        inner = np.searchsorted(scores.confidence, np.linspace(0, 1, bins + 1)[1:-1], side=edges)
        self.bin_ends = np.concatenate([[0], inner, [scores.n]])
        ends = tie_ends(scores.confidence)
        self.tie_ends = ends if len(ends) <= scores.n else slice(None)
        self.node, self.share = on_grid(scores.confidence)
        self._ranks, self._confidences = (
            cumulative(s)[self.tie_ends] for s in (np.ones(scores.n), scores.confidence)
        )
        self.residuals = Residuals.of(scores.probs, bins=bins, edges=edges)
        self.positive = Event(scores.positive, bins=bins, edges=edges) if scores.classes == 2 else None

    def tally(self) -> Bins:
        """The bins of the whole sample."""
        count = np.diff(self.bin_ends)
        starts = self.bin_ends[:-1][count > 0]
        sums = np.zeros((3, self.bins))
        said = self.scores.confidence
        for row, column in zip(sums, (said, self.scores.correct, said * (1 - said)), strict=True):
            row[count > 0] = np.add.reduceat(column, starts)
        return Bins(count.astype(np.float64), *sums)

    def code(self) -> NDArray[np.intp]:
        """The bin of each confidence (n,), which rises."""
        return np.repeat(np.arange(self.bins), np.diff(self.bin_ends))

    def positive_tally(self) -> Bins | None:
        """The bins of P(y = 1) against how often class 1 is true; None unless there are two classes."""
        return None if self.positive is None else self.positive.tally(self.scores.came_true)

    def values(self) -> dict[str, float]:
        """Every metric that is not a plain mean."""
        whole = np.ones((1, self.scores.n))
        found = {**self.errors(self.scores.correct[None]), **self.weighted(whole)}
        if self.positive is not None:
            found["positive_ece"] = self.positive.ece(self.scores.came_true[None])
        values = {name: float(value[0]) for name, value in found.items()}
        return {**values, "classwise_ece": self.residuals.ece(self.scores.labels)}

    def auroc_error(self) -> float:
        """The standard error of the whole sample's refinement AUROC."""
        rights = cumulative(self.scores.correct)
        ranks = np.arange(self.scores.n + 1.0)
        whole = Separation(rights=rights[self.tie_ends], wrongs=(ranks - rights)[self.tie_ends])
        return float(whole.auroc_error())

    def weighted(self, weights: Floats) -> dict[str, Floats]:
        """What is no error (r,), with predictions, by rising confidence, drawn weights (r, n) times."""
        found = _in_blocks(lambda part: self._weighted(weights[part]), weights.shape)
        if self.positive is not None:
            tallies = [self.positive.tally(self.scores.came_true, w) for w in weights]
            found["positive_noise_floor"] = np.array([tally.noise_floor() for tally in tallies])
        return found

    def errors(self, correct: Floats) -> dict[str, Floats]:
        """Calibration errors (r,) were predictions, by rising confidence, so often ``correct`` (r, n)."""
        return _in_blocks(lambda part: self._errors(correct[part]), correct.shape)

    def _weighted(self, weights: Floats) -> dict[str, Floats]:
        said = self.scores.confidence
        columns = (weights, weights * said, weights * self.scores.correct, weights * (said * (1 - said)))
        sums = [cumulative(s) for s in columns]
        tallies = np.stack([np.diff(s[:, self.bin_ends]) for s in sums], axis=1)
        floors = [Bins(*tally).noise_floor() for tally in tallies]
        seen, rights = sums[0][:, self.tie_ends], sums[2][:, self.tie_ends]
        return {
            "noise_floor": np.array(floors),
            **_separation(Separation(rights=rights, wrongs=seen - rights)),
        }

    def _errors(self, correct: Floats) -> dict[str, Floats]:
        rights = cumulative(correct)
        whole = self.tally()
        return {
            **_binned(whole.count, whole.confidence, np.diff(rights[:, self.bin_ends])),
            **self._equal_mass(rights[:, self.tie_ends]),
            "smooth_ece": self._smooth((self.scores.confidence - correct) / self.scores.n),
        }

    def _equal_mass(self, rights: Floats) -> dict[str, Floats]:
        drawn = [Ranked(self._ranks, self._confidences, right) for right in rights]
        return {
            "adaptive_ece": np.array([ranked.ece(self.bins) for ranked in drawn]),
            "sweep_ece": np.array([ranked.sweep_ece() for ranked in drawn]),
        }

    def _smooth(self, gaps: Floats) -> Floats:
        upper = gaps * self.share
        mass = np.zeros((len(gaps), NODES + 1))
        starts = np.flatnonzero(np.diff(self.node, prepend=-1))
        nodes = self.node[starts]
        mass[:, nodes] = np.add.reduceat(gaps - upper, starts, axis=1)
        mass[:, nodes + 1] += np.add.reduceat(upper, starts, axis=1)
        # Draws need fewer digits than the one error that is shown.
        return smoothed(mass) if len(mass) == 1 else smoothed(mass, tolerance=1e-6)


def _in_blocks(metrics: Callable[[slice], dict[str, Floats]], shape: tuple[int, ...]) -> dict[str, Floats]:
    step = max(1, _BLOCK // shape[1])
    parts = [metrics(slice(start, start + step)) for start in range(0, shape[0], step)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _binned(count: Floats, confidence: Floats, correct: Floats) -> dict[str, Floats]:
    """From counts and summed confidences (bins,) and how many are correct (r, bins); as ``Bins`` has them."""
    full = count > 0
    count, confidence, correct = count[full], confidence[full], correct[:, full]
    n, gaps = count.sum(), confidence - correct
    weight, accuracy = confidence / count / n, correct / count
    chance = accuracy * (1 - accuracy) / np.maximum(count - 1, 1)
    squares = (count * ((gaps / count) ** 2 - chance))[:, count > 1].sum(axis=1) / n
    return {
        "ece": np.abs(gaps).sum(axis=1) / n,
        "mce": (np.abs(gaps) / count).max(axis=1),
        "ace": (np.abs(gaps) / count).mean(axis=1),
        "overconfidence_error": np.maximum(gaps, 0) @ weight,
        "underconfidence_error": np.maximum(-gaps, 0) @ weight,
        "rms": np.sqrt((gaps**2 / count).sum(axis=1) / n),
        "rms_debiased": np.sqrt(np.maximum(squares, 0)),
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
