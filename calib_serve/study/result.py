"""What every study returns."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

__all__ = ["Curve", "Progress", "Samples", "Study"]

Samples = tuple[ArrayLike, ArrayLike]
"""Logits (n, K) and class ids (n,)."""

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

Cell = str | int | float | None


@dataclass(frozen=True)
class Curve:
    """One line of a plot: ``y`` and its spread ``low`` to ``high`` at each ``x``; NaN where unknown."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Study:
    """A study's ``title``, its table (errors are fractions), its curves, and what it ``says``."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    says: tuple[str, ...]
    curves: tuple[Curve, ...] = ()
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON: None stands for what is not known."""
        return {
            "title": self.title,
            "rows": [dict(zip(self.header, map(_known, row), strict=True)) for row in self.rows],
            "says": list(self.says),
            "curves": [
                {
                    "label": c.label,
                    **{name: [_known(v) for v in getattr(c, name)] for name in ("x", "y", "low", "high")},
                }
                for c in self.curves
            ],
        }

    def as_csv(self) -> str:
        """The table, one row a line."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.header, *self.rows])
        return file.getvalue()


def _known(value: Cell) -> Cell:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
