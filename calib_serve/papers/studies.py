"""Studies: how many samples a calibration needs, and the best that any temperature could do (Wang 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import as_floats
from calib_serve.core.bins import Bins
from calib_serve.core.errors import FitError
from calib_serve.core.options.base import check
from calib_serve.fit import fit_by_name
from calib_serve.metrics import binned, ece, judge_probs
from calib_serve.papers.result import Curve, Progress, Samples, Study, in_logits
from calib_serve.scores import Scores, softmax

_SIZES = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_SHOWN = np.geomspace(0.1, 10, 101)  # temperatures of the curve


def validation_size(
    cal: Samples,
    test: Samples,
    *,
    methods: Sequence[str] = ("temperature",),
    sizes: Sequence[int] = (),
    repeats: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
) -> Study:
    """The test ECE of each method, fitted on random parts of the calibration set of each size.

    The size at which more data stops paying is the smallest from which on a method has 95 % of the gain over
    no calibration that all of ``cal`` brings. Parts that a method cannot be fitted on (a class missing, no
    optimum) are left out and counted. What the verdict on the fit to all of ``cal`` asks for is a number of
    *test* samples.

    Args:
        cal: Scores and class ids that methods are fitted to.
        test: The same, that is measured.
        methods: Names of the methods.
        sizes: Numbers of samples.
        repeats: Parts of each size.
        seed: Seed of the random draws.
        progress: Called with how many steps are done, and of how many.

    Raises:
        OptionError: For ``sizes`` that are not whole numbers above 0.
    """
    said = "are whole numbers of samples above 0, such as 50,500"
    check(all(isinstance(s, int) and s > 0 for s in sizes), "sizes", said)
    (z, y), (x, labels) = in_logits(cal), in_logits(test)
    steps = sorted({min(s, len(y)) for s in (sizes or [s for s in _SIZES if s < len(y)])} | {len(y)})
    raw = float(ece(softmax(x), labels))
    rng = np.random.default_rng(seed)
    rows: list[tuple[str | int | float, ...]] = []
    curves, says = [], [f"without calibration the ece is {raw:.4f}"]
    for number, method in enumerate(methods):
        means, spreads = np.full((2, len(steps)), np.nan)
        for i, size in enumerate(steps):
            # All samples are one part: repeats would be copies.
            parts = [rng.choice(len(y), size, replace=False) for _ in range(repeats if size < len(y) else 1)]
            found = []
            for part in parts:
                with suppress(FitError):
                    probs = fit_by_name(method, z[part], y[part], seed=seed).of_logits(x)
                    found.append(float(ece(probs, labels)))
            values = np.array(found)
            if len(values):
                means[i], spreads[i] = values.mean(), values.std(ddof=1) if len(values) > 1 else np.nan
            failed = len(parts) - len(values)
            rows.append((method, size, float(means[i]), float(spreads[i]), len(parts), failed))
            if progress:
                progress(number * len(steps) + i + 1, len(methods) * len(steps))
        low, high = means - spreads, means + spreads
        ends = (tuple(line.tolist()) for line in (np.array(steps, float), means, low, high))
        curves.append(Curve(method, *ends))
        says.append(_enough(method, steps, means, raw))
        if len(values):  # those of the fit to all samples
            says.append(_judged(method, probs, labels))
    return Study(
        title="Test ece by the number of calibration samples",
        header=("method", "samples", "ece", "standard deviation", "parts", "not fitted"),
        rows=tuple(rows),
        says=tuple(says),
        curves=tuple(curves),
        x_label="calibration samples",
        y_label="ECE",
        log_x=True,
    )


def _judged(method: str, probs: NDArray[Any], labels: NDArray[Any]) -> str:
    """The verdict, with the number of test samples that would prove it."""
    found = judge_probs(probs, labels)
    more = f" {found.do[0]}" if found.level != "off" else ""
    return f"{method}, tested: {found.headline}{more}"


def _enough(method: str, steps: Sequence[int], means: NDArray[np.float64], raw: float) -> str:
    gain = raw - means
    if not gain[-1] > 0:
        return f"{method} does not pay: with all {steps[-1]} samples it brings no gain"
    far = np.flatnonzero(~(gain >= 0.95 * gain[-1]))  # a size that could not be fitted counts as far
    first = 0 if not len(far) else int(far[-1]) + 1
    return (
        f"{method} has 95% of its gain from {steps[first]} samples on "
        f"({means[first]:.4f}, all {steps[-1]} bring {means[-1]:.4f})"
    )


def ece_by_temperature(logits: ArrayLike, labels: ArrayLike, temperatures: ArrayLike) -> NDArray[np.float64]:
    """ECE (t,) of logits (n, K) at each temperature (t,); the top class never changes.

    >>> ece_by_temperature([[0.0, np.log(3)]], [1], [1.0]).round(4).tolist()  # confidence 3 / 4
    [0.25]
    """
    given = Scores.of(logits, labels, outputs="logits")
    z = given.values.astype(np.float64, copy=False)
    correct = z.argmax(axis=1) == given.labelled()
    below = z - z.max(axis=1, keepdims=True)
    confidences = (1 / np.exp(below / t).sum(axis=1) for t in as_floats(temperatures, "temperatures"))
    return np.array([Bins.tally(c, correct).ece() for c in confidences])


def optimal_temperature(cal: Samples, test: Samples) -> Study:
    """Return the lowest test ECE of any temperature of Wang's pool, and how near a fitted one comes.

    The optimum is found on the test set itself: a bound that no temperature of the pool (0.01,
    0.02, ..., 10) can beat, and a measure of how calibratable the model is, not a result.

    Args:
        cal: Logits and class ids that the temperature is fitted to.
        test: Logits and class ids that are measured.
    """
    (z, y), fitted = in_logits(test), in_logits(cal)
    fits = {
        "fitted by NLL on cal": fit_by_name("temperature", *fitted),
        "fitted by ECE on cal": fit_by_name("temperature-ece", *fitted, grid="medium"),
        "best for test": fit_by_name("temperature-ece", z, y, grid="medium"),
    }
    chosen = {"none": 1.0} | {name: float(fit.fit["temperature"]) for name, fit in fits.items()}
    found = dict(zip(chosen, ece_by_temperature(z, y, [*chosen.values()]).tolist(), strict=True))
    floors = {name: binned(softmax(z / t), y).noise_floor() for name, t in chosen.items()}
    rows = tuple((name, t, found[name], floors[name]) for name, t in chosen.items())
    curve = ece_by_temperature(z, y, _SHOWN)
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
