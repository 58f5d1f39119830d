"""Kinds of scores: logits, probabilities or log-probabilities, as told, as named, else by their numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
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


LARGEST = 1e100
"""The largest logit of which numbers are computed: squares of what is beyond it overflow."""


def log_probs(probs: ArrayLike, *, least: float = LEAST) -> Floats:
    """Return the logarithm of probabilities; NaN stays NaN.

    In float32 for float16 and float32, else in float64.

    Args:
        probs: Any shape.
        least: Least probability: less counts as much.

    >>> log_probs(np.array([1.0, 0.0])).round(2).tolist()
    [0.0, -87.34]
    """
    p = as_array(probs, "probs")
    # Half precision has no number near LEAST: its logarithm would be of 0.
    narrow = p.dtype.kind == "f" and p.dtype.itemsize <= 4
    p = p.astype(np.float32 if narrow else np.float64, copy=False)
    return np.asarray(np.log(np.maximum(p, p.dtype.type(least))))


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

_HALF = 1e-3  # how far a row of half-precision probabilities may be from 1
_ROUNDED = 1e-5


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


def infer_outputs(scores: ArrayLike, *, tolerance: float = _HALF) -> Outputs:
    """The kind of scores by their values, for one class a sample.

    Logits of a label and logits of a class cannot be told apart by numbers, and are taken for the latter;
    rows within [0, 1] that do not sum to 1 are one probability a label.

    Args:
        scores: (n, K), (n,) or (n, 1).
        tolerance: How far a row's sum of probabilities may be from 1.

    >>> infer_outputs([[0.25, 0.75]]), infer_outputs([[2.0, -1.0]]), infer_outputs([1.5, -1.0])
    ('probabilities', 'logits', 'logit')
    """
    # For a batch of a running model, which needs an answer: ``recognise`` is for files, and may refuse.
    rows = as_array(scores, "scores")
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.shape[1]:
        raise ShapeError(f"scores must be (n, K), or (n,) for one logit, got {rows.shape}")
    unit = bool(_within(rows).all() and rows.any())  # a layer of zeros gives logits
    if rows.shape[1] == 1:
        return "probability" if unit else "logit"
    # One sample alone may sum to 1 by chance, so callers should say the kind where they can.
    if unit:
        return "probabilities" if _near_one(rows, tolerance) else "label_probabilities"
    return "log_probs" if (rows <= 0).all() and _near_one(np.exp(rows), tolerance) else "logits"


def _within(values: Floats) -> NDArray[np.bool_]:
    """Whether each value is a probability, up to rounding of sums of shares."""
    return np.asarray((values >= -_ROUNDED) & (values <= 1 + _ROUNDED))


def _near_one(probs: Floats, tolerance: float) -> bool:
    return bool((np.abs(probs.sum(axis=1, dtype=np.float64) - 1) < tolerance).all())


def to_logits(scores: ArrayLike, outputs: Outputs, *, least: float | None = None) -> Floats:
    """Scores as the logits that steps act on, (n, K); (n, L) for labels.

    Probabilities become their logarithm, of labels their log-odds; what is not in [0, 1] becomes NaN. Of one
    column, class 0 gets the rest; for one logit, 0. Probabilities in float16 and float32 become float32.

    Args:
        scores: (n, K), (n,) or (n, 1).
        outputs: Kind of the scores.
        least: Least probability, below which it is read as that; None: float32's least number.

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


_FEW = 20  # rows; fewer may sum to about 1 by chance
_SUM, _SUM_OF_FEW = 0.02, 1e-3  # two decimals of many classes, and half precision, are this far off
_LARGEST = 1e30  # of a logit: beyond it products overflow
_BLOCK = 1 << 20  # values looked at together
_RANKS = (
    "each row falls from its first column to its last: where columns are ranks, and no classes, say which "
    "class each is (Scores.of_top)"
)


@dataclass(frozen=True, eq=False)
class Recognised:
    """Scores (n, K) of a known kind; ``remark``: the guess behind it, or empty."""

    values: Floats
    outputs: Outputs
    remark: str = ""


@dataclass(frozen=True)
class CellNames:
    """Names of rows and columns of scores in messages; rows of files count from 1."""

    first: int = 0
    names: tuple[str, ...] = ()

    def row(self, row: int) -> str:
        """The name of a row, for a person."""
        return f"row {row + self.first}"

    def cell(self, row: int, column: int) -> str:
        """The name of a cell, for a person."""
        name = repr(self.names[column]) if self.names else str(column)
        return f"{self.row(row)}, column {name}"


