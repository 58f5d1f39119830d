"""How large the logits are that rounding is measured by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["size_of"]

_FAR = 1e3


def size_of(logits: NDArray[np.floating[Any]], *, labels: bool) -> float:
    """The largest logit (n, K) that a probability shows, and at least 1: what rounding grows with.

    One far below its row's largest, where masks put it (-1e9, -inf), is 0 as a probability, however rounded.
    ``labels``: each logit is one by itself.

    >>> size_of(np.array([[3.0, -7.0, -1e9]]), labels=False)
    7.0
    """
    with np.errstate(invalid="ignore"):  # of a row whose largest is infinite itself
        below = np.abs(logits) if labels else logits.max(axis=1, keepdims=True) - logits
    return float(np.abs(logits).max(initial=1.0, where=below <= _FAR))
