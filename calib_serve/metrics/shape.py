"""The test of shape: a kernel test, which sees what bins cannot, errors that cancel inside of them.

It is the squared kernel calibration error (Widmann, Lindsten and Zachariah 2019, definition 2) of a kernel
with named features, k(x, x') = sum_j w_j f_j(x) f_j(x'): then its estimate is a sum of squared correlations
of errors with features, and its law under calibration is known without resampling, for groups as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg

from calib_serve.core.arrays import Codes, Floats
from calib_serve.metrics.distributions import chi_square_beyond
from calib_serve.metrics.gaps import RISK
from calib_serve.metrics.intervals import quantile_of
from calib_serve.metrics.samples import design_effect, row_slices

# Weights of the cosines over the rank of a probability: the last sees errors that change sign 32 times.
_FALLING = 1.0 / np.arange(1, 33)


@dataclass(frozen=True)
class Shape:
    """The chance ``p`` of such correlations under calibration, and the size of the errors they show.

    ``size`` is the root mean square of the error around its mean that the features explain, less what chance
    explains; ``most`` its upper 95 % bound.
    """

    p: float
    size: float
    most: float


class Pair(NamedTuple):
    """Probabilities (n,) of an event, and whether it came true (n,)."""

    probs: Floats
    came: Floats


def shape_of_event(
    probs: Floats, came: Floats, groups: Codes | None = None, weight: Floats | None = None
) -> Shape:
    """Test the shape of one event's probabilities (n,), such as P(y = 1), against whether it came true (n,).

    Errors by how far the probability is from a half, at all wavelengths, alike and opposite on both sides.
    """
    rank, side = _ranks(np.abs(probs - 0.5)), np.where(probs > 0.5, 1.0, -1.0)

    def features(rows: slice) -> list[Floats]:
        waves, on = _waves(rank[rows], len(_FALLING)), side[rows, None]
        return [np.column_stack([waves, on * waves, on, np.ones(len(on))])]

    every = np.concatenate([_FALLING, _FALLING, [1.0, 0.0]])
    return _shape(features, [Pair(probs, came)], every, groups, weight)


def shape_of_top_two(
    first: Pair, second: Pair, predicted: Codes, groups: Codes | None, weight: Floats | None = None
) -> Shape:
    """Test the shape of the ``first`` and ``second`` largest probability, by the ``predicted`` class (n,).

    Errors of the first by its rank, by the second's share of the rest, by both, and by a line over the rank
    in each of the classes predicted most; errors of the second by its share of the rest.
    """
    rank = _ranks(first.probs)
    share = _ranks(second.probs / np.maximum(1 - first.probs, 1e-12))
    common = np.argsort(-np.bincount(predicted), kind="stable")[:64]  # those with a slope of their own

    def features(rows: slice) -> list[Floats]:
        of_first, of_share = _waves(rank[rows], len(_FALLING)), _waves(share[rows], 4)
        products = [of_first[:, i] * of_share[:, j] for i in range(3) for j in range(3)]
        slopes = np.where(predicted[rows, None] == common, rank[rows, None] - 0.5, 0.0)
        constant = np.ones(len(slopes))
        return [
            np.column_stack([of_first, of_share, *products, slopes, constant]),
            np.column_stack([constant, of_share]),
        ]

    alike = np.full(len(common), 1 / len(common) ** 0.5)
    every = [_FALLING, _FALLING[:4], np.full(9, 0.5), alike, np.array([0.0, 1.0]), _FALLING[:4]]
    return _shape(features, [first, second], np.concatenate(every), groups, weight)


def _ranks(values: Floats) -> Floats:
    """The mid-rank of each value (n,), in (0, 1); equal values have the same."""
    ordered = np.sort(values)
    low, high = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((low + high) / (2 * len(values)))


def _waves(rank: Floats, count: int) -> Floats:
    """cos(pi j u), j = 1, 2, ..., of a mean square of 1."""
    return math.sqrt(2) * np.cos(np.pi * rank[:, None] * np.arange(1, count + 1))


def _shape(
    features: Callable[[slice], list[Floats]],
    pairs: Sequence[Pair],
    weights: Floats,
    groups: Codes | None,
    of_rows: Floats | None,
) -> Shape:
    """Test the shape by the ``features`` (m, f) of some rows for each of one or two exclusive events.

    ``weights`` are of all features. The last one of the first event is constant, for the mean alone, and
    weighs 0.
    """
    n, made = len(pairs[0].probs), functools.partial(_streams, features, pairs, of_rows)
    scores = variance = square = most = np.zeros(())
    for rows in row_slices((n, len(weights)), size=1 << 18):  # blocks stay in a core's cache
        streams = made(rows)
        scores = scores + np.concatenate([f.T @ (p - came) for f, p, came in streams])
        variance = variance + _variance(streams)
        square = square + streams[0][0].T @ streams[0][0]
        most = np.maximum(most, np.concatenate([(f**2).max(axis=0) for f, _, _ in streams]))
    effect = 1.0 if groups is None else _effect_of_features(made(slice(0, n)), groups)
    size = _size(scores[: len(square)], variance[: len(square), : len(square)], square, n, effect)
    on = np.flatnonzero(weights)
    # As in ``Cells.p``, one event more: where less than one error is expected, one is no proof.
    variance = effect * (variance + np.diag(most))[np.ix_(on, on)]
    spread, root = np.sqrt(np.maximum(np.diag(variance), 1e-300)), np.sqrt(weights[on])
    mixture = np.linalg.eigvalsh(root[:, None] * (variance / np.outer(spread, spread)) * root)
    squares = (scores[on] / spread) ** 2
    smooth = _mixture_beyond(float((weights[on] * squares).sum()), np.maximum(mixture, 0))
    # One feature that stands out alone is lost in the sum: it is tested for itself (Bonferroni, twice).
    sharp = len(squares) * chi_square_beyond(float(squares.max()), 1)
    return Shape(min(2 * smooth, 2 * sharp, 1.0), *size)


def _streams(
    features: Callable[[slice], list[Floats]], pairs: Sequence[Pair], of_rows: Floats | None, rows: slice
) -> list[tuple[Floats, Floats, Floats]]:
    """Features (m, f), probabilities (m,) and events (m,) of some rows, for each event."""
    found = features(rows)
    if of_rows is not None:  # a weighted sum of features is a sum of weighted features
        found = [f * of_rows[rows, None] for f in found]
        found[0][:, -1] = 1.0
    return [(f, pair.probs[rows], pair.came[rows]) for f, pair in zip(found, pairs, strict=True)]


def _mixture_beyond(x: float, weights: Floats) -> float:
    """P(sum of weights times chi-squares of one degree > x), by three moments.

    Imhof 1961, section 4.
    """
    first, second, third = (float((weights**i).sum()) for i in (1, 2, 3))
    if not third > 0:
        return 1.0
    freedom = second**3 / third**2
    return chi_square_beyond((x - first) * math.sqrt(freedom / second) + freedom, freedom)


def _variance(streams: list[tuple[Floats, Floats, Floats]]) -> Floats:
    """The covariance (m, m) of the scores under calibration."""
    rows = []
    for i, (f, p, _) in enumerate(streams):
        factors = [p * (1 - p) if i == j else -p * q for j, (_, q, _) in enumerate(streams)]
        rows.append([(f * factor[:, None]).T @ g for factor, (g, _, _) in zip(factors, streams, strict=True)])
    return np.block(rows)


def _effect_of_features(streams: list[tuple[Floats, Floats, Floats]], groups: Codes) -> float:
    """How much more any feature's score varies, as samples come in groups."""
    return max(
        design_effect(feature * (p - came), groups)
        for f, p, came in streams
        for feature in f.T  # one of which is constant
    )


def _size(scores: Floats, variance: Floats, square: Floats, n: int, effect: float) -> tuple[float, float]:
    """The debiased norm of the errors beyond their mean that features explain, and its bound.

    Of features f (n, m), the last one constant: f^T (p - y), f^T p (1 - p) f and f^T f.
    """
    around = np.column_stack([np.eye(len(square) - 1), -square[-1, :-1] / n])  # the features' means
    # By scipy: numpy's eigh may not converge where many eigenvalues are equal, as of few samples.
    gram = linalg.pinvh(around @ square @ around.T / n, rtol=1e-6)
    mean, noise = around @ scores / n, effect * around @ variance @ around.T / n**2
    chance = gram @ noise
    excess = float(mean @ gram @ mean) - float(np.trace(chance))
    error = math.sqrt(
        max(2 * float(np.trace(chance @ chance)) + 4 * float(mean @ gram @ noise @ gram @ mean), 0)
    )
    high = excess + quantile_of(1 - 2 * RISK) * error
    return math.sqrt(max(excess, 0.0)), math.sqrt(max(high, 0.0))
