"""Do the numbers hold over folds, seeds and trainings? (Neural Clamping, appendices G and H)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError
from calib_serve.metrics import accuracy, adaptive_ece, classwise_ece, ece, entropy, nll, welch
from calib_serve.study.fitting import Fit, OutputFit
from calib_serve.study.result import Progress, Samples, Study, arrays

_METRICS = {
    "accuracy": accuracy,
    "entropy": entropy,
    "ece": ece,
    "adaptive_ece": adaptive_ece,
    "classwise_ece": classwise_ece,
    "nll": nll,
}


def stability(
    models: Sequence[Samples],
    *,
    methods: Sequence[str] = ("none", "temperature"),
    folds: int = 5,
    repeats: int = 1,
    metric: str = "ece",
    fit: Fit | Sequence[Fit] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Study:
    """Mean and standard deviation of every metric over folds of each model's samples.

    ``models`` are the logits and labels of one training each, shuffled ``repeats`` times, or the inputs and
    labels that ``fit`` takes, one ``fit`` for all or one for each. Each of the ``folds`` is tested once, by a
    fit on the others. The two best methods by ``metric`` are compared by Welch's test, as the paper does;
    folds share samples, so its p-value is smaller than independent runs would give.
    """
    if folds < 2 or metric not in _METRICS:
        raise InputError(f"folds must be 2 or more and metric one of {', '.join(_METRICS)}")
    fits = list(fit) if isinstance(fit, Sequence) else [fit or OutputFit(seed=seed)] * len(models)
    if len(fits) != len(models):
        raise InputError(f"give one fit, or one for each of the {len(models)} models, got {len(fits)}")
    runs: dict[str, list[list[float]]] = {method: [] for method in methods}
    total, done = len(models) * repeats * folds * len(methods), 0
    for number, (z, y) in enumerate(arrays(one, fit) for one in models):
        for repeat in range(repeats):
            rng = np.random.default_rng([seed, number, repeat])
            for held in np.array_split(rng.permutation(len(y)), folds):
                rest = np.setdiff1d(np.arange(len(y)), held)
                own, inside, outside = fits[number], z[rest], z[held]
                for method in methods:
                    probs = own.probs(own.fit(method, inside, y[rest]), outside)
                    runs[method].append([measure(probs, y[held]) for measure in _METRICS.values()])
                    done += 1
                    if progress:
                        progress(done, total)
    values = {method: np.array(found) for method, found in runs.items()}
    return Study(
        title=f"Mean and standard deviation over {len(models) * repeats * folds} runs",
        header=("method", "metric", "mean", "standard deviation"),
        rows=tuple(row for method in methods for row in _rows(method, values[method])),
        says=_compare(values, metric),
    )


def _rows(method: str, values: NDArray[np.float64]) -> list[tuple[str | float, ...]]:
    means, spreads = values.mean(axis=0).tolist(), values.std(axis=0, ddof=1).tolist()
    return [(method, *row) for row in zip(_METRICS, means, spreads, strict=True)]


def _compare(values: dict[str, NDArray[np.float64]], metric: str) -> tuple[str, ...]:
    column = list(_METRICS).index(metric)
    sign = -1 if metric == "accuracy" else 1
    ranked = sorted(values, key=lambda method: sign * float(values[method][:, column].mean()))
    if len(ranked) < 2:
        return ()
    best, second = ranked[:2]
    change = welch(values[second][:, column], values[best][:, column])
    return (
        f"best by {metric}: {best}, then {second}; difference {change.difference}, "
        f"Welch's p = {change.p:.2g} over runs that share samples",
    )
