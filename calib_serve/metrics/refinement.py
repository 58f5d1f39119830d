"""Refinement: how well confidence separates right from wrong predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Codes, Floats, some_of
from calib_serve.metrics.calibration import cumulative, running, tie_ends
from calib_serve.metrics.intervals import Estimate, share_interval
from calib_serve.metrics.measured import STEPS_OF_AN_INFLUENCE
from calib_serve.metrics.samples import mean_error, top_label


@dataclass(frozen=True, eq=False)
class Separation:
    """Count right and wrong predictions (..., g + 1) at or below each distinct confidence.

    In rising order and from 0; leading axes are replicates. Equal confidences are one step: ties count half.
    Of rows that weigh, counts are sums of weights. A run of the steps of more predictions has all of these in
    ``whole``, and areas that add up over the runs.

    Args:
        rights: Right predictions, or the sum of their weights.
        wrongs: Wrong predictions, or the sum of their weights.
        whole: All right and all wrong ones (..., 1); None: these.
    """

    rights: Floats
    wrongs: Floats
    whole: tuple[Floats, Floats] | None = None

    @classmethod
    def of(cls, score: ArrayLike, positive: ArrayLike, weight: ArrayLike = 1.0) -> Separation:
        """Rank samples by score.

        Args:
            score: (n,), in any order.
            positive: Whether each counts as right (n,).
            weight: One, or that of each sample (n,), or of each replicate (..., n).
        """
        s, y = np.asarray(score, np.float64), np.asarray(positive, np.float64)
        order = np.argsort(s)
        ends, w = tie_ends(s[order]), np.broadcast_to(weight, (*np.shape(weight)[:-1], len(s)))[..., order]
        rights, wrongs = (cumulative(w * part)[..., ends] for part in (y[order], 1 - y[order]))
        return cls(rights, wrongs)

    @property
    def _all(self) -> tuple[Floats, Floats]:
        return self.whole or (self.rights[..., -1:], self.wrongs[..., -1:])

    @cached_property
    def right(self) -> Floats:
        """Right predictions at each distinct confidence (..., g)."""
        return np.diff(self.rights)

    @cached_property
    def wrong(self) -> Floats:
        """Wrong predictions at each distinct confidence (..., g)."""
        return np.diff(self.wrongs)

    def auroc(self) -> Floats:
        """P(right above wrong) + P(tie) / 2; NaN when either is missing."""
        pairs = _dot(self.right, self.wrongs[..., 1:] + self.wrongs[..., :-1]) / 2
        rights, wrongs = self._all
        return _ratio(pairs, (rights * wrongs)[..., 0])

    def placements(self) -> tuple[Floats, Floats]:
        """The shares of wrong and of right predictions below each confidence (..., g); ties count half."""
        right, wrong = self._all
        return (
            _ratio(self.wrongs[..., 1:] + self.wrongs[..., :-1], 2 * wrong),
            _ratio(self.rights[..., 1:] + self.rights[..., :-1], 2 * right),
        )

    def influence(self) -> tuple[Floats, Floats]:
        """A right and a wrong prediction's influence on the AUROC at each confidence (g,) (DeLong 1988)."""
        wrong_below, right_below = self.placements()
        area = self.auroc()
        return (
            _ratio(wrong_below - area, self.rights[..., -1:]),
            _ratio(1 - right_below - area, self.wrongs[..., -1:]),
        )

    def influences(self) -> tuple[dict[str, tuple[Floats, Floats]], dict[str, float]]:
        """How a right and a wrong prediction at each confidence (g,) move each area, by its metric's name.

        In units of its share of all (Hampel 1974); NaN where the area is. With what each average precision
        gains because a prediction counts at its own rank.
        """
        right, wrong, rights, wrongs = self.right, self.wrong, self.rights[-1], self.wrongs[-1]
        n, mass, share = rights + wrongs, right + wrong, float(rights / (rights + wrongs))
        # One over the mass above and below each confidence, and the errors there; 0 where nothing weighs.
        seen = self.rights + self.wrongs
        above, below = (_ratio(np.ones_like(of), of, empty=0.0) for of in (n - seen[:-1], seen[1:]))
        risk, late = (wrongs - self.wrongs[:-1]) * above, self.wrongs[1:] * below
        # A prediction moves the risk at its own confidence, and at each that is lower.
        passed, errors = np.cumsum(mass * above), np.cumsum(mass * above * risk)
        of_right = risk - errors - float(mass @ risk) / n
        slope = math.log(share) if share > 0 else 0.0  # of the best order's AURC along the accuracy
        hits, of_hits = (np.cumsum(right * above * part) for part in (1, 1 - risk))
        misses, of_misses = (np.cumsum((wrong * below * part)[::-1])[::-1] for part in (1, late))
        won, lost = self.influence()
        to_right, to_wrong = (n / part if part else math.nan for part in (rights, wrongs))
        first, last = 1 - risk - self.aupr_right(), late - self.aupr_wrong()
        moved = {
            "refinement_auroc": (n * won, n * lost),
            "aupr_correct": (to_right * (first + hits - of_hits), -to_right * of_hits),
            "aupr_incorrect": (-to_wrong * of_misses, to_wrong * (last + misses - of_misses)),
            "aurc": (of_right, of_right + passed),
            "e_aurc": (of_right - slope * (1 - share), of_right + passed + slope * share),
        }
        gains = {
            "aupr_correct": float(_ratio(right @ (risk * above), rights)),
            "aupr_incorrect": float(_ratio(wrong @ ((1 - late) * below), wrongs)),
        }
        return moved, gains

    def auroc_error(self) -> Floats:
        """The AUROC's standard error (DeLong 1988); NaN with fewer than two right or wrong predictions."""
        return _delong_error(self.placed(), self.rights[..., -1], self.wrongs[..., -1])

    def placed(self) -> Floats:
        """The sums (4, ...) of shares and of squared shares of ``placements``, over right and wrong ones."""
        parts = zip((self.right, self.wrong), self.placements(), strict=True)
        return np.stack([_dot(size, x) for size, share in parts for x in (share, share**2)])

    def aupr_right(self) -> Floats:
        """Average precision of finding right predictions from the highest confidence down."""
        rights, wrongs = self._all
        found = _precisions(self.right, rights - self.rights[..., :-1], wrongs - self.wrongs[..., :-1])
        return _ratio(found, rights[..., 0])

    def aupr_wrong(self) -> Floats:
        """Average precision of finding wrong predictions from the lowest confidence up."""
        found = _precisions(self.wrong, self.wrongs[..., 1:], self.rights[..., 1:])
        return _ratio(found, self._all[1][..., 0])

    def aurc(self) -> Floats:
        """Mean over coverages i / n of the error among the i most confident predictions (Geifman 2018)."""
        rights, wrongs = self._all
        n = rights + wrongs
        above = n - (self.rights + self.wrongs)
        steps = -np.diff(_harmonic(above))
        # Within a tie errors come evenly: sum_j (E + j e / m) / (C + j) has this closed form.
        rate = _ratio(self.wrong, self.right + self.wrong, empty=0.0)
        rate *= above[..., 1:]  # in place: of millions of rows each array counts
        risk = _dot(wrongs - self.wrongs[..., 1:] - rate, steps) + self.wrong.sum(axis=-1)
        return np.asarray(risk / n[..., 0])

    def best_aurc(self) -> Floats:
        """AURC if all errors came last, as an exact sum.

        The paper's r + (1 - r) ln(1 - r) is its limit.
        """
        right, errors = (part[..., 0] for part in self._all)
        n = right + errors
        return np.asarray((errors - right * (_harmonic(n) - _harmonic(right))) / n)

    def areas(self) -> dict[str, Floats]:
        """Every area by the name of its metric."""
        aurc = self.aurc()
        return {
            "refinement_auroc": self.auroc(),
            "aupr_correct": self.aupr_right(),
            "aupr_incorrect": self.aupr_wrong(),
            "aurc": aurc,
            "e_aurc": aurc - self.best_aurc(),
        }


