"""Calibrators of multi-label models: one for each label by name, and the choice of one method for all.

A label that says too little keeps the temperature of all; where that is clearly off, the weight of all,
with an offset of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, LogitMap, Step
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.facts import HeldOutFacts, complete, measured_on_folds, with_selection
from calib_serve.fit.folds import folds_of
from calib_serve.fit.lbfgs import minimise
from calib_serve.fit.output.binary import check_range, platt, platt_targets
from calib_serve.fit.output.candidates import check_options
from calib_serve.fit.output.held_out import HeldOut
from calib_serve.fit.output.selection import choose, harm_to_accuracy, why_none
from calib_serve.fit.output.tables import (
    check_table,
    equal_width,
    histogram_row,
    isotonic_row,
    quantile_edges,
    table_of,
    temperature_row,
)
from calib_serve.fit.output.temperature import temperature
from calib_serve.fit.progress import Progress
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.metrics import confidence_of_labels, evaluate_label_probs, judge_probs
from calib_serve.scores import LABELS, Outputs, Scores, check_ungrouped, log_probs, sigmoid

Row = Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]
"""(probabilities, whether the label is true, weights), each (n,), to inner edges and values."""
_LEAST = 10  # samples in which a label is true, and in which it is not, below which it is not fitted alone
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
Criterion = Literal["nll", "brier"]
# Tables need hundreds of samples in which a label is true, so they are asked for by name.
_CANDIDATES = ("none", "temperature", "platt")


@dataclass(frozen=True, eq=False)
class LabelSamples(Samples):
    """Log-odds of labels and whether each is true; made by ``of``.

    Args:
        logits: Log-odds (n, L).
        labels: 0 or 1 (n, L).
        weight: Of each sample (n,), or None.
        rows: Rows of ``logits`` that belong to these samples; None: all.
        outputs: Kind of the scores before they became log-odds.
        groups: None; labels have no groups.
        part: Whether they are a part of others, such as a fold.
        sources: None; labels have no sources.
    """

    @classmethod
    def of(
        cls,
        logits: Any,
        labels: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        class_weight: ClassWeight = None,
        outputs: Outputs | None = None,
        groups: ArrayLike | None = None,
    ) -> LabelSamples:
        """Check scores and labels of a multi-label model.

        Args:
            logits: ``Scores``, or scores (n, L) of labels.
            labels: 0 or 1 (n, L).
            sample_weight: (n,).
            class_weight: Has no meaning for labels, and is refused.
            outputs: Kind of the scores.
            groups: Refused: folds could keep them whole, and no interval of a label would.

        Raises:
            InputError: For arrays that cannot be right.
            ShapeError: For arrays of other shapes.
        """
        if class_weight is not None:
            raise InputError("class_weight is for one class a sample; give each sample a weight instead")
        of_samples: dict[str, Any] = {"sample_weight": sample_weight, "groups": groups}
        given = Scores.of(logits, labels, expected="label_logits", outputs=outputs, **of_samples)
        if not given.is_multilabel:
            raise InputError(f"scores of labels are {' or '.join(LABELS)} (outputs=), got {given.outputs}")
        check_ungrouped(given.groups)  # folds could keep them whole, and no interval of a label would
        samples = cls(given.logits, given.labelled(), outputs=given.outputs)
        if given.weights is None:
            return samples
        counted = samples._counted(given.weights)
        weight = counted.weight
        return counted if weight is None else replace(counted, weight=weight * (len(weight) / weight.sum()))

    def label(self, k: int) -> tuple[Floats, NDArray[np.intp], Floats]:
        """Return log-odds, truths and weights of one label, each (n,).

        Args:
            k: Its column.
        """
        rows = slice(None) if self.rows is None else self.rows
        z = np.asarray(self.logits[rows, k], np.float64)
        return z, self.labels[:, k], self.weights

    def pooled(self) -> Samples:
        """Take every label of every sample as a sample of two classes."""
        z: NDArray[Any] = self.read(slice(0, len(self))).reshape(-1, 1)
        weight = None if self.weight is None else np.repeat(self.weight, self.classes)
        return Samples(np.concatenate([np.zeros_like(z), z], axis=1), self.labels.reshape(-1), weight)


def label_options(method: str) -> tuple[str, ...]:
    """Return the names of a method's options; InputError for a method that labels do not have."""
    if method not in LABEL_METHODS:
        raise InputError(f"labels have no method {method!r}; choose auto, {', '.join(LABEL_METHODS)}")
    return LABEL_METHODS[method]


