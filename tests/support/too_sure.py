"""Logits that are too sure of themselves."""

from __future__ import annotations

import numpy as np


def draw(n: int = 600, k: int = 4, t: float = 2.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, k) that are ``t`` times too large for the labels drawn from them."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, k))
    return t * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)
