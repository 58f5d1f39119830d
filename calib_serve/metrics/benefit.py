"""Net benefit of deciding by P(y = 1), over treating all and treating none (Vickers and Elkin 2006).

Probabilities and outcomes are as in ``event``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.core.arrays import Codes, Floats, as_floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics.event import checked_event
from calib_serve.metrics.intervals import Estimate, wilson_interval

THRESHOLDS = tuple(percent / 100 for percent in range(5, 100, 5))


class Share(NamedTuple):
    """A share that counts ``times`` in a sum: the mean of ``hits`` (n,) within [0, 1], by ``weight`` (n,)."""

    times: float
    hits: Floats
    weight: Floats


def sum_of_shares(first: Share, second: Share, codes: Codes | None, *, level: float) -> Estimate:
    """The sum of two shares, each times its number, from Wilson's intervals (MOVER: Zou 2007, eq. 4).

    A share of none or of all among few samples has an interval, too. Each share is of as many samples as its
    standard error is worth; what both have in common, as of the same groups, is in the correlation.
    """
    value, spread, deviations = 0.0, [], []
    for times, hits, weight in (first, second):
        share = float(np.average(hits, weights=weight))
        apart = weight * (hits - share) / weight.sum()
        apart = apart if codes is None else np.bincount(codes, apart)
        used = weight > 0
        units = int(used.sum()) if codes is None else len(np.unique(codes[used]))
        n = float(weight.sum() ** 2 / (weight**2).sum())
        error = math.sqrt(float(apart @ apart) * units / (units - 1)) if units > 1 else 0.0
        if codes is not None:  # a share that does not vary is one trial a group
            n = min(n, share * (1 - share) / error**2 if error and 0 < share < 1 else float(units))
        found = wilson_interval(min(share, 1.0) * n, n, level=level)
        below, above = found.value - found.low, found.high - found.value
        value += times * share
        spread.append((times, *((below, above) if times > 0 else (above, below))))
        deviations.append(times * apart)
    size = math.sqrt(float((deviations[0] @ deviations[0]) * (deviations[1] @ deviations[1])))
    alike = float(deviations[0] @ deviations[1]) / size if size else 0.0
    low, high = (
        math.sqrt(max(a * a + b * b + 2 * alike * a * b, 0.0))
        for a, b in zip(*([abs(times) * end for end in ends] for times, *ends in spread), strict=True)
    )
    return Estimate(value, value - low, value + high)


@dataclass(frozen=True, eq=False)
class DecisionCurve:
    """Net benefits in true positives per sample, by the threshold of P(y = 1) from which one treats.

    A threshold t says that a false positive costs t / (1 - t) of what a true positive gains. To treat none
    has a net benefit of 0.

    Args:
        thresholds: (m,), rising.
        model: Net benefit of treating from the threshold on (m,).
        all: Net benefit of treating all (m,).
        over_all: Gain of the model over treating all (m,); divided by t / (1 - t) it is the share of samples
            that are spared a needless treatment.
    """

    thresholds: Floats
    model: tuple[Estimate, ...]
    all: tuple[Estimate, ...]
    over_all: tuple[Estimate, ...]

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        curves = {"model": self.model, "all": self.all, "over_all": self.over_all}
        found = {name: [e.as_dict() for e in curve] for name, curve in curves.items()}
        return {"thresholds": self.thresholds.tolist(), **found}


def decision_curve(
    probs: ArrayLike,
    came_true: ArrayLike,
    *,
    thresholds: ArrayLike = THRESHOLDS,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    level: float = 0.95,
) -> DecisionCurve:
    """Return the net benefit by threshold, with intervals that hold for each threshold alone.

    Args:
        probs: Probabilities of class 1 (n,), or (n, 2).
        came_true: 0 or 1 (n,).
        thresholds: Probabilities from which one treats (m,), between 0 and 1.
        sample_weight: (n,).
        groups: Which samples belong together (n,).
        level: Coverage of the intervals, a fraction.

    >>> curve = decision_curve([0.1, 0.4, 0.6, 0.9], [0, 1, 0, 1], thresholds=[0.2])
    >>> curve.model[0].value, curve.all[0].value  # 2 / 4 - 1 / 4 x 0.2 / 0.8; 2 / 4 - 2 / 4 x 0.2 / 0.8
    (0.4375, 0.375)
    """
    t = np.unique(as_floats(thresholds, "thresholds"))
    if t.ndim != 1 or not len(t):
        raise ShapeError(f"thresholds must be (m,) with m >= 1, got {t.shape}")
    if not ((t > 0) & (t < 1)).all():
        raise InputError(f"thresholds must lie between 0 and 1, got {t.min():g} to {t.max():g}")
    p, y, w, codes = checked_event(probs, came_true, sample_weight, groups)
    model: list[Estimate] = []
    every: list[Estimate] = []
    over: list[Estimate] = []
    for threshold in t:
        odds, treated = float(threshold / (1 - threshold)), (p >= threshold).astype(np.float64)
        for found, decided, sign in (
            (model, treated, 1.0),
            (every, np.ones_like(p), 1.0),
            # Of who is not treated: missed where it came true, spared where it did not.
            (over, 1 - treated, -1.0),
        ):
            gain, cost = Share(sign, decided * y, w), Share(-sign * odds, decided * (1 - y), w)
            found.append(sum_of_shares(gain, cost, codes, level=level))
    return DecisionCurve(t, tuple(model), tuple(every), tuple(over))
