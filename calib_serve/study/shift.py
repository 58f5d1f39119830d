"""Which calibrations still work under data shift? (Singh 2021, section 5; Neural Clamping; MaC-Cal)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.metrics import accuracy, ece, nll, refinement_auroc
from calib_serve.study.corruptions import CORRUPTIONS, corrupt
from calib_serve.study.fitting import Fit, OutputFit
from calib_serve.study.result import Curve, Progress, Study, listed

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
    """Calibration and refinement of each method under corruptions of the test images.

    ``cal`` and ``test`` are images and class ids; methods are fitted on clean ``cal`` once, by ``fit``: a
    function from images to logits is enough for output methods. A method keeps up with a shift where its ECE
    there is below that of no calibration.
    """
    using = OutputFit(fit, seed) if callable(fit) else fit
    artifacts = {method: using.fit(method, *cal) for method in ("none", *methods)}
    rows: list[tuple[str | int | float, ...]] = []
    settings = [("clean", 0), *((name, s) for name in corruptions for s in severities)]
    for done, (name, severity) in enumerate(settings, 1):
        images = test[0] if severity == 0 else corrupt(test[0], name, severity, seed=seed)
        rows += _measured((name, severity), (images, test[1]), artifacts, using)
        if progress:
            progress(done, len(settings))
    shown = tuple(row for row in rows if row[2] in methods)
    return Study(
        title="Calibration and refinement under shift",
        header=("shift", "severity", "method", "accuracy", "ece", "auroc", "nll"),
        rows=shown,
        says=_says(rows, methods),
        curves=tuple(_curves(rows, methods, severities)),
        x_label="severity, all corruptions together",
        y_label="ECE",
    )


def _measured(
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


def _says(rows: list[tuple[Any, ...]], methods: Sequence[str]) -> tuple[str, ...]:
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
        lost = f", not with {listed(behind)}" if behind and len(behind) <= 4 else ""
        says.append(
            f"{method} {kept}{lost}: mean ECE {mean:.2%} where none has {plain:.2%}; AUROC {coarse:+.4f}"
        )
    return tuple(says)
