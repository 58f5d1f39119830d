"""Offsets of the classes, where no temperature does without: softmax((z + c) / T) (Alexandari 2020).

Raw scores, of verification or of retrieval, and logits of a model that was trained to other class shares lie
off zero. A temperature alone can but flatten them, and so do the linear maps that are drawn to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.facts import complete, data_fingerprint
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output.temperature import true_above
from calib_serve.fit.samples import Samples
from calib_serve.fit.softmax_regression import Penalty, Problem
from calib_serve.scores import LEAST, PROBABILITIES, Scores, few, softmax


class _Tempered(Protocol):
    @property
    def temperature(self) -> float: ...


Found = TypeVar("Found", bound=_Tempered)


def with_offset(samples: Samples, fit: Callable[[Samples], Found]) -> tuple[Samples, Floats | None, Found]:
    """Fit a temperature by ``fit``, beside an offset (K,) of the logits where it needs one.

    Returns the samples with the offset, the offset or None, and what was found. Raises the FitError of
    ``fit`` where neither is best.
    """
    try:
        found = fit(samples)
    except FitError:
        if (offset := offset_of(samples)) is None:
            raise
        near = moved(samples, offset)
        return near, offset, fit(near)
    if (offset := offset_of(samples, found.temperature)) is not None:
        near = moved(samples, offset)
        with suppress(FitError):  # every sample is right beside an offset
            return near, offset, fit(near)
    return samples, None, found


def offset_of(samples: Samples, t: float = math.inf) -> Floats | None:
    """The offset c (K,) of least NLL beside a temperature; None where ``t`` alone is as good a centre.

    ``t`` is the best temperature alone, infinite where none is best. An offset is taken where ``t`` leaves
    more than half the entropy of the class shares and is more than three times as flat, and where the offset
    is likelier by Schwarz' criterion. None, too, where logits do not rise with the share of their classes.
    """
    if math.isinf(t) and true_above(samples) > 0:
        return None  # every sample is right, and T would be 0
    few = samples.some(MEASURED.most_samples_cross_validated)
    if few is not samples and offset_of(few, t) is None:
        return None
    n, k = len(samples), samples.classes
    shares = np.bincount(samples.labels, samples.weight, minlength=k) / n
    alone = Problem(samples, "scalar", 1 / t).nll(np.zeros(k + 1)) if math.isfinite(t) else math.log(k)
    if alone <= -0.5 * float(shares @ np.log(np.maximum(shares, 1e-300))):
        return None
    mean = samples.mean()
    spread = math.sqrt(
        sum(float(np.sum((z - mean) ** 2)) for _, z in samples.chunks(np.float64)) / samples.size
    )
    problem = Problem(samples, "scalar", 1 / (spread or 1.0), centre=mean)
    start = np.concatenate([[0.0], np.log(shares + 1 / n)])
    # The ridge keeps the optimum finite where a class never occurs, or a threshold tells all apart.
    ridge = Penalty(diagonal=1e-6, bias=1e-6)
    try:
        theta = problem.solve(ridge, start, gap=1e-5).x
    except FitError:
        return None
    w, b = problem.map(theta)
    scale = float(w[0]) * problem.scale
    if not (scale > 0 and t * scale > MEASURED.flatter_than_beside_an_offset):
        return None
    likelier = n * (alone - problem.nll(theta)) > (k - 1) / 2 * math.log(n)
    return np.asarray(b / scale - mean) if likelier else None


def tempered(t: float, offset: Floats | None) -> LogitMap:
    """The map (z + c) / T."""
    return LogitMap.temperature(t) if offset is None else LogitMap(np.array(1 / t), offset / t)


def moved(samples: Samples, offset: Floats) -> Samples:
    """The samples with an offset (K,) added to each row of logits."""
    logits = np.empty((len(samples), samples.classes))
    for part, z in samples.chunks(np.float64):
        logits[part] = z + offset
    return replace(samples, logits=logits, rows=None)


def fit_batch(samples: Samples) -> Artifact:
    """Fit p / mean p, normalised, batch calibration of a language model (Zhou 2024), whatever the labels are.

    Class shares of the samples are taken to be equal: where they are not, methods that read the labels are
    better.

    >>> artifact = fit_batch(Samples.of(np.log([[0.8, 0.2], [0.4, 0.6]]), [0, 1]))  # means .6 and .4
    >>> artifact.of_logits(np.log([[0.6, 0.4]])).round(9).tolist()
    [[0.5, 0.5]]
    """
    return complete([_levelled(samples)], samples, method="batch", fit={})


def fit_contextual(samples: Samples) -> Artifact:
    """Fit p / mean p, normalised, of answers to inputs without content: contextual calibration (Zhao 2021).

    Such inputs, as "N/A", have no labels. The paper's softmax of the ratios is of the same predicted class,
    and no probability.
    """
    return complete([_levelled(samples)], samples, method="contextual", fit={})


def _levelled(samples: Samples) -> LogitMap:
    weight = samples.weights
    mean = sum(weight[part] @ softmax(z) for part, z in samples.chunks(np.float64)) / weight.sum()
    return LogitMap(np.array(1.0), -np.log(np.maximum(np.asarray(mean), LEAST)))


UNLABELLED: Mapping[str, Callable[[Samples], Artifact]] = {"batch": fit_batch, "contextual": fit_contextual}
"""Methods that need no labels."""


def fit_unlabelled(scores: Scores, method: str) -> Artifact:
    """Fit a method of ``UNLABELLED`` to scores without labels.

    Nothing is measured, and facts that need labels are left out. A batch is traffic, and so a reference of
    its predicted classes; inputs without content are none.
    """
    if scores.is_multilabel:
        raise InputError(f"{method} calibration is of classes of which one is true, not of labels")
    nobody = np.zeros(len(scores), np.intp)  # in place of labels, which no fact below is made of
    samples = Samples.of(replace(scores, labels=nobody))
    # Divided by no mean, a class could get any probability.
    never = np.flatnonzero((softmax(scores.logits) < 2 * LEAST).all(axis=0))
    if scores.outputs in PROBABILITIES and len(never):
        names = scores.class_names or range(scores.classes)
        raise FitError(
            f"no sample gives {few([names[k] for k in never])} a probability above 0, and {method} "
            "calibration divides by its mean: give samples that do, or fit with labels"
        )
    artifact = UNLABELLED[method](samples)
    facts = {
        "samples": len(samples),
        "sha256": data_fingerprint(scores.logits),
        "weighted": samples.weight is not None,
        "measured_on": "nothing: it was fitted without labels",
    }
    counted = artifact.reference_classes if method == "batch" else ()
    return replace(
        artifact, data=facts, reference=None, reference_classes=counted, class_names=scores.class_names
    )
