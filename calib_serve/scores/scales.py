"""Scales of scores of other trades, such as percent, decimal odds and votes, as kinds to compute with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.scores.kinds import ONE_COLUMN, Floats, Outputs, exact
from calib_serve.scores.recognition import NUMBERED, CellNames

_Inverse = Callable[..., Floats]


def _odds(values: Floats) -> Floats:
    inverse = 1 / values
    # A bookmaker's margin: the inverses of a row sum to more than 1.
    return inverse / inverse.sum(axis=1, keepdims=True) if values.shape[1] > 1 else inverse


def _votes(values: Floats, of: float | None = None) -> Floats:
    return values / (values.sum(axis=1, keepdims=True) if of is None else of)


@dataclass(frozen=True)
class _Scale:
    """A way of writing scores of a kind: its inverse, with numbers behind the name, and the range of it."""

    kind: Outputs
    inverse: _Inverse
    says: str
    arguments: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    whole: bool = False


SCALES: dict[str, _Scale] = {
    "percent": _Scale("probabilities", lambda x: x / 100, "p = x / 100", low=0, high=100),
    "points": _Scale(
        "probabilities", lambda x, a, b: (x - a) / (b - a), "p = (x - LOW) / (HIGH - LOW)", ("LOW", "HIGH")
    ),
    "votes": _Scale("probabilities", _votes, "p = x / votes of the row", ("N",), low=0, whole=True),
    "odds": _Scale("probabilities", _odds, "decimal odds: p = (1 / x) / sum of the row's", low=1),
    "neg-log-p": _Scale("log_probs", lambda x: -x, "p = exp(-x)", low=0),
    "log10": _Scale("log_probs", lambda x: x * math.log(10), "p = 10 ** x", high=0),
    "log2": _Scale("log_probs", lambda x: x * math.log(2), "p = 2 ** x", high=0),
    "log-odds": _Scale(
        "logits", lambda x, b: x * math.log(b), "log-odds to a base: p / (1 - p) = B ** x", ("B",)
    ),
}
"""Scales by name.

