"""Every metric in one pass over the rows: for millions of rows, and for weighted rows.

A row is kept as its confidence and whether it is right. Values are exact; intervals are normal: of means and
areas by the influence of each row, over groups where there are any; of calibration errors by drawing the
gaps of their cells.
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
from calib_serve.metrics.calibration import Ranked, cumulative, equal_mass_edges, gap_errors, tie_ends
from calib_serve.metrics.distributions import student_quantile
from calib_serve.metrics.intervals import Estimate, calibrated_share, floor_interval, inverted, quantile_of
from calib_serve.metrics.plausible import REACH, STEPS
from calib_serve.metrics.refinement import area_intervals
from calib_serve.metrics.samples import MEANS, measured_rows, row_slices
from calib_serve.metrics.smooth import NODES, on_grid, smoothed

_THREADS = 2
_ROWS_OF_A_RUN = 1 << 17  # rows of which one number each is read


@dataclass(frozen=True, eq=False)
class Rows:
    """Sums of one pass over the rows: confidences (n,), which are right, sums of columns, and class cells.

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
        with np.errstate(invalid="ignore"), ThreadPoolExecutor(_THREADS) as pool:
            parts = list(pool.map(block, row_slices(p.shape, size=1 << 17)))
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
        """The design effect of groups on the gap of each bin, at least 1."""
        assert self.groups is not None
        key, place = np.unique(self.groups * bins + code, return_inverse=True)
        together = np.bincount(key % bins, np.bincount(place, errors) ** 2, bins)
        alone = np.bincount(code, errors**2, bins)
        return np.maximum(together / np.maximum(alone, 1e-300), 1)


