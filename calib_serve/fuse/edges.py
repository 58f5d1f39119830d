"""Bin edges in the precision a model computes in."""

from __future__ import annotations

import numpy as np

from calib_serve.artifact.steps import Floats

__all__ = ["rounded_down"]


def rounded_down(edges: Floats) -> Floats:
    """The largest float32 not above each edge: c > edge then means the same for every float32 c.

    >>> float(rounded_down(np.array([0.1]))[0]) <= 0.1 < float(np.float32(0.1))
    True
    """
    near = edges.astype(np.float32)
    return np.where(near > edges, np.nextafter(near, np.float32(-np.inf)), near)
