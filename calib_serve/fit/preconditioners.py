"""Approximate inverse Hessians of softmax regression, around which L-BFGS searches.

With p the probabilities and x~ = (x, 1), the Hessian is the mean of (diag p - p p^T) (x) x~ x~^T plus the
penalty. Few parameters: we factor it whole. A full matrix of many classes: we keep the blocks of one class
each, mean p_k (1 - p_k) x~ x~^T, and give them all one shape, h_k C, so that a single eigendecomposition
inverts them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from calib_serve.core.arrays import AnyFloats
from calib_serve.fit.lbfgs import Vector

Chunk = tuple[AnyFloats, AnyFloats, NDArray[np.float64]]
"""Features x (m, K), probabilities p (m, K) and weights (m,) that sum to 1 over all chunks."""
Solve = Callable[[Vector], Vector]
"""Applies the inverse."""
Curved = Callable[[Vector], Solve]
"""The inverse for a ridge, the penalty's second derivative, one number per parameter.

Sums over samples are taken once for all ridges.
"""


def of_matrix(chunks: Iterable[Chunk], classes: int) -> Curved:
    """The Hessian of W's rows (K, K), then b (K,), factored whole: for K up to a few dozen."""
    size = classes * (classes + 1)
    blocks = np.zeros((classes, classes + 1, classes, classes + 1))
    hessian = blocks.reshape(size, size)
    for x, p, w in chunks:
        x1 = _with_one(x)
        weighted = p * np.sqrt(w)[:, None]
        outer = (weighted[:, :, None] * x1[:, None, :]).reshape(len(x), size)
        hessian -= outer.T @ outer
        for k in range(classes):
            blocks[k, :, k, :] += (x1 * (p[:, k] * w)[:, None]).T @ x1
    # A block is a row of W with its b; the parameters are all rows of W, then all of b.
    order = np.arange(size).reshape(classes, classes + 1)
    order = np.concatenate([order[:, :-1].ravel(), order[:, -1]])
    ordered = hessian[np.ix_(order, order)]
    return lambda ridge: _factored(ordered, ridge)


def of_diagonal(chunks: Iterable[Chunk], classes: int) -> Curved:
    """The Hessian of a diagonal (K,) and b (K,), factored whole: for K up to a thousand or so."""
    hessian = np.zeros((2 * classes, 2 * classes))
    for chunk in chunks:
        _add_diagonal(hessian, chunk)
    return lambda ridge: _factored(hessian, ridge)


def _add_diagonal(hessian: NDArray[np.float64], chunk: Chunk) -> None:
    """Add a chunk to the Hessian (2 K, 2 K) of a diagonal and b."""
    x, p, w = chunk
    px, k = p * x, np.arange(p.shape[1])
    both = np.concatenate([px, p], axis=1) * np.sqrt(w)[:, None].astype(p.dtype)
    hessian -= both.T @ both
    cross = w @ px
    hessian[k, k] += w @ (px * x)
    hessian[k, len(k) + k] += cross
    hessian[len(k) + k, k] += cross
    hessian[len(k) + k, len(k) + k] += w @ p


def of_pairs(chunks: Iterable[Chunk], classes: int) -> Curved:
    """The 2 x 2 blocks of a diagonal (K,) and b (K,), one per class: for any K."""
    own = np.zeros((3, classes))
    for x, p, w in chunks:
        u = p * (1 - p) * w[:, None]
        own += [np.einsum("nk,nk->k", u * x, x), (u * x).sum(axis=0), u.sum(axis=0)]
    return lambda ridge: _pairs(own, ridge)


def _pairs(own: NDArray[np.float64], ridge: Vector) -> Solve:
    classes = own.shape[1]
    floor = 1e-8 * max(float(own.max()), 1e-300)
    a, c = own[0] + ridge[:classes] + floor, own[2] + ridge[classes:] + floor
    b = own[1]
    determinant = a * c - b * b

    def solve(g: Vector) -> Vector:
        top, bottom = g[:classes], g[classes:]
        solved = np.concatenate([c * top - b * bottom, a * bottom - b * top])
        return np.asarray(solved / np.tile(determinant, 2))

    return solve


