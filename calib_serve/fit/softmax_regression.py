"""Penalised softmax regression, softmax(W x + b): the convex problem of every linear calibrator.

The objective is the weighted mean NLL plus ``off`` sum of W_kj^2 off the diagonal, ``diagonal`` sum of
(W_kk - 1)^2, and ``bias`` sum of b_k^2. x is the logits times ``scale``, or the log-probabilities.

It is minimised by L-BFGS around a preconditioner (Nocedal 2006, algorithm 7.4). scipy's L-BFGS takes none,
and with a good one these problems need a handful of gradients instead of hundreds. With p the probabilities
and x~ = (x, 1), the Hessian is the mean of (diag p - p p^T) (x) x~ x~^T plus the penalty. Few parameters:
we factor it whole. A full matrix of many classes: we keep the blocks of one class each, mean p_k (1 - p_k)
x~ x~^T, and give them all one shape, h_k C, so that a single eigendecomposition inverts them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import logsumexp

from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.samples import Samples, folds_of

Vector = NDArray[np.float64]
Shape = Literal["full", "diagonal"]
"""Of W."""
Objective = Callable[[Vector], tuple[float, Vector]]

_MEMORY = 12
_ARMIJO = 1e-4


@dataclass(frozen=True)
class Minimum:
    """The end of a search: the point, its value and gradient, the iterations and evaluations it took.

    ``gap`` estimates how far the value is above the optimum: half the squared gradient in the
    preconditioner's norm.
    """

    x: Vector
    value: float
    gradient: Vector
    gap: float
    iterations: int
    evaluations: int

    def certificate(self) -> dict[str, Any]:
        """The manifest's entry of the search."""
        return {
            "gradient_norm": float(np.linalg.norm(self.gradient)),
            "gap": self.gap,
            "iterations": self.iterations,
            "evaluations": self.evaluations,
        }


def minimise(
    objective: Objective,
    start: Vector,
    precondition: Callable[[Vector], Vector],
    *,
    gap: float,
    rounding: float = 1e-13,
    max_iterations: int = 500,
) -> Minimum:
    """Follow ``objective`` (value and gradient) from ``start`` until its ``gap`` is closed.

    ``precondition`` applies an approximate inverse Hessian; values are exact to ``rounding``. Ends
    at ``max_iterations`` too, and where rounding leaves nothing to gain: look at the ``gap``.
    """
    x, (value, gradient) = start, objective(start)
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=_MEMORY)
    iteration, evaluations = 0, 1
    scale = 1.0  # how far the preconditioner is off along the last step
    while True:
        step = -_two_loops(gradient, pairs, precondition, scale)
        slope = float(gradient @ step)
        here = Minimum(x, value, gradient, max(-slope / 2, 0.0), iteration, evaluations)
        if here.gap <= gap or iteration == max_iterations:
            return here
        found = _line_search(objective, here, step, slope, rounding * max(1.0, abs(value)))
        if found is None:
            if not pairs:
                return here
            pairs.clear()  # the pairs are unreliable: start again
            continue
        x_next, value_next, gradient_next, tried = found
        iteration, evaluations = iteration + 1, evaluations + tried
        s, y = x_next - x, gradient_next - gradient
        if (curvature := float(s @ y)) > 0:
            pairs.append((s, y, curvature))
            scale = curvature / float(y @ precondition(y))
        x, value, gradient = x_next, value_next, gradient_next


def _two_loops(
    gradient: Vector,
    pairs: deque[tuple[Vector, Vector, float]],
    precondition: Callable[[Vector], Vector],
    scale: float,
) -> Vector:
    """The inverse Hessian, estimated from preconditioner and pairs, times the gradient."""
    q = gradient.copy()
    alphas = []
    for s, y, curvature in reversed(pairs):
        alphas.append(float(s @ q) / curvature)
        q -= alphas[-1] * y
    r = scale * precondition(q)
    for (s, y, curvature), alpha in zip(pairs, reversed(alphas), strict=True):
        r += (alpha - float(y @ r) / curvature) * s
    return r


def _line_search(
    objective: Objective, here: Minimum, step: Vector, slope: float, noise: float
) -> tuple[Vector, float, Vector, int] | None:
    """The first point along ``step`` that gains enough: backtracking with a parabola."""
    t = 1.0
    for tried in range(1, 30):
        x = here.x + t * step
        value, gradient = objective(x)
        # A gain below ``noise`` is within rounding: accept the step.
        if here.value - value >= -_ARMIJO * t * slope - noise:
            return x, value, gradient, tried
        bend = value - here.value - t * slope
        best = -slope * t * t / (2 * bend) if np.isfinite(bend) and bend > 0 else t / 10
        t = min(max(best, t / 10), t / 2)
    return None


