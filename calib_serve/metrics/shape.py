"""The test of shape: a kernel test, which sees what bins cannot, errors that cancel inside of them.

It is the squared kernel calibration error (Widmann, Lindsten and Zachariah 2019, definition 2) of a kernel
with named features, k(x, x') = sum_j w_j f_j(x) f_j(x'): then its estimate is a sum of squared correlations
of errors with features, and its law under calibration is known without resampling, for groups as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calib_serve.core.arrays import Codes, Floats
from calib_serve.metrics.distributions import chi_square_beyond
from calib_serve.metrics.gaps import RISK
from calib_serve.metrics.intervals import quantile_of
from calib_serve.metrics.samples import design_effect

_WAVES = 32  # cosines over the rank of a probability: the last sees errors that change sign 32 times
CLASSES_WITH_SLOPES = 64  # classes whose confidences may have a slope of their own


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
    waves, weights = _waves(_ranks(np.abs(probs - 0.5)), _WAVES)
    side = np.where(probs > 0.5, 1.0, -1.0)
    features = np.column_stack([waves, side[:, None] * waves, side])
    every = np.concatenate([weights, weights, [1.0]])
    return _shape([(features, probs, came)], every, np.zeros(len(probs)), groups, weight)


def shape_of_top_two(
    first: Pair, second: Pair, predicted: Codes, groups: Codes | None, weight: Floats | None = None
) -> Shape:
    """Test the shape of the ``first`` and ``second`` largest probability, by the ``predicted`` class (n,).

    Errors of the first by its rank, by the second's share of the rest, by both, and by class; errors of
    the second by its share of the rest.
    """
    rank = _ranks(first.probs)
    share = _ranks(second.probs / np.maximum(1 - first.probs, 1e-12))
    of_first, weights = _waves(rank, _WAVES)
    of_share, more = _waves(share, 4)
    products = [of_first[:, i] * of_share[:, j] for i in range(3) for j in range(3)]
    slopes = _class_slopes(rank, predicted)
    top = np.column_stack([of_first, of_share, *products, slopes])
    alike = np.full(slopes.shape[1], 1 / slopes.shape[1] ** 0.5)
    below = np.column_stack([np.ones(len(rank)), of_share])
    every = np.concatenate([weights, more, np.full(9, 0.5), alike, [1.0], more])
    streams = [(top, *first), (below, *second)]
    return _shape(streams, every, first.probs * second.probs, groups, weight)


def _ranks(values: Floats) -> Floats:
    """The mid-rank of each value (n,), in (0, 1); equal values have the same."""
    ordered = np.sort(values)
    low, high = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((low + high) / (2 * len(values)))


def _waves(rank: Floats, count: int) -> tuple[Floats, Floats]:
    """cos(pi j u), j = 1, 2, ..., of a mean square of 1, and their weights 1 / j."""
    j = np.arange(1, count + 1)
    return math.sqrt(2) * np.cos(np.pi * rank[:, None] * j), 1.0 / j


def _class_slopes(rank: Floats, predicted: Codes) -> Floats:
    """A line over the rank for each of the most predicted classes, (n, classes)."""
    common = np.argsort(-np.bincount(predicted), kind="stable")[:CLASSES_WITH_SLOPES]
    return np.where(predicted[:, None] == common, rank[:, None] - 0.5, 0.0)


def _shape(
    streams: list[tuple[Floats, Floats, Floats]],
    weights: Floats,
    crossed: Floats,
    groups: Codes | None,
    of_rows: Floats | None,
) -> Shape:
    """Test the shape by features (n, m), probabilities (n,) and events (n,) of each stream.

    ``weights`` are of all features; ``crossed`` is the product of two exclusive events' probabilities.
    """
    if of_rows is not None:  # a weighted sum of features is a sum of weighted features
        streams = [(f * of_rows[:, None], p, came) for f, p, came in streams]
    scores = np.concatenate([f.T @ (p - came) for f, p, came in streams])
    variance = _variance(streams, crossed)
    # As in ``Cells.p``, one event more: where less than one error is expected, one is no proof.
    variance[np.diag_indices_from(variance)] += np.concatenate(
        [(f**2).max(axis=0, initial=0) for f, _, _ in streams]
    )
    effect = 1.0 if groups is None else _effect_of_features(streams, groups)
    variance *= effect
    spread = np.sqrt(np.maximum(np.diag(variance), 1e-300))
    root = np.sqrt(weights)
    mixture = np.linalg.eigvalsh(root[:, None] * (variance / np.outer(spread, spread)) * root)
    statistic = float((weights * (scores / spread) ** 2).sum())
    smooth = _mixture_beyond(statistic, np.maximum(mixture, 0))
    # One feature that stands out alone is lost in the sum: it is tested for itself (Bonferroni, twice).
    sharp = len(scores) * chi_square_beyond(float(((scores / spread) ** 2).max()), 1)
    return Shape(min(2 * smooth, 2 * sharp, 1.0), *_size(streams[0], effect))


def _mixture_beyond(x: float, weights: Floats) -> float:
    """P(sum of weights times chi-squares of one degree > x), by three moments.

    Imhof 1961, section 4.
    """
    first, second, third = (float((weights**i).sum()) for i in (1, 2, 3))
    if not third > 0:
        return 1.0
    freedom = second**3 / third**2
    return chi_square_beyond((x - first) * math.sqrt(freedom / second) + freedom, freedom)


def _variance(streams: list[tuple[Floats, Floats, Floats]], crossed: Floats) -> Floats:
    """The covariance (m, m) of the scores under calibration."""
    rows = []
    for i, (f, p, _) in enumerate(streams):
        parts = []
        for j, (g, _, _) in enumerate(streams):
            factor = p * (1 - p) if i == j else -crossed
            parts.append((f * factor[:, None]).T @ g)
        rows.append(np.hstack(parts))
    return np.vstack(rows)


def _effect_of_features(streams: list[tuple[Floats, Floats, Floats]], groups: Codes) -> float:
    """How much more any feature's score varies, as samples come in groups."""
    return max(
        design_effect(feature * (p - came), groups)
        for f, p, came in streams
        for feature in (np.ones(len(p)), *f.T)
    )


def _size(stream: tuple[Floats, Floats, Floats], effect: float) -> tuple[float, float]:
    """The debiased norm of the errors beyond their mean that features explain, and its bound."""
    features, p, came = stream
    n = len(features)
    f = features - features.mean(axis=0)
    gram = np.linalg.pinv(f.T @ f / n, rcond=1e-6, hermitian=True)
    mean = f.T @ (p - came) / n
    noise = effect * (f * (p * (1 - p))[:, None]).T @ f / n**2
    chance = gram @ noise
    square = float(mean @ gram @ mean) - float(np.trace(chance))
    error = math.sqrt(
        max(2 * float(np.trace(chance @ chance)) + 4 * float(mean @ gram @ noise @ gram @ mean), 0)
    )
    high = square + quantile_of(1 - 2 * RISK) * error
    return math.sqrt(max(square, 0.0)), math.sqrt(max(high, 0.0))
