"""Samples as metrics take them: checked arrays, weights, groups, and per-sample numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Codes, Floats, as_array
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.scores import SUM_OF_16_BITS, ProbsView, row_weights

_OF_LABELS = ("", "; of labels, of which any number may be true, say --outputs label_logits (outputs=)")
BLOCK = 1 << 16  # elements of a block of rows: 512 KiB of float64 stay in a core's cache

MEANS = (
    *("accuracy", "mean_confidence", "signed_gap", "nll", "brier", "brier_top_label", "entropy"),
    *("positive_gap", "positive_brier"),
)
"""Metrics that are means over samples; the last two are of two classes alone."""


def measure_count(classes: int) -> int:
    """The number of ``MEANS`` for so many classes."""
    return len(MEANS) if classes == 2 else len(MEANS) - 2


def measured_rows(p: Any, rows: slice, labels: Codes) -> tuple[Floats, Floats]:
    """Probabilities (m, K) of some rows, and the numbers (7 or 9, m) whose means are ``MEANS``.

    Of a view of logits the NLL is finite also where a probability rounds to 0.
    """
    probs: Floats
    if isinstance(p, ProbsView):
        probs, losses, entropy = p.described(rows, labels)
    else:
        probs = p[rows].astype(np.float64)
        losses, entropy = negative_log(of_classes(probs, labels)), entropies(probs)
    top = probs.argmax(axis=1)
    confidence, right = np.minimum(of_classes(probs, top), 1), top == labels
    gap = confidence - right
    squares = np.einsum("nk,nk->n", probs, probs) - 2 * of_classes(probs, labels) + 1
    found = [right, confidence, gap, losses, squares, gap**2, entropy]
    # Of two classes the top one alone hides errors that cancel, such as a changed share of each.
    if probs.shape[1] == 2:
        excess = np.clip(probs[:, 1], 0, 1) - (labels == 1)
        found += [excess, excess**2]
    return probs, np.stack(found).astype(np.float64, copy=False)


def entropies(p: Floats) -> Floats:
    """-sum_k p_k log p_k of each row (m,), in nats; 0 log 0 is 0."""
    logs = np.maximum(p, np.finfo(np.float64).tiny)
    np.log(logs, out=logs)
    return np.asarray(np.maximum(-np.einsum("ij,ij->i", p, logs), 0))


def negative_log(p: Floats) -> Floats:
    """-log p; infinity at 0, without a warning."""
    with np.errstate(divide="ignore"):
        return np.abs(np.log(p))


def row_slices(shape: tuple[int, ...], *, size: int = BLOCK) -> Iterator[slice]:
    """Runs of the rows of an array (n, K), each of about ``size`` elements."""
    step = max(1, size // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def row_blocks(p: NDArray[np.floating[Any]]) -> Iterator[tuple[slice, Floats]]:
    """Yield blocks of rows, copied to float64, that fit a core's cache; the copy may be overwritten.

    Args:
        p: (n, K), an array or a view of scores.
    """
    for rows in row_slices(p.shape):
        yield rows, p[rows].astype(np.float64)


def top_label(probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """Top-1 confidence (n,), clipped to 1 against rounding, and whether it was right (n,).

    Args:
        probs: Probabilities (n, K).
        labels: Class ids (n,).
    """
    p, y = checked(probs, labels)
    predicted = p.argmax(axis=1)
    return np.minimum(of_classes(p, predicted), 1), predicted == y


def of_classes(p: NDArray[np.floating[Any]], classes: Codes) -> Floats:
    """The number (n,) in the column of each row's class.

    Args:
        p: (n, K).
        classes: Class ids (n,).
    """
    # One flat index takes half the time of p[rows, columns].
    return p.take(np.arange(0, p.size, p.shape[1]) + classes).astype(np.float64, copy=False)


def checked(probs: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.floating[Any]], Codes]:
    """Check probabilities and class ids, and return them as arrays.

    Args:
        probs: Probabilities (n, K), K at least 2.
        labels: Class ids (n,).

    Raises:
        InputError: Where rows are no probabilities, or a label is no class id.
        ShapeError: Where shapes do not fit.
    """
    p = as_array(probs, "probs")
    if p.dtype.kind not in "fiu":
        raise InputError(f"probs must be numbers, got dtype {p.dtype}")
    if p.ndim != 2 or not len(p) or p.shape[1] < 2:
        raise ShapeError(
            f"probs must be (n, K) with n >= 1 and K >= 2, got {p.shape}; for a binary "
            "classifier pass np.stack([1 - p, p], axis=1)"
        )
    if p.dtype.kind != "f":
        p = p.astype(np.float64)
    # Written so that a NaN fails too.
    if not (p.min() >= 0 and np.abs(_row_sums(p) - 1).max() <= SUM_OF_16_BITS):
        raise InputError(
            "each row of probs must be non-negative and sum to 1; pass probabilities, or "
            "softmax(logits) if these are logits"
        )
    return p, checked_labels(labels, len(p), p.shape[1])


def checked_weights(sample_weight: ArrayLike | None, n: int) -> Floats | None:
    """Weights (n,) of mean 1, or None where none are given.

    Args:
        sample_weight: (n,), finite and not negative.
        n: Number of samples.

    Raises:
        InputError: Where weights are no such numbers, or all 0.
        ShapeError: Where their shape is another.
    """
    if sample_weight is None:
        return None
    w = row_weights(sample_weight, n)
    return np.asarray(w / w.mean())


def weighing_rows(
    p: Any, y: Any, sample_weight: ArrayLike | None, groups: ArrayLike | None = None
) -> tuple[Any, Any, Floats | None, Codes | None]:
    """Rows of positive weight: probabilities and labels, weights of mean 1, and group codes.

    Weights and codes are None where there are none. A row of weight 0 is no sample, and leaves everything as
    if it were not there.
    """
    codes = group_codes(groups, len(y))
    if sample_weight is None:
        return p, y, None, codes
    w = row_weights(sample_weight, len(y))
    if not w.all():
        kept = np.flatnonzero(w)
        # A group whose rows all weigh 0 is gone; codes have no gaps.
        codes = group_codes(None if codes is None else codes[kept], len(kept))
        p, y, w = p.take(kept, axis=0), y[kept], w[kept]
    return p, y, w / w.mean(), codes


def _row_sums(p: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    if p.dtype.itemsize < 4:
        return np.asarray(p.sum(axis=1, dtype=np.float32))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(p @ np.ones(p.shape[1], p.dtype))  # by BLAS: much faster than sum on short rows


def checked_labels(labels: ArrayLike, n: int, classes: int) -> Codes:
    """Class ids (n,) within [0, classes), or an error that says what to pass."""
    y = as_array(labels, "labels")
    if y.shape != (n,):
        raise ShapeError(
            f"labels must be ({n},), got {y.shape}; pass class ids, not one-hot" + _OF_LABELS[y.ndim == 2]
        )
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise InputError(f"label {int(np.isnan(y).argmax())} is missing (NaN); drop samples without a label")
    if y.dtype.kind not in "iub":
        how = "give each name its number" if y.dtype.kind in "USO" else "convert with .astype(int)"
        raise InputError(f"labels must be integer class ids, got dtype {y.dtype}; {how}")
    if n and not (y.min() >= 0 and y.max() < classes):
        raise InputError(
            f"labels must lie in [0, {classes}), got {y.min()} to {y.max()}; count classes from 0"
        )
    return y.astype(np.intp, copy=False)


def group_codes(groups: ArrayLike | None, n: int) -> Codes | None:
    """The group of each sample as a number from 0 (n,).

    None where there are no groups, or where each sample is its own.

    Args:
        groups: Numbers or text (n,).
        n: Number of samples.

    Raises:
        InputError: Where a group is not finite, or all samples are of one.
        ShapeError: Where their shape or type is another.
    """
    if groups is None:
        return None
    given = np.asarray(groups)
    if given.shape != (n,) or given.dtype.kind not in "iufbUS":
        raise ShapeError(
            f"groups must be ({n},) numbers or text, one a sample, got {given.shape} {given.dtype}"
        )
    # NaN equals nothing, itself included: each would be a group of its own.
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise InputError("a group is NaN or infinite; give each sample without a group one of its own")
    distinct, codes = np.unique(given, return_inverse=True)
    if len(distinct) < 2:
        raise InputError("all samples are of one group: how much they vary cannot be told from one")
    # Groups of one sample each are independent samples: the plain formulas hold.
    return None if len(distinct) == n else codes.astype(np.intp)


def one_of_each(codes: Codes, *, seed: int) -> Codes:
    """One row of each of G groups, drawn at random: rows (G,).

    Args:
        codes: Group of each row, from 0 (n,).
        seed: Seed of the draw.

    >>> len(one_of_each(np.array([0, 0, 1, 2, 2]), seed=0))
    3
    """
    order = np.random.default_rng(seed).permutation(len(codes))
    return np.asarray(order[np.unique(codes[order], return_index=True)[1]])


def mean_error(values: Floats, codes: Codes | None, weight: Floats | None = None) -> float:
    """The standard error of a mean, robust to what happens inside groups (Liang and Zeger 1986).

    Args:
        values: Numbers whose mean it is (n,).
        codes: Group of each, from 0 (n,); None: they are independent.
        weight: (n,); None: all weigh the same.
    """
    n = len(values)
    if weight is None and codes is None:
        return float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    w = np.ones(n) if weight is None else weight
    apart = w * (values - np.average(values, weights=w))
    totals = apart if codes is None else np.bincount(codes, weights=apart)
    # Rows of weight 0 are no units; groups are units whatever they weigh.
    units = len(totals) if codes is not None else np.count_nonzero(w)
    more = units / (units - 1) if units > 1 else math.nan
    return math.sqrt(more * float((totals**2).sum())) / float(w.sum())


def design_effect(values: Floats, codes: Codes | None) -> float:
    """How much more a mean varies than that of independent samples; at least 1.

    Args:
        values: Numbers whose mean it is (n,).
        codes: Group of each, from 0 (n,); None: 1 is returned.
    """
    alone = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    # Below 1 groups would narrow intervals: mostly chance, and never safe.
    return max((mean_error(values, codes) / alone) ** 2, 1.0) if codes is not None and alone > 0 else 1.0