def of_scalar(chunks: Iterable[Chunk], classes: int) -> Curved:
    """The Hessian's diagonal for one weight of all classes, then b (K,): for any K."""
    own = np.zeros(classes + 1)
    for x, p, w in chunks:
        px = p * x
        own[0] += w @ (np.einsum("nk,nk->n", px, x) - np.einsum("nk->n", px) ** 2)
        own[1:] += w @ (p * (1 - p))
    floor = 1e-9 * float(own.mean()) + 1e-300
    return lambda ridge: lambda g: g / (np.maximum(own, 0) + np.maximum(ridge, floor))


def of_blocks(chunks: Iterable[Chunk], classes: int) -> Curved:
    """The blocks of each class, all taken to be h_k C plus the ridge: for many classes.

    With D the ridge of a row and its b, C v = omega D v gives (h_k C + D)^-1 = V diag(1 / (h_k
    omega + 1)) V^T; the diagonal entry's own ridge is one rank-one change a class (Sherman-Morrison).
    Blocks overestimate joint changes of all classes, so two small spaces are solved exactly and added:
    the diagonal with b, and one vector added to all rows, which changes no probability.
    """
    h = np.zeros(classes)
    c = np.zeros((classes + 1, classes + 1))
    spread = 0.0
    together = np.zeros((2 * classes, 2 * classes))
    for chunk in chunks:
        _add_diagonal(together, chunk)
        x, p, w = chunk
        u = p * (1 - p)
        share = u.sum(axis=1, dtype=np.float64) * w
        h += w @ u
        spread += float(share.sum())
        x1 = _with_one(x)
        c += (x1 * share[:, None].astype(x.dtype)).T @ x1
    h = np.maximum(h / spread, 1e-12)
    return lambda ridge: _blocks(h, c, together, ridge)


def _blocks(
    h: NDArray[np.float64], c: NDArray[np.float64], together: NDArray[np.float64], ridge: Vector
) -> Solve:
    classes = len(h)
    own_ridge = np.concatenate([ridge[: classes * classes : classes + 1], ridge[-classes:]])
    coarse = _factored(together, own_ridge)
    off = ridge[1] if classes > 1 else ridge[0]
    row = np.append(np.full(classes, off), ridge[-1])
    common = np.maximum((classes - 1) * row, 1e-300)
    row = np.maximum(row, 1e-9 * np.trace(c) / len(c))
    root = 1 / np.sqrt(row)
    omega, v = linalg.eigh(root[:, None] * c * root)
    v = root[:, None] * v
    gain = 1 / (h[:, None] * np.maximum(omega, 0) + 1)  # (K, K + 1)
    # A_k^-1 e_k, one row per class, and how much the diagonal's ridge differs from the others'.
    column = (gain * v[:classes]) @ v.T
    change = ridge[0] - row[0]
    own = column[np.arange(classes), np.arange(classes)]
    factor = change / np.maximum(1 + change * own, 1e-3)
    k = np.arange(classes)

    def solve(g: Vector) -> Vector:
        rows = np.concatenate([g[:-classes].reshape(classes, classes), g[-classes:, None]], axis=1)
        y = ((rows @ v) * gain) @ v.T
        y -= (factor * y[k, k])[:, None] * column
        y += rows.sum(axis=0) / common
        both = coarse(np.concatenate([rows[k, k], rows[:, -1]]))
        y[k, k] += both[:classes]
        y[:, -1] += both[classes:]
        return np.concatenate([y[:, :-1].ravel(), y[:, -1]])

    return solve


def _with_one(x: AnyFloats) -> AnyFloats:
    return np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)


def _factored(hessian: NDArray[np.float64], ridge: Vector) -> Solve:
    # Adding one number to all scores changes no probability: the Hessian is singular but for the
    # ridge, and where that is 0 this floor stands in.
    floor = 1e-9 * np.trace(hessian) / len(hessian) + 1e-300
    factor = linalg.cho_factor(
        hessian + np.diag(np.maximum(ridge, floor)), overwrite_a=True, check_finite=False
    )
    return lambda g: np.asarray(linalg.cho_solve(factor, g, check_finite=False))
