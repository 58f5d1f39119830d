"""Abstention: answer where the top probability is high enough that few answers are wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Abstain
from calib_serve.errors import FitError
from calib_serve.metrics import abstention
from calib_serve.metrics.grouped import group_codes, one_of_each
from calib_serve.metrics.scores import checked

__all__ = ["fit_abstain"]

_RISKS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)


def fit_abstain(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    risk: float,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> Abstain:
    """The lowest threshold that leaves at most the share ``risk`` of answers wrong, of probabilities (n, K).

    The promise holds with probability ``level`` over the draws of these samples: see
    ``calib_serve.metrics.abstention``. The probabilities must not have been fitted on them. Of ``groups``
    (n,), samples that belong together, one each is drawn by ``seed``, as the tests need samples that are
    independent. Raises InputError for arrays and options that cannot be right, FitError where no threshold
    keeps the promise; it names a risk that can be kept.

    >>> sure, unsure = [[1.0, 0.0]] * 300, [[0.6, 0.4]] * 100
    >>> fit_abstain(sure + unsure, [0] * 300 + [0, 1] * 50, risk=0.05)([[0.7, 0.3], [0.6, 0.4]]).tolist()
    [False, True]
    """
    found = abstention(probs, labels, risk=risk, level=level, groups=groups, seed=seed)
    if math.isinf(found.threshold):
        p, y = checked(probs, labels)
        codes = group_codes(groups, len(y))
        rows = slice(None) if codes is None else one_of_each(codes, seed=seed)
        raise FitError(_unreachable(p[rows], y[rows], risk, level))
    return Abstain(found.threshold, risk=float(risk), level=float(level))


def _unreachable(p: NDArray[np.floating[Any]], y: NDArray[np.intp], risk: float, level: float) -> str:
    """What was asked, what these samples can promise, and what to do."""
    least = math.ceil(math.log(1 - level) / math.log1p(-risk))
    said = f"no threshold keeps the share of wrong answers at {risk:.3g} with probability {level:.3g}"
    found = next((r for r in _RISKS if r > risk and abstention(p, y, risk=r, level=level).answered), None)
    can = "no risk up to 0.9 can be promised" if found is None else f"{found:.3g} can be promised"
    few = f", of which at least {least} must be answered rightly" if len(y) < 4 * least else ""
    return f"{said}: there are {len(y)} samples{few}; on them {can}. Give more samples, or a higher risk"
