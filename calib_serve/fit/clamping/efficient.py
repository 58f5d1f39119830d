"""NC (Eff.): Neural Clamping's data-driven shift, then a temperature (Tang 2024, appendix F)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, InputShift, LogitMap
from calib_serve.errors import InputError
from calib_serve.fit.clamping.entropy_shift import entropy_shift, mean_entropy
from calib_serve.fit.clamping.facts import checked
from calib_serve.fit.facts import complete, data_fingerprint
from calib_serve.fit.output.ece_grid import fit_temperature_ece
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.metrics import softmax
from calib_serve.model import Classifier, Progress

__all__ = ["fit_neural_clamping_efficient"]

Floats = NDArray[np.floating[Any]]


def fit_neural_clamping_efficient(
    classifier: Classifier,
    inputs: Floats,
    labels: ArrayLike,
    *,
    search: Literal["nll", "ece"] = "ece",
    grid: Union[Literal["fine", "medium", "coarse"], ArrayLike, None] = None,
    input_range: tuple[float, float] | None = None,
    class_names: Sequence[str] = (),
    progress: Progress | None = None,
) -> Artifact:
    """NC (Eff.): the data-driven shift of Theorem 3.2 and then a temperature (appendix F).

    One backward and one forward pass. ``search`` is the least calibration ECE over a ``grid`` of T (the
    paper's by default, "fine": up to 5 in steps of 0.001; a name of ``GRIDS``, or temperatures), or the T of
    least ``nll``, which has no grid. InputError for options that do not fit. The artifact holds the share of
    delta's entries that are 0, and the predicted and measured gain of entropy.
    """
    if search not in ("ece", "nll"):
        raise InputError(f"search must be 'ece' or 'nll', got {search!r}")
    if search == "nll" and grid is not None:
        raise InputError("a grid is for the search by ECE; the T of least NLL is solved without one")
    y = checked(classifier, inputs, labels)
    found = entropy_shift(classifier, inputs, input_range=input_range, progress=progress)
    shift = InputShift(found.delta)
    logits = classifier.logits(inputs, shift=shift, progress=progress)
    searched = (
        fit_temperature(logits, y)
        if search == "nll"
        else fit_temperature_ece(logits, y, grid="fine" if grid is None else grid)
    )
    t = float(searched.fit["temperature"])
    before = mean_entropy(softmax(found.logits))
    return complete(
        [shift, LogitMap.temperature(t)],
        Samples.of(logits, y),
        method="neural-clamping-efficient",
        fit={
            "search": search,
            "grid": searched.fit.get("grid"),
            "temperature": t,
            "zero_share": found.zero_share,
            "delta_norm": float(np.linalg.norm(found.delta)),
            "entropy_before": before,
            "entropy_gain_promised": found.gain,
            "entropy_gain": mean_entropy(softmax(logits)) - before,
            "accuracy_before": float((found.logits.argmax(axis=1) == y).mean()),
            "accuracy": float((logits.argmax(axis=1) == y).mean()),
        },
        data={"inputs_sha256": data_fingerprint(np.asarray(inputs))},
        model=classifier.facts(),
        class_names=class_names,
        packages=("torch",),
    )
