"""The kind of scores: as it was said, as their names say, or as rows that sum to 1 prove; else refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.scores.kinds import (
    MADE,
    MASKED,
    PROBABILITIES,
    ROUNDED,
    SUM_OF_16_BITS,
    SUM_OF_HALF,
    Floats,
    MadeBy,
    Outputs,
    exact,
)
from calib_serve.scores.table import by_pattern, few

FEW = 20
"""Rows, of which fewer may look alike by chance."""


@dataclass(frozen=True)
class CellNames:
    """Names of rows and columns of scores in messages; rows of files count from 1."""

    first: int = 0
    names: tuple[str, ...] = ()
    rows: NDArray[np.intp] | None = None
    """Numbers of the rows where some of a file are left out, else None."""

    def row(self, row: int) -> str:
        """The name of a row, for a person."""
        return f"row {row + self.first if self.rows is None else self.rows[row]}"

    def take(self, kept: NDArray[np.bool_]) -> CellNames:
        """The names of some of the rows, by mask."""
        return replace(
            self, rows=(np.arange(len(kept)) + self.first if self.rows is None else self.rows)[kept]
        )

    def cell(self, row: int, column: int) -> str:
        """The name of a cell, for a person."""
        name = repr(self.names[column]) if self.names else str(column)
        return f"{self.row(row)}, column {name}"

    def columns(self, count: int) -> str:
        """The names of all columns, for a person."""
        if not self.names:
            return f"the {count} columns" if count > 1 else "the only column"
        return f"the column{'s' if count > 1 else ''} {few(self.names)}"


NUMBERED = CellNames()
"""Rows and columns by their numbers, from 0."""


@dataclass(frozen=True, eq=False)
class Recognised:
    """Scores (n, K) of a known kind; ``why`` it is known, in words."""

    values: Floats
    outputs: Outputs
    why: str


@dataclass(frozen=True)
class _Seen:
    """The range of an array's numbers and of its rows' sums; ``slack``: how far rounding takes these."""

    low: float
    high: float
    least_sum: float
    most_sum: float
    slack: float
    digits: int
    rows: int
    columns: int

    @classmethod
    def of(cls, values: Floats) -> _Seen:
        low, high, least, most = np.inf, -np.inf, np.inf, -np.inf
        for block in _blocks(values):
            with np.errstate(invalid="ignore", over="ignore"):
                sums = np.einsum("nk->n", block, dtype=np.float64)
            # numpy's minimum keeps NaN, Python's does not.
            low, high = np.minimum(low, block.min()), np.maximum(high, block.max())
            least, most = np.minimum(least, sums.min()), np.maximum(most, sums.max())
        rows, columns = values.shape
        digits = _digits(values[:1000])
        slack = max(SUM_OF_HALF, min(columns / 2 * 10.0**-digits, 0.1)) + 1e-9
        return cls(float(low), float(high), float(least), float(most), slack, digits, rows, columns)

    @property
    def within(self) -> bool:
        """Whether all numbers lie in [0, 1], and not all are 0, as the output of a zeroed layer is."""
        return self.low >= -ROUNDED and self.high <= 1 + ROUNDED and self.high > 0

    @property
    def off(self) -> float:
        """How far the sum of a row is from 1 at most."""
        return max(1 - self.least_sum, self.most_sum - 1)

    @property
    def proves(self) -> bool:
        """Whether the rows can be nothing but probabilities."""
        # By chance few tables agree with 1 in so many decimals of all rows together.
        enough = self.digits * self.rows >= 4
        return self.columns > 1 and self.within and self.off <= self.slack and enough


def _digits(values: Floats) -> int:
    """The decimals that numbers are written with, 6 of such as are not rounded."""
    x = values.astype(np.float64)
    if not (np.abs(x) < 2.0**52).all():
        return 6
    return next((d for d in range(1, 6) if (np.abs(x * 10**d - np.rint(x * 10**d)) <= 1e-5).all()), 6)


def proves_probabilities(values: Floats) -> bool:
    """Whether rows of scores (n, K) can be nothing but probabilities: within [0, 1], with sums of 1.

    Sums agree with 1 as far as the numbers' digits allow, over enough rows for their digits.

    Args:
        values: Scores (n, K).

    >>> [proves_probabilities(np.array(rows)) for rows in ([[0.25, 0.75], [0.5, 0.5]], [[0.2, 0.8]])]
    [True, False]
    """
    return _Seen.of(values).proves


def proved(values: Floats, made_by: MadeBy = "") -> Outputs | None:
    """The kind of a model's scores by what makes them, or by rows that sum to 1; None: not proved.

    Args:
        values: Scores (n, K).
        made_by: What makes them, in the model.

    >>> proved(np.array([[2.0, -1.0]]), "layer"), proved(np.array([[2.0, -1.0]]))
    ('logits', None)
    """
    one = values.shape[1] == 1
    if made_by == "layer":
        return "logit" if one else "logits"
    if made_by in MADE and (one or made_by != "Sigmoid"):
        return MADE[made_by][0]
    if proves_probabilities(values):
        return "probabilities"
    # A log-softmax in parts.
    return "log_probs" if (values <= 0).all() and proves_probabilities(np.exp(values)) else None


def refuted(values: Floats, kind: Outputs) -> str:
    """Why numbers cannot be scores of this kind, in words; "" where they may be.

    Args:
        values: Scores (n, K).
        kind: Kind that they are taken for.

    >>> refuted(np.array([[0.25, 0.25]]), "probabilities"), refuted(np.array([[0.25, 0.25]]), "logits")
    ('they sum to 0.5 to 0.5 in a row, not to 1', '')
    """
    seen = _Seen.of(values)
    if kind in PROBABILITIES and not (seen.low >= -ROUNDED and seen.high <= 1 + ROUNDED):
        return f"they go from {seen.low:.3g} to {seen.high:.3g}, beyond [0, 1]"
    if kind in ("probabilities", "log_probs"):
        what = "they" if kind == "probabilities" else "their exponentials"
        seen = seen if kind == "probabilities" else _Seen.of(np.exp(np.minimum(values, 1.0)))
        if not seen.off <= max(SUM_OF_16_BITS, seen.slack):
            return f"{what} sum to {seen.least_sum:.3g} to {seen.most_sum:.3g} in a row, not to 1"
    if kind not in PROBABILITIES and proves_probabilities(values):
        return "each row sums to 1, as of probabilities alone"
    return ""


def recognise(
    values: Floats,
    said: Outputs | None = None,
    *,
    named: Outputs | None = None,
    why: str = "",
    place: CellNames = NUMBERED,
) -> Recognised:
    """Scores (n, K) of the kind ``said``, else the ``named`` one that agrees, else what they prove.

    ``why``: where the kind was named. Values that are rounded out of [0, 1] are clipped. InputError for
    numbers that are not of this kind, naming the row, and where nothing says the kind, naming the option.

    >>> found = recognise(np.array([[0.25, 0.75], [0.5, 0.5]]))
    >>> found.outputs, found.why
    ('probabilities', 'their rows sum to 1')
    """
    seen = _Seen.of(values)
    if not np.isfinite([seen.low, seen.high]).all():
        _refuse_missing(values, place)
    if said is not None:
        return _checked(values, exact(said, seen.columns), seen, "as said", place)
    if named is not None:
        kind = exact(named, seen.columns)
        # Fewer rows of fewer digits may look like probabilities by chance.
        sums = seen.proves and seen.digits * seen.rows >= FEW
        column = seen.columns == 1 and seen.within and seen.rows >= FEW
        if kind not in PROBABILITIES and kind != "log_probs" and (sums or column):
            found = exact("probabilities", seen.columns)
            raise InputError(
                f"{place.columns(seen.columns)} should hold {kind} ({why}), and by the numbers these are "
                f"{found}: say --outputs {found} (outputs={found!r}), or --outputs {kind} if they are {kind}"
            )
        return _checked(values, kind, seen, why, place)
    if seen.proves:
        return _checked(values, "probabilities", seen, "their rows sum to 1", place)
    raise InputError(_unsaid(values, seen, place))


def _unsaid(values: Floats, seen: _Seen, place: CellNames) -> str:
    """What is not known of scores, and the options that say it."""
    are = "holds numbers" if seen.columns == 1 else "hold numbers"
    what = f"{place.columns(seen.columns)} {are} from {seen.low:.4g} to {seen.high:.4g}"
    if seen.within and seen.columns == 1:
        return (
            f"{what} that may be probabilities of the event, or no probabilities at all: say --outputs "
            "probability (outputs=), or what else they are"
        )
    if seen.within and seen.off <= seen.slack:
        return (
            f"{what}, and their rows sum to 1, as so few of so few digits may by chance: say --outputs "
            "probabilities (outputs=), or what else they are"
        )
    if seen.within:
        return (
            f"{what}, and their rows sum to {seen.least_sum:.3g} to {seen.most_sum:.3g}: they may be "
            "probabilities of labels, of which any number is true (--outputs label_probabilities, outputs=), "
            f"logits (--outputs logits), or one column is no class ({by_pattern(place.names)}, columns=)"
        )
    maybe = "percent, " if seen.low >= 0 and seen.high <= 100 + ROUNDED else ""
    ways = "logits" if seen.columns > 1 else "logit, probability"
    return (
        f"{what}, which may be {maybe}logits, margins or no scores at all: say which (--outputs {ways}, "
        f"percent, odds, votes:N, log10, ...; outputs=), and which columns are classes "
        f"({by_pattern(place.names)}, columns=)"
    )


def _checked(values: Floats, kind: Outputs, seen: _Seen, why: str, place: CellNames) -> Recognised:
    """The values as numbers of this kind, or InputError; ``why`` the kind is known."""
    if kind == "log_probs":
        _check_sums(values, kind, seen, place)
    if kind not in PROBABILITIES:
        if max(-seen.low, seen.high) > 1e30:  # beyond it products overflow
            raise InputError(
                f"logits go up to {max(-seen.low, seen.high):g}; clip them first, as by np.clip(logits, "
                "-1e4, 1e4)"
            )
        if kind == "logits" and seen.low <= MASKED:
            lost = np.concatenate([(block <= MASKED).all(axis=1) for block in _blocks(values)])
            if lost.any():
                raise InputError(
                    f"row {lost.argmax() + 1} and {lost.sum() - 1} others have no class left: each of their "
                    f"logits is {MASKED:g} or less, which masks a class; leave such rows out, or clip logits "
                    "that are no masks, as by np.clip(logits, -1e4, 1e4)"
                )
        return Recognised(values, kind, why)
    if not (seen.low >= -ROUNDED and seen.high <= 1 + ROUNDED):
        row, column = _first(values, lambda block: ~((block >= -ROUNDED) & (block <= 1 + ROUNDED)))
        value = values[row, column]
        same = int((values == value).any(axis=1).sum())
        none = f" ({same} rows hold it: if it stands for none, say schema --missing {value:g}, missing=)" * (
            same > 1
        )
        raise InputError(
            f"{kind} lie in [0, 1], and {place.cell(row, column)} holds {value:.4g}{none}; of another kind "
            "say --outputs (outputs=): logits, percent, odds, votes:N, ..."
        )
    if kind == "probabilities":
        _check_sums(values, kind, seen, place)
    if seen.low < 0 or seen.high > 1:
        values = np.clip(values, 0, 1)
    if kind == "probabilities" and seen.off > SUM_OF_HALF:
        why = f"{why}, up to {seen.off:.2g}"
    if steps := _steps_of_8_bits(values):
        why = f"{why}, in steps of 1/{steps} and none above {seen.high:.3f}"
    return Recognised(values, kind, why)


def _steps_of_8_bits(values: Floats) -> int | None:
    """256 or 255 where all numbers are multiples of its inverse, as of an int8 Softmax, else None."""
    for steps in (256, 255):
        finest = steps
        for block in _blocks(values):
            x = block.astype(np.float64) * steps
            if not (np.abs(x - np.rint(x)) <= 1e-3).all():
                break
            finest = min(finest, int(np.gcd(np.rint(x).astype(np.int64), steps).min()))
        else:
            if finest == 1:  # shares of fewer votes are multiples, too
                return steps
    return None


def _check_sums(probs: Floats, kind: Outputs, seen: _Seen, place: CellNames) -> None:
    """Raise InputError where probabilities of several columns do not sum to 1, or one is above 1."""
    parts = (np.exp(np.minimum(block, 1.0)) if kind == "log_probs" else block for block in _blocks(probs))
    sums = np.concatenate([np.einsum("nk->n", part, dtype=np.float64) for part in parts])
    slack = max(seen.slack, 0.02)  # as those rounded to 16 bits are
    wrong = np.abs(sums - 1) > slack if probs.shape[1] > 1 else sums > 1 + slack
    if not wrong.any():
        return
    row = int(wrong.argmax())
    alike = int((probs[wrong] == probs[row]).all(axis=1).sum())
    none = "a value that stands for none is schema --missing, missing="
    same = f" ({alike} rows are like it; {none})" * (alike > 1)
    if kind == "log_probs":
        what, other = "exponentials", "logits"
    else:
        what, other = "probabilities", "label_probabilities, any number of which may be true"
    raise InputError(
        f"{what} of a row sum to 1, and in {place.columns(probs.shape[1])} those of {place.row(row)} to "
        f"{sums[row]:.4g}{same}: a column that is no class is left out by {by_pattern(place.names)} "
        f"(columns=); of another kind say --outputs (outputs=) {other}"
    )


def _refuse_missing(values: Floats, place: CellNames) -> None:
    row, column = _first(values, lambda block: ~np.isfinite(block))
    if np.isnan(values[row, column]):
        raise InputError(
            f"the score in {place.cell(row, column)} is missing (NaN); leave such rows "
            "out, or say schema --missing nan (missing=)"
        )
    raise InputError(
        f"the score in {place.cell(row, column)} is infinite; say -1e9 of a masked class, as by "
        "np.maximum(logits, -1e9), and clip what is none, np.clip(logits, -1e4, 1e4)"
    )


def check_sentinels(values: Floats, kind: Outputs, place: CellNames) -> None:
    """Raise InputError where several scores are one number that seems to stand for none, such as -999.

    In a column: a whole number further from all others than these are from each other. In all columns:
    rows whose scores are all one number that no other row has.

    >>> rows = [[k / 10] for k in range(20)] + [[-999]] * 3
    >>> check_sentinels(np.array(rows), "logit", NUMBERED)
    Traceback (most recent call last):
    calib_serve.core.errors.InputError: 3 of 23 rows of the only column hold -999, ...
    """
    n, columns = values.shape
    if kind in PROBABILITIES or n < FEW:  # fewer may look so by chance
        return
    if columns > 1:
        same = values[:, 0] == values[:, 1]
        same[same] = (values[same] == values[same, :1]).all(axis=1)
        value = float(values[same][0, 0]) if same.any() else np.nan
        same &= values[:, 0] == value
        count = int(np.count_nonzero(same))
        # Rounded scores are alike by chance, and have this value elsewhere, too.
        if n > count >= max(3, n / 100) and np.count_nonzero(values == value) == count * columns:
            raise InputError(_sentinel(value, count, n, place.columns(columns)))
    for ends in (values.min(axis=0), values.max(axis=0)):
        for k in np.flatnonzero(ends == np.rint(ends)):
            same = values[:, k] == ends[k]
            rest = values[~same, k]
            if same.sum() > 1 and len(rest) and np.abs(rest - ends[k]).min() > np.ptp(rest) > 0:
                one = replace(place, names=place.names[k : k + 1])
                where = one.columns(1) if columns == 1 or place.names else f"the column {k}"
                raise InputError(_sentinel(float(ends[k]), int(same.sum()), n, where))


def check_ranks(values: Floats, kind: Outputs, place: CellNames) -> None:
    """Raise InputError where probabilities seem to be of the largest, the next, ..., and not of classes.

    >>> check_ranks(np.linspace(0.5, 1, 20)[:, None], "probability", NUMBERED)
    Traceback (most recent call last):
    calib_serve.core.errors.InputError: no number of the only column is below 0.5, ...
    """
    columns = values.shape[1]
    if kind not in ("probabilities", "probability") or len(values) < FEW or columns == 2:
        return
    if columns == 1 and values.min() >= 0.5:
        raise InputError(
            f"no number of {place.columns(1)} is below 0.5, as if each were of whichever class was "
            "predicted: if all are of class 1, say --outputs probability (outputs=)"
        )
    falls = all((block[:, :-1] >= block[:, 1:]).all() for block in _blocks(values))
    # Not where the others share the rest evenly, as of a class alone.
    if columns > 1 and falls and np.ptp(values[:, 0]) > 0 and (np.diff(values.mean(axis=0)) < 0).all():
        raise InputError(
            f"each row falls from the first to the last of {place.columns(columns)}, as if they were ranks: "
            "if they are classes, say --outputs probabilities (outputs=)"
        )


def _sentinel(value: float, count: int, n: int, where: str) -> str:
    return (
        f"{count} of {n} rows of {where} hold {value:g}, unlike all others, as if it stood for none: say "
        f"schema --missing {value:g} (missing=) to leave them out, or schema --missing none if it is a score"
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
