"""Every metric in one pass over the rows.

A row is kept as its confidence and whether it is right. Values are exact. Intervals of means and areas are
by the influence of each row, over groups where there are any; of calibration errors by drawing the gaps of
their cells, never rows: in absolute values resampling adds its noise on top of the sample's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Codes, Floats, are_counts
from calib_serve.core.bins import Bins, Edges, bin_index, check_binning
from calib_serve.core.options.evaluate import MeasureOptions
from calib_serve.metrics.calibration import Ranked, equal_mass_edges, gap_errors, running
from calib_serve.metrics.distributions import student_quantile
from calib_serve.metrics.intervals import (
    Estimate,
    floor_influence,
    quantile_of,
    share_interval,
    wilson_interval,
)
from calib_serve.metrics.measured import LABELS_A_CLASS_THAT_TELL
from calib_serve.metrics.plausible import CellGaps, Drawn
from calib_serve.metrics.refinement import area_intervals
from calib_serve.metrics.samples import MEANS, measured_rows, of_classes, row_slices
from calib_serve.metrics.smooth import NODES, on_grid, smoothed

_THREADS = 2
_OF_SOME = ("mce", "overconfidence_error", "underconfidence_error")  # errors that some of the bins make


@dataclass(frozen=True, eq=False)
class Rows:
    """Sums of one pass over the rows: confidences (n,), which are right, sums of columns, and class cells.

    ``weight`` (n,) are counts, or of mean 1; ``groups`` (n,) codes or None.
    ``sums`` (3, m) are of w x, w^2 x and w^2 x^2; with groups ``totals`` (m, G) of w x by group. ``said``,
    ``came``, ``noise`` and ``spread`` (K, bins) are sums of w p, w y, w^2 p (1 - p) and w^2 (p - y)^2;
    ``positive`` is P(y = 1) (n,) of two classes.
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
    spread: Floats
    positive: Floats | None
    labels: Codes

    @classmethod
    def of(
        cls, p: Any, y: Codes, weight: Floats | None, groups: Codes | None, *, bins: int, edges: Edges
    ) -> Rows:
        """Run the pass, on two cores where there are two.

        ``p`` (n, K) is an array or makes its rows when they are read.
        """
        check_binning(bins, edges)
        n, classes = p.shape
        w = np.broadcast_to(1.0, n) if weight is None else _counts(weight)
        confidence, right = np.empty(n), np.empty(n, bool)
        positive = np.empty(n) if classes == 2 else None

        def block(rows: slice) -> tuple[Floats, Floats | None, Floats]:
            probs, columns = measured_rows(p, rows, y[rows])
            if positive is not None:
                positive[rows] = np.clip(probs[:, 1], 0, 1)
            right[rows], confidence[rows] = columns[:2]
            v = w[rows]
            found = np.stack([columns @ v, columns @ v**2, columns**2 @ v**2])
            of_groups = None
            if groups is not None:
                count = int(groups.max()) + 1
                by_group = [np.bincount(groups[rows], column * v, count) for column in columns]
                of_groups = np.stack(by_group).astype(np.float64)
            return found, of_groups, class_cells(probs, y[rows], v, bins, edges)

        # numpy releases the interpreter's lock in these loops, so two threads use two cores.
        with ThreadPoolExecutor(_THREADS) as pool:
            parts = list(pool.map(block, row_slices(p.shape, size=1 << 17)))
        sums = _added(found for found, _, _ in parts)
        of_groups = [totals for _, totals, _ in parts if totals is not None]
        said, came, noise, spread = _added(cells for _, _, cells in parts)
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
            spread=spread,
            positive=positive,
            labels=y,
        )

    @property
    def mass(self) -> float:
        """The weight of all rows."""
        return float(self.weight.sum())

    def by_bin(self, values: Floats, came: NDArray[Any], code: Codes, bins: int) -> tuple[Bins, Floats]:
        """Sums over the bins ``code`` (n,) of ``values`` (n,), and each gap's design effect."""

        def sums(rows: slice) -> Floats:
            v, true, w = values[rows], came[rows], self.weight[rows]
            columns = (w, w * v, w * true, w * w * v * (1 - v))
            return np.stack([np.bincount(code[rows], column, bins) for column in columns])

        count, said, true, noise = _summed(sums, len(values))
        effect = np.ones(bins)
        if self.groups is not None:
            gaps = ((said - true) / np.maximum(count, 1e-300))[code]
            effect = self._effect(self.weight * (values - came - gaps), code, bins)
        return Bins(count, said, true, effect * noise), effect

    def _effect(self, errors: Floats, code: Codes, bins: int) -> Floats:
        """The design effect of groups on the gap of each bin, at least 1."""
        assert self.groups is not None
        key, place = np.unique(self.groups * bins + code, return_inverse=True)
        together = np.bincount(key % bins, np.bincount(place, errors) ** 2, bins)
        alone = np.bincount(code, errors**2, bins)
        return np.maximum(together / np.maximum(alone, 1e-300), 1)


