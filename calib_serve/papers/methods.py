"""Studies of methods: their parts, bin counts, the best temperature, folds and trainings.

Neural Clamping, appendices D, G and H; Wang 2021, section 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, Head, InputShift, LogitMap, Step
from calib_serve.core.arrays import as_floats
from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError
from calib_serve.fit import fit_by_name
from calib_serve.metrics import (
    accuracy,
    adaptive_ece,
    binned,
    classwise_ece,
    ece,
    entropy,
    nll,
    welch,
)
from calib_serve.papers.result import (
    Curve,
    Fit,
    OutputFit,
    Progress,
    Samples,
    Study,
    arrays,
    in_a_sentence,
    in_logits,
)
from calib_serve.scores import Scores, softmax

_ALONE = ("none", "temperature")
_SHOWN = np.geomspace(0.1, 10, 101)  # temperatures of the curve
_METRICS = {
    "accuracy": accuracy,
    "entropy": entropy,
    "ece": ece,
    "adaptive_ece": adaptive_ece,
    "classwise_ece": classwise_ece,
    "nll": nll,
}


def ablation(
    cal: Samples,
    test: Samples,
    *,
    methods: Sequence[str] = ("structured-average",),
    fit: Fit | None = None,
    progress: Progress | None = None,
) -> Study:
    """Measure each method's parts, fitted together and applied alone.

    The rows of no calibration and of a temperature fitted by itself are the measure: a part that was fitted
    beside another may need it.

    Args:
        cal: Inputs and class ids, as ``fit`` takes them, that methods are fitted to.
        test: The same, that is measured.
        methods: Names of the methods.
        fit: Fits them; by default output methods, to logits.
        progress: Called with how many steps are done, and of how many.
    """
    (x, y), fitted = arrays(test, fit), arrays(cal, fit)
    fit = fit or OutputFit()
    names = [*_ALONE, *(name for name in methods if name not in _ALONE)]
    rows: list[tuple[str | float, ...]] = []
    for done, method in enumerate(names, 1):
        artifact = fit.fit(method, *fitted)
        for parts, applied in _parts_alone(artifact):
            rows.append((method, parts, *_errors(fit.probs(applied, x), y)))
        if progress:
            progress(done, len(names))
    return Study(
        title="What each part of a calibration does",
        header=("method", "parts", "accuracy", "ece", "nll"),
        rows=tuple(rows),
        says=tuple(_says_of_parts(rows, names)),
    )


def parts_of(artifact: Artifact) -> dict[str, tuple[Step, ...]]:
    """The steps of an artifact by part: "shift", "head", and "temperature" or "output".

    >>> list(parts_of(Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)))
    ['temperature']
    """
    shift: tuple[Step, ...] = tuple(step for step in artifact.steps if isinstance(step, InputShift))
    head: tuple[Step, ...] = tuple(step for step in artifact.steps if isinstance(step, Head))
    output: tuple[Step, ...] = tuple(
        step for step in artifact.steps if not isinstance(step, (InputShift, Head))
    )
    scalar = len(output) == 1 and isinstance(output[0], LogitMap) and output[0].is_scalar
    named = {"shift": shift, "head": head, "temperature" if scalar else "output": output}
    return {name: steps for name, steps in named.items() if steps}


def _parts_alone(artifact: Artifact) -> list[tuple[str, Artifact]]:
    """The artifact with each part alone, then with several of them; "nothing" where it has none."""
    parts = parts_of(artifact)
    if not parts:
        return [("nothing", artifact)]
    chosen = [names for size in range(1, len(parts) + 1) for names in combinations(parts, size)]
    return [
        (" + ".join(names), replace(artifact, steps=tuple(step for name in names for step in parts[name])))
        for names in chosen
    ]


def _errors(probs: NDArray[np.float64], labels: NDArray[np.intp]) -> tuple[float, float, float]:
    return float(accuracy(probs, labels)), float(ece(probs, labels)), float(nll(probs, labels))


def _says_of_parts(rows: Sequence[tuple[str | float, ...]], names: Sequence[str]) -> list[str]:
    found = {(row[0], row[1]): float(row[4]) for row in rows}
    raw = found["none", "nothing"]
    alone = {name: [(key[1], nll) for key, nll in found.items() if key[0] == name] for name in names}
    temperature = alone["temperature"][-1][1]
    says = [f"NLL: {raw:.4f} without calibration, {temperature:.4f} with a temperature fitted by itself"]
    for name in names:
        if name in _ALONE:
            continue
        told = ", ".join(f"{value:.4f} by its {parts}" for parts, value in alone[name])
        best = alone[name][-1][1]
        beside = "less" if best < temperature else "no less"
        says.append(f"{name}: {told}; {beside} than that temperature")
    return says


def bin_effect(
    cal: Samples,
    test: Samples,
    *,
    methods: Sequence[str] = ("none", "temperature"),
    counts: Sequence[int] = (10, 15, 20),
    fit: Fit | None = None,
) -> Study:
    """Return ECE, adaptive and classwise ECE of each method at each bin count.

    Args:
        cal: Inputs and class ids, as ``fit`` takes them, that methods are fitted to.
        test: The same, that is measured.
        methods: Names of the methods.
        counts: Numbers of bins.
        fit: Fits the methods; by default output methods, to logits.
    """
    (z, y), (x, labels) = arrays(test, fit), arrays(cal, fit)
    fit = fit or OutputFit()
    probs = {method: fit.probs(fit.fit(method, x, labels), z) for method in methods}
    rows = tuple(
        (
            method,
            count,
            ece(p, y, bins=count),
            adaptive_ece(p, y, bins=count),
            classwise_ece(p, y, bins=count),
        )
        for method, p in probs.items()
        for count in counts
    )
    found = {(str(row[0]), int(row[1])): float(row[2]) for row in rows}
    orders = [tuple(sorted(methods, key=lambda m: found[m, count])) for count in counts]
    return Study(
        title=f"Calibration errors over {in_a_sentence([str(c) for c in counts])} bins",
        header=("method", "bins", "ece", "adaptive_ece", "classwise_ece"),
        rows=rows,
        says=_says_of_orders(orders, counts),
        curves=tuple(
            Curve(method, tuple(map(float, counts)), tuple(found[method, count] for count in counts))
            for method in methods
        ),
        x_label="bins",
        y_label="ECE",
    )


def _says_of_orders(orders: list[tuple[str, ...]], counts: Sequence[int]) -> tuple[str, ...]:
    if len(set(orders)) == 1:
        return (f"the order by ECE is the same at every bin count: {', '.join(orders[0])}",)
    return tuple(f"by ECE at {n} bins: {', '.join(order)}" for n, order in zip(counts, orders, strict=True))


def _of_logits(logits: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Checked logits (n, K) and class ids (n,)."""
    given = Scores.of(logits, labels, outputs="logits")
    return given.values, given.labelled()