NUMBERED = CellNames()
"""Rows and columns by their numbers, from 0."""


@dataclass(frozen=True)
class _Seen:
    """The range of an array's numbers and of its rows' sums, from one pass.

    ``of_logs``: whether their exponentials sum to 1; ``falls``: whether each row is in descending order.
    """

    low: float
    high: float
    least_sum: float
    most_sum: float
    of_logs: bool
    falls: bool
    rows: int
    columns: int

    @classmethod
    def of(cls, values: Floats) -> _Seen:
        low, high, least, most, of_logs, falls = np.inf, -np.inf, np.inf, -np.inf, True, True
        for block in _blocks(values):
            sums = np.einsum("nk->n", block, dtype=np.float64)
            # numpy's minimum keeps NaN, Python's does not.
            low, high = np.minimum(low, block.min()), np.maximum(high, block.max())
            least, most = np.minimum(least, sums.min()), np.maximum(most, sums.max())
            of_logs = of_logs and bool(high <= 0) and _sums_to_one(np.exp(block.astype(np.float64)))
            falls = falls and bool(
                (block[:, :-1] >= block[:, 1:]).all() and (block[:, 0] != block[0, 0]).any()
            )
        rows, columns = values.shape
        several = of_logs and columns > 1
        ranked = falls and columns > 2 and rows >= _FEW
        return cls(float(low), float(high), float(least), float(most), several, ranked, rows, columns)

    @property
    def within(self) -> bool:
        """Whether all numbers lie in [0, 1], and not all are 0, as the output of a zeroed layer is."""
        return self.low >= -_ROUNDED and self.high <= 1 + _ROUNDED and self.high > 0

    def sums_to(self, whole: float) -> bool:
        """Whether the rows of several columns sum to ``whole``, up to rounding."""
        slack = whole * (_SUM if self.rows >= _FEW else _SUM_OF_FEW)
        return self.columns > 1 and max(whole - self.least_sum, self.most_sum - whole) <= slack + 1e-9

    @property
    def is_percent(self) -> bool:
        return self.low >= -_ROUNDED and 1 + _ROUNDED < self.high <= 102 and self.sums_to(100)


def recognise(
    values: Floats,
    told: Outputs | None = None,
    *,
    called: Outputs | None = None,
    multilabel: bool = False,
    place: CellNames = NUMBERED,
) -> Recognised:
    """Recognise the kind of scores (n, K): as ``told``, as ``called``, else by their numbers.

    ``multilabel``: labels are (n, L), of which any number is true. Values that are rounded out of [0, 1] are
    clipped, percent become fractions. InputError for numbers that are not of this kind, naming the row, and
    for such as may be of two kinds, naming the option.

    >>> found = recognise(np.array([[0.25, 0.75], [0.5, 0.5]]))
    >>> found.outputs, found.remark
    ('probabilities', 'read as probabilities: their rows sum to 1')
    """
    check_outputs(told)
    columns = values.shape[1]
    seen = _Seen.of(values)
    why = ""
    if told is None and called is None:
        told, why = _by_numbers(seen, multilabel)
    # An array called logits is taken for logits, unless its numbers show otherwise.
    if told is None and called == "logits":
        _refuse_misnamed(seen)
    kind = told or called
    assert kind is not None, "told, called, or by its numbers"
    found = _checked(values, exact(kind, columns), seen, why, place)
    return replace(found, remark="; ".join(filter(None, (found.remark, _RANKS)))) if seen.falls else found


def _by_numbers(seen: _Seen, multilabel: bool) -> tuple[Outputs, str]:
    if multilabel:
        kind: Outputs = "label_probabilities" if seen.within else "label_logits"
        return kind, f"read as {kind}, one a label: labels are (n, {seen.columns}), 0 or 1"
    if seen.columns == 1:
        return _one_column(seen)
    if seen.is_percent or (seen.within and seen.sums_to(1)):
        return "probabilities", "read as probabilities: their rows sum to 1"
    if seen.within:
        raise InputError(
            f"these scores lie within [0, 1] and their rows sum to {seen.least_sum:.3g} to "
            f"{seen.most_sum:.3g}: they may be probabilities of labels, of which any number is true "
            "(--outputs label_probabilities, outputs=), logits (--outputs logits), or hold a column that is "
            "no class (--columns, columns=)"
        )
    if seen.of_logs:
        return "log_probs", "read as log-probabilities: their exponentials sum to 1"
    return "logits", ""


