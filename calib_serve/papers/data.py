"""Studies of the data: how many labelled samples a calibration needs, and how it holds under a shift.

Wang 2021, fig. 3; Singh 2021, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FitError, InputError
from calib_serve.metrics import accuracy, ece, judge_probs, nll, refinement_auroc
from calib_serve.papers.corruptions import CORRUPTIONS, corrupt
from calib_serve.papers.result import Curve, Fit, OutputFit, Progress, Samples, Study, arrays, in_a_sentence

_SIZES = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_METRICS: dict[str, Callable[..., float]] = {"ece": ece, "nll": nll}
Logits = Callable[[NDArray[Any]], NDArray[Any]]
"""Inputs (n, ...) to logits (n, K): the deployed model."""


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
    """The test error of each method, fitted on random parts of the calibration set of each size.

    The size at which more data stops paying is the smallest from which on a method has ``share`` of
    the gain over no calibration that all of ``cal`` brings. Parts that a method cannot be fitted on
    (a class missing, no optimum) are left out and counted. What the verdict on the fit to all of
    ``cal`` asks for is a number of *test* samples.

    Args:
        cal: Inputs and class ids, as ``fit`` takes them, that methods are fitted to.
        test: The same, that is measured.
        methods: Names of the methods.
        sizes: Numbers of samples.
        repeats: Parts of each size.
        metric: "ece" or "nll".
        share: Of the whole gain, a fraction.
        fit: Fits the methods; by default output methods, to logits.
        seed: Seed of the random draws.
        progress: Called with how many steps are done, and of how many.
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
            # All samples are one part: repeats would be copies.
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
    """Yield probabilities of ``inputs`` under the fit to each part that can be fitted."""
    for part in parts:
        with suppress(FitError):
            artifact = fit.fit(method, *part)
            yield fit.probs(artifact, inputs)


def _judged(method: str, probs: NDArray[Any], labels: NDArray[Any]) -> str:
    """The verdict, with the number of test samples that would prove it."""
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


def shift(
    fit: Fit | Logits,
    cal: tuple[NDArray[Any], ArrayLike],
    test: tuple[NDArray[Any], ArrayLike],
    *,
    methods: Sequence[str] = ("none", "temperature"),
    corruptions: Sequence[str] = tuple(CORRUPTIONS),
    severities: Sequence[int] = (1, 3, 5),
    seed: int = 0,
    progress: Progress | None = None,
) -> Study:
    """Measure calibration and refinement of each method under corruptions of the test images.

    Methods are fitted on clean images once. A method keeps up with a shift where its ECE there is below that
    of no calibration.

    Args:
        fit: Fits the methods; for output methods a function from images to logits is enough.
        cal: Images and class ids that methods are fitted to.
        test: Images and class ids that are corrupted and measured.
        methods: Names of the methods.
        corruptions: Names of the corruptions.
        severities: Of each, 1 to 5.
        seed: Seed of the corruptions.
        progress: Called with how many steps are done, and of how many.
    """
    using = OutputFit(fit, seed) if callable(fit) else fit
    artifacts = {method: using.fit(method, *cal) for method in ("none", *methods)}
    rows: list[tuple[str | int | float, ...]] = []
    settings = [("clean", 0), *((name, s) for name in corruptions for s in severities)]
    for done, (name, severity) in enumerate(settings, 1):
        images = test[0] if severity == 0 else corrupt(test[0], name, severity, seed=seed)
        rows += _errors_under((name, severity), (images, test[1]), artifacts, using)
        if progress:
            progress(done, len(settings))
    shown = tuple(row for row in rows if row[2] in methods)
    return Study(
        title="Calibration and refinement under shift",
        header=("shift", "severity", "method", "accuracy", "ece", "auroc", "nll"),
        rows=shown,
        says=_says_of_shifts(rows, methods),
        curves=tuple(_curves(rows, methods, severities)),
        x_label="severity, all corruptions together",
        y_label="ECE",
    )


def _errors_under(
    setting: tuple[str, int],
    test: tuple[NDArray[Any], ArrayLike],
    artifacts: Mapping[str, Artifact],
    fit: Fit,
) -> Iterator[tuple[str | int | float, ...]]:
    images, labels = test
    for method, artifact in artifacts.items():
        p = fit.probs(artifact, images)
        found = (accuracy(p, labels), ece(p, labels), refinement_auroc(p, labels), nll(p, labels))
        yield (*setting, method, *found)


def _curves(
    rows: list[tuple[Any, ...]], methods: Sequence[str], severities: Sequence[int]
) -> Iterator[Curve]:
    for method in methods:
        groups = [[r[4] for r in rows if r[1] == s and r[2] == method] for s in (0, *severities)]
        yield Curve(
            method,
            tuple(float(s) for s in (0, *severities)),
            tuple(float(np.mean(g)) for g in groups),
            tuple(float(min(g)) for g in groups),
            tuple(float(max(g)) for g in groups),
        )


def _says_of_shifts(rows: list[tuple[Any, ...]], methods: Sequence[str]) -> tuple[str, ...]:
    raw = {(r[0], r[1]): (r[4], r[5]) for r in rows if r[2] == "none"}
    shifts = [key for key in raw if key[1]]
    says = []
    for method in methods:
        if method == "none":
            continue
        own = {(r[0], r[1]): (r[4], r[5]) for r in rows if r[2] == method}
        behind = [f"{name} {s}" for name, s in shifts if own[name, s][0] >= raw[name, s][0]]
        mean, plain = (np.mean([side[key][0] for key in shifts]) for side in (own, raw))
        coarse = np.mean([own[key][1] - raw[key][1] for key in shifts])
        kept = f"keeps up with {len(shifts) - len(behind)} of {len(shifts)} shifts"
        lost = f", not with {in_a_sentence(behind)}" if behind and len(behind) <= 4 else ""
        says.append(
            f"{method} {kept}{lost}: mean ECE {mean:.2%} where none has {plain:.2%}; AUROC {coarse:+.4f}"
        )
    return tuple(says)