Floats = NDArray[np.floating[Any]]
Chunk = tuple[Floats, Floats, NDArray[np.float64]]
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
    sums = _DiagonalHessian(classes)
    for chunk in chunks:
        sums.add(chunk)
    matrix = sums.matrix()
    return lambda ridge: _factored(matrix, ridge)


class _DiagonalHessian:
    """The Hessian of a diagonal and b, summed up chunk by chunk."""

    def __init__(self, classes: int) -> None:
        self._shared = np.zeros((2 * classes, 2 * classes))
        self._own = np.zeros((3, classes))

    def add(self, chunk: Chunk) -> None:
        x, p, w = chunk
        px = p * x
        both = np.concatenate([px, p], axis=1) * np.sqrt(w)[:, None].astype(p.dtype)
        self._shared += both.T @ both
        self._own += [w @ (px * x), w @ px, w @ p]

    def matrix(self) -> NDArray[np.float64]:
        hessian = -self._shared
        classes = self._own.shape[1]
        k = np.arange(classes)
        hessian[k, k] += self._own[0]
        hessian[k, classes + k] += self._own[1]
        hessian[classes + k, k] += self._own[1]
        hessian[classes + k, classes + k] += self._own[2]
        return hessian


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
    together = _DiagonalHessian(classes)
    for chunk in chunks:
        together.add(chunk)
        x, p, w = chunk
        u = p * (1 - p)
        share = u.sum(axis=1, dtype=np.float64) * w
        h += w @ u
        spread += float(share.sum())
        x1 = _with_one(x)
        c += (x1 * share[:, None].astype(x.dtype)).T @ x1
    h = np.maximum(h / spread, 1e-12)
    matrix = together.matrix()
    return lambda ridge: _blocks(h, c, matrix, ridge)


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


def _with_one(x: Floats) -> Floats:
    return np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)


def _factored(hessian: NDArray[np.float64], ridge: Vector) -> Solve:
    # Adding one number to all scores changes no probability: the Hessian is singular but for the
    # ridge, and where that is 0 this floor stands in.
    floor = 1e-9 * np.trace(hessian) / len(hessian) + 1e-300
    factor = linalg.cho_factor(
        hessian + np.diag(np.maximum(ridge, floor)), overwrite_a=True, check_finite=False
    )
    return lambda g: np.asarray(linalg.cho_solve(factor, g, check_finite=False))


# Parameters up to which the Hessian itself, factored, is the preconditioner.
_EXACT_MATRIX = 700
_EXACT_DIAGONAL = 1000
_SINGLE = 1 << 21  # logits above which passes are in float32; sums over samples stay in float64
_SINGLE_ROUGH = 1 << 18
_MOST_CLASSES = 4096
_CHUNK = 1 << 21
_REFRESH = 25  # iterations after which a new preconditioner is worth its price
_MOST_ITERATIONS = 2000


@dataclass(frozen=True)
class Penalty:
    """Weights of the squared off-diagonal entries, the diagonal's distance from 1, and the bias."""

    off: float = 0.0
    diagonal: float = 0.0
    bias: float = 0.0


