"""The chi-squared distribution's tail, and tests that end in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.metrics.tails import chi_square_beyond

__all__ = ["ChiSquared"]

Floats = NDArray[np.float64]

_RANK = 1e-9  # of the largest variance: directions that vary less do not vary


@dataclass(frozen=True)
class ChiSquared:
    """A statistic and its degrees of freedom; with 0 of them nothing was tested, and ``p`` is NaN.

    >>> round(ChiSquared(3.841, 1).p, 3), round(ChiSquared(5.991, 2).p, 3), round(ChiSquared(7.815, 3).p, 3)
    (0.05, 0.05, 0.05)
    """

    statistic: float
    dof: int

    @classmethod
    def of(cls, deviation: Floats, covariance: Floats) -> ChiSquared:
        """Wald's test that ``deviation`` (m,) of this ``covariance`` (m, m) is 0, in what does vary."""
        if not len(deviation):
            return cls(0.0, 0)
        values, vectors = np.linalg.eigh(covariance)
        varies = values > _RANK * max(float(values[-1]), np.finfo(float).tiny)
        along = vectors[:, varies].T @ deviation
        return cls(float((along**2 / values[varies]).sum()), int(varies.sum()))

    @property
    def p(self) -> float:
        """The chance of a statistic at least as large."""
        if not self.dof:
            return math.nan
        return chi_square_beyond(self.statistic, self.dof)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        p = self.p
        return {"statistic": self.statistic, "dof": self.dof, "p": None if math.isnan(p) else p}
