"""Scores of more axes than (n, K), as of tokens (n, T, K) or pixels (n, K, H, W): a row for each place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import ShapeError

Array = NDArray[Any]

Aggregate = Literal["least", "drawn"]
"""Which place of a sample stands for it: the least confident one, or one drawn at random."""


@dataclass(frozen=True)
class Places:
    """The places of scores that have a class axis among others, and the way to rows (N, K) and back.

    Args:
        shape: Shape without the class axis, (n, T) or (n, H, W).
        axis: Class axis: 1, or -1 for the last.

    >>> tokens = Places.of((2, 7, 3), columns=3)
    >>> tokens.rows(np.zeros((2, 7, 3))).shape, tokens.restored(np.zeros((14, 3))).shape
    ((14, 3), (2, 7, 3))
    """

    shape: tuple[int, ...]
    axis: int

    @classmethod
    def of(
        cls, shape: Sequence[int], columns: int, *, axis: int | None = None, what: str = "the scores"
    ) -> Places:
        """Find the places of scores of ``shape``.

        Args:
            shape: Shape of the scores, of three axes or more.
            columns: Number of scores of a place.
            axis: Class axis, 1 or -1, where it is known.
            what: Name of the scores in messages.

        Raises:
            ShapeError: Where the axis has another size, or nothing says which of two it is.
        """
        last = len(shape) - 1
        if axis is not None and axis not in (1, -1, last):
            raise ShapeError(f"the class axis (class_axis=) is 1 or -1, got {axis}")
        asked = [1, -1] if axis is None else [1 if axis == 1 else -1]
        found = [a for a in asked if shape[a] == columns]
        if not found:
            where = "axis 1 or the last" if axis is None else f"axis {axis}"
            raise ShapeError(
                f"{what} need {columns} classes on {where}, got {tuple(shape)}: class_axis= says which"
            )
        if len(found) > 1:
            raise ShapeError(
                f"{what} {tuple(shape)} do not say whether axis 1 or the last holds the {columns} classes: "
                "say class_axis=1 or class_axis=-1"
            )
        taken = found[0] % len(shape)
        return cls((*shape[:taken], *shape[taken + 1 :]), found[0])

    def rows(self, values: Array) -> Array:
        """The scores as rows (N, K), a place after the other.

        Args:
            values: Scores with their class axis.
        """
        return np.moveaxis(values, self.axis, -1).reshape(-1, values.shape[self.axis])

    def of_each(self, sources: Any) -> Any:
        """The source of each place (N,), of one text or those of the samples (n,).

        Args:
            sources: A text, one of each sample, or None.
        """
        one = sources is None or isinstance(sources, str)
        return sources if one else np.repeat(sources, math.prod(self.shape[1:]))

    def restored(self, rows: Array) -> Array:
        """What was made of the rows, in the places' shape: of (N, K) with the class axis where it was.

        Args:
            rows: (N, K), or (N,) for one value a place.
        """
        found = rows.reshape(*self.shape, *rows.shape[1:])
        return found if rows.ndim == 1 else np.moveaxis(found, -1, self.axis)

    def one_of_each(
        self, rows: Array, aggregate: Aggregate, *, among: Array | None, rng: np.random.Generator
    ) -> tuple[Array, NDArray[np.intp]]:
        """The probabilities of one place of each sample (n, K), and its number in the sample (n,).

        Args:
            rows: Probabilities (N, K).
            aggregate: "least": the least confident place; "drawn": one drawn at random.
            among: Which places take part, of the places' shape; None: all.
            rng: What draws.

        Raises:
            ShapeError: Where ``among`` has another shape.
        """
        n, each = self.shape[0], int(np.prod(self.shape[1:]))
        taken = np.ones(self.shape, bool) if among is None else np.asarray(among, bool)
        if taken.shape != self.shape:
            raise ShapeError(f"among= must be of the places, {self.shape}, got {taken.shape}")
        order = rows.max(axis=1) if aggregate == "least" else rng.random(len(rows))
        # A place that is NaN is the least: its sample then has no receipt.
        chosen = (
            np.where(taken.ravel(), np.nan_to_num(order, nan=-1.0), np.inf).reshape(n, each).argmin(axis=1)
        )
        found = rows.reshape(n, each, -1)[np.arange(n), chosen].astype(np.float64)
        empty = ~taken.reshape(n, each).any(axis=1)
        found[empty] = np.nan
        return found, np.where(empty, -1, chosen)
