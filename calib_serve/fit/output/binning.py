"""Histogram binning (Zadrozny 2001) and isotonic regression (Zadrozny 2002), as tables of probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from calib_serve.artifact import Artifact, ProbTable
from calib_serve.errors import InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.metrics import softmax

__all__ = [
    "Of",
    "check_table",
    "equal_mass",
    "equal_width",
    "fit_histogram_mass",
    "fit_histogram_width",
    "fit_isotonic",
    "histogram_row",
    "isotonic_row",
    "table_of",
]

Floats = NDArray[np.float64]
Of = Literal["top", "each"]
"""``top``: one table for the confidence in the predicted class. ``each``: one per class, renormalised.

Of two classes the top one's confidence hides a changed share of each: the default is then ``each``.
"""


def fit_histogram_width(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    of: Of | None = None,
    smoothing: float = 1.0,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """Bins of equal width, each with the observed frequency of its samples.

    ``logits`` (n, K), ``labels`` (n,). ``smoothing`` pseudo-samples at the bin's mean confidence (its middle,
    where it is empty) keep the values between 0 and 1; 0 gives the plain frequencies. Raises InputError for
    invalid arrays and options. Zadrozny 2001, section 3.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    of = of or _default(samples)
    check_table(of, bins, smoothing)
    return _histogram(samples, "histogram-width", equal_width(bins), of=of, bins=bins, smoothing=smoothing)


