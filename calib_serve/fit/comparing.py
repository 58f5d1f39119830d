"""Several methods fitted on the same samples and measured on others."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import finite
from calib_serve.core.errors import CalibServeError, InputError
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import CompareOptions, MeasureOptions
from calib_serve.fit.output.candidates import fit_by_name, methods_for, options_of
from calib_serve.fit.output.selection import select
from calib_serve.fit.progress import Progress
from calib_serve.fit.samples import Samples
from calib_serve.metrics import Evaluation, LabelsEvaluation, Tops, evaluate_label_probs, evaluate_probs
from calib_serve.scores import Scores, alike

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import CompareKeywords


@dataclass(frozen=True)
class Compared:
    """One method: its fit and its metrics.

    Args:
        method: Its name; "auto: NAME" where it was chosen.
        seconds: Time of its fit.
        metrics: Metrics on the test set; None where it could not be fitted.
        error: Why it could not be fitted.
        moved: Share of predictions that change class; NaN of labels.
    """

    method: str
    seconds: float = 0.0
    metrics: Evaluation | LabelsEvaluation | None = None
    error: str = ""
    moved: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        if self.metrics is None:
            return {"method": self.method, "error": self.error}
        told = {"method": self.method, "seconds": self.seconds, "moved": finite(self.moved)}
        return {**told, "metrics": self.metrics.as_dict()}


def compare_methods(
    fit: Any,
    test: Any,
    methods: Sequence[str] | Literal["all"] = "all",
    options: CompareOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Unpack[CompareKeywords],
) -> tuple[Compared, ...]:
    """Fit output methods to some samples and measure each on others; a method that cannot be fitted says why.

    Args:
        fit: ``Scores``, a frame that holds the labels, or a pair of scores and labels, as in ``Scores.of``.
        test: The same of other samples.
        methods: Names of methods, "auto" among them if wanted; or "all".
        options: A ``CompareOptions``; keywords replace its fields.
        progress: Called with a method, how many are done, and of how many.
        **keywords: Fields of ``CompareOptions``: ``class_names``, ``columns``, ``groups``,
            ``ignore_label``, ``missing``, ``outputs``, ``replicates``, ``sample_weight``, ``schema``,
            ``seed``.

    Returns:
        One for each method, in their order.

    Raises:
        InputError: For arrays, names and options that cannot be right.

    >>> z, y = [[0.0, 2.0], [2.0, 0.0]] * 40, [1, 0, 1, 0, 1, 0, 0, 1] * 10
    >>> found = compare_methods((z, y), (z, y), ["none", "temperature"], outputs="logits")
    >>> [f"{one.method} {one.metrics.ece:.3f}" for one in found]
    ['none 0.131', 'temperature 0.000']
    """
    asked = changed(options or CompareOptions(), keywords, compare_methods)
    fitted = _scores(fit, "the samples to fit", **asked.of_scores)
    tested = _scores(test, "the samples to test", expected=fitted.outputs, **asked.of_scores)
    tested = tested.in_order(fitted.class_names, of="the samples to fit")
    if not alike(tested.outputs, fitted.outputs):
        raise InputError(f"the samples to fit are {fitted.outputs}, those to test {tested.outputs}")
    samples = Samples.of(fitted)
    names = list(methods_for(samples)) if methods == "all" else list(methods)
    # Before anything is fitted: a wrong name may be the last one, after minutes.
    for name in names:
        if name != "auto":
            options_of(name, samples.is_multilabel)
    rows = []
    for i, name in enumerate(names):
        if progress:
            progress(name, i, len(names))
        began = time.perf_counter()
        called = name
        try:
            if name == "auto":
                artifact = select(samples, seed=asked.seed)
                called = f"auto: {artifact.method}"
            else:
                artifact = fit_by_name(name, samples, seed=asked.seed)
        # A method without an optimum should not cost the others.
        except CalibServeError as error:
            rows.append(Compared(name, error=str(error)))
            continue
        seconds = time.perf_counter() - began
        found, moved = _measured(artifact, tested, asked)
        rows.append(Compared(called, seconds, found, moved=moved))
    return tuple(rows)


def _scores(given: Any, name: str, **how: Any) -> Scores:
    pair = given if isinstance(given, tuple) else (given,)
    if len(pair) > 2:
        raise InputError(f"{name} are scores and their labels, got {len(pair)} things")
    return Scores.of(*pair, name=name, **how)


def _measured(
    artifact: Artifact, test: Scores, asked: CompareOptions
) -> tuple[Evaluation | LabelsEvaluation, float]:
    """The metrics of a calibration, and the share of predictions that it moves."""
    probs, y, weights = artifact.of_logits(test.logits), test.labelled(), test.weights
    how = MeasureOptions(replicates=asked.replicates, seed=asked.seed)
    if test.is_multilabel:
        return evaluate_label_probs(probs, y, how, sample_weight=weights), math.nan
    moved = np.average(probs.argmax(axis=1) != Tops.of(test.probs, y).predicted, weights=weights)
    return evaluate_probs(probs, y, how, sample_weight=weights, groups=test.clusters), float(moved)