def _one_column(seen: _Seen) -> tuple[Outputs, str]:
    if seen.within:
        return "probability", "read as probabilities of class 1: they lie within [0, 1]"
    if seen.low >= 0 and seen.rows >= _FEW and 10 < seen.high <= 100 + _ROUNDED:
        raise InputError(
            f"these scores lie between {seen.low:.3g} and {seen.high:.3g}: percent, or logits? Divide "
            "percent by 100 (--outputs probability, outputs=), or say --outputs logit"
        )
    return "logit", ""


def _refuse_misnamed(seen: _Seen) -> None:
    """Raise InputError for probabilities that are called logits: calibrated as such they would look right."""
    if seen.rows >= _FEW and (seen.is_percent or (seen.within and (seen.sums_to(1) or seen.columns == 1))):
        kind = exact("probabilities", seen.columns)
        raise InputError(
            f"these scores are called logits, and are {kind} by their numbers; say --outputs {kind} "
            f"(outputs={kind!r}), or --outputs {exact('logits', seen.columns)} if they are logits, too"
        )


def _checked(values: Floats, kind: Outputs, seen: _Seen, why: str, place: CellNames) -> Recognised:
    """The values as numbers of this kind, or InputError; ``why`` says how the kind was guessed."""
    if kind not in PROBABILITIES:
        _check_logits(values, seen, place)
        return Recognised(values, kind, why)
    if kind == "probabilities" and seen.is_percent:
        said = "read as percent: their rows sum to 100"
        return _checked(values / 100, kind, _Seen.of(values / 100), said, place)
    if not (seen.low >= -_ROUNDED and seen.high <= 1 + _ROUNDED):  # also NaN
        if np.isnan(seen.low):
            _check_logits(values, seen, place)
        row, column = _first(values, lambda block: ~((block >= -_ROUNDED) & (block <= 1 + _ROUNDED)))
        raise InputError(
            f"{kind} lie in [0, 1], and {place.cell(row, column)} holds {values[row, column]:.4g}; logits "
            "are --outputs logits (outputs=)"
        )
    if kind == "probabilities" and not seen.sums_to(1) and not _close(seen):
        row, _ = _first(values, lambda block: (np.abs(block.sum(axis=1, dtype=float) - 1) > _SUM)[:, None])
        raise InputError(
            f"probabilities of a row sum to 1, and those of {place.row(row)} to {values[row].sum():.4g}; of "
            "labels, of which any number may be true, say --outputs label_probabilities (outputs=)"
        )
    if seen.low < 0 or seen.high > 1:
        values = np.clip(values, 0, 1)
    rounded = kind == "probabilities" and max(1 - seen.least_sum, seen.most_sum - 1) > _SUM_OF_FEW
    if rounded:
        why = f"{why or 'probabilities'}, up to {max(1 - seen.least_sum, seen.most_sum - 1):.2g}"
    return Recognised(values, kind, why)


def _close(seen: _Seen) -> bool:
    return max(1 - seen.least_sum, seen.most_sum - 1) <= _SUM + 1e-9


def _check_logits(values: Floats, seen: _Seen, place: CellNames) -> None:
    if np.isfinite([seen.low, seen.high]).all():
        if max(-seen.low, seen.high) > _LARGEST:
            raise InputError(
                f"logits go up to {max(-seen.low, seen.high):g}; clip them first, as by np.clip(logits, "
                "-1e4, 1e4)"
            )
        return
    row, column = _first(values, lambda block: ~np.isfinite(block))
    what = "missing (NaN)" if np.isnan(values[row, column]) else "infinite"
    raise InputError(
        f"the score in {place.cell(row, column)} is {what}; leave such rows out, or clip infinite logits, as "
        "by np.clip(logits, -1e4, 1e4)"
    )


def _first(values: Floats, bad: Any) -> tuple[int, int]:
    """The row and column of the first value for which ``bad`` holds, searched block by block."""
    start = 0
    for block in _blocks(values):
        found = np.argwhere(bad(block))
        if len(found):
            return start + int(found[0, 0]), int(found[0, 1])
        start += len(block)
    raise AssertionError("nothing is wrong with these values")


def _blocks(values: Floats) -> Any:
    step = max(1, _BLOCK // values.shape[1])
    return (values[i : i + step] for i in range(0, len(values), step))


def _sums_to_one(probs: NDArray[np.float64]) -> bool:
    return bool((np.abs(probs.sum(axis=1) - 1) < _SUM_OF_FEW).all())