def fit_histogram_mass(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    of: Of | None = None,
    smoothing: float = 1.0,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """Bins of equal numbers of samples; otherwise as ``fit_histogram_width``.

    Confidences that tie share a bin, so that there may be fewer than ``bins``. With ``of="each"`` and
    many classes nearly all probabilities are near 0, the bins crowd there, and accuracy falls.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    of = of or _default(samples)
    check_table(of, bins, smoothing)
    return _histogram(samples, "histogram-mass", equal_mass(bins), of=of, bins=bins, smoothing=smoothing)


def fit_isotonic(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    of: Of = "each",
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """The rising step function of least squared error; one per class unless ``of="top"``.

    ``logits`` (n, K), ``labels`` (n,). On the calibration set it equals scikit-learn's up to rounding;
    between two neighbouring steps ours changes half way, where scikit-learn's interpolates. Values are kept 1
    / (K (n + 1)) away from 0 and 1, which a plain isotonic fit reaches. Raises InputError for invalid arrays.
    Zadrozny 2002, section 3.
    """
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    check_table(of, 1, 0)
    floor = 1 / (samples.classes * (len(samples) + 1))
    rows = [isotonic_row(*column, floor) for column in _columns(samples, of)]
    return complete(
        [table_of(rows)],
        samples,
        method="isotonic",
        fit={"objective": "squared error", "of": of, "steps": [len(values) for _, values in rows]},
        packages=("scipy",),
    )


def isotonic_row(p: Floats, came_true: Floats, weight: Floats, floor: float) -> tuple[Floats, Floats]:
    """The inner edges and values of an isotonic fit of probabilities (n,) to 0 and 1 (n,)."""
    on = weight > 0
    # Equal probabilities get one value: their weighted mean stands for them.
    x, at = np.unique(_told_apart(p[on]), return_inverse=True)
    mass = np.bincount(at, weights=weight[on])
    mean = np.bincount(at, weights=weight[on] * came_true[on]) / mass
    values = np.clip(isotonic_regression(mean, weights=mass).x, floor, 1 - floor)
    changes = np.flatnonzero(np.diff(values) > 0)
    return (x[changes] + x[changes + 1]) / 2, np.append(values[changes], values[-1])


def equal_width(bins: int) -> Callable[[Floats], Floats]:
    """The inner edges of bins of equal width, whatever the probabilities."""
    edges = np.linspace(0, 1, bins + 1)[1:-1]
    return lambda p: edges


def equal_mass(bins: int) -> Callable[[Floats], Floats]:
    """The inner edges of bins that hold equally many of the probabilities (n,); fewer where these tie."""
    inner = np.linspace(0, 1, bins + 1)[1:-1]

    def edges(p: Floats) -> Floats:
        x = np.unique(_told_apart(p))
        last = np.unique(np.searchsorted(x, np.quantile(_told_apart(p), inner, method="inverted_cdf")))
        last = last[last < len(x) - 1]
        # Half way: a model of few probabilities, as of trees, has most samples at one, which is rounded.
        return np.asarray((x[last] + x[last + 1]) / 2)

    return edges


def _told_apart(p: Floats) -> Floats:
    """Probabilities in 20 bits: what differs by less, float32 does not surely tell apart.

    >>> len(np.unique(_told_apart(np.array([0.3, 0.30000001, 0.30001]))))
    2
    """
    mantissa, exponent = np.frexp(p)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, 20)), exponent - 20))


def histogram_row(
    p: Floats, came_true: Floats, weight: Floats, edges: Floats, smoothing: float
) -> tuple[Floats, Floats]:
    """The inner ``edges`` and each bin's share of what came true, with ``smoothing`` samples at its mean."""
    index = np.searchsorted(edges, p)
    count, confidence, correct = (
        np.bincount(index, weights=weight * what, minlength=len(edges) + 1)
        for what in (np.ones(len(p)), p, came_true)
    )
    bounds = np.concatenate([[0.0], edges, [1.0]])
    middle = (bounds[1:] + bounds[:-1]) / 2
    mean = np.where(count > 0, confidence / np.where(count > 0, count, 1), middle)
    seen = count + smoothing
    return edges, np.where(seen > 0, (correct + smoothing * mean) / np.where(seen > 0, seen, 1), middle)


def _histogram(
    samples: Samples,
    method: str,
    edges_of: Callable[[Floats], Floats],
    *,
    of: Of,
    bins: int,
    smoothing: float,
) -> Artifact:
    rows = [
        histogram_row(p, came_true, weight, edges_of(p), smoothing)
        for p, came_true, weight in _columns(samples, of)
    ]
    return complete(
        [table_of(rows)],
        samples,
        method=method,
        fit={"objective": "share of each bin", "of": of, "bins": bins, "smoothing": smoothing},
    )


def _columns(samples: Samples, of: Of) -> Iterator[tuple[Floats, Floats, Floats]]:
    """For each table: probabilities (n,), whether they came true (n,), weights (n,)."""
    weight = np.ones(len(samples)) if samples.weight is None else samples.weight
    if of == "top":
        parts = [
            (p.max(axis=1), p.argmax(axis=1)) for p in (softmax(z) for _, z in samples.chunks(np.float64))
        ]
        confidence, predicted = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        yield np.minimum(confidence, 1.0), (predicted == samples.labels).astype(np.float64), weight
        return
    log_total = np.concatenate([_logsumexp(z) for _, z in samples.chunks(np.float64)])
    for k in range(samples.classes):
        column = np.concatenate([z[:, k] for _, z in samples.chunks()]).astype(np.float64)
        yield np.minimum(np.exp(column - log_total), 1.0), (samples.labels == k).astype(np.float64), weight


def _logsumexp(z: NDArray[np.floating[Any]]) -> Floats:
    top = z.max(axis=1)
    return np.asarray(top + np.log(np.exp(z - top[:, None]).sum(axis=1)))


def table_of(rows: list[tuple[Floats, Floats]]) -> ProbTable:
    """Rows of unequal length in one table: short ones are padded with empty bins above 1."""
    most = max(len(values) for _, values in rows)
    edges = np.stack([np.pad(e, (0, most - 1 - len(e)), constant_values=1.0) for e, _ in rows])
    values = np.stack([np.pad(v, (0, most - len(v)), mode="edge") for _, v in rows])
    return ProbTable(edges, np.clip(values, 0, 1))


def _default(samples: Samples) -> Of:
    return "each" if samples.classes == 2 else "top"


def check_table(of: str, bins: int, smoothing: float) -> None:
    """InputError for options of a table that cannot be right."""
    if of not in ("top", "each"):
        raise InputError(f"of must be 'top' or 'each', got {of!r}")
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    if not (np.isfinite(smoothing) and smoothing >= 0):
        raise InputError(f"smoothing must be a number of samples, 0 or more, got {smoothing}")