@dataclass(frozen=True, eq=False)
class Problem:
    """Samples, how their logits become x, and the shape of W: "full" or "diagonal".

    Parameters are one vector: W - I (its rows, or its diagonal), then b.
    """

    samples: Samples
    shape: Shape
    scale: float = 1.0
    offset: NDArray[np.float64] | None = None  # logsumexp of each sample, where x is log-probabilities
    rough: bool = False  # float32 for smaller sets too: for choosing, not for the result

    @classmethod
    def of(
        cls,
        samples: Samples,
        shape: Shape,
        *,
        on: Literal["logits", "log_probs"] = "logits",
        scale: float = 1.0,
    ) -> Problem:
        """Make the problem on logits times ``scale``, or on log-softmax of them."""
        k = samples.classes
        if shape == "full" and k > _MOST_CLASSES:
            raise InputError(
                f"a full matrix for {k} classes has {k * k:.1e} numbers, more than any calibration set "
                "can tell; choose vector, structured-vector or temperature"
            )
        parts = (
            [logsumexp(z * scale, axis=1) for _, z in samples.chunks(np.float64)] if on == "log_probs" else []
        )
        return cls(samples, shape, scale, np.concatenate(parts) if parts else None)

    @property
    def size(self) -> int:
        """The number of parameters."""
        k = self.samples.classes
        return k * (k + 1) if self.shape == "full" else 2 * k

    def take(self, index: slice | NDArray[Any]) -> Problem:
        """Take the problem on a part of the samples."""
        offset = None if self.offset is None else self.offset[index]
        return replace(self, samples=self.samples.take(index), offset=offset)

    def solve(
        self, penalty: Penalty, start: Vector | None = None, *, gap: float, about: Solve | None = None
    ) -> Minimum:
        """The parameters of least penalised NLL, to within about ``gap`` of the least value.

        ``about`` is a preconditioner made for a nearby problem; without it, or where it does not
        help, we make our own. Raises FitError where the gap does not close.
        """
        x = np.zeros(self.size) if start is None else start
        iterations = evaluations = 0
        while iterations < _MOST_ITERATIONS:
            found = minimise(
                lambda theta: self.evaluate(theta, penalty),
                x,
                about or self.preconditioner(penalty, x),
                gap=gap,
                rounding=self._rounding,
                max_iterations=_REFRESH,
            )
            iterations += found.iterations
            evaluations += found.evaluations
            if found.gap <= gap or found.iterations < _REFRESH:
                return replace(found, iterations=iterations, evaluations=evaluations)
            x, about = found.x, None
        raise FitError(
            f"no convergence in {iterations} iterations: the objective may be {found.gap:.3g} above its "
            f"least value, more than {gap:.3g}; regularise more"
        )

    def map(self, theta: Vector) -> tuple[Vector, Vector]:
        """W ((K, K), or (K,) for a diagonal) and b of parameters."""
        k = self.samples.classes
        if self.shape == "diagonal":
            return 1 + theta[:k], theta[k:]
        return np.eye(k) + theta[:-k].reshape(k, k), theta[-k:]

    def nll(self, theta: Vector) -> float:
        """The weighted mean NLL, without penalty."""
        total = 0.0
        for _, s, y, w in self._scores(theta):
            e_sum = np.exp(s).sum(axis=1, dtype=np.float64)
            total += float(w @ (np.log(e_sum) - s[np.arange(len(y)), y]))
        return total / len(self.samples)

    def losses(self, theta: Vector) -> NDArray[np.float64]:
        """The NLL of each sample (n,)."""
        found = [
            np.log(np.exp(s).sum(axis=1, dtype=np.float64)) - s[np.arange(len(y)), y]
            for _, s, y, _ in self._scores(theta)
        ]
        return np.concatenate(found)

    def evaluate(self, theta: Vector, penalty: Penalty) -> tuple[float, Vector]:
        """The penalised objective and its gradient."""
        k = self.samples.classes
        value, gradient = 0.0, np.zeros(self.size)
        inner, outer = gradient[:-k], gradient[-k:]
        for x, s, y, w in self._scores(theta):
            rows = np.arange(len(y))
            value -= float(w @ s[rows, y].astype(np.float64))
            p = np.exp(s, out=s)
            total = p.sum(axis=1, dtype=np.float64)
            value += float(w @ np.log(total))
            np.multiply(p, (w / total).astype(p.dtype)[:, None], out=p)
            p[rows, y] -= w.astype(p.dtype)
            outer += p.sum(axis=0)
            inner += (p.T @ x).ravel() if self.shape == "full" else np.einsum("nk,nk->k", p, x)
        n = len(self.samples)
        weights = self._penalties(penalty)
        return value / n + float(weights @ theta**2), gradient / n + 2 * weights * theta

    def preconditioner(self, penalty: Penalty, theta: Vector) -> Solve:
        """An approximate inverse Hessian at ``theta``: exact for few parameters, else by blocks."""
        return self.curvature(theta)(penalty)

    def curvature(self, theta: Vector) -> Callable[[Penalty], Solve]:
        """The preconditioners at ``theta`` for any penalty, by one pass over the samples."""
        if self.shape == "full":
            make = of_matrix if self.size <= _EXACT_MATRIX else of_blocks
        else:
            make = of_diagonal if self.size <= _EXACT_DIAGONAL else of_pairs
        curved = make(self._curvature(theta), self.samples.classes)
        return lambda penalty: curved(2 * self._penalties(penalty))

    def _curvature(self, theta: Vector) -> Iterator[Chunk]:
        for x, s, _, w in self._scores(theta):
            p = np.exp(s, out=s)
            np.divide(p, p.sum(axis=1, keepdims=True), out=p)
            yield x, p, w / len(self.samples)

    def _penalties(self, penalty: Penalty) -> Vector:
        k = self.samples.classes
        weights = np.full(self.size, penalty.off)
        weights[: self.size - k : k + 1 if self.shape == "full" else 1] = penalty.diagonal
        weights[-k:] = penalty.bias
        return weights

    def _features(self) -> Iterator[tuple[slice, Floats]]:
        dtype = self._dtype
        for part, z in self.samples.chunks(dtype, values=self._chunk):
            x = z if self.scale == 1 else z * dtype(self.scale)
            if self.offset is not None:
                x = x - self.offset[part, None].astype(dtype)
            yield part, x

    def _scores(
        self, theta: Vector
    ) -> Iterator[tuple[Floats, Floats, NDArray[np.intp], NDArray[np.float64]]]:
        """Yield features, scores W x + b less their largest, labels and weights, chunk by chunk."""
        k = self.samples.classes
        inner = theta[:-k].astype(self._dtype)
        outer = theta[-k:].astype(self._dtype)
        for part, x in self._features():
            s = x @ inner.reshape(k, k).T if self.shape == "full" else x * inner
            s += x
            s += outer
            s -= s.max(axis=1, keepdims=True)
            w = self.samples.weight
            yield x, s, self.samples.labels[part], np.ones(len(x)) if w is None else w[part]

    @property
    def _dtype(self) -> type[np.floating[Any]]:
        # By size alone, so that the same numbers in another float type give the same answer.
        return np.float32 if self.samples.size > (_SINGLE_ROUGH if self.rough else _SINGLE) else np.float64

    @property
    def _chunk(self) -> int:
        """The values in a chunk: for many classes enough rows that their sums into (K, K) cost little."""
        cached = 1 << 18 if self._dtype is np.float32 else 1 << 17
        return max(cached, min(2 * self.samples.classes**2, _CHUNK)) if self.shape == "full" else cached

    @property
    def _rounding(self) -> float:
        return 1e-7 if self._dtype is np.float32 else 1e-13


