"""Penalised softmax regression, softmax(W x + b): the convex problem of every linear calibrator.

The objective is the weighted mean NLL plus ``off`` sum of W_kj^2 off the diagonal, ``diagonal`` sum of
(W_kk - 1)^2, and ``bias`` sum of b_k^2. x is the logits times ``scale``, or the log-probabilities. It is
minimised by L-BFGS around a preconditioner, an approximate inverse of its Hessian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.folds import folds_of
from calib_serve.fit.lbfgs import Minimum, Vector, minimise
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.preconditioners import (
    Chunk,
    Solve,
    of_blocks,
    of_diagonal,
    of_matrix,
    of_pairs,
    of_scalar,
)
from calib_serve.fit.samples import Samples
from calib_serve.metrics import mean_error

Shape = Literal["full", "diagonal", "scalar"]
"""Of W."""


_SINGLE = 1 << 21  # logits above which passes are in float32; sums over samples stay in float64
SINGLE_ROUGH = 1 << 18
"""Logits above which passes are in float32 where they choose a strength, not the result."""
_CURVED = 1 << 21  # logits that tell a preconditioner


@dataclass(frozen=True)
class Penalty:
    """Weights of the squared off-diagonal entries, the diagonal's distance from 1, and the bias."""

    off: float = 0.0
    diagonal: float = 0.0
    bias: float = 0.0


@dataclass(frozen=True, eq=False)
class Problem:
    """Samples, how their logits become x, and the shape of W: "full", "diagonal", or "scalar", w I.

    Parameters are one vector: W - I (its rows, its diagonal, or w - 1), then b.
    """

    samples: Samples
    shape: Shape
    scale: float = 1.0
    offset: NDArray[np.float64] | None = None  # logsumexp of each sample, where x is log-probabilities
    centre: NDArray[np.float64] | None = None  # (K,), from which logits are counted
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
        if shape == "full" and k > 4096:
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
        return {"full": k * k, "diagonal": k, "scalar": 1}[self.shape] + k

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
        iterations, evaluations, most = 0, 0, 25  # iterations, after which a new preconditioner pays
        while iterations < 2000:
            found = minimise(
                lambda theta: self.evaluate(theta, penalty),
                x,
                about or self.curvature(x)(penalty),
                gap=gap,
                rounding=1e-7 if self._dtype is np.float32 else 1e-13,
                max_iterations=most,
            )
            iterations += found.iterations
            evaluations += found.evaluations
            if found.gap <= gap or found.iterations < most:
                return replace(found, iterations=iterations, evaluations=evaluations)
            x, about = found.x, None
        raise FitError(
            f"no convergence in {iterations} iterations: the objective may be {found.gap:.3g} above its "
            f"least value, more than {gap:.3g}; regularise more"
        )

    def map(self, theta: Vector) -> tuple[Vector, Vector]:
        """W ((K, K), or (K,) for a diagonal) and b of parameters."""
        k = self.samples.classes
        if self.shape == "full":
            return np.eye(k) + theta[:-k].reshape(k, k), theta[-k:]
        return 1 + np.broadcast_to(theta[:-k], k), theta[-k:]

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
            if self.shape == "full":
                inner += (p.T @ x).ravel()
            else:
                own = np.einsum("nk,nk->k", p, x)
                inner += own if self.shape == "diagonal" else own.sum()
        n = len(self.samples)
        weights = self._penalties(penalty)
        return value / n + float(weights @ theta**2), gradient / n + 2 * weights * theta

    def curvature(self, theta: Vector) -> Callable[[Penalty], Solve]:
        """The preconditioners at ``theta`` for any penalty, by one pass over the samples.

        Each is an approximate inverse Hessian, exact for few parameters, else by blocks.
        """
        if self.shape == "full":
            # Of few parameters the Hessian itself, factored, is the preconditioner.
            make = of_matrix if self.size <= 700 else of_blocks
        elif self.shape == "scalar":
            make = of_scalar
        else:
            make = of_diagonal if self.size <= 1000 else of_pairs
        part = self.take(slice(None, None, s)) if (s := self.samples.size // _CURVED) > 1 else self
        curved = make(part._curvature(theta), self.samples.classes)
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

    def _scores(
        self, theta: Vector
    ) -> Iterator[tuple[AnyFloats, AnyFloats, NDArray[np.intp], NDArray[np.float64]]]:
        """Yield features, scores W x + b less their largest, labels and weights, chunk by chunk."""
        k, w, dtype = self.samples.classes, self.samples.weight, self._dtype
        inner, outer = theta[:-k].astype(dtype), theta[-k:].astype(dtype)
        read = dtype if self.centre is None else np.float64
        for part, z in self.samples.chunks(read, values=self._chunk):
            # Of float64 logits, before they are rounded to float32.
            x = z if self.centre is None else (z - self.centre).astype(dtype, copy=False)
            if self.scale != 1:
                x = x * dtype(self.scale)
            if self.offset is not None:
                x = x - self.offset[part, None].astype(dtype)
            s = (inner.reshape(k, k) @ x.T).T if self.shape == "full" else x * inner
            s += x
            s += outer
            s -= s.max(axis=1, keepdims=True)
            yield x, s, self.samples.labels[part], np.ones(len(x)) if w is None else w[part]

    @property
    def _dtype(self) -> type[np.floating[Any]]:
        # By size alone, so that the same numbers in another float type give the same answer.
        return np.float32 if self.samples.size > (SINGLE_ROUGH if self.rough else _SINGLE) else np.float64

    @property
    def _chunk(self) -> int:
        """The values in a chunk: for many classes enough rows that their sums into (K, K) cost little."""
        cached = 1 << 18 if self._dtype is np.float32 else 1 << 17
        return max(cached, min(2 * self.samples.classes**2, 1 << 21)) if self.shape == "full" else cached


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


def risen(scores: Sequence[float]) -> bool:
    """Whether scores by falling strength have risen twice in a row: weaker penalties overfit more, slowly.

    >>> risen([3.0, 1.0, 2.0]), risen([3.0, 1.0, 2.0, 2.5])
    (False, True)
    """
    return len(scores) > 2 and scores[-3] <= scores[-2] <= scores[-1]


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

    The path ends early once the score has ``risen``. A penalty that the first fold shows to be worse than the
    best, by four standard errors, is not tried on the others: its score is the best's and the first fold's
    difference.
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
                about = about or train[f].curvature(thetas[f])(penalty)
                thetas[f] = train[f].solve(penalty, thetas[f], gap=MEASURED.gap_of_folds, about=about).x
                losses.append(held_out[f].losses(thetas[f]) * weight[fold == f])
                if scores:
                    worse = losses[0] - best_losses[0]
                    if worse.mean() > 4 * mean_error(worse, held_out[0].samples.groups):
                        break
        except FitError:
            break
        if len(losses) < folds:
            scores.append(min(scores) + float((losses[0] - best_losses[0]).mean()))
        else:
            scores.append(float(np.concatenate(losses).mean()))
        if scores[-1] == min(scores):
            best, best_losses = list(thetas), losses
        if risen(scores):
            break
    if not scores:
        raise FitError("even the strongest penalty did not converge; choose a simpler method")
    weakest = len(scores) - 1 - int(np.argmin(scores[::-1]))  # of those that tie
    named = {f"{s:g}": score for s, score in zip(penalties, scores, strict=False)}
    return Path(list(penalties)[weakest], named, tuple(best))
