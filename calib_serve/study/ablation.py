"""Which part of a calibration does what: shift, head, and the map of logits behind them, each alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Head, InputShift, LogitMap, Step
from calib_serve.metrics import accuracy, ece, nll
from calib_serve.study.fitting import Fit, OutputFit
from calib_serve.study.result import Progress, Samples, Study, arrays

_ALONE = ("none", "temperature")


def ablation(
    cal: Samples,
    test: Samples,
    *,
    methods: Sequence[str] = ("structured-average",),
    fit: Fit | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Study:
    """Accuracy, ECE and NLL on ``test`` of each method's parts, fitted together on ``cal`` and applied alone.

    ``cal`` and ``test`` are inputs and class ids, as ``fit`` takes them, logits by default. The rows of no
    calibration and of a temperature fitted by itself are the measure: a part that was fitted beside another
    may need it.
    """
    (x, y), fitted = arrays(test, fit), arrays(cal, fit)
    fit = fit or OutputFit(seed=seed)
    names = [*_ALONE, *(name for name in methods if name not in _ALONE)]
    rows: list[tuple[str | float, ...]] = []
    for done, method in enumerate(names, 1):
        artifact = fit.fit(method, *fitted)
        for parts, applied in _parts_alone(artifact):
            rows.append((method, parts, *_measured(fit.probs(applied, x), y)))
        if progress:
            progress(done, len(names))
    return Study(
        title="What each part of a calibration does",
        header=("method", "parts", "accuracy", "ece", "nll"),
        rows=tuple(rows),
        says=tuple(_says(rows, names)),
    )


def parts_of(artifact: Artifact) -> dict[str, tuple[Step, ...]]:
    """The steps of an artifact by what they are: "shift", "head", and "temperature" or "output".

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


def _measured(probs: NDArray[np.float64], labels: NDArray[np.intp]) -> tuple[float, float, float]:
    return float(accuracy(probs, labels)), float(ece(probs, labels)), float(nll(probs, labels))


def _says(rows: Sequence[tuple[str | float, ...]], names: Sequence[str]) -> list[str]:
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
