"""Intervals of calibration errors, by drawing the gaps of the cells that they are made of, never rows.

An error such as ECE is an absolute value, so label noise alone makes it large: what it would be for a given
truth is found by drawing from that truth. The truths lie on a line from the model's own probabilities
(calibrated) through one as far off as it looks, and on beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins
from calib_serve.core.options.evaluate import MeasureOptions
from calib_serve.metrics.intervals import Estimate, drawn_quantile

STEPS = np.linspace(0, 1, 8) ** 1.5
"""Where the truths lie on their line: 0 is calibrated."""


@dataclass(frozen=True, eq=False)
class CellGaps:
    """Summed gaps of cells (...,), and what chance makes of them.

    Their variances are ``noise`` in a calibrated model, ``spread`` in one as far off as this one looks.
    Chance is normal, or, where many cells expect less than one event, binomial: ``said`` are the events that
    each expects, and ``unit`` is how much one of them counts.
    """

    gaps: Floats
    noise: Floats
    spread: Floats
    said: Floats | None = None
    unit: float = 1.0

    def shown(self, truth: Floats, far: float, draws: int, seed: int) -> tuple[Floats, Floats]:
        """Gaps of a truth, as far as there are such, and those that its samples show (r, ...).

        The truth is ``far`` on the way to a model as far off as this one looks.
        """
        rng, size = np.random.default_rng([seed, 5]), (draws, *truth.shape)
        if self.said is None:
            least = np.maximum(self.noise, 0)
            variance = least + min(far, 1.0) * np.maximum(self.spread - least, 0)
            return truth, truth + rng.standard_normal(size) * np.sqrt(variance)
        # As many rows of one probability as have this mean and variance.
        said, noise = self.said / self.unit, self.noise / self.unit**2
        rows = np.ceil(said**2 / np.maximum(said - noise, 1e-9 * said**2 + 1e-300)).clip(1, 1e9)
        came = np.clip(said - truth / self.unit, 0, rows)
        drawn = rng.binomial(rows.astype(np.int64), came / rows, size)
        return self.unit * (said - came), self.unit * (said - drawn)

    @classmethod
    def of(cls, bins: Bins) -> CellGaps:
        """The cells that bins are which hold predictions; those of one bin are as one binomial number."""
        full = bins.count > 0
        count, noise, gaps = bins.count[full], bins.noise[full], bins.gaps()[full]
        said, came = bins.confidence[full] / count, bins.correct[full] / count
        alone = said * (1 - said)
        # Of rows that weigh or move together a sum varies more than that of as many others.
        units = np.where(alone > 1e-9, noise / np.maximum(alone, 1e-9), count)
        return cls(gaps, noise, units * (came * (1 - came) + (gaps / count) ** 2))

    def calibrated_share(self) -> float:
        """The share of all chance that lies in cells which may well be calibrated.

        The cells that cannot be are the fewest, those furthest off first, whose rest is within two standard
        errors of calibrated in its sum and in its chi-square. Chance adds to an error of 0 as the cells'
        standard errors, and nothing to a large one.

        >>> round(CellGaps(np.array([9.0, 1.0, -1.0]), np.ones(3), np.ones(3)).calibrated_share(), 3)
        0.667
        """
        known = self.noise > 0
        gap, variance = self.gaps[known], self.noise[known]
        order = np.argsort(-np.abs(gap) / np.sqrt(variance))
        gap, variance = gap[order], variance[order]
        rest, spread, square = (x[::-1].cumsum()[::-1] for x in (gap, variance, gap**2 / variance))
        count = np.arange(len(gap), 0, -1)
        fits = (np.abs(rest) <= 2 * np.sqrt(spread)) & (square <= count + 2 * np.sqrt(2 * count))
        noise = np.sqrt(variance)
        return float(noise[fits.argmax() :].sum() / noise.sum()) if fits.any() else 0.0

    def shrunk(self) -> Floats:
        """The gaps, shrunk to those of one shift of all log-odds as far as they look like noise.

        James and Stein 1961. Gaps that are noise point either way, and chance adds more to these.
        """
        shift = self.gaps.sum() / max(float(self.noise.sum()), 1e-300)
        rest, known = self.gaps - shift * self.noise, self.spread > 0
        excess = float((rest[known] ** 2 / np.maximum(self.noise, self.spread)[known]).sum())
        kept = max(0.0, 1 - np.count_nonzero(known) / excess) if excess > 0 else 0.0
        return np.asarray(self.gaps - (1 - kept) * rest)


@dataclass(frozen=True)
class Drawn:
    """Intervals of calibration errors, by draws of the gaps that they are made of.

    Args:
        draws: Number of draws of every truth; fewer than two: no interval.
        level: Coverage of the interval, a fraction.
        seed: Seed of the draws.
    """

    draws: int
    level: float
    seed: int

    @classmethod
    def by(cls, options: MeasureOptions) -> Drawn:
        """Draw an eighth of the replicates from each possible truth, at most 100."""
        return cls(min(options.replicates // len(STEPS), 100), options.level, options.seed)

    def __call__(
        self,
        cells: CellGaps,
        error: Callable[[Floats], Floats],
        *,
        toward: Floats,
        elsewhere: float | None,
        value: float | None = None,
        wider: float = 1.0,
    ) -> Estimate:
        """The error of cells with its interval.

        On the way of the truths the variances go from those of a calibrated model to those of one as far off
        as this one looks.

        Args:
            cells: Gaps (...,) and their variances.
            error: Maps gaps (r, ...) to errors (r,).
            toward: Gaps (...,) through which the line of truths goes, from none.
            elsewhere: That of ``inverted``.
            wider: That of ``inverted``.
            value: The error that is observed, where it is known otherwise.
        """
        gaps = cells.gaps
        observed = float(error(gaps[None])[0]) if value is None else value
        if self.draws < 2:
            return Estimate(observed)
        none = cells.shown(np.zeros_like(gaps), 1.0, self.draws, self.seed)[1]
        # Where all gaps are 0 there is no direction; chance gives one.
        shape = next((way for way in (toward, gaps) if np.abs(way).sum() > 1e-9), none[0])
        # The line ends four standard errors beyond the observed error.
        end = observed + 4 * wider * max(float(error(none).std()), 1e-12)
        far = end / max(float(error(shape[None])[0]), 1e-300)
        line = [cells.shown(step * shape, step, self.draws, self.seed) for step in STEPS * far]
        true = error(np.stack([truth for truth, _ in line]))
        drawn = np.stack([error(shown) for _, shown in line])
        return inverted(observed, true, drawn, level=self.level, wider=wider, elsewhere=elsewhere)

    def ece(self, bins: Bins, *, wider: float = 1.0) -> Estimate:
        """The ECE of bins with its interval.

        Args:
            bins: Sums over the bins.
            wider: That of ``inverted``.
        """
        cells, n = CellGaps.of(bins), bins.n
        return self(
            cells,
            lambda g: np.abs(g).sum(axis=1) / n,
            toward=cells.shrunk(),
            elsewhere=cells.calibrated_share(),
            wider=wider,
        )


def inverted(
    observed: float,
    truth: Floats,
    drawn: Floats,
    *,
    level: float,
    wider: float = 1.0,
    elsewhere: float | None = None,
) -> Estimate:
    """Find an error's debiased value and interval: the true errors under which it is no surprise.

    ``truth`` (k,) are true errors, rising from that of a calibrated model, and ``drawn`` (k, r) what samples
    then show; ``wider`` multiplies their standard errors. The low end is the true error whose upper
    quantile is observed, the high end that whose lower quantile is, and the debiased value that whose mean is
    (test inversion: Casella and Berger 2002, section 9.2). Quantiles are normal, corrected for skewness
    (Cornish and Fisher 1938): so a hundred draws do. An observation that is unusually small even for a
    calibrated model bounds the error no better than a usual one (power-constrained limits: Cowan 2011).

    Truths of one line spread the error over all bins, where it hides most of what chance adds. It may as well
    lie in few: then chance still adds the share ``elsewhere`` (``calibrated_share`` of cells) of what it adds
    to no error, and the low end is the lower one of both.

    >>> noise = 0.1 * np.tile([-1.0, 1.0], 500)  # standard error 0.1; chance adds 0.2 to an error of 0
    >>> inverted(0.5, np.array([0.0, 1.0]), np.array([[0.2], [1.0]]) + noise, level=0.95)  # (0.5 - 0.2) / 0.8
    0.5000 (debiased 0.3750) [0.1295, 0.6205]
    """
    if not math.isfinite(observed) or drawn.shape[1] < 2 or not np.isfinite(drawn).all():
        return Estimate(observed)
    mean = drawn.mean(axis=1)
    error = drawn.std(axis=1, ddof=1)
    skewness = ((drawn - mean[:, None]) ** 3).mean(axis=1) / np.maximum(error, 1e-100) ** 3
    # Outcomes vary less under truths near 0 and 1, which the line of truths reaches too soon.
    z, error = drawn_quantile(level, drawn.shape[1]), wider * np.maximum.accumulate(error)
    skewed = (z * z - 1) / 6 * skewness
    above, below = (skewed + z) * error, (skewed - z) * error
    low = _crossing(truth, mean + above, observed)
    if elsewhere is not None:
        alike = np.abs(mean - observed).argmin()
        low = min(low, max(observed - elsewhere * float(mean[0]) - float(above[alike]), 0.0))
    usual = max(observed, float(mean[0] - error[0]))
    return Estimate(
        observed,
        low,
        min(_crossing(truth, mean + below, usual), max(1.0, observed)),
        min(_crossing(truth, mean, observed), observed),  # chance only adds
    )


def _crossing(truth: Floats, seen: Floats, observed: float) -> float:
    """The true error (k,) whose shown error (k,), made monotone, is the observed one.

    Extrapolated beyond.
    """
    # An error of rounding size is none: an interval that begins above 0 would claim miscalibration.
    truth = np.where(truth < 1e-12, 0.0, np.maximum.accumulate(truth))
    seen = np.maximum.accumulate(seen)
    if observed >= seen[-1]:
        return float(truth[-1] + observed - seen[-1])
    return float(np.interp(observed, seen, truth))