| scale | is read as | e.g. |
| --- | --- | --- |
| percent | p = x / 100 | 25 is .25 |
| points:0:1000 | p = (x - LOW) / (HIGH - LOW) | 250 is .25 |
| votes, votes:N | p = x / N, or the row's sum | 5 of 20 is .25 |
| odds | p = (1 / x), decimal, rows to sum 1 | 4.0 is .25 |
| neg-log-p | p = exp(-x) | 1.386 is .25 |
| log10, log2 | p = 10 ** x, 2 ** x | -2 bits are .25 |
| log-odds:B | p / (1 - p) = B ** x, B also e; of several columns logits | of base 3, -1 is .25 |
"""


@dataclass(frozen=True)
class Scaled:
    """What ``outputs`` says: a kind, or a scale of one with its numbers.

    Args:
        kind: Kind of the scores.
        text: What was said.
        scale: Its scale; None of a kind as it is.
        numbers: Numbers behind the scale's name.

    >>> Scaled.parse("percent").values(np.array([[25.0, 75.0]])).tolist()
    [[0.25, 0.75]]
    >>> Scaled.parse("votes:20").values(np.array([[5.0, 15.0]])).tolist()
    [[0.25, 0.75]]
    >>> Scaled.parse("odds").values(np.array([[2.0, 2.0]])).tolist()
    [[0.5, 0.5]]
    """

    kind: Outputs
    text: str
    scale: _Scale | None = None
    numbers: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Scaled:
        """Read a kind or a scale.

        Args:
            text: A kind of scores, such as "logits", or a scale, such as "percent" and "votes:7".

        Raises:
            InputError: For another text; it lists all.
        """
        for kind in get_args(Outputs):
            if text == kind:
                return cls(kind, text)
        name, *given = str(text).split(":")
        scale = SCALES.get(name)
        try:
            numbers = tuple(math.e if one == "e" else float(one) for one in given)
        except ValueError:
            numbers = (math.nan,)
        wanted = () if scale is None else scale.arguments
        right = len(numbers) == len(wanted) or (name == "votes" and not numbers)
        if scale is None or not right or not _sound(name, numbers):
            ways = (":".join((one, *scale.arguments)) for one, scale in SCALES.items())
            raise InputError(
                f"--outputs (outputs=) must be one of {', '.join(get_args(Outputs))}, or of "
                f"{', '.join(ways)}; of a file of answers answers:FILE.yaml; got {text!r}"
            )
        return cls(scale.kind, text, scale, numbers)

    def values(self, values: Floats, place: CellNames = NUMBERED) -> Floats:
        """The scores of the kind.

        Args:
            values: (n, K) numbers of the scale.
            place: Names of rows and columns in errors.

        Raises:
            InputError: Where one is not of the scale; it names its place.
            ShapeError: For several columns of what is one number a sample.
        """
        if self.kind in ONE_COLUMN and values.shape[1] > 1:
            raise ShapeError(
                f"{self.text} is one number a sample, (n,) or (n, 1), got {place.columns(values.shape[1])}: "
                "say which it is (--columns, columns=), or what they are (--outputs, outputs=)"
            )
        if self.scale is None:
            return values
        # Beyond the range a number would become another probability in silence.
        points = self.text.startswith("points:")
        low, high = sorted(self.numbers) if points else (self.scale.low, self.scale.high)
        most = self.numbers[0] if self.text.startswith("votes:") else high
        bad = ~((values >= low) & (values <= most)) | (self.scale.whole & (values != np.rint(values)))
        if bad.any():
            row, column = (int(k) for k in np.argwhere(bad)[0])
            whole = " in whole numbers" if self.scale.whole else ""
            raise InputError(
                f"{self.text} is within [{low:g}, {most:g}]{whole}, and {place.cell(row, column)} holds "
                f"{values[row, column]:g}: say the right scale (--outputs, outputs=), or which value stands "
                "for none (schema --missing, missing=)"
            )
        several = values.shape[1] > 1
        sums = values.sum(axis=1)
        if self.text.startswith("votes:") and several and (wrong := sums != most).any():
            raise InputError(
                f"the votes of {place.row(int(wrong.argmax()))} sum to {sums[wrong.argmax()]:g}, not "
                f"{most:g}: say --outputs votes (outputs=) where each row has its own number of votes"
            )
        if self.text == "votes" and (not several or (sums == 0).any()):
            raise InputError("votes without their number are of several columns, of which one has some: say "
                             "--outputs votes:N")  # fmt: skip
        if self.text == "odds" and several:
            total = (1 / values).sum(axis=1)
            if (wrong := (total < 0.9) | (total > 1.6)).any():
                raise InputError(
                    f"1 / odds of {place.row(int(wrong.argmax()))} sum to {total[wrong.argmax()]:.3g}, and "
                    "those of decimal odds to 1 and a margin: say which columns are classes (--columns, "
                    "columns=)"
                )
        return np.asarray(self.scale.inverse(values.astype(np.float64), *self.numbers))

    def __str__(self) -> str:
        return self.text if self.scale is None else f"{self.text}, {self.scale.says}"


def _sound(name: str, numbers: tuple[float, ...]) -> bool:
    """Whether numbers behind a scale's name can be meant."""
    if not all(map(math.isfinite, numbers)):
        return False
    if name == "points":
        return numbers[0] != numbers[1]
    return all(number > (1 if name == "log-odds" else 0) for number in numbers)


def scaled_kind(text: str, columns: int) -> Outputs:
    """The exact kind that ``outputs`` says of so many columns.

    Args:
        text: A kind or a scale.
        columns: Number of columns.

    >>> scaled_kind("percent", 1), scaled_kind("votes:7", 3)
    ('probability', 'probabilities')
    """
    return exact(Scaled.parse(text).kind, columns)