_GAP = 1e-4  # of the objective; far below what folds can tell apart
_PATIENCE = 2
_BEATEN = 4


@dataclass(frozen=True, eq=False)
class Path:
    """The best strength, held-out NLLs (means over all samples) by strength, and the folds' parameters.

    ``thetas`` are those under the best.
    """

    strength: float
    scores: dict[str, float]
    thetas: tuple[Vector, ...]

    def mean(self) -> Vector:
        """The mean of the folds' parameters, close to the solution for all samples."""
        return np.asarray(sum(self.thetas) / len(self.thetas))


def along_path(
    problem: Problem,
    penalties: Mapping[float, Penalty],
    start: Vector | Sequence[Vector],
    *,
    folds: int,
    seed: int,
) -> Path:
    """Score ``penalties`` by strength, strongest first, by held-out NLL; each starts where the last ended.

    ``start`` is where the first one starts, or one such place a fold.

    The path ends early once the score has risen ``_PATIENCE`` times in a row: weaker penalties only overfit
    more, and are slow to fit. A penalty that the first fold shows to be worse than the best, by ``_BEATEN``
    standard errors, is not tried on the others: its score is the best's and the first fold's difference.
    """
    problem = replace(problem, rough=True)
    weight = problem.samples.weights
    fold = folds_of(problem.samples, folds=folds, seed=seed)
    train = [problem.take(fold != f) for f in range(folds)]
    held_out = [problem.take(fold == f) for f in range(folds)]
    thetas = [start] * folds if isinstance(start, np.ndarray) else list(start)
    best = list(thetas)
    best_losses: list[Vector] = []
    scores: list[float] = []
    for penalty in penalties.values():
        about: Solve | None = None
        losses: list[Vector] = []
        try:
            for f in range(folds):
                # Folds are alike: the curvature of the first serves them all.
                about = about or train[f].preconditioner(penalty, thetas[f])
                thetas[f] = train[f].solve(penalty, thetas[f], gap=_GAP, about=about).x
                losses.append(held_out[f].losses(thetas[f]) * weight[fold == f])
                if scores and _beaten(losses[0], best_losses[0]):
                    break
        except FitError:
            break
        if len(losses) < folds:
            scores.append(min(scores) + float((losses[0] - best_losses[0]).mean()))
        else:
            scores.append(float(np.concatenate(losses).mean()))
        if scores[-1] == min(scores):
            best, best_losses = list(thetas), losses
        tail = scores[-_PATIENCE - 1 :]
        if len(tail) > _PATIENCE and tail == sorted(tail):
            break
    if not scores:
        raise FitError("even the strongest penalty did not converge; choose a simpler method")
    weakest = len(scores) - 1 - int(np.argmin(scores[::-1]))  # of those that tie
    named = {f"{s:g}": score for s, score in zip(penalties, scores, strict=False)}
    return Path(list(penalties)[weakest], named, tuple(best))


def _beaten(losses: Vector, best: Vector) -> bool:
    difference = losses - best
    return bool(difference.mean() > _BEATEN * difference.std() / np.sqrt(len(difference)))