def auroc_influence(score: Floats, positive: Floats, weight: Floats) -> tuple[float, Floats]:
    """The AUROC, and the influence (n,) of each sample on it, of mean 0; NaN where all are of one kind.

    Args:
        score: (n,), in any order.
        positive: 1 or 0 (n,): how well the score tells these apart.
        weight: (n,).
    """
    ranks, place = Separation.of(score, positive, weight), np.unique(score, return_inverse=True)[1]
    won, lost = (one[place] * weight.sum() for one in ranks.influence())
    return float(ranks.auroc()), np.where(positive > 0, won, lost)


def ranked_areas(
    confidence: Floats, right: NDArray[Any], weight: Floats | None
) -> tuple[dict[str, float], float, Separation, Codes]:
    """The areas of predictions (n,), ranked by rising confidence, and the AUROC's error.

    With the counts at some of their steps, and the predictions at or below each.
    """
    one = np.broadcast_to(1.0, len(confidence))
    w = one if weight is None else weight

    def runs() -> Iterator[Floats]:
        return running(confidence, lambda at: (one[at], w[at] * right[at], w[at] * (1 - right[at])))

    steps = 0
    for run in runs():
        steps, (_, *whole) = steps + run.shape[1] - 1, run[:, -1:]
    # Near confidences are moved alike: of millions of rows one in many tells.
    kept = np.append(some_of(steps, STEPS_OF_AN_INFLUENCE), steps)
    kept[0] = 0
    parts, few, first = np.zeros(9), np.zeros((3, len(kept))), 0
    for run in runs():
        part = Separation(run[1], run[2], (whole[0], whole[1]))
        parts += [*part.placed(), *part.areas().values()]
        among = slice(*np.searchsorted(kept, [first + 1, first + run.shape[1]]))
        few[:, among] = run[:, kept[among] - first]
        first += run.shape[1] - 1
    some = Separation(few[1], few[2])
    areas = dict(zip(some.areas(), parts[4:].tolist(), strict=True))
    areas["e_aurc"] = areas["aurc"] - float(some.best_aurc())
    error = float(_delong_error(parts[:4], some.rights[-1], some.wrongs[-1]))
    return areas, error, some, few[0].astype(np.intp)


