"""NC (Eff.): Neural Clamping's data-driven shift, then a temperature (Tang 2024, appendix F).

The shift is the feasible one that raises the output entropy most (Theorem 3.2). To first order a shift
delta of every input raises the mean entropy by delta . g / N, where g sums the entropy's gradient over the
N inputs. Within the feasible range [a, b], and with the data's own bounds lo and hi in each dimension, the
best shift is b - hi where g > 0 and a - lo where g < 0: as far as every input stays feasible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from calib_serve.artifact import Artifact, InputShift, LogitMap
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit.facts import complete, data_fingerprint
from calib_serve.fit.output.ece_grid import fit_temperature_ece
from calib_serve.fit.samples import Samples
from calib_serve.models import Classifier, Progress
from calib_serve.scores import softmax


def checked_inputs(classifier: Classifier, inputs: AnyFloats, labels: ArrayLike) -> NDArray[np.intp]:
    """Check that labels and the inputs' shape fit the model; return the labels."""
    if inputs.shape[1:] != classifier.input_shape:
        raise ShapeError(f"the model takes inputs of {classifier.input_shape}, got {inputs.shape[1:]}")
    # They stand for logits: Samples.of checks labels against so many classes.
    zeros = np.broadcast_to(np.float32(0), (len(inputs), classifier.classes))
    y = Samples.of(zeros, labels, outputs="logits").labels
    if (y == y[0]).all():
        raise InputError(f"all {len(y)} samples are of class {y[0]}; calibrate on every class that is served")
    return y


def fit_neural_clamping_efficient(
    classifier: Classifier,
    inputs: AnyFloats,
    labels: ArrayLike,
    *,
    grid: Union[Literal["fine", "medium", "coarse"], ArrayLike] = "fine",
    input_range: tuple[float, float] | None = None,
    class_names: Sequence[str] = (),
    progress: Progress | None = None,
) -> Artifact:
    """Fit NC (Eff.): the data-driven shift of Theorem 3.2 and then a temperature (appendix F).

    One backward and one forward pass. The artifact holds the share of delta's entries that are 0, and the
    predicted and measured gain of entropy.

    Args:
        classifier: The model.
        inputs: (n, *input_shape), as it takes them.
        labels: Class ids (n,).
        grid: Temperatures, of which that of the least calibration ECE is taken, or a name of ``GRIDS``; the
            paper's by default, "fine": up to 5 in steps of 0.001.
        input_range: Feasible [a, b] of the inputs; by default the range that they take as a whole.
        class_names: Names of the classes (K,).
        progress: Called with how many inputs are done, and of how many.

    Raises:
        InputError: For options that do not fit.
    """
    y = checked_inputs(classifier, inputs, labels)
    found = entropy_shift(classifier, inputs, input_range=input_range, progress=progress)
    shift = InputShift(found.delta)
    # As in appendix F, T is searched behind the shift and not fitted along with it.
    logits = classifier.logits(inputs, shift=shift, progress=progress)
    searched = fit_temperature_ece(Samples(logits, y), grid=grid)
    t = float(searched.fit["temperature"])
    before = mean_entropy(softmax(found.logits))
    return complete(
        [shift, LogitMap.temperature(t)],
        Samples(logits, y),
        method="neural-clamping-efficient",
        fit={
            "grid": searched.fit.facts.get("grid"),
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


@dataclass(frozen=True, eq=False)
class EntropyShift:
    """The shift, its predicted gain of mean entropy in nats, and the share of its entries that are 0.

    ``logits`` are those of the unshifted inputs, computed with the gradient.
    """

    delta: NDArray[np.float64]
    gain: float
    zero_share: float
    logits: NDArray[np.float32]


def entropy_shift(
    classifier: Classifier,
    inputs: AnyFloats,
    *,
    input_range: tuple[float, float] | None = None,
    progress: Progress | None = None,
) -> EntropyShift:
    """The shift of Theorem 3.2, by one backward pass over ``inputs``.

    ``input_range`` is the feasible [a, b]; by default the range that the inputs take as a whole.
    """

    def entropy(logits: Tensor, rows: slice) -> Tensor:
        log_p = logits.log_softmax(dim=1)
        return -(log_p.exp() * log_p).sum(dim=1)

    gradient, logits = classifier.input_gradient(inputs, entropy, progress=progress)
    # Bounds in each dimension: a shift may go as far as the input nearest to the range's end.
    low, high = data_bounds(inputs)
    delta = feasible_shift(gradient, low, high, input_range or (float(low.min()), float(high.max())))
    return EntropyShift(
        delta, float((delta * gradient).sum() / len(inputs)), float((delta == 0).mean()), logits
    )


def feasible_shift(
    gradient: AnyFloats, low: AnyFloats, high: AnyFloats, input_range: tuple[float, float]
) -> NDArray[np.float64]:
    """The best shift: b - high where the gradient rises, a - low where it falls, else 0 (eq. 19, 20).

    >>> feasible_shift(
    ...     np.array([2.0, -1.0, 0.0]), np.array([0.1, 0.25, 0.0]), np.array([0.75, 1.0, 0.5]), (0.0, 1.0)
    ... ).tolist()
    [0.25, -0.25, 0.0]
    """
    a, b = input_range
    if not (a <= low.min() and high.max() <= b):
        raise InputError(
            f"the inputs lie in [{low.min():g}, {high.max():g}], outside of input_range [{a:g}, {b:g}]"
        )
    return np.where(gradient > 0, b - high, np.where(gradient < 0, a - low, 0.0)).astype(np.float64)


def data_bounds(inputs: AnyFloats, *, rows: int = 1024) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The smallest and largest value of every input dimension, read in runs of ``rows``."""
    # Memory-mapped inputs may be larger than memory.
    parts = [inputs[i : i + rows] for i in range(0, len(inputs), rows)]
    low = np.min([part.min(axis=0) for part in parts], axis=0)
    high = np.max([part.max(axis=0) for part in parts], axis=0)
    return low.astype(np.float64), high.astype(np.float64)


def mean_entropy(probs: AnyFloats) -> float:
    """The mean entropy in nats of probabilities (n, K).

    >>> round(mean_entropy(np.array([[0.5, 0.5], [1.0, 0.0]])), 6)  # log(2) / 2
    0.346574
    """
    # 0 log 0 is 0.
    p = np.asarray(probs, np.float64)
    return float(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=1).mean())
