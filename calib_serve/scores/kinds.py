"""Kinds of scores, logits, probabilities or log-probabilities, and the ways from one to another."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import as_array, as_floats
from calib_serve.core.errors import InputError, ShapeError

Floats = NDArray[np.floating[Any]]

LEAST = float(np.finfo(np.float32).tiny)
"""The lower bound of a probability before its logarithm is taken: float32's least normal number.

Served models return float32 probabilities, which round to 0 below it. Files, fits, fused graphs and handlers
must all use the same bound: a fitted temperature depends on it.
"""

MASKED = -9e8
"""A logit of so little is no score: a mask put its class out of reach, as by -1e9 or minus infinity."""

Outputs = Literal[
    "logits", "log_probs", "probabilities", "logit", "probability", "label_logits", "label_probabilities"
]
"""What scores are.

``logits``, ``log_probs`` and ``probabilities`` are (n, K), one of K classes is true; ``logit`` and
``probability`` are class 1's of a binary model, (n,) or (n, 1); ``label_logits`` and
``label_probabilities`` are (n, L), a sigmoid a label, of which any number may be true.
"""
MadeBy = Literal["Softmax", "LogSoftmax", "Sigmoid", "layer", ""]
"""An activation that makes scores of logits, a linear layer that makes logits themselves, or neither."""
MADE: dict[MadeBy, tuple[Outputs, ...]] = {
    "Softmax": ("probabilities",),
    "LogSoftmax": ("log_probs",),
    "Sigmoid": ("probability", "label_probabilities"),
}
"""Kinds of scores that an activation makes."""
LABELS: tuple[Outputs, ...] = ("label_logits", "label_probabilities")
"""Of a multi-label model."""
ONE_COLUMN: tuple[Outputs, ...] = ("logit", "probability")
"""Of a binary model with one number a sample."""
PROBABILITIES: tuple[Outputs, ...] = ("probabilities", "probability", "label_probabilities")
"""Within [0, 1]: they are calibrated through their logarithm or their log-odds."""
SUM_OF_HALF = 1e-3
"""How far a row of half-precision probabilities may be from 1."""
SUM_OF_16_BITS = 1e-2
"""How far a row of probabilities may be from 1 that were rounded to any type of 16 bits.

