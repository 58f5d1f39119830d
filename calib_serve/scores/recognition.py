"""Recognise the kind of scores: as told, as named, else by their numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.scores.kinds import (
    PROBABILITIES,
    ROUNDED,
    SUM_OF_HALF,
    Floats,
    Outputs,
    check_outputs,
    exact,
)

FEW = 20
"""Rows, of which fewer may look alike by chance."""
SUM_OF_DECIMALS = 0.02
"""How far a row of probabilities of two decimals may be from 1."""
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
        ranked = falls and columns > 2 and rows >= FEW
        return cls(float(low), float(high), float(least), float(most), several, ranked, rows, columns)

    @property
    def within(self) -> bool:
        """Whether all numbers lie in [0, 1], and not all are 0, as the output of a zeroed layer is."""
        return self.low >= -ROUNDED and self.high <= 1 + ROUNDED and self.high > 0

    def sums_to(self, whole: float) -> bool:
        """Whether the rows of several columns sum to ``whole``, up to rounding."""
        slack = whole * (SUM_OF_DECIMALS if self.rows >= FEW else SUM_OF_HALF)
        return self.columns > 1 and max(whole - self.least_sum, self.most_sum - whole) <= slack + 1e-9

    @property
    def is_percent(self) -> bool:
        return self.low >= -ROUNDED and 1 + ROUNDED < self.high <= 102 and self.sums_to(100)


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
    if seen.low >= 0 and seen.rows >= FEW and 10 < seen.high <= 100 + ROUNDED:
        raise InputError(
            f"these scores lie between {seen.low:.3g} and {seen.high:.3g}: percent, or logits? Divide "
            "percent by 100 (--outputs probability, outputs=), or say --outputs logit"
        )
    return "logit", ""


def _refuse_misnamed(seen: _Seen) -> None:
    """Raise InputError for probabilities that are called logits: calibrated as such they would look right."""
    if seen.rows >= FEW and (seen.is_percent or (seen.within and (seen.sums_to(1) or seen.columns == 1))):
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
    if not (seen.low >= -ROUNDED and seen.high <= 1 + ROUNDED):  # also NaN
        if np.isnan(seen.low):
            _check_logits(values, seen, place)
        row, column = _first(values, lambda block: ~((block >= -ROUNDED) & (block <= 1 + ROUNDED)))
        raise InputError(
            f"{kind} lie in [0, 1], and {place.cell(row, column)} holds {values[row, column]:.4g}; logits "
            "are --outputs logits (outputs=)"
        )
    if kind == "probabilities" and not seen.sums_to(1) and not _close(seen):
        row, _ = _first(
            values, lambda block: (np.abs(block.sum(axis=1, dtype=float) - 1) > SUM_OF_DECIMALS)[:, None]
        )
        raise InputError(
            f"probabilities of a row sum to 1, and those of {place.row(row)} to {values[row].sum():.4g}; of "
            "labels, of which any number may be true, say --outputs label_probabilities (outputs=)"
        )
    if seen.low < 0 or seen.high > 1:
        values = np.clip(values, 0, 1)
    rounded = kind == "probabilities" and max(1 - seen.least_sum, seen.most_sum - 1) > SUM_OF_HALF
    if rounded:
        why = f"{why or 'probabilities'}, up to {max(1 - seen.least_sum, seen.most_sum - 1):.2g}"
    return Recognised(values, kind, why)


def _close(seen: _Seen) -> bool:
    return max(1 - seen.least_sum, seen.most_sum - 1) <= SUM_OF_DECIMALS + 1e-9


def _check_logits(values: Floats, seen: _Seen, place: CellNames) -> None:
    if np.isfinite([seen.low, seen.high]).all():
        if max(-seen.low, seen.high) > 1e30:  # beyond it products overflow
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
    step = max(1, (1 << 20) // values.shape[1])
    return (values[i : i + step] for i in range(0, len(values), step))


def _sums_to_one(probs: NDArray[np.float64]) -> bool:
    return bool((np.abs(probs.sum(axis=1) - 1) < SUM_OF_HALF).all())
