"""A multi-label prediction as decisions, one a label: what receipts, ledgers and slices count of it.

Label l of L is two classes: 2 l, it is not true, and 2 l + 1, it is. A prediction decides for one of the two
of each label, and its confidence is the probability of what it decided for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["decide", "decision_names"]


def decide(
    probs: NDArray[np.floating[Any]], threshold: float = 0.5
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """What is decided of each label (n, L), as a class below 2 L, and with which confidence (n, L).

    A label is decided to be true where its probability in ``probs`` (n, L) is ``threshold`` or more.

    >>> [found.tolist() for found in decide(np.array([[0.125, 0.75]]))]
    [[[0, 3]], [[0.875, 0.75]]]
    """
    yes = probs >= threshold
    return 2 * np.arange(probs.shape[1]) + yes, np.where(yes, probs, 1 - probs).astype(np.float64)


def decision_names(labels: int, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the 2 L classes of L labels; ``names`` (L,) of the labels, or none.

    >>> decision_names(1, ["cat"]), decision_names(1)
    (('not cat', 'cat'), ('not label 0', 'label 0'))
    """
    called = names or [f"label {k}" for k in range(labels)]
    return tuple(text for name in called for text in (f"not {name}", name))