def fit_labels(
    method: str, samples: LabelSamples, *, bins: int | None = None, smoothing: float | None = None
) -> Artifact:
    """Fit a method to every label.

    A label that is true, or not true, in fewer than 10 samples, or whose log-odds do not rise with its share,
    keeps the temperature of all labels: ``artifact.fit["kept_temperature"]`` lists such labels. Where no
    finite temperature is best, they keep their own probability. Where an offset beside one weight of all
    labels is likelier by Schwarz' criterion, they have that: ``artifact.fit["kept_weight"]`` lists them.

    Args:
        method: "temperature", one number for all labels by the mean NLL of a label; "platt", a weight above 0
            and a bias for each; a histogram or "isotonic", a table for each.
        samples: The calibration set.
        bins: Bins of a histogram; 15 by default.
        smoothing: Samples that a histogram adds to each bin, at its mean probability; 1 by default.

    Raises:
        InputError: For a method or options that do not exist.
        FitError: Where "temperature" has no optimum.
    """
    options = {"bins": bins, "smoothing": smoothing}
    options = {name: value for name, value in options.items() if value is not None}
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
    return _tables(method, samples, 15 if bins is None else bins, 1.0 if smoothing is None else smoothing)


def _platt(samples: LabelSamples) -> Artifact:
    shared, kept = _Shared(samples), _kept(samples)
    weight, bias = np.empty((2, samples.classes))
    for k in range(samples.classes):
        if k not in kept:
            try:
                weight[k], bias[k], _ = platt(*samples.label(k))
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


def _tables(method: str, samples: LabelSamples, bins: int, smoothing: float) -> Artifact:
    check_table("each", bins, smoothing)
    floor = 1 / (2 * (len(samples) + 1))  # as two classes have it
    edges = {"histogram-width": equal_width, "histogram-mass": quantile_edges}.get(method)

    def row(p: Floats, came_true: Floats, weight: Floats) -> tuple[Floats, Floats]:
        if edges is None:
            return isotonic_row(p, came_true, weight, floor)
        return histogram_row(p, came_true, weight, edges(p, bins), smoothing)

    shared, kept = _Shared(samples), _kept(samples)
    rows = []
    for k in range(samples.classes):
        z, came_true, weight = samples.label(k)
        if k in kept:
            rows.append(shared.row(k, z))
        else:
            rows.append(row(sigmoid(z), came_true.astype(np.float64), weight))
    options = {} if edges is None else {"bins": bins, "smoothing": smoothing}
    packages = ("scipy",) if edges is None else ()
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
    """What labels of too few samples keep: a temperature, 1 where none is best, or a weight and an offset."""

    def __init__(self, samples: LabelSamples) -> None:
        self.samples = samples
        self.why = ""
        try:
            self.temperature = float(temperature(samples.pooled())["temperature"])
        except FitError as error:
            self.temperature, self.why = 1.0, str(error)

    @cached_property
    def offsets(self) -> tuple[float, Floats]:
        """The weight of all labels beside an offset (L,) of each."""
        return one_weight(self.samples)

    def apart(self, k: int) -> bool:
        """Whether a label has an offset of its own."""
        z, true, share = self.samples.label(k)
        sign = np.where(true == 1, -1.0, 1.0)
        w, b = self.offsets
        gain = np.logaddexp(0, sign * z / self.temperature) - np.logaddexp(0, sign * (w * z + b[k]))
        return w > 0 and float(share @ gain) > math.log(len(z)) / 2

    def map(self, k: int) -> tuple[float, float]:
        """The weight and the bias of a label."""
        return (self.offsets[0], float(self.offsets[1][k])) if self.apart(k) else (1 / self.temperature, 0.0)

    def row(self, k: int, z: Floats) -> tuple[Floats, Floats]:
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


def one_weight(samples: LabelSamples) -> tuple[float, Floats]:
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


def _kept(samples: LabelSamples) -> dict[int, str]:
    counted = samples.labels[samples.weights > 0]
    true = counted.sum(axis=0)
    few = np.flatnonzero(np.minimum(true, len(counted) - true) < _LEAST)
    return dict.fromkeys(few.tolist(), f"true, or not true, in fewer than {_LEAST} samples")


