"""Samples of groups whose outcomes move together."""

from __future__ import annotations

import numpy as np


def grouped(seed: int, groups: int = 60, size: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A calibrated model's confidences, outcomes that are the same throughout a group, and the groups."""
    rng = np.random.default_rng(seed)
    c = np.repeat(rng.beta(6, 2, groups), size)
    y = np.repeat(rng.random(groups), size) < c
    order = rng.permutation(groups * size)
    return c[order], y[order], np.repeat(np.arange(groups), size)[order]
