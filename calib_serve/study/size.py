"""How many labelled samples does a calibration need? (Wang 2021, fig. 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import FitError, InputError
from calib_serve.judgement.decide import judge_probs
from calib_serve.metrics import ece, nll
from calib_serve.study.fitting import Fit, OutputFit
from calib_serve.study.result import Curve, Progress, Samples, Study, arrays

_SIZES = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_METRICS: dict[str, Callable[..., float]] = {"ece": ece, "nll": nll}


def validation_size(
    cal: Samples,
    test: Samples,
    *,
    methods: Sequence[str] = ("temperature",),
    sizes: Sequence[int] = (),
    repeats: int = 10,
    metric: str = "ece",
    share: float = 0.95,
    fit: Fit | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Study:
    """The test error of each method, fitted on random parts of ``cal`` of each size.

    The size at which more data stops paying is the smallest from which on a method has ``share`` of
    the gain over no calibration that all of ``cal`` brings. Parts that a method cannot be fitted on
    (a class missing, no optimum) are left out and counted. ``metric`` is ece or nll. ``cal`` and ``test`` are
    inputs and class ids, as ``fit`` takes them, logits by default. What the verdict on the fit to all of
    ``cal`` asks for is a number of *test* samples.
    """
    if metric not in _METRICS:
        raise InputError(f"metric must be ece or nll, got {metric!r}")
    (z, y), (x, labels) = arrays(cal, fit), arrays(test, fit)
    fit = fit or OutputFit(seed=seed)
    steps = sorted({min(s, len(y)) for s in (sizes or [s for s in _SIZES if s < len(y)])} | {len(y)})
    raw = _METRICS[metric](fit.probs(fit.fit("none", z, y), x), labels)
    rng = np.random.default_rng(seed)
    rows: list[tuple[str | int | float, ...]] = []
    curves, says = [], [f"without calibration the {metric} is {raw:.4f}"]
    for number, method in enumerate(methods):
        means, spreads = np.full((2, len(steps)), np.nan)
        for i, size in enumerate(steps):
            parts = [rng.choice(len(y), size, replace=False) for _ in range(repeats if size < len(y) else 1)]
            found = []
            for probs in _probs(fit, method, ((z[part], y[part]) for part in parts), x):
                found.append(_METRICS[metric](probs, labels))
            values = np.array(found)
            if len(values):
                means[i], spreads[i] = values.mean(), values.std(ddof=1) if len(values) > 1 else np.nan
            rows.append(
                (method, size, float(means[i]), float(spreads[i]), len(parts), len(parts) - len(values))
            )
            if progress:
                progress(number * len(steps) + i + 1, len(methods) * len(steps))
        curves.append(_curve(method, steps, means, spreads))
        says.append(_enough(method, steps, means, raw, share))
        if len(values):  # those of the fit to all samples
            says.append(_judged(method, probs, labels))
    return Study(
        title=f"Test {metric} by the number of calibration samples",
        header=("method", "samples", metric, "standard deviation", "parts", "not fitted"),
        rows=tuple(rows),
        says=tuple(says),
        curves=tuple(curves),
        x_label="calibration samples",
        y_label=metric.upper(),
        log_x=True,
    )


def _probs(
    fit: Fit, method: str, parts: Iterable[tuple[NDArray[Any], NDArray[Any]]], inputs: NDArray[Any]
) -> Iterator[NDArray[Any]]:
    """Those of ``inputs`` under the fit to each part that can be fitted."""
    for part in parts:
        with suppress(FitError):
            artifact = fit.fit(method, *part)
            yield fit.probs(artifact, inputs)


def _judged(method: str, probs: NDArray[Any], labels: NDArray[Any]) -> str:
    """The verdict, which says how many test samples would prove it."""
    found = judge_probs(probs, labels)
    more = f" {found.do[0]}" if found.level != "off" else ""
    return f"{method}, tested: {found.headline}{more}"


def _curve(
    method: str, steps: Sequence[int], means: NDArray[np.float64], spreads: NDArray[np.float64]
) -> Curve:
    return Curve(
        method,
        tuple(map(float, steps)),
        tuple(means.tolist()),
        tuple((means - spreads).tolist()),
        tuple((means + spreads).tolist()),
    )


def _enough(method: str, steps: Sequence[int], means: NDArray[np.float64], raw: float, share: float) -> str:
    gain = raw - means
    if not gain[-1] > 0:
        return f"{method} does not pay: with all {steps[-1]} samples it brings no gain"
    far = np.flatnonzero(~(gain >= share * gain[-1]))  # a size that could not be fitted counts as far
    first = 0 if not len(far) else int(far[-1]) + 1
    return (
        f"{method} has {share:.0%} of its gain from {steps[first]} samples on "
        f"({means[first]:.4f}, all {steps[-1]} bring {means[-1]:.4f})"
    )