def area_intervals(
    confidence: Floats, right: NDArray[Any], weight: Floats | None, groups: Codes | None, *, level: float
) -> dict[str, Estimate]:
    """Each area of ranked predictions with its interval, symmetric in its log-odds.

    By the influence of each prediction, or group; the AUROC of independent ones by DeLong's error. Student's,
    over the fewer of right and wrong predictions: of few of them the influence knows its spread badly. The
    ``confidence`` (n,) rises; None: all weigh the same, and each is its own group.
    """
    areas, delong, few, ends = ranked_areas(confidence, right, weight)
    moved, optimism = few.influences()
    size = np.append(few.right, few.wrong).astype(np.intp)
    n, rights, alike = len(right), int(np.count_nonzero(right)), weight is None and groups is None
    step = None if alike else np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    units = math.inf if groups is None else float(groups.max()) + 1
    found = {}
    for name, (won, lost) in moved.items():
        if step is not None:
            plain = mean_error(np.where(right, won[step], lost[step]), groups, weight)
        else:
            plain = math.sqrt(np.cov(np.append(won, lost), fweights=size) / n) if n > 1 else math.nan
        freedom = max(min(units, float(rights), float(n - rights)) - 1, 1.0)
        error = math.hypot(plain, optimism.get(name, 0.0)) * math.sqrt(1 + 1 / freedom)
        if name == "refinement_auroc" and groups is None:
            freedom, error = math.inf, delong if alike else plain
        found[name] = share_interval(areas[name], error, level=level, freedom=freedom)
    return found


def _harmonic(n: Floats) -> Floats:
    """The harmonic numbers H(n), but for Euler's constant, which differences do not have."""
    from scipy.special import digamma  # noqa: PLC0415 - whoever serves predictions imports metrics and needs none

    return np.asarray(digamma(n + 1))


def _precisions(found: Floats, hits: Floats, misses: Floats) -> Floats:
    return _dot(found, _ratio(hits, hits + misses, empty=0.0))


def _delong_error(placed: Floats, rights: Floats, wrongs: Floats) -> Floats:
    variance = sum(
        _ratio(n * squares - sums**2, n**2 * (n - 1))
        for n, sums, squares in ((rights, *placed[:2]), (wrongs, *placed[2:]))
    )
    return np.sqrt(np.maximum(variance, 0))


def _dot(a: Floats, b: Floats) -> Floats:
    return np.asarray(np.einsum("...i,...i->...", a, b))


def _ratio(part: Floats, whole: Floats, empty: float = math.nan) -> Floats:
    """Part / whole, and ``empty`` for 0 / 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.asarray(part / whole)
    if not math.isnan(empty):
        np.copyto(found, empty, where=~(whole > 0))
    return found


def refinement_auroc(probs: ArrayLike, labels: ArrayLike) -> float:
    """Return the area under the ROC of right against wrong predictions by confidence; ties count half.

    NaN when all predictions are right or all are wrong.

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).

    >>> refinement_auroc([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [0, 1, 0])  # one pair of two
    0.5
    """
    return float(Separation.of(*top_label(probs, labels)).auroc())
