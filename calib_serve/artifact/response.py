"""Whether two files hold the same network: by what they give for the same made-up inputs.

An export folds layers, renames and transposes weights, and writes other operators, so that neither the bytes
of two exports nor their graphs agree. What they compute does, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_SAMPLES = 4
_KEPT = 8  # numbers of each sample
_NEAR = 1e-3  # of the largest number; float32 moves logits by a hundredth of that


def made_up(shape: Sequence[int | None] | None) -> NDArray[np.float32] | None:
    """Make inputs (4, *shape), the same ones every time: two in [0, 1], two around zero.

    None where a size is not known.

    >>> made_up((3, 8, 8)).shape, made_up((3, None, None))
    ((4, 3, 8, 8), None)
    """
    sizes = [] if shape is None else [size for size in shape if size is not None and size > 0]
    if shape is None or len(sizes) != len(shape):
        return None
    rng = np.random.default_rng(0)
    half = (_SAMPLES // 2, *sizes)
    return np.concatenate([rng.random(half), rng.standard_normal(half)]).astype(np.float32)


def response(logits: NDArray[np.floating], *, labels: bool = False) -> tuple[float, ...] | None:
    """Return a few numbers of logits (4, K), which other logits hardly share; None where they tell nothing.

    Logits and log-probabilities of the same network have the same numbers. ``labels``: each logit is one by
    itself.

    >>> response(np.eye(4)[:, :2]) == response(np.eye(4)[:, :2] + 7)
    True
    """
    z = np.asarray(logits, np.float64)
    if not labels:
        z = z - z.mean(axis=1, keepdims=True)
    signs = np.random.default_rng(1).choice((-1.0, 1.0), (z.shape[1], _KEPT))
    found = z @ signs / np.sqrt(z.shape[1])
    if not np.isfinite(found).all() or np.ptp(found, axis=0).max() < 1e-6 * max(np.abs(found).max(), 1e-6):
        return None
    return tuple(float(f"{number:.6g}") for number in found.ravel())


def same_response(one: Sequence[float], other: Sequence[float] | None) -> bool:
    """Whether the same network gave both, in float32.

    >>> same_response((1.0, 2.0), (1.0, 2.0001)), same_response((1.0, 2.0), (1.0, 2.1))
    (True, False)
    """
    if other is None or len(one) != len(other):
        return False
    a, b = np.asarray(one), np.asarray(other)
    return bool(np.abs(a - b).max() <= _NEAR * np.abs(a).max())