def _summed(function: Callable[[slice], Floats], n: int) -> Floats:
    """The sum of ``function`` over runs of rows that cover 0..n."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return _added(
            pool.map(function, (slice(i, min(i + _ROWS_OF_A_RUN, n)) for i in range(0, n, _ROWS_OF_A_RUN)))
        )


def _added(parts: Iterable[Floats]) -> Floats:
    return functools.reduce(np.add, parts)


def _counts(weight: Floats) -> Floats:
    """Weights that are counts as they are, other weights scaled to a mean of 1."""
    if are_counts(weight):
        return weight
    return np.broadcast_to(1.0, len(weight)) if np.ptp(weight) == 0 else weight / weight.mean()


def class_cells(p: Floats, y: Codes, w: Floats, bins: int, edges: Edges) -> Floats:
    """Sums (3, K, bins) of w p, w y and w^2 p (1 - p) by class and bin."""
    classes = p.shape[1]
    code = bin_index(np.minimum(p, 1).ravel(), bins=bins, edges=edges).reshape(p.shape)
    code += bins * np.arange(classes)
    size = classes * bins
    of_all = w.strides == (0,)  # one weight for all: it multiplies the sums
    # Without weights two products of the size of the block are saved.
    once, twice = (1.0, 1.0) if of_all else (w[:, None], (w * w)[:, None])
    said = np.bincount(code.ravel(), (once * p).ravel(), size)
    noise = np.bincount(code.ravel(), (twice * p * (1 - p)).ravel(), size)
    came = np.bincount(code[np.arange(len(p)), y], w, size)
    return np.stack([said, came, noise]).astype(np.float64).reshape(3, classes, bins)


def estimates(
    rows: Rows, options: MeasureOptions, *, draws: int
) -> tuple[dict[str, Estimate], Bins, Bins | None]:
    """Each metric, the bins, and the bins of P(y = 1)."""
    bins, edges, level, seed = options.bins, options.edges, options.level, options.seed
    found = _means(rows, level)
    draw = _Drawn(draws, level, seed)
    top = rows.by_bin(rows.confidence, rows.right, bins, edges)
    elsewhere = calibrated_share(top.gaps(), top.noise)
    found |= _binned(top, draw, elsewhere)
    if not are_counts(rows.weight):  # weights change the variance that chance has
        full = top.count > 0
        squares = (top.gaps()[full] ** 2 - top.noise[full]) / top.count[full]
        found["rms_debiased"] = _between(found["rms"], float(squares.sum()) / top.n)
    found |= _ranked(rows, bins, draw, level, elsewhere)
    found["smooth_ece"] = _smooth(rows, draw, elsewhere)
    gaps, cells = rows.said - rows.came, rows.noise
    scale = rows.said.shape[0] * rows.mass
    found["classwise_ece"] = draw(
        gaps,
        cells,
        lambda g: np.abs(g).sum(axis=(1, 2)) / scale,
        calibrated_share(gaps.ravel(), cells.ravel()),
    )
    weighing = (None if np.ptp(rows.weight) == 0 else rows.weight, rows.groups)
    code = bin_index(rows.confidence, bins=bins, edges=edges)
    found["noise_floor"] = floor_interval(top, rows.confidence, code, *weighing, level=level)
    of_event = None
    if rows.positive is not None:
        came = rows.labels == 1
        of_event = rows.by_bin(rows.positive, came, bins, edges)
        mass, gaps = rows.mass, of_event.gaps()
        found["positive_ece"] = draw(
            gaps,
            of_event.noise,
            lambda g: np.abs(g).sum(axis=1) / mass,
            calibrated_share(gaps, of_event.noise),
        )
        code = bin_index(rows.positive, bins=bins, edges=edges)
        found["positive_noise_floor"] = floor_interval(of_event, rows.positive, code, *weighing, level=level)
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
    for name, value, wide in zip(MEANS, mean, half, strict=False):
        ends = (value - wide, value + wide) if math.isfinite(value) and math.isfinite(wide) else ()
        found[name] = Estimate(float(value), *(float(end) for end in ends))
    accuracy = found["accuracy"]
    found["accuracy"] = Estimate(accuracy.value, max(accuracy.low, 0.0), min(accuracy.high, 1.0))
    return found


@dataclass(frozen=True)
class _Drawn:
    """Intervals of calibration errors, by normal draws of the gaps that they are made of."""

    draws: int
    level: float
    seed: int

    def __call__(
        self, gaps: Floats, variance: Floats, error: Callable[[Floats], Floats], elsewhere: float | None
    ) -> Estimate:
        """The error of gaps (...,) with these variances; ``error`` takes (r, ...).

        ``elsewhere`` is that of ``inverted``.
        """
        observed = float(error(gaps[None])[0])
        if self.draws < 2:
            return Estimate(observed)
        rng = np.random.default_rng([self.seed, 5])
        noise = rng.standard_normal((self.draws, *gaps.shape)) * np.sqrt(np.maximum(variance, 0))
        usual = float(error(noise).std()) if self.draws else 0.0
        # Where all gaps are 0 there is no direction; chance gives one.
        shape = gaps if np.abs(gaps).sum() > 0 else noise[0]
        far = (observed + REACH * max(usual, 1e-12)) / max(float(error(shape[None])[0]), 1e-300)
        line = (STEPS * far).reshape(-1, *[1] * gaps.ndim) * shape
        drawn = np.stack([error(truth + noise) for truth in line])
        return inverted(observed, error(line), drawn, level=self.level, elsewhere=elsewhere)


def _binned(top: Bins, draw: _Drawn, elsewhere: float) -> dict[str, Estimate]:
    full = top.count > 0
    gaps, variance = top.gaps()[full], top.noise[full]
    errors = gap_errors(top.count[full], top.confidence[full])
    found = {
        # Of squares chance adds as much wherever they are.
        name: draw(gaps, variance, error, None if name == "rms" else elsewhere)
        for name, error in errors.items()
    }
    found["rms_debiased"] = _between(found["rms"], top.debiased_l2_squared())
    return found


def _between(rms: Estimate, square: float) -> Estimate:
    value = math.sqrt(max(square, 0.0))
    return Estimate(value, min(rms.low, value), max(rms.high, value))


def _ranked(rows: Rows, bins: int, draw: _Drawn, level: float, elsewhere: float) -> dict[str, Estimate]:
    """Compute metrics of the ranked confidences: equal-mass errors, and areas of right against wrong."""
    alike = rows.groups is None and np.ptp(rows.weight) == 0
    if alike:
        (c, right), w, groups = _sorted(rows.confidence, rows.right), rows.weight, None
    else:
        order = np.argsort(rows.confidence)
        c, right, w = rows.confidence[order], rows.right[order], rows.weight[order]
        groups = None if rows.groups is None else rows.groups[order]
    ends = tie_ends(c)
    mass, said, came, noise = (cumulative(row)[ends] for row in (w, w * c, w * right, w * w * c * (1 - c)))
    ranked, n = Ranked(mass, said, came), float(mass[-1])
    found = {}
    for name, count in (("adaptive_ece", bins), ("sweep_ece", ranked.rising_bins())):
        _, of_said, of_came = ranked.sums(count)
        of_noise = np.diff(np.interp(equal_mass_edges(n, count), mass, noise))
        found[name] = draw(of_said - of_came, of_noise, lambda g: np.abs(g).sum(axis=1) / n, elsewhere)
    del ranked, mass, said, came, noise  # of millions of rows, gigabytes beside what the areas take
    return found | area_intervals(c, right, None if alike else w, groups, level=level)


def _sorted(confidence: Floats, right: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Sort confidences with their samples' other numbers, several times faster than by an argsort."""
    key = confidence.view(np.uint64) << 1  # rises with the number; its sign, never set, makes room for a bit
    key |= right
    key.sort()
    right = (key & 1).astype(bool)
    key >>= 1
    return key.view(np.float64), right


def _smooth(rows: Rows, draw: _Drawn, elsewhere: float) -> Estimate:
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
    return draw(gaps, variance, lambda g: smoothed(g, tolerance=1e-9 if len(g) == 1 else 1e-6), elsewhere)