def select_labels(
    samples: LabelSamples,
    *,
    candidates: Sequence[str] | None = None,
    criterion: Criterion = "nll",
    folds: int = 5,
    tolerance: float = 0.005,
    level: float = 0.95,
    seed: int = 0,
    class_names: Sequence[str] = (),
    progress: Progress | None = None,
) -> Artifact:
    """Cross-validate methods, fit the chosen one to all samples, and record how it was chosen.

    A sample's score is the mean over its labels; samples, not labels, are independent. Otherwise as
    ``fit.output.select``.

    Args:
        samples: The calibration set.
        candidates: Names of methods, simplest first; "none" always is one.
        criterion: "nll", or "brier", (p - y)^2.
        folds: Number of folds.
        tolerance: How much the accuracy of the decisions may fall, a fraction: a candidate that costs more,
            beyond chance, is refused.
        level: Coverage of the interval of that, a fraction.
        seed: Seed by which folds are drawn.
        class_names: Names of the labels (L,).
        progress: Called with a name, how many methods are done, and of how many.
    """
    names = tuple(dict.fromkeys(("none", *(candidates or _CANDIDATES))))
    for name in names:
        label_options(name)
    if criterion not in ("nll", "brier"):
        raise InputError(f"the criterion for labels must be nll or brier, got {criterion!r}")

    def held_out(name: str, _: Mapping[str, HeldOut]) -> HeldOut:
        return _described(_held_out(samples, partial(fit_labels, name), folds, seed), samples.labels)

    selection = choose(
        names,
        held_out,
        partial(harm_to_accuracy, tolerance=tolerance, level=level),
        samples,
        criterion=criterion,
        folds=folds,
        seed=seed,
        tolerance=tolerance,
        level=level,
        progress=progress,
    )
    fit = partial(fit_labels, selection.chosen)
    facts = held_out_label_facts(samples, fit, folds=folds, class_names=class_names, level=level, seed=seed)
    return measured_on_folds(
        with_selection(fit(samples), selection, why_none(selection)), facts, folds=folds, samples=len(samples)
    )


def held_out_label_facts(
    samples: LabelSamples,
    fit: Callable[[LabelSamples], Artifact],
    *,
    folds: int,
    class_names: Sequence[str] = (),
    level: float = 0.95,
    seed: int = 0,
) -> HeldOutFacts:
    """Measure every sample under a fit to the other folds: metrics and verdict.

    Args:
        samples: The calibration set.
        fit: Function from samples to an artifact.
        folds: Number of folds.
        class_names: Names of the labels (L,).
        level: Coverage of the intervals, a fraction.
        seed: Seed by which folds are drawn.
    """
    held = [_held_out(samples, made, folds, seed) for made in (partial(fit_labels, "none"), fit)]
    before, after = (_estimates(probs, samples, level, seed) for probs in held)
    verdict = judge_probs(held[1], samples.labels, sample_weight=samples.weight, class_names=class_names)
    return HeldOutFacts(before, after, verdict)


def _held_out(
    samples: LabelSamples, fit: Callable[[LabelSamples], Artifact], folds: int, seed: int
) -> Floats:
    """Probabilities (n, L) of every sample under a ``fit`` to the other folds.

    InputError for folds that the samples cannot fill.
    """
    fold = folds_of(samples, folds=folds, seed=seed)
    probs = np.empty(samples.labels.shape)
    for rows, p in samples.held_out(fold, lambda f: fit(samples.take(fold != f))):
        probs[rows] = p
    return probs


def _described(probs: Floats, labels: NDArray[np.intp]) -> HeldOut:
    # Means over a sample's labels: samples, not labels, are independent.
    confidence, right = confidence_of_labels(probs, labels)
    true = np.where(labels == 1, probs, 1 - probs)
    means = (-log_probs(true), (1 - true) ** 2, confidence, right)
    return HeldOut(*(np.asarray(m, np.float64).mean(axis=1) for m in means))


def _estimates(probs: Floats, samples: LabelSamples, level: float, seed: int) -> dict[str, Any]:
    how: dict[str, Any] = {"sample_weight": samples.weight, "level": level, "seed": seed}
    found = evaluate_label_probs(probs, samples.labels, replicates=200, **how)
    return {name: estimate.as_dict() for name, estimate in found.estimates().items()}
