"""One calibrator for each label, by name; a label that says too little keeps the temperature of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, LogitMap, Step
from calib_serve.errors import FitError, InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.labels.samples import LabelSamples
from calib_serve.fit.output.binary import check_range, platt
from calib_serve.fit.output.binning import (
    check_table,
    equal_mass,
    equal_width,
    histogram_row,
    isotonic_row,
    table_of,
)
from calib_serve.fit.output.candidates import check_options
from calib_serve.fit.output.temperature import temperature
from calib_serve.metrics import sigmoid

__all__ = ["LABEL_METHODS", "fit_labels", "label_options"]

Floats = NDArray[np.float64]
Row = Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]
"""(probabilities, whether the label is true, weights), each (n,), to inner edges and values."""

_LEAST = 10  # samples in which a label is true, and in which it is not, below which it is not fitted alone
_STEPS = 100  # of a table that stands for a temperature

LABEL_METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": (),
        "temperature": (),
        "platt": (),
        "histogram-width": ("bins", "smoothing"),
        "histogram-mass": ("bins", "smoothing"),
        "isotonic": (),
    }
)
"""Name -> its options, by rising flexibility."""


def label_options(method: str) -> tuple[str, ...]:
    """The names of a method's options; InputError for a method that labels do not have."""
    if method not in LABEL_METHODS:
        raise InputError(f"labels have no method {method!r}; choose auto, {', '.join(LABEL_METHODS)}")
    return LABEL_METHODS[method]


def fit_labels(method: str, samples: LabelSamples, **options: Any) -> Artifact:
    """Fit ``method`` to every label of the samples.

    "temperature" is one number for all labels, by the mean NLL of a label; "platt" a weight above 0 and a
    bias for each; histograms (``bins``, ``smoothing``) and "isotonic" a table for each. A label that is true,
    or not true, in fewer than 10 samples, or whose log-odds do not rise with its share, keeps the temperature
    of all labels: ``artifact.fit["kept_temperature"]`` lists such labels. Where no finite temperature is
    best, they keep their own probability. Raises InputError for a method or options that do not exist,
    FitError where "temperature" has no optimum.
    """
    check_options(method, options, label_options(method))
    check_range(samples.read(slice(0, len(samples))))
    if method == "none":
        return complete([], samples, method=method, fit={})
    if method == "temperature":
        found = temperature(samples.pooled())
        steps: list[Step] = [LogitMap.temperature(found["temperature"])]
        return complete(steps, samples, method=method, fit={"objective": "mean nll of a label", **found})
    if method == "platt":
        return _platt(samples)
    return _tables(method, samples, options.get("bins", 15), options.get("smoothing", 1.0))


def _platt(samples: LabelSamples) -> Artifact:
    shared, kept = _Shared(samples), _kept(samples)
    weight, bias = np.full(samples.classes, 1 / shared.temperature), np.zeros(samples.classes)
    for k in range(samples.classes):
        if k in kept:
            continue
        try:
            weight[k], bias[k], _ = platt(*samples.label(k))
        except FitError:
            kept[k] = "more rarely true where its log-odds are higher"
    return complete(
        [LogitMap(weight, bias)],
        samples,
        method="platt",
        fit={"objective": "cross-entropy with Platt's targets", **shared.facts(kept)},
    )


def _tables(method: str, samples: LabelSamples, bins: int, smoothing: float) -> Artifact:
    check_table("each", bins, smoothing)
    floor = 1 / (2 * (len(samples) + 1))  # as two classes have it
    edges = {"histogram-width": equal_width(bins), "histogram-mass": equal_mass(bins)}.get(method)

    def row(p: Floats, came_true: Floats, weight: Floats) -> tuple[Floats, Floats]:
        if edges is None:
            return isotonic_row(p, came_true, weight, floor)
        return histogram_row(p, came_true, weight, edges(p), smoothing)

    shared, kept = _Shared(samples), _kept(samples)
    rows = []
    for k in range(samples.classes):
        z, came_true, weight = samples.label(k)
        if k in kept:
            rows.append(shared.row(z))
        else:
            rows.append(row(sigmoid(z), came_true.astype(np.float64), weight))
    options = {} if edges is None else {"bins": bins, "smoothing": smoothing}
    packages = ("scikit-learn",) if edges is None else ()
    return complete(
        [table_of(rows)],
        samples,
        method=method,
        fit={
            "objective": "squared error" if edges is None else "share of each bin",
            **options,
            **shared.facts(kept),
        },
        packages=packages,
    )


class _Shared:
    """The temperature of all labels, for those that say too little; 1 where none is best, and why."""

    def __init__(self, samples: LabelSamples) -> None:
        self.why = ""
        try:
            self.temperature = float(temperature(samples.pooled())["temperature"])
        except FitError as error:
            self.temperature, self.why = 1.0, str(error)

    def row(self, z: Floats) -> tuple[Floats, Floats]:
        """A row of a table that is, step by step, the temperature: equally many samples a step."""
        p = sigmoid(z)
        edges = equal_mass(_STEPS)(p)
        index, cooled = np.searchsorted(edges, p), sigmoid(z / self.temperature)
        count, total = (
            np.bincount(index, weights=w, minlength=len(edges) + 1) for w in (np.ones(len(p)), cooled)
        )
        bounds = np.concatenate([[0.0], edges, [1.0]])
        middle = (bounds[1:] + bounds[:-1]) / 2  # of a step that holds nothing
        return edges, np.where(count > 0, total / np.where(count > 0, count, 1), middle)

    def facts(self, kept: Mapping[int, str]) -> dict[str, Any]:
        """What the manifest says: labels by the reason why they were not fitted alone."""
        reasons = {
            why: [k for k, given in kept.items() if given == why] for why in dict.fromkeys(kept.values())
        }
        known = {"shared_temperature": self.temperature, "least": _LEAST, "kept_temperature": reasons}
        return {**known, "no_temperature": self.why} if self.why else known


def _kept(samples: LabelSamples) -> dict[int, str]:
    counted = samples.labels if samples.weight is None else samples.labels[samples.weight > 0]
    true = counted.sum(axis=0)
    few = np.flatnonzero(np.minimum(true, len(counted) - true) < _LEAST)
    return dict.fromkeys(few.tolist(), f"true, or not true, in fewer than {_LEAST} samples")
