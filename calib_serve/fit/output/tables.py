"""Tables of probabilities: histogram binning and isotonic regression (Zadrozny 2001, 2002)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import logsumexp

from calib_serve.artifact import Artifact, ProbTable
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.samples import Samples
from calib_serve.scores import softmax

Of = Literal["top", "each"]
"""``top``: one table for the confidence in the predicted class. ``each``: one per class, renormalised.

Of two classes the top one's confidence hides a changed share of each: the default is then ``each``.
"""


def fit_histogram_width(
    samples: Samples, *, bins: int = 15, of: Of | None = None, smoothing: float = 1.0
) -> Artifact:
    """Fit bins of equal width, each with the observed frequency of its samples.

    ``smoothing`` pseudo-samples at the bin's mean confidence (its middle, where it is empty) keep the values
    between 0 and 1; 0 gives the plain frequencies. Raises InputError for options that cannot be right.
    Zadrozny 2001, section 3.
    """
    return _histogram(samples, "width", of or default_of(samples.classes), bins, smoothing)


def fit_histogram_mass(
    samples: Samples, *, bins: int = 15, of: Of | None = None, smoothing: float = 1.0
) -> Artifact:
    """Fit bins of equal numbers of samples; otherwise as ``fit_histogram_width``.

    Confidences that tie share a bin, so that there may be fewer than ``bins``. With ``of="each"`` and
    many classes nearly all probabilities are near 0, the bins crowd there, and accuracy falls.
    """
    return _histogram(samples, "mass", of or default_of(samples.classes), bins, smoothing)


def fit_isotonic(samples: Samples, *, of: Of = "each") -> Artifact:
    """Fit the rising step function of least squared error; one per class unless ``of="top"``.

    On the calibration set it equals scikit-learn's up to rounding; between two neighbouring steps ours
    changes half way, where scikit-learn's interpolates. Values are kept 1 / (K (n + 1)) away from 0 and 1,
    which a plain isotonic fit reaches. Zadrozny 2002, section 3.
    """
    check_table(of, 1, 0)
    # One sample's weight over all classes: a plain fit reaches 0, where the NLL is infinite.
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


def quantile_edges(p: Floats, bins: int) -> Floats:
    """The inner edges of bins that hold equally many probabilities (n,); fewer where these tie."""
    told = _told_apart(p)
    x, inner = np.unique(told), np.linspace(0, 1, bins + 1)[1:-1]
    last = np.unique(np.searchsorted(x, np.quantile(told, inner, method="inverted_cdf")))
    last = last[last < len(x) - 1]
    # Half way: a model of few probabilities, as of trees, has most samples at one, which is rounded.
    return np.asarray((x[last] + x[last + 1]) / 2)


def _told_apart(p: Floats) -> Floats:
    """Probabilities rounded to 20 bits: float32 does not surely tell smaller differences apart.

    >>> len(np.unique(_told_apart(np.array([0.3, 0.30000001, 0.30001]))))
    2
    """
    mantissa, exponent = np.frexp(p)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, 20)), exponent - 20))


def default_of(classes: int) -> Of:
    """The tables that a histogram has by default."""
    return "each" if classes == 2 else "top"


def histogram_row(
    p: Floats, came_true: Floats, weight: Floats, edges: Floats, smoothing: float
) -> tuple[Floats, Floats]:
    """``edges`` and the frequency of each bin, with ``smoothing`` samples added at the bin's mean."""
    # Bins are (lo, hi], as everywhere: searchsorted from the left.
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
    samples: Samples, equal: Literal["width", "mass"], of: Of, bins: int, smoothing: float
) -> Artifact:
    check_table(of, bins, smoothing)
    rows = []
    for p, came_true, weight in _columns(samples, of):
        edges = np.linspace(0, 1, bins + 1)[1:-1] if equal == "width" else quantile_edges(p, bins)
        rows.append(histogram_row(p, came_true, weight, edges, smoothing))
    return complete(
        [table_of(rows)],
        samples,
        method=f"histogram-{equal}",
        fit={"objective": "share of each bin", "of": of, "bins": bins, "smoothing": smoothing},
    )


def _columns(samples: Samples, of: Of) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Yield, for each table, probabilities (n,), whether each came true (n,), and weights (n,)."""
    weight = samples.weights
    if of == "top":
        parts = [
            (p.max(axis=1), p.argmax(axis=1)) for p in (softmax(z) for _, z in samples.chunks(np.float64))
        ]
        confidence, predicted = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        yield np.minimum(confidence, 1.0), (predicted == samples.labels).astype(np.float64), weight
        return
    log_total = np.concatenate([logsumexp(z, axis=1) for _, z in samples.chunks(np.float64)])
    # A class at a time: float64 probabilities of all are twice as large as float32 logits.
    for k in range(samples.classes):
        column = np.concatenate([z[:, k] for _, z in samples.chunks()]).astype(np.float64)
        yield np.minimum(np.exp(column - log_total), 1.0), (samples.labels == k).astype(np.float64), weight


def temperature_row(p: Floats, cooled: Floats) -> tuple[Floats, Floats]:
    """A temperature as a row of a table: a step function from probabilities (n,) to ``cooled`` (n,)."""
    edges = quantile_edges(p, 100)
    index = np.searchsorted(edges, p)
    count, total = (np.bincount(index, w, len(edges) + 1) for w in (None, cooled))
    bounds = np.concatenate([[0.0], edges, [1.0]])
    middle = (bounds[1:] + bounds[:-1]) / 2  # of a step that holds nothing
    return edges, np.where(count > 0, total / np.maximum(count, 1), middle)


def table_of(rows: list[tuple[Floats, Floats]]) -> ProbTable:
    """Put rows of unequal length in one table: short ones are padded with empty bins above 1."""
    most = max(len(values) for _, values in rows)
    edges = np.stack([np.pad(e, (0, most - 1 - len(e)), constant_values=1.0) for e, _ in rows])
    values = np.stack([np.pad(v, (0, most - len(v)), mode="edge") for _, v in rows])
    return ProbTable(edges, np.clip(values, 0, 1))


def check_table(of: str, bins: int, smoothing: float) -> None:
    """Raise InputError for options of a table that cannot be right."""
    if of not in ("top", "each"):
        raise InputError(f"of must be 'top' or 'each', got {of!r}")
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    if not (np.isfinite(smoothing) and smoothing >= 0):
        raise InputError(f"smoothing must be a number of samples, 0 or more, got {smoothing}")
