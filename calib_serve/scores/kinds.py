"""What a classifier's scores are: logits, probabilities, one column of a binary model, one number a label.

Fits, fused models, handlers and files all ask here: an artifact that was fitted on scores of one kind is
wrong, and looks right, on scores of another.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_array
from calib_serve.errors import InputError, ShapeError
from calib_serve.scores.links import LEAST, log_probs, sigmoid, softmax, two_columns

__all__ = [
    "LABELS",
    "ONE_COLUMN",
    "PROBABILITIES",
    "Outputs",
    "alike",
    "check_outputs",
    "class_count",
    "exact",
    "from_probs",
    "measured",
    "to_logits",
    "to_probs",
]

Floats = NDArray[np.floating[Any]]

Outputs = Literal[
    "logits", "log_probs", "probabilities", "logit", "probability", "label_logits", "label_probabilities"
]
"""What scores are.

``logits``, ``log_probs`` and ``probabilities`` are (n, K), one of K classes is true; ``logit`` and
``probability`` are class 1's of a binary model, (n,) or (n, 1); ``label_logits`` and
``label_probabilities`` are (n, L), a sigmoid a label, of which any number may be true.
"""

LABELS: tuple[Outputs, ...] = ("label_logits", "label_probabilities")
"""Of a multi-label model."""
ONE_COLUMN: tuple[Outputs, ...] = ("logit", "probability")
"""Of a binary model with one number a sample."""
PROBABILITIES: tuple[Outputs, ...] = ("probabilities", "probability", "label_probabilities")
"""Within [0, 1]: they are calibrated through their logarithm or their log-odds."""

_SUM = 1e-3  # how far a row of half-precision probabilities may be from 1
_ROUNDED = 1e-5
_FIRST = 1000  # rows tell most scores apart without a look at the rest
_TELLING = 20  # fewer rows may look like probabilities by chance


def check_outputs(outputs: object) -> None:
    """InputError unless None or a kind of scores."""
    if outputs is not None and outputs not in get_args(Outputs):
        raise InputError(
            f"--outputs (outputs=) must be one of {', '.join(get_args(Outputs))}, got {outputs!r}"
        )


def exact(outputs: Outputs, columns: int) -> Outputs:
    """The kind of scores with so many columns that somebody calls ``outputs``: one of "logits" is a "logit".

    >>> exact("probabilities", 1), exact("probabilities", 3)
    ('probability', 'probabilities')
    """
    one: dict[Outputs, Outputs] = {"logits": "logit", "probabilities": "probability"}
    return one.get(outputs, outputs) if columns == 1 else outputs


def class_count(outputs: Outputs, columns: int) -> int:
    """K of scores with so many columns, or L of labels; one score tells of two classes.

    >>> class_count("logit", 1), class_count("logits", 3), class_count("label_logits", 1)
    (2, 3, 1)
    """
    return columns if outputs in LABELS else max(2, columns)


def alike(one: Outputs, other: Outputs) -> bool:
    """Whether ``to_logits`` makes the same logits of both kinds of scores of one model, up to rounding.

    >>> alike("log_probs", "probabilities"), alike("logits", "probabilities")
    (True, False)
    """
    normalised = ("log_probs", "probabilities", "probability")
    groups = (normalised, LABELS)
    return one == other or any(one in group and other in group for group in groups)


def measured(scores: ArrayLike, *, tolerance: float = _SUM) -> Outputs:
    """What scores (n, K) or (n,), (n, 1) are by their values, if they are of one class a sample.

    Logits of a label and logits of a class cannot be told apart by numbers, and are taken for the latter;
    rows within [0, 1] that do not sum to 1 are one probability a label.

    >>> measured([[0.25, 0.75]]), measured([[2.0, -1.0]]), measured([1.5, -1.0])
    ('probabilities', 'logits', 'logit')
    """
    rows = as_array(scores, "scores")
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.shape[1]:
        raise ShapeError(f"scores must be (n, K), or (n,) for one logit, got {rows.shape}")
    unit = bool(_within(rows).all() and rows.any())  # a layer of zeros gives logits
    if rows.shape[1] == 1:
        return "probability" if unit else "logit"
    if unit:
        return "probabilities" if _near_one(rows, tolerance) else "label_probabilities"
    return "log_probs" if (rows <= 0).all() and _near_one(np.exp(rows), tolerance) else "logits"


def _within(values: Floats) -> NDArray[np.bool_]:
    """What is a probability, up to what sums of shares are rounded by."""
    return np.asarray((values >= -_ROUNDED) & (values <= 1 + _ROUNDED))


def _near_one(probs: Floats, tolerance: float) -> bool:
    return bool((np.abs(probs.sum(axis=1, dtype=np.float64) - 1) < tolerance).all())


def to_logits(scores: ArrayLike, outputs: Outputs, *, least: float | None = None) -> Floats:
    """Scores of the kind ``outputs`` as the logits that steps act on, (n, K); (n, L) for labels.

    Probabilities become their logarithm, of labels their log-odds; what is not in [0, 1] becomes NaN, and
    what is below ``least`` (by default float32's least number) is read as that. Of one column, class 0 gets
    the rest; for one logit, 0. Probabilities in float16 and float32 become float32.

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
        low = LEAST if least is None else least
        logs = log_probs(values, least=low)
        if outputs == "label_probabilities":
            logs = logs - log_probs(1 - values, least=low)
        return np.where(_within(values), logs, logs.dtype.type(np.nan))


def to_probs(scores: ArrayLike, outputs: Outputs) -> NDArray[np.float64]:
    """The probabilities (n, K) that scores of this kind stand for without a calibration; (n, L) of labels."""
    z = to_logits(scores, outputs)
    return sigmoid(z) if outputs in LABELS else softmax(z)


def from_probs(probs: NDArray[np.float64], raw: Floats, outputs: Outputs) -> NDArray[np.float64]:
    """Calibrated ``probs`` (n, K) as scores of the kind and shape of ``raw``, the model's own.

    In place of logits stand log-probabilities, whose softmax they are; of one logit or a label's, the
    log-odds, whose sigmoid is the probability. A row of ``raw`` that is not finite stays.

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
