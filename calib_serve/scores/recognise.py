"""Of which kind an array of scores is: as the caller says, as its name says, else by its numbers.

Numbers decide only where they can: rows that sum to 1 are probabilities. What could be two things is refused,
and the message names the option that settles it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError
from calib_serve.scores.kinds import PROBABILITIES, Outputs, check_outputs, exact

__all__ = ["NUMBERED", "Place", "Recognised", "recognise"]

Floats = NDArray[np.floating[Any]]

_FEW = 20  # rows; fewer may sum to about 1 by chance
_SUM, _SUM_OF_FEW = 0.02, 1e-3  # two decimals of many classes, and half precision, are this far off
_ROUNDED = 1e-5  # below 0 or above 1
_LARGEST = 1e30  # of a logit: beyond it products overflow
_BLOCK = 1 << 20  # values looked at together
_RANKS = (
    "each row falls from its first column to its last: where columns are ranks, and no classes, say which "
    "class each is (Scores.of_top)"
)


@dataclass(frozen=True, eq=False)
class Recognised:
    """Scores (n, K) whose kind is known; ``remark`` says what was guessed, or is empty."""

    values: Floats
    outputs: Outputs
    remark: str = ""


@dataclass(frozen=True)
class Place:
    """How messages call the rows and columns of scores: rows of files count from 1."""

    first: int = 0
    names: tuple[str, ...] = ()

    def row(self, row: int) -> str:
        """A row, for a person."""
        return f"row {row + self.first}"

    def cell(self, row: int, column: int) -> str:
        """A value, for a person."""
        name = repr(self.names[column]) if self.names else str(column)
        return f"{self.row(row)}, column {name}"


NUMBERED = Place()
"""Rows and columns by their numbers, from 0."""


@dataclass(frozen=True)
class _Seen:
    """What the numbers of an array are like, from one pass: their range, and that of the rows' sums.

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
        """Whether all lie in [0, 1], and not all are 0, as of a layer of zeros."""
        return self.low >= -_ROUNDED and self.high <= 1 + _ROUNDED and self.high > 0

    def sums_to(self, whole: float) -> bool:
        """Whether the rows of several columns sum to it, up to rounding."""
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
    truths: bool = False,
    place: Place = NUMBERED,
) -> Recognised:
    """The scores (n, K) with their kind: as ``told``, as their array is ``called``, else by their numbers.

    ``truths``: labels are (n, L), of which any number is true. Values that are rounded out of [0, 1] are
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
        told, why = _by_numbers(seen, truths)
    if told is None and called == "logits":
        _refuse_misnamed(seen)
    kind = told or called
    assert kind is not None, "told, called, or by its numbers"
    found = _checked(values, exact(kind, columns), seen, why, place)
    return replace(found, remark="; ".join(filter(None, (found.remark, _RANKS)))) if seen.falls else found


def _by_numbers(seen: _Seen, truths: bool) -> tuple[Outputs, str]:
    if truths:
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
    """InputError for probabilities that are called logits: calibrated as such they would look right."""
    if seen.rows >= _FEW and (seen.is_percent or (seen.within and (seen.sums_to(1) or seen.columns == 1))):
        kind = exact("probabilities", seen.columns)
        raise InputError(
            f"these scores are called logits, and are {kind} by their numbers; say --outputs {kind} "
            f"(outputs={kind!r}), or --outputs {exact('logits', seen.columns)} if they are logits, too"
        )


def _checked(values: Floats, kind: Outputs, seen: _Seen, why: str, place: Place) -> Recognised:
    """The values as numbers of this kind; ``why`` it is guessed."""
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


def _check_logits(values: Floats, seen: _Seen, place: Place) -> None:
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
    """The row and column of the first value of which ``bad`` holds, block by block."""
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
