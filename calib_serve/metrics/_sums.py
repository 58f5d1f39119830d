"""x"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.arrays import are_counts
from calib_serve.bins import Bins, Edges, bin_index, check_binning
from calib_serve.metrics.calibration import NODES, cumulative, on_grid, smoothed, tie_ends
from calib_serve.metrics.intervals import Estimate, inverted, quantile_of, share_interval, student_quantile
from calib_serve.metrics.samples import entropies, negative_log
from calib_serve.metrics.truths import STEPS
from calib_serve.scores import ProbsView

__all__ = ["Rows", "estimates"]

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

_THREADS = 2
_BLOCK = 1 << 17  # probabilities of a block of rows
_RUN = 1 << 17  # rows of which one number each is read
_FAR = 4.0  # standard errors beyond the observed error that the line of truths goes
_MOST_BINS = 200  # of the sweep
_MEANS = (
    "accuracy",
    "mean_confidence",
    "signed_gap",
    "nll",
    "brier",
    "brier_top_label",
    "entropy",
    "positive_gap",
    "positive_brier",
)


@dataclass(frozen=True, eq=False)
class Rows:
    """What one pass finds: confidences (n,) and which are right, sums of the means' columns, and class cells.

    ``weight`` (n,) are counts, or of mean 1; ``groups`` (n,) codes or None.
    ``sums`` (3, m) are of w x, w^2 x and w^2 x^2; with groups ``totals`` (m, G) of w x by group. ``said``,
    ``came`` and ``noise`` (K, bins) are sums of w p, w y and w^2 p (1 - p); ``positive`` is P(y = 1) (n,) of
    two classes.
    """

    confidence: Floats
    right: NDArray[np.bool_]
    weight: Floats
    groups: Codes | None
    sums: Floats
    totals: Floats | None
    said: Floats
    came: Floats
    noise: Floats
    positive: Floats | None
    labels: Codes

    @classmethod
    def of(
        cls, p: Any, y: Codes, weight: Floats | None, groups: Codes | None, *, bins: int, edges: Edges
    ) -> Rows:
        """One pass, on both of two cores; ``p`` (n, K) is an array or makes its rows when they are read."""
        check_binning(bins, edges)
        n, classes = p.shape
        w = np.broadcast_to(1.0, n) if weight is None else _counts(weight)
        confidence, right = np.empty(n), np.empty(n, bool)
        positive = np.empty(n) if classes == 2 else None

        def block(start: int) -> tuple[Floats, Floats | None, Floats]:
            rows = slice(start, min(start + step, n))
            probs, losses, entropy = _described(p, rows, y[rows])
            if positive is not None:
                positive[rows] = np.clip(probs[:, 1], 0, 1)
            columns = _columns(probs, losses, entropy, y[rows])
            right[rows], confidence[rows] = columns[:2]
            v = w[rows]
            found = np.stack([columns @ v, columns @ v**2, columns**2 @ v**2])
            of_groups = None
            if groups is not None:
                count = int(groups.max()) + 1
                by_group = [np.bincount(groups[rows], column * v, count) for column in columns]
                of_groups = np.stack(by_group).astype(np.float64)
            return found, of_groups, _cells(probs, y[rows], v, bins, edges)

        step = max(1, _BLOCK // classes)
        with np.errstate(invalid="ignore"), ThreadPoolExecutor(_THREADS) as pool:
            parts = list(pool.map(block, range(0, n, step)))
        sums = _added(found for found, _, _ in parts)
        of_groups = [totals for _, totals, _ in parts if totals is not None]
        said, came, noise = _added(cells for _, _, cells in parts)
        return cls(
            confidence=confidence,
            right=right,
            weight=w,
            groups=groups,
            sums=sums,
            totals=_added(of_groups) if of_groups else None,
            said=said,
            came=came,
            noise=noise,
            positive=positive,
            labels=y,
        )

    @property
    def mass(self) -> float:
        """The weight of all rows."""
        return float(self.weight.sum())

    def by_bin(self, values: Floats, came: NDArray[Any], bins: int, edges: Edges) -> Bins:
        """Sums over cells of ``values`` (n,)."""

        def sums(rows: slice) -> Floats:
            v, true, w = values[rows], came[rows], self.weight[rows]
            code = bin_index(v, bins=bins, edges=edges)
            columns = (w, w * v, w * true, w * w * v * (1 - v))
            return np.stack([np.bincount(code, column, bins) for column in columns])

        count, said, true, noise = _summed(sums, len(values))
        if self.groups is not None:
            code = bin_index(values, bins=bins, edges=edges)
            gaps = ((said - true) / np.maximum(count, 1e-300))[code]
            noise *= self._effect(self.weight * (values - came - gaps), code, bins)
        return Bins(count, said, true, noise)

    def _effect(self, errors: Floats, code: Codes, bins: int) -> Floats:
        """How much more each cell's gap varies as rows come in groups, at least 1."""
        assert self.groups is not None
        key, place = np.unique(self.groups * bins + code, return_inverse=True)
        together = np.bincount(key % bins, np.bincount(place, errors) ** 2, bins)
        alone = np.bincount(code, errors**2, bins)
        return np.maximum(together / np.maximum(alone, 1e-300), 1)