Softmaxes of 2 to 1,000 random logits are off by .0004 in float16, and by .0031 in bfloat16, at most.
"""
ROUNDED = 1e-5
"""How far a probability may lie beyond 0 or 1, as shares that were added up do."""


def log_probs(probs: ArrayLike) -> Floats:
    """Return the logarithm of probabilities, of ``LEAST`` for less; NaN stays NaN.

    In float32 for float16 and float32, else in float64.

    Args:
        probs: Any shape.

    >>> log_probs(np.array([1.0, 0.0])).round(2).tolist()
    [0.0, -87.34]
    """
    p = as_array(probs, "probs")
    # Half precision has no number near LEAST: its logarithm would be of 0.
    narrow = p.dtype.kind == "f" and p.dtype.itemsize <= 4
    p = p.astype(np.float32 if narrow else np.float64, copy=False)
    return np.asarray(np.log(np.maximum(p, p.dtype.type(LEAST))))


def log_softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Return log-probabilities of logits (..., K), in float64.

    Args:
        logits: (..., K).

    >>> log_softmax(np.array([0.0, -1000.0])).tolist()
    [0.0, -1000.0]
    """
    z: NDArray[np.float64] = as_floats(logits, "logits")
    with np.errstate(over="ignore", invalid="ignore"):  # of -1e308 and 1e308: the one is impossible
        z = z - z.max(axis=-1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=-1, keepdims=True))
    return z


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Return probabilities of logits (..., K), in float64.

    Args:
        logits: (..., K).

    >>> softmax(np.array([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    z = as_floats(logits, "logits")
    with np.errstate(over="ignore", invalid="ignore"):
        e: NDArray[np.float64] = z - z.max(axis=-1, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=-1, keepdims=True)
    return e


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the probability of each logit on its own, of any shape, in float64.

    Args:
        logits: Of any shape.

    >>> sigmoid([0.0, -1000.0]).tolist()
    [0.5, 0.0]
    """
    z: NDArray[np.float64] = as_floats(logits, "logits")
    e = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1.0, e) / (1 + e))


def two_columns(logits: ArrayLike) -> Floats:
    """Return logits as (n, K) with K at least 2; float16, float32 and float64 keep their dtype.

    One logit per sample, (n,) or (n, 1), is a binary model's: class 0 gets logit 0.

    Args:
        logits: (n, K), (n,) or (n, 1).

    >>> two_columns([1.5]).tolist()
    [[0.0, 1.5]]
    """
    z = as_array(logits, "logits")
    if z.dtype.kind not in "fiu":
        raise InputError(f"logits must be numbers, got dtype {z.dtype}")
    if z.dtype.kind != "f":
        z = z.astype(np.float64)
    if z.ndim == 1:
        z = z[:, None]
    if z.ndim != 2 or z.shape[1] == 0:
        raise ShapeError(f"logits must be (n, K), or (n,) for one logit, got {z.shape}")
    # softmax([0, z]) is sigmoid(z): one form serves both.
    return z if z.shape[1] > 1 else np.concatenate([np.zeros_like(z), z], axis=1)


def check_outputs(outputs: object) -> None:
    """Raise InputError unless ``outputs`` is None or a kind of scores."""
    if outputs is not None and outputs not in get_args(Outputs):
        raise InputError(
            f"--outputs (outputs=) must be one of {', '.join(get_args(Outputs))}, got {outputs!r}"
        )


def exact(outputs: Outputs, columns: int) -> Outputs:
    """The exact kind by the number of columns: "logits" of one column are a "logit".

    Args:
        outputs: Kind of the scores.
        columns: Number of columns.

    >>> exact("probabilities", 1), exact("probabilities", 3)
    ('probability', 'probabilities')
    """
    one: dict[Outputs, Outputs] = {"logits": "logit", "probabilities": "probability"}
    return one.get(outputs, outputs) if columns == 1 else outputs


def class_count(outputs: Outputs, columns: int) -> int:
    """The number of classes of scores, or of labels; one column has two classes.

    Args:
        outputs: Kind of the scores.
        columns: Number of columns.

    >>> class_count("logit", 1), class_count("logits", 3), class_count("label_logits", 1)
    (2, 3, 1)
    """
    return columns if outputs in LABELS else max(2, columns)


def alike(one: Outputs, other: Outputs) -> bool:
    """Whether ``to_logits`` maps both kinds of one model's scores to the same logits, up to rounding.

    Args:
        one: Kind of some scores.
        other: Kind of others, of the same model.

    >>> alike("log_probs", "probabilities"), alike("logits", "probabilities")
    (True, False)
    """
    normalised = ("log_probs", "probabilities", "probability")
    groups = (normalised, LABELS)
    return one == other or any(one in group and other in group for group in groups)


def to_logits(scores: ArrayLike, outputs: Outputs) -> Floats:
    """Scores as the logits that steps act on, (n, K); (n, L) for labels.

    Probabilities become their logarithm, of labels their log-odds; what is not in [0, 1] becomes NaN. Of one
    column, class 0 gets the rest; for one logit, 0. Probabilities in float16 and float32 become float32.

    Args:
        scores: (n, K), (n,) or (n, 1).
        outputs: Kind of the scores.

    >>> to_logits([[0.5, 0.5]], "probabilities").round(3).tolist()
    [[-0.693, -0.693]]
    >>> to_logits([2.0], "logit").tolist()
    [[0.0, 2.0]]
    """
    values = as_array(scores, "scores")
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not values.shape[1]:
        raise ShapeError(f"scores must be (n, K), or (n,) for one a sample, got {values.shape}")
    outputs = exact(outputs, values.shape[1])
    if outputs in ONE_COLUMN and values.shape[1] != 1:
        raise ShapeError(f"{outputs} is one number a sample, (n,) or (n, 1), got {values.shape}")
    if outputs in ("logits", "logit"):
        return two_columns(values)
    if outputs == "label_logits" or (outputs == "log_probs" and values.shape[1] > 1):
        return values
    if outputs == "log_probs":
        return np.concatenate([log_probs(-np.expm1(values)), values], axis=1)
    if outputs == "probability":
        values = np.concatenate([1 - values, values], axis=1)
    with np.errstate(invalid="ignore"):
        logs = log_probs(values)
        if outputs == "label_probabilities":
            logs = logs - log_probs(1 - values)
        within = (values >= -ROUNDED) & (values <= 1 + ROUNDED)
        return np.where(within, logs, logs.dtype.type(np.nan))


def to_probs(scores: ArrayLike, outputs: Outputs) -> NDArray[np.float64]:
    """The probabilities (n, K) of scores without a calibration; (n, L) of labels.

    Args:
        scores: (n, K), (n,) or (n, 1).
        outputs: Kind of the scores.
    """
    z = to_logits(scores, outputs)
    return sigmoid(z) if outputs in LABELS else softmax(z)


def from_probs(probs: NDArray[np.float64], raw: Floats, outputs: Outputs) -> NDArray[np.float64]:
    """Calibrated probabilities as scores of the model's own kind and shape.

    In place of logits stand log-probabilities, whose softmax they are; of one logit or a label's, the
    log-odds, whose sigmoid is the probability.

    Args:
        probs: Calibrated probabilities (n, K).
        raw: Scores of the model, (n, K), (n, 1) or (n,); a row that is not finite stays.
        outputs: Kind of these.

    >>> from_probs(np.array([[0.2, 0.8]]), np.array([[0.9]]), "probability").tolist()
    [[0.8]]
    """
    outputs = exact(outputs, raw.shape[-1] if raw.ndim > 1 else 1)
    if outputs == "label_logits":
        made = log_probs(probs) - log_probs(1 - probs)
    else:
        made = probs if outputs in PROBABILITIES else np.asarray(log_probs(probs), np.float64)
        if outputs in ONE_COLUMN:
            made = made[:, 1:] if outputs == "probability" else made[:, 1:] - made[:, :1]
    made = np.asarray(made, np.float64).reshape(raw.shape)
    finite = np.isfinite(raw)
    if finite.all():
        return made
    whole = finite.reshape(len(raw), -1).all(axis=1)
    return np.where(whole.reshape(-1, *[1] * (raw.ndim - 1)), made, raw)
