"""Studies of the data: how many labelled samples a calibration needs, and how it holds under a shift.

Wang 2021, fig. 3; Singh 2021, section 5; corruptions after Hendrycks and Dietterich 2019, of severity 1
(slight) to 5 (heavy).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FitError, InputError, ShapeError
from calib_serve.metrics import accuracy, ece, judge_probs, nll, refinement_auroc
from calib_serve.papers.result import Curve, Fit, OutputFit, Progress, Samples, Study, arrays, in_a_sentence

Pixels = NDArray[np.uint8]

_QUALITY = (80, 65, 50, 30, 15)
_SIGMA = (4, 8, 12, 18, 26)  # of 255
_RADIUS = (0.4, 0.6, 0.8, 1.1, 1.5)  # pixels
_LIFT = (15, 30, 50, 75, 105)  # of 255


def _jpeg(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    from PIL import Image  # noqa: PLC0415 - other studies need no pictures

    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=_QUALITY[severity - 1])
    with Image.open(file) as decoded:
        return np.asarray(decoded)


def _noise(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    noisy = image + rng.normal(0, _SIGMA[severity - 1], image.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def _blur(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    from PIL import Image, ImageFilter  # noqa: PLC0415

    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(_RADIUS[severity - 1])))


def _brightness(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    return np.clip(image.astype(np.int16) + _LIFT[severity - 1], 0, 255).astype(np.uint8)


CORRUPTIONS: Mapping[str, Callable[[Pixels, int, np.random.Generator], Pixels]] = MappingProxyType(
    {"jpeg": _jpeg, "noise": _noise, "blur": _blur, "brightness": _brightness}
)


def corrupt(images: NDArray[Any], name: str, severity: int, *, seed: int = 0) -> NDArray[Any]:
    """Corrupted images in the dtype and layout that they came in.

    ``images`` are (n, C, H, W), (n, H, W, C) with 1 or 3 channels, or (n, H, W); uint8, or floats in
    [0, 1]. Corrupt before any normalisation. Raises ShapeError or InputError otherwise.
    """
    if name not in CORRUPTIONS or severity not in range(1, 6):
        raise InputError(f"there is {', '.join(CORRUPTIONS)} of severity 1 to 5, got {name!r} {severity!r}")
    pixels, channels_first = _as_pixels(images)
    rng = np.random.default_rng(seed)
    done: NDArray[Any] = np.stack([CORRUPTIONS[name](image, severity, rng) for image in pixels])
    if channels_first:
        done = np.moveaxis(done.reshape(len(done), *done.shape[1:3], -1), -1, 1)
    done = done.reshape(images.shape)
    return done if images.dtype == np.uint8 else (done / 255).astype(images.dtype)


def _as_pixels(images: NDArray[Any]) -> tuple[Pixels, bool]:
    """Convert images to uint8 (n, H, W) or (n, H, W, 3), and tell whether channels came first."""
    if images.dtype == np.uint8:
        pixels: NDArray[Any] = np.asarray(images, np.uint8)
    elif images.dtype.kind == "f" and images.size and images.min() >= 0 and images.max() <= 1:
        pixels = np.rint(images.astype(np.float64) * 255).astype(np.uint8)
    else:
        raise InputError(
            f"images must be uint8 or floats in [0, 1], got {images.dtype}; corrupt before normalising"
        )
    first = images.ndim == 4 and images.shape[1] in (1, 3)
    if images.ndim not in (3, 4) or (images.ndim == 4 and not first and images.shape[3] not in (1, 3)):
        raise ShapeError(f"images must be (n, C, H, W), (n, H, W, C) or (n, H, W), got {images.shape}")
    if first:
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.ndim == 4 and pixels.shape[3] == 1:
        pixels = pixels[..., 0]
    return np.ascontiguousarray(pixels), first


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


Logits = Callable[[NDArray[Any]], NDArray[Any]]
"""Inputs (n, ...) to logits (n, K): the deployed model."""


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