def _summed(function: Callable[[slice], Floats], n: int) -> Floats:
    """The sum of ``function`` over runs of rows that cover 0..n."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return _added(pool.map(function, (slice(i, min(i + _RUN, n)) for i in range(0, n, _RUN))))


def _added(parts: Iterable[Floats]) -> Floats:
    return functools.reduce(np.add, parts)


def _counts(weight: Floats) -> Floats:
    """Counts as they are, other weights of mean 1."""
    if are_counts(weight):
        return weight
    return np.broadcast_to(1.0, len(weight)) if np.ptp(weight) == 0 else weight / weight.mean()


def _described(p: Any, rows: slice, labels: Codes) -> tuple[Floats, Floats, Floats]:
    """The probabilities (m, K) of some rows, -log p_y (m,) and the entropies (m,)."""
    if isinstance(p, ProbsView):
        probs, losses, entropy = p.described(rows, labels)
        return probs, losses, entropy
    probs = p[rows].astype(np.float64)
    return probs, negative_log(probs[np.arange(len(probs)), labels]), entropies(probs)


def _columns(p: Floats, losses: Floats, entropy: Floats, y: Codes) -> Floats:
    """The values (m, rows) whose means are metrics, in the order of their names."""
    at, top = np.arange(len(p)), p.argmax(axis=1)
    confidence, right = np.minimum(p[at, top], 1), top == y
    gap = confidence - right
    true = p[at, y]
    squares = np.einsum("nk,nk->n", p, p) - 2 * true + 1
    rows = [right.astype(np.float64), confidence, gap, losses, squares, gap**2, entropy]
    if p.shape[1] == 2:
        excess = np.clip(p[:, 1], 0, 1) - (y == 1)
        rows += [excess, excess**2]
    return np.stack(rows)


def _cells(p: Floats, y: Codes, w: Floats, bins: int, edges: Edges) -> Floats:
    """Sums (3, K, bins) of w p, w y and w^2 p (1 - p) by class and bin."""
    classes = p.shape[1]
    code = bin_index(np.minimum(p, 1).ravel(), bins=bins, edges=edges).reshape(p.shape)
    code += bins * np.arange(classes)
    size = classes * bins
    of_all = w.strides == (0,)  # one weight for all: it multiplies the sums
    once, twice = (1.0, 1.0) if of_all else (w[:, None], (w * w)[:, None])
    said = np.bincount(code.ravel(), (once * p).ravel(), size)
    noise = np.bincount(code.ravel(), (twice * p * (1 - p)).ravel(), size)
    came = np.bincount(code[np.arange(len(p)), y], w, size)
    return np.stack([said, came, noise]).astype(np.float64).reshape(3, classes, bins)


def estimates(
    rows: Rows, *, bins: int, edges: Edges, draws: int, level: float, seed: int
) -> tuple[dict[str, Estimate], Bins, Bins | None]:
    """Each metric but the intervals of areas and noise floors, the bins, and those of P(y = 1)."""
    found = _means(rows, level)
    draw = _Drawn(draws, level, seed)
    top = rows.by_bin(rows.confidence, rows.right, bins, edges)
    found |= _binned(top, draw)
    if not are_counts(rows.weight):  # chance is what the weights make of it
        found["rms_debiased"] = _debiased(top, found["rms"])
    found |= _ranked(rows, bins, draw, level)
    found["smooth_ece"] = _smooth(rows, draw)
    gaps, cells = rows.said - rows.came, rows.noise
    scale = rows.said.shape[0] * rows.mass
    found["classwise_ece"] = draw(gaps, cells, lambda g: np.abs(g).sum(axis=(1, 2)) / scale)
    found["noise_floor"] = Estimate(top.noise_floor())
    of_event = None
    if rows.positive is not None:
        came = rows.labels == 1
        of_event = rows.by_bin(rows.positive, came, bins, edges)
        mass = rows.mass
        found["positive_ece"] = draw(
            of_event.confidence - of_event.correct, of_event.noise, lambda g: np.abs(g).sum(axis=1) / mass
        )
        found["positive_noise_floor"] = Estimate(of_event.noise_floor())
    return found, top, of_event


def _means(rows: Rows, level: float) -> dict[str, Estimate]:
    mass, (first, second, squares) = rows.mass, rows.sums
    mean = first / mass
    if rows.totals is None:
        with np.errstate(invalid="ignore"):
            variance = squares - 2 * mean * second + mean**2 * float((rows.weight**2).sum())
        quantile, more = quantile_of(level), len(rows.weight) / max(len(rows.weight) - 1, 1)
    else:
        assert rows.groups is not None
        groups = rows.totals.shape[1]
        share = np.bincount(rows.groups, rows.weight, groups)
        with np.errstate(invalid="ignore"):
            variance = ((rows.totals - mean[:, None] * share) ** 2).sum(axis=1)
        quantile, more = student_quantile(level, groups - 1), groups / max(groups - 1, 1)
    with np.errstate(invalid="ignore"):
        half = quantile * np.sqrt(np.maximum(variance * more, 0)) / mass
    found = {}
    for name, value, wide in zip(_MEANS, mean, half, strict=False):
        ends = (value - wide, value + wide) if math.isfinite(value) and math.isfinite(wide) else ()
        found[name] = Estimate(float(value), *(float(end) for end in ends))
    accuracy = found["accuracy"]
    found["accuracy"] = Estimate(accuracy.value, max(accuracy.low, 0.0), min(accuracy.high, 1.0))
    return found


@dataclass(frozen=True)
class _Drawn:
    """Intervals of errors of gaps, by normal draws of the gaps."""

    draws: int
    level: float
    seed: int

    def __call__(self, gaps: Floats, variance: Floats, error: Callable[[Floats], Floats]) -> Estimate:
        """The error of gaps (...,) with these variances; ``error`` takes (r, ...)."""
        observed = float(error(gaps[None])[0])
        if self.draws < 2:
            return Estimate(observed)
        rng = np.random.default_rng([self.seed, 5])
        noise = rng.standard_normal((self.draws, *gaps.shape)) * np.sqrt(np.maximum(variance, 0))
        usual = float(error(noise).std()) if self.draws else 0.0
        # Where all gaps are 0 there is no direction; chance gives one.
        shape = gaps if np.abs(gaps).sum() > 0 else noise[0]
        far = (observed + _FAR * max(usual, 1e-12)) / max(float(error(shape[None])[0]), 1e-300)
        line = (STEPS * far).reshape(-1, *[1] * gaps.ndim) * shape
        drawn = np.stack([error(truth + noise) for truth in line])
        return inverted(observed, error(line), drawn, level=self.level)


def _binned(top: Bins, draw: _Drawn) -> dict[str, Estimate]:
    full = top.count > 0
    count, gaps, variance = top.count[full], (top.confidence - top.correct)[full], top.noise[full]
    n, weight = top.n, top.confidence[full] / top.count[full] / top.n
    errors: dict[str, Callable[[Floats], Floats]] = {
        "ece": lambda g: np.abs(g).sum(axis=1) / n,
        "mce": lambda g: (np.abs(g) / count).max(axis=1),
        "ace": lambda g: (np.abs(g) / count).mean(axis=1),
        "overconfidence_error": lambda g: np.maximum(g, 0) @ weight,
        "underconfidence_error": lambda g: np.maximum(-g, 0) @ weight,
        "rms": lambda g: np.sqrt((g**2 / count).sum(axis=1) / n),
    }
    found = {name: draw(gaps, variance, error) for name, error in errors.items()}
    found["rms_debiased"] = _between(found["rms"], top.debiased_l2_squared())
    return found


def _debiased(top: Bins, rms: Estimate) -> Estimate:
    full = top.count > 0
    squares = ((top.confidence - top.correct)[full] ** 2 - top.noise[full]) / top.count[full]
    return _between(rms, float(squares.sum()) / top.n)


def _between(rms: Estimate, square: float) -> Estimate:
    value = math.sqrt(max(square, 0.0))
    return Estimate(value, min(rms.low, value), max(rms.high, value))


def _ranked(rows: Rows, bins: int, draw: _Drawn, level: float) -> dict[str, Estimate]:
    """What depends on the order of the confidences: errors of equal mass, and how well they tell."""
    alike = rows.groups is None and np.ptp(rows.weight) == 0
    if alike:
        c, right = _sorted(rows.confidence, rows.right)
        w = rows.weight
    else:
        order = np.argsort(rows.confidence)
        c, right, w = rows.confidence[order], rows.right[order], rows.weight[order]
    ends = tie_ends(c)
    mass, came = cumulative(w)[ends], cumulative(w * right)[ends]
    n = float(mass[-1])
    at = _equal(n, bins), _equal(n, _sweep(mass, came))
    said, noise = (
        [np.diff(np.interp(edges, mass, sums)) for edges in at]
        for sums in (cumulative(row)[ends] for row in (w * c, w * w * c * (1 - c)))
    )
    true = [np.diff(np.interp(edges, mass, came)) for edges in at]
    del c
    found = {
        name: draw(said[i] - true[i], noise[i], lambda g: np.abs(g).sum(axis=1) / n)
        for i, name in enumerate(("adaptive_ece", "sweep_ece"))
    }
    areas = _Areas.of(mass, came)
    error = areas.auroc_error
    if not alike:
        influence = areas.influence(mass, came, right, w, np.diff(ends))
        if rows.groups is not None:
            influence = np.bincount(rows.groups[order], influence).astype(np.float64)
        error = math.sqrt(float((influence**2).sum()))
    found["refinement_auroc"] = share_interval(areas.auroc, error, level=level)
    for name in ("aupr_correct", "aupr_incorrect", "aurc", "e_aurc"):
        found[name] = Estimate(getattr(areas, name))
    return found


def _sorted(confidence: Floats, right: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Confidences and what belongs to them, by rising confidence: several times faster than by an argsort."""
    key = confidence.view(np.uint64) << 1  # rises with the number; its sign, never set, makes room for a bit
    key |= right
    key.sort()
    right = (key & 1).astype(bool)
    key >>= 1
    return key.view(np.float64), right


