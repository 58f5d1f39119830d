"""The response of a network to made-up inputs, by which another export of it is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def random_inputs(
    shape: Sequence[int | None] | None, *, samples: int = 4, dtype: str = "float32"
) -> NDArray[Any] | None:
    """Make inputs (samples, *shape), the same ones every time: half in [0, 1], half around zero.

    Whole numbers are 0 or 1.

    Args:
        shape: Shape of one input; where a size is not known, there are none.
        samples: Number of inputs.
        dtype: numpy's name of their type.

    >>> random_inputs((3, 8, 8)).shape, random_inputs((3, None, None))
    ((4, 3, 8, 8), None)
    """
    sizes = [] if shape is None else [size for size in shape if size is not None and size > 0]
    if shape is None or len(sizes) != len(shape):
        return None
    rng = np.random.default_rng(0)
    if not dtype.startswith("float"):
        return rng.integers(0, 2, (samples, *sizes)).astype(dtype)
    half = (samples // 2, *sizes)
    return np.concatenate([rng.random(half), rng.standard_normal(half)]).astype(dtype)


def response(logits: NDArray[np.floating], *, labels: bool = False) -> tuple[float, ...] | None:
    """A few numbers of logits that other networks hardly share; None where the logits hardly vary.

    Logits and log-probabilities of the same network have the same numbers.

    Args:
        logits: (4, K).
        labels: Whether each logit is one by itself.

    >>> response(np.eye(4)[:, :2]) == response(np.eye(4)[:, :2] + 7)
    True
    """
    z = np.asarray(logits, np.float64)
    if not labels:
        z = z - z.mean(axis=1, keepdims=True)
    # Random signs keep eight numbers of thousands of classes, and miss no difference for long.
    signs = np.random.default_rng(1).choice((-1.0, 1.0), (z.shape[1], 8))
    found = z @ signs / np.sqrt(z.shape[1])
    if not np.isfinite(found).all() or np.ptp(found, axis=0).max() < 1e-6 * max(np.abs(found).max(), 1e-6):
        return None
    return tuple(float(f"{number:.6g}") for number in found.ravel())


def same_response(one: Sequence[float], other: Sequence[float] | None) -> bool:
    """Whether the same network gave both responses, in float32.

    Args:
        one: Response of a network.
        other: Response of a network, or None.

    >>> same_response((1.0, 2.0), (1.0, 2.0001)), same_response((1.0, 2.0), (1.0, 2.1))
    (True, False)
    """
    if other is None or len(one) != len(other):
        return False
    a, b = np.asarray(one), np.asarray(other)
    # float32 moves logits by a hundredth of that.
    return bool(np.abs(a - b).max() <= 1e-3 * np.abs(a).max())
