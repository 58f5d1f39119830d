"""Calibrators of multi-label models: one for each label.

A label that says too little keeps the temperature of all; where that is clearly off, the weight of all,
with an offset of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FitError
from calib_serve.fit.facts import complete, fit_none
from calib_serve.fit.lbfgs import minimise
from calib_serve.fit.output.binary import platt, platt_targets
from calib_serve.fit.output.tables import isotonic_row, table_of, temperature_row
from calib_serve.fit.output.temperature import Optimum, temperature
from calib_serve.fit.samples import Samples
from calib_serve.scores import sigmoid

Row = tuple[Floats, Floats]
"""Inner edges and values of a row of a table."""
_LEAST = 10  # samples in which a label is true, and in which it is not, below which it is not fitted alone


def _label(samples: Samples, k: int) -> tuple[Floats, NDArray[np.intp], Floats]:
    """Log-odds, truths and weights of one label, each (n,)."""
    rows = slice(None) if samples.rows is None else samples.rows
    return np.asarray(samples.logits[rows, k], np.float64), samples.labels[:, k], samples.weights


def _temperature(samples: Samples) -> Optimum:
    """The T of least NLL where every label of every sample is a sample of two classes."""
    z: NDArray[Any] = samples.read(slice(0, len(samples))).reshape(-1, 1)
    weight = None if samples.weight is None else np.repeat(samples.weight, samples.classes)
    pooled = Samples(np.concatenate([np.zeros_like(z), z], axis=1), samples.labels.reshape(-1), weight)
    return temperature(pooled)


def fit_label_temperature(samples: Samples) -> Artifact:
    """Fit one number for all labels by the mean NLL of a label; FitError where none is best."""
    found, objective = _temperature(samples), "mean nll of a label"
    steps = [LogitMap.temperature(found.temperature)]
    return complete(steps, samples, method="temperature", fit={"objective": objective, **found._asdict()})


def fit_label_platt(samples: Samples) -> Artifact:
    """Fit a weight above 0 and a bias for each label.

    A label that is true, or not true, in fewer than 10 samples, or whose log-odds do not rise with its share,
    keeps the temperature of all labels: ``artifact.fit["kept_temperature"]`` lists such labels. Where no
    finite temperature is best, they keep their own probability. Where an offset beside one weight of all
    labels is likelier by Schwarz' criterion, they have that: ``artifact.fit["kept_weight"]`` lists them.
    """
    shared, kept = _Shared(samples), _kept(samples)
    weight, bias = np.empty((2, samples.classes))
    for k in range(samples.classes):
        if k not in kept:
            try:
                weight[k], bias[k], _ = platt(*_label(samples, k))
            except FitError:
                # A weight below 0 would turn the label's order around: that of all keeps it.
                kept[k] = "more rarely true where its log-odds are higher"
        if k in kept:
            weight[k], bias[k] = shared.map(k)
    return complete(
        [LogitMap(weight, bias)],
        samples,
        method="platt",
        fit={"objective": "cross-entropy with Platt's targets", **shared.facts(kept)},
    )


def fit_label_isotonic(samples: Samples) -> Artifact:
    """Fit the rising step function of least squared error to each label; of few samples as Platt has it."""
    floor = 1 / (2 * (len(samples) + 1))  # as two classes have it
    shared, kept = _Shared(samples), _kept(samples)
    rows = []
    for k in range(samples.classes):
        z, came_true, weight = _label(samples, k)
        if k in kept:
            rows.append(shared.row(k, z))
        else:
            rows.append(isotonic_row(sigmoid(z), came_true.astype(np.float64), weight, floor))
    facts = {"objective": "squared error", **shared.facts(kept)}
    return complete([table_of(rows)], samples, method="isotonic", fit=facts, packages=("scipy",))


class _Shared:
    """What labels of too few samples keep: a temperature, 1 where none is best, or a weight and an offset."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.why = ""
        try:
            self.temperature = _temperature(samples).temperature
        except FitError as error:
            self.temperature, self.why = 1.0, str(error)

    @cached_property
    def offsets(self) -> tuple[float, Floats]:
        """The weight of all labels beside an offset (L,) of each."""
        return one_weight(self.samples)

    def apart(self, k: int) -> bool:
        """Whether a label has an offset of its own."""
        z, true, share = _label(self.samples, k)
        sign = np.where(true == 1, -1.0, 1.0)
        w, b = self.offsets
        gain = np.logaddexp(0, sign * z / self.temperature) - np.logaddexp(0, sign * (w * z + b[k]))
        return w > 0 and float(share @ gain) > math.log(len(z)) / 2

    def map(self, k: int) -> tuple[float, float]:
        """The weight and the bias of a label."""
        return (self.offsets[0], float(self.offsets[1][k])) if self.apart(k) else (1 / self.temperature, 0.0)

    def row(self, k: int, z: Floats) -> Row:
        """The map as a row of a table: a step function with equally many samples a step."""
        w, b = self.map(k)
        return temperature_row(sigmoid(z), sigmoid(w * z + b))

    def facts(self, kept: Mapping[int, str]) -> dict[str, Any]:
        """The manifest's entry: labels by the reason why they were not fitted alone."""
        reasons: dict[bool, dict[str, list[int]]] = {False: {}, True: {}}
        for k, why in kept.items():
            reasons[self.apart(k)].setdefault(why, []).append(k)
        known = {"shared_temperature": self.temperature, "least": _LEAST, "kept_temperature": reasons[False]}
        if reasons[True]:
            known |= {"shared_weight": self.offsets[0], "kept_weight": reasons[True]}
        return {**known, "no_temperature": self.why} if self.why else known


def one_weight(samples: Samples) -> tuple[float, Floats]:
    """The weight of all labels and each label's bias (L,) of least cross-entropy with Platt's targets."""
    z = samples.read(slice(0, len(samples)), np.float64)
    share = samples.weights / samples.weights.sum()
    targets = np.stack([platt_targets(y, samples.weights) for y in samples.labels.T], axis=1)
    mean, rate = share @ z, share @ targets
    x = z - mean
    unit = float(np.sqrt(np.mean(x**2))) or 1.0
    x /= unit

    def loss(theta: Floats) -> tuple[float, Floats]:
        s = theta[0] * x + theta[1:]
        off = (sigmoid(s) - targets) * share[:, None]
        value = float((share @ (np.logaddexp(0, s) - targets * s)).sum())
        return value, np.concatenate([[np.einsum("nl,nl->", off, x)], off.sum(axis=0)])

    curved = rate * (1 - rate)
    curvature = np.concatenate([[(share @ x**2) @ curved + 1e-300], curved])
    start = np.concatenate([[0.0], np.log(rate) - np.log1p(-rate)])
    found = minimise(loss, start, lambda g: g / curvature, gap=1e-6)
    w = float(found.x[0]) / unit
    return w, found.x[1:] - w * mean


def _kept(samples: Samples) -> dict[int, str]:
    counted = samples.labels[samples.weights > 0]
    true = counted.sum(axis=0)
    few = np.flatnonzero(np.minimum(true, len(counted) - true) < _LEAST)
    return dict.fromkeys(few.tolist(), f"true, or not true, in fewer than {_LEAST} samples")


LABEL_METHODS: Mapping[str, Callable[..., Artifact]] = MappingProxyType(
    {
        "none": fit_none,
        "temperature": fit_label_temperature,
        "platt": fit_label_platt,
        "isotonic": fit_label_isotonic,
    }
)
"""Name -> fitter, by rising flexibility."""