def _equal(n: float, bins: int) -> Floats:
    """Where bins of equal mass end: np.array_split's rule where the mass is a count."""
    if n == round(n):
        size, longer = divmod(round(n), bins)
        ranks = np.arange(bins + 1)
        return (ranks * size + np.minimum(ranks, longer)).astype(np.float64)
    return np.linspace(0, n, bins + 1)


def _sweep(mass: Floats, came: Floats) -> int:
    """As many equal-mass bins as keep accuracy rising (Roelofs 2022, alg. 1), at most 200."""
    n = float(mass[-1])
    for bins in range(2, min(_MOST_BINS, int(n)) + 1):
        ends = _equal(n, bins)
        accuracy = np.diff(np.interp(ends, mass, came)) / np.diff(ends)
        if not (accuracy[1:] >= accuracy[:-1] - 1e-12).all():
            return bins - 1
    return min(_MOST_BINS, max(int(n), 1))


@dataclass(frozen=True)
class _Areas:
    """Areas over ranked confidences, as ``calib_serve.metrics.refinement.Separation`` has them, of weights.

    ``right`` and ``wrong`` are their weights; the AUROC's error (DeLong 1988) is of rows that weigh 1.
    """

    right: float
    wrong: float
    auroc: float
    auroc_error: float
    aupr_correct: float
    aupr_incorrect: float
    aurc: float
    e_aurc: float

    @classmethod
    def of(cls, mass: Floats, came: Floats) -> _Areas:
        """Of the weight of all rows and of the right ones (g + 1,) at or below each distinct confidence."""
        from scipy.special import digamma  # noqa: PLC0415 - what serves has no scipy

        n, right = float(mass[-1]), float(came[-1])
        wrong = n - right

        def sums(steps: slice) -> Floats:
            seen, rights = (row[steps.start : steps.stop + 1] for row in (mass, came))
            wrongs = seen - rights
            good, bad = np.diff(rights), np.diff(wrongs)
            won, lost = (wrongs[1:] + wrongs[:-1]) / 2, right - (rights[1:] + rights[:-1]) / 2
            above = n - seen
            harmonic = -np.diff(digamma(above + 1))  # of counts the harmonic numbers' differences
            errors_above = wrong - wrongs[1:] - above[1:] * bad / np.diff(seen)
            return np.array([
                good @ won, good @ won**2, bad @ lost**2,
                good @ ((right - rights[:-1]) / (n - seen[:-1])), bad @ (wrongs[1:] / seen[1:]),
                errors_above @ harmonic,
            ])  # fmt: skip

        pairs, of_right, of_wrong, hits, misses, risk = _summed(sums, len(mass) - 1).tolist()
        best = (wrong - right * float(digamma(n + 1) - digamma(right + 1))) / n
        aurc = (risk + wrong) / n
        with np.errstate(divide="ignore", invalid="ignore"):
            area, of_hits, of_misses = np.divide(
                (pairs, hits, misses), (right * wrong, right, wrong)
            ).tolist()
        variance = sum(
            (squares / count - (pairs / count) ** 2) / (other**2 * (count - 1))
            if count > 1 and other
            else math.nan
            for squares, count, other in ((of_right, right, wrong), (of_wrong, wrong, right))
        )
        return cls(right, wrong, area, math.sqrt(max(variance, 0)), of_hits, of_misses, aurc, aurc - best)

    def influence(
        self, mass: Floats, came: Floats, right: NDArray[np.bool_], weight: Floats, sizes: Codes
    ) -> Floats:
        """How much each ranked row (n,) adds to the AUROC; ``sizes`` are of rows of equal confidence."""
        wrongs = mass - came
        with np.errstate(divide="ignore", invalid="ignore"):
            won = ((wrongs[1:] + wrongs[:-1]) / (2 * self.wrong) - self.auroc) / self.right
            lost = (1 - (came[1:] + came[:-1]) / (2 * self.right) - self.auroc) / self.wrong
        return np.asarray(weight * np.where(right, np.repeat(won, sizes), np.repeat(lost, sizes)))


def _smooth(rows: Rows, draw: _Drawn) -> Estimate:
    mass = rows.mass

    def sums(run: slice) -> Floats:
        c, w = rows.confidence[run], rows.weight[run] / mass
        node, share = on_grid(c)
        columns = (w * (c - rows.right[run]), w * w * c * (1 - c))
        low, high = (
            np.stack([np.bincount(node + side, x * part, NODES + 1) for x in columns])
            for side, part in ((0, 1 - share), (1, share))
        )
        return np.asarray(low + high)

    gaps, variance = _summed(sums, len(rows.confidence))
    return draw(gaps, variance, lambda g: smoothed(g, tolerance=1e-9 if len(g) == 1 else 1e-6))