def _summed(function: Callable[[slice], Floats], n: int) -> Floats:
    """The sum of ``function`` over runs of rows that cover 0..n."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return _added(pool.map(function, row_slices((n, 1), size=1 << 17)))


def _codes(values: Floats, bins: int, edges: Edges) -> Codes:
    """The bin of each value (n,), in as few bytes as hold it."""
    runs, small = row_slices((len(values), 1)), np.min_scalar_type(bins)
    return np.concatenate([bin_index(values[at], bins=bins, edges=edges).astype(small) for at in runs])


def _added(parts: Iterable[Floats]) -> Floats:
    return functools.reduce(np.add, parts)


def _counts(weight: Floats) -> Floats:
    """Weights that are counts as they are, other weights scaled to a mean of 1."""
    if are_counts(weight):
        return weight
    return np.broadcast_to(1.0, len(weight)) if np.ptp(weight) == 0 else weight / weight.mean()


def class_cells(p: Floats, y: Codes, w: Floats, bins: int, edges: Edges) -> Floats:
    """Sums (4, K, bins) of w p, w y, w^2 p (1 - p) and w^2 (p - y)^2 by class and bin."""
    classes = p.shape[1]
    code = bin_index(np.minimum(p, 1).ravel(), bins=bins, edges=edges).reshape(p.shape)
    code += bins * np.arange(classes)
    size = classes * bins
    of_all = w.strides == (0,)  # one weight for all: it multiplies the sums
    # Without weights two products of the size of the block are saved.
    once, twice = (1.0, 1.0) if of_all else (w[:, None], (w * w)[:, None])
    said = np.bincount(code.ravel(), (once * p).ravel(), size)
    noise = np.bincount(code.ravel(), (twice * p * (1 - p)).ravel(), size)
    right, true = code[np.arange(len(p)), y], of_classes(p, y)
    came = np.bincount(right, w, size)
    squared = said if of_all else np.bincount(code.ravel(), (twice * p).ravel(), size)
    spread = squared - noise + np.bincount(right, w * w * (1 - 2 * true), size)
    return np.stack([said, came, noise, spread]).astype(np.float64).reshape(4, classes, bins)


def estimates(rows: Rows, options: MeasureOptions) -> tuple[dict[str, Estimate], Bins, Bins | None]:
    """Each metric, the bins, and the bins of P(y = 1)."""
    bins, edges, level = options.bins, options.edges, options.level
    draw = Drawn.by(options)
    found = _means(rows, level)
    code = _codes(rows.confidence, bins, edges)
    top, effect = rows.by_bin(rows.confidence, rows.right, code, bins)
    cells = CellGaps.of(top)
    elsewhere, smooth = cells.calibrated_share(), cells.shrunk()
    full = top.count > 0
    for name, error in gap_errors(top.count[full], top.confidence[full]).items():
        # Of squares chance adds as much wherever they are.
        of_all = None if name == "rms" else elsewhere
        toward = cells.gaps if name in _OF_SOME else smooth
        found[name] = draw(cells, error, toward=toward, elsewhere=of_all)
    square = top.debiased_l2_squared()
    if rows.weight.strides[0] and not are_counts(rows.weight):  # weights change the variance that chance has
        square = float(((cells.gaps**2 - cells.noise) / top.count[full]).sum()) / top.n
    rms, debiased = found["rms"], math.sqrt(max(square, 0.0))
    found["rms_debiased"] = Estimate(debiased, min(rms.low, debiased), max(rms.high, debiased))
    by_row = np.broadcast_to(1.0, len(code)) if rows.groups is None else effect[code]
    found["smooth_ece"] = _smooth(rows, draw, by_row, elsewhere)
    found["classwise_ece"] = _classwise(rows, draw, float(by_row.mean()))
    found["noise_floor"] = _floor(rows, top, rows.confidence, code, level)
    del code
    found |= _ranked(rows, bins, draw, by_row, elsewhere)
    of_event = None
    if rows.positive is not None:
        code = _codes(rows.positive, bins, edges)
        of_event, _ = rows.by_bin(rows.positive, rows.labels == 1, code, bins)
        found["positive_ece"] = draw.ece(of_event)
        found["positive_noise_floor"] = _floor(rows, of_event, rows.positive, code, level)
    return found, top, of_event


def _means(rows: Rows, level: float) -> dict[str, Estimate]:
    mass, (first, second, squares) = rows.mass, rows.sums
    mean = first / mass
    if rows.totals is None:
        with np.errstate(invalid="ignore"):
            variance = squares - 2 * mean * second + mean**2 * float(rows.weight @ rows.weight)
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
    for name, value, wide in zip(MEANS, mean, half, strict=False):
        ends = (value - wide, value + wide) if math.isfinite(value) and math.isfinite(wide) else ()
        found[name] = Estimate(float(value), *(float(end) for end in ends))
    hits, worth = found["accuracy"].value, mass**2 / float(rows.weight @ rows.weight)
    if 0 < hits < 1:  # as many equal samples as vary as much
        worth = min(worth, hits * (1 - hits) * (quantile / max(float(half[0]), 1e-300)) ** 2)
    found["accuracy"] = wilson_interval(hits * worth, worth, level=level)
    return found


def _floor(rows: Rows, bins: Bins, probs: Floats, code: Codes, level: float) -> Estimate:
    """A noise floor with its interval, by the influence of each probability (n,), of bin ``code`` (n,)."""
    n, groups = len(probs), rows.groups
    w = np.broadcast_to(1.0, n) if np.ptp(rows.weight) == 0 else rows.weight

    def sums(at: slice) -> Floats:
        noise = np.bincount(code[at], (w[at] * w[at] * probs[at] * (1 - probs[at])) ** 2, len(bins))
        return np.append(noise, [w[at].sum(), w[at] @ floor_influence(bins, probs[at], code[at], w[at])])

    def apart(at: slice) -> Floats:
        return np.asarray(w[at] * (floor_influence(bins, probs[at], code[at], w[at]) - total / mass))

    *squares, mass, total = _summed(sums, n)
    # What roots of sums of few lose in mean, which resamples would lose again, is an error too.
    full = bins.noise > 0
    loss = float((np.array(squares)[full] / bins.noise[full] ** 1.5).sum()) / math.sqrt(32 * math.pi) / bins.n
    if groups is None:
        units, varied = n, float(_summed(lambda at: np.square(apart(at)).sum(), n))
    else:  # Liang and Zeger 1986
        units, varied = int(groups.max()) + 1, float((np.bincount(groups, apart(slice(None))) ** 2).sum())
    error = math.sqrt(units / (units - 1) * varied) / mass if units > 1 else math.nan
    freedom = math.inf if groups is None else units - 1.0
    return share_interval(bins.noise_floor(), math.hypot(error, loss), level=level, freedom=freedom)


def _ranked(rows: Rows, bins: int, draw: Drawn, effect: Floats, elsewhere: float) -> dict[str, Estimate]:
    """Compute metrics of the ranked confidences: equal-mass errors, and areas of right against wrong.

    Rows of which none weighs more are left in the order of their confidences.
    """
    c, right, w, groups = rows.confidence, rows.right, rows.weight, rows.groups
    alike = groups is None and np.ptp(w) == 0
    if alike:
        _sort(c, right)
    else:
        order = np.argsort(c)
        c, right, w, effect = c[order], right[order], w[order], effect[order]
        groups = None if groups is None else groups[order]

    def columns(at: slice) -> tuple[Floats, ...]:
        said = w[at] * c[at]
        return w[at], said, w[at] * right[at], w[at] * said * (1 - c[at]) * effect[at]

    n = float(len(c) * w[0]) if alike else float(np.cumsum(w)[-1])
    # Of the steps only those are read that lie beside an edge.
    edges = np.unique(np.concatenate([equal_mass_edges(n, k) for k in (bins, *range(1, Ranked.MOST + 1))]))
    beside = []
    for sums in running(c, columns):
        at = np.searchsorted(sums[0], edges[(edges >= sums[0, 0]) & (edges <= sums[0, -1])])
        beside.append(sums[:, np.unique([at, np.maximum(at - 1, 0)])])
    steps = np.concatenate(beside, axis=1)
    mass, said, came, noise = steps[:, np.unique(steps[0], return_index=True)[1]]
    ranked = Ranked(mass, said, came)
    found = {}
    for name, count in (("adaptive_ece", bins), ("sweep_ece", ranked.rising_bins())):
        of_noise = np.diff(np.interp(equal_mass_edges(n, count), mass, noise))
        cells = CellGaps.of(Bins(*ranked.sums(count), of_noise))
        found[name] = draw(
            cells, lambda g: np.abs(g).sum(axis=1) / n, toward=cells.shrunk(), elsewhere=elsewhere
        )
    return found | area_intervals(c, right, None if alike else w, groups, level=draw.level)


def _sort(confidence: Floats, right: NDArray[np.bool_]) -> None:
    """Sort confidences with whether they are right, in place, several times faster than by an argsort."""
    key = confidence.view(np.uint64)  # rises with the number; its sign, never set, makes room for a bit
    key <<= 1
    key |= right
    key.sort()
    for rows in row_slices((len(key), 1)):
        right[rows] = key[rows] & 1
    key >>= 1


def _classwise(rows: Rows, draw: Drawn, effect: float) -> Estimate:
    gaps, mass = rows.said - rows.came, rows.mass
    # Of two classes one's gaps are the other's, turned: chance moves both at once.
    own = slice(1, None) if len(gaps) == 2 else slice(None)
    cells = CellGaps(
        gaps[own],
        effect * rows.noise[own],
        effect * rows.spread[own],
        None if len(gaps) == 2 else rows.said,
        effect * float(rows.weight @ rows.weight) / mass,
    )

    def along(toward: Floats, elsewhere: float | None) -> Estimate:
        return draw(
            cells,
            lambda g: np.abs(g).sum(axis=(1, 2)) / len(cells.gaps) / mass,
            toward=toward,
            elsewhere=elsewhere,
            value=float(np.abs(gaps).sum()) / len(gaps) / mass,
        )

    found = along(cells.shrunk() if len(gaps) == 2 else _shifts(cells), cells.calibrated_share())
    if len(rows.labels) >= LABELS_A_CLASS_THAT_TELL * len(gaps):
        return found
    # Few labels do not tell which classes are off: noise hides most of an error spread over all classes.
    turns = np.random.default_rng([draw.seed, 5]).choice([-1.0, 1.0], (len(cells.gaps), 1))
    hidden = along(turns * cells.noise, None)
    return Estimate(found.value, min(found.low, hidden.low), max(found.high, hidden.high), found.debiased)


def _shifts(cells: CellGaps) -> Floats:
    """The gaps (K, bins) of a shift of the log-odds by bin, and of one by class, as far as classes tell.

    Efron and Morris 1973. Of few labels the gaps themselves are mostly noise, along which errors look large.
    """
    gaps, noise = cells.gaps, np.maximum(cells.noise, 0)
    of_bins = gaps.sum(axis=0) / np.maximum(noise.sum(axis=0), 1e-9)
    of_classes = (gaps - of_bins * noise).sum(axis=1) / np.maximum(noise.sum(axis=1), 1e-9)
    excess = float((of_classes**2 * noise.sum(axis=1)).sum())
    kept = max(0.0, 1 - len(gaps) / excess) if excess > 0 else 0.0
    return np.asarray(noise * (of_bins + kept * of_classes[:, None]))


def _smooth(rows: Rows, draw: Drawn, effect: Floats, elsewhere: float) -> Estimate:
    mass = rows.mass

    def sums(run: slice) -> Floats:
        c, w = rows.confidence[run], rows.weight[run] / mass
        node, share = on_grid(c)
        gaps, scale = c - rows.right[run], w * w * effect[run]
        columns = (w * gaps, scale * c * (1 - c), scale * gaps**2)
        low, high = (
            np.stack([np.bincount(node + side, x * part, NODES + 1) for x in columns])
            for side, part in ((0, 1 - share), (1, share))
        )
        return np.asarray(low + high)

    cells = CellGaps(*_summed(sums, len(rows.confidence)))

    def error(g: Floats) -> Floats:
        return smoothed(g, tolerance=1e-9 if len(g) == 1 else 1e-6)

    return draw(cells, error, toward=cells.shrunk(), elsewhere=elsewhere)