def ece_by_temperature(
    logits: ArrayLike, labels: ArrayLike, temperatures: ArrayLike, *, bins: int = 15
) -> NDArray[np.float64]:
    """ECE (t,) of logits (n, K) at each temperature (t,); the top class never changes.

    >>> ece_by_temperature([[0.0, np.log(3)]], [1], [1.0]).round(4).tolist()  # confidence 3 / 4
    [0.25]
    """
    z, y = _of_logits(logits, labels)
    z = z.astype(np.float64, copy=False)
    correct = z.argmax(axis=1) == y
    below = z - z.max(axis=1, keepdims=True)
    confidences = (1 / np.exp(below / t).sum(axis=1) for t in as_floats(temperatures, "temperatures"))
    return np.array([Bins.tally(c, correct, bins=bins).ece() for c in confidences])


def optimal_temperature(cal: Samples, test: Samples, *, bins: int = 15) -> Study:
    """Return the lowest test ECE of any temperature of Wang's pool, and how near a fitted one comes.

    The optimum is found on the test set itself: a bound that no temperature of the pool (0.01,
    0.02, ..., 10) can beat, and a measure of how calibratable the model is, not a result.

    Args:
        cal: Logits and class ids that the temperature is fitted to.
        test: Logits and class ids that are measured.
        bins: Number of bins, of equal width.
    """
    z, y = _of_logits(*in_logits(test))
    fitted = in_logits(cal)
    fits = {
        "fitted by NLL on cal": fit_by_name("temperature", *fitted),
        "fitted by ECE on cal": fit_by_name("temperature-ece", *fitted, grid="medium", bins=bins),
        "best for test": fit_by_name("temperature-ece", z, y, grid="medium", bins=bins),
    }
    chosen = {"none": 1.0} | {name: float(fit.fit["temperature"]) for name, fit in fits.items()}
    found = {name: float(ece_by_temperature(z, y, [t], bins=bins)[0]) for name, t in chosen.items()}
    rows = tuple(
        (name, t, found[name], binned(softmax(z / t), y, bins=bins).noise_floor())
        for name, t in chosen.items()
    )
    curve = ece_by_temperature(z, y, _SHOWN, bins=bins)
    return Study(
        title="Optimal ECE: the best that any temperature can do on the test set",
        header=("temperature", "T", "ECE", "noise floor"),
        rows=rows,
        says=_says_of_room(found, rows[-1]),
        curves=(Curve("test ECE", tuple(_SHOWN.tolist()), tuple(curve.tolist())),),
        x_label="temperature",
        y_label="ECE",
        log_x=True,
    )


def _says_of_room(found: dict[str, float], optimum: Sequence[Any]) -> tuple[str, ...]:
    before, best = found["none"], found["best for test"]
    floor = float(optimum[3])
    room = before - best
    says = [
        f"the best temperature would bring the ECE from {before:.2%} to {best:.2%} (T = {optimum[1]:.2f})"
    ]
    if room > 0:
        for name in ("fitted by NLL on cal", "fitted by ECE on cal"):
            used = (before - found[name]) / room
            worse = f"it makes the ECE worse, {found[name]:.2%}"
            says.append(f"{name}: {f'{used:.0%} of that room is used' if used >= 0 else worse}")
    if best > 2 * floor:
        says.append(
            f"the optimum is still {best / floor:.1f} times what chance gives ({floor:.2%}): "
            "a temperature alone cannot calibrate this model"
        )
    return tuple(says)


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

    Each fold is tested once, by a fit on the others. The two best methods are compared by Welch's test, as
    the paper does; folds share samples, so its p-value is smaller than independent runs would give.

    Args:
        models: Logits and class ids of one training each, or the inputs and class ids that ``fit`` takes.
        methods: Names of the methods.
        folds: Number of folds.
        repeats: How often the samples are shuffled.
        metric: Metric by which the two best are found.
        fit: Fits the methods, one for all models or one for each; by default output methods, to logits.
        seed: Seed of the random draws.
        progress: Called with how many steps are done, and of how many.
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
                # Fitted on the others, so that no fold tests its own fit.
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
