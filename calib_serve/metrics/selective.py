"""The confidence threshold below which to abstain, and what is left of the errors above it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError
from calib_serve.metrics.intervals import Estimate, accuracy_at_least, binomial_at_most, exact_interval
from calib_serve.metrics.samples import design_effect, group_codes, one_of_each, top_label

__all__ = ["Abstention", "SelectiveEvaluation", "abstention", "evaluate_abstention"]

Floats = NDArray[np.float64]

# Thresholds are fixed before any sample is seen, so that each test is exact, also of tied confidences.
_STEPS = 32  # thresholds to a doubling of the odds c / (1 - c)
_MOST = 20  # doublings; above lie confidences that float32 hardly tells from 1
# Doublings of the odds of a confidence of 1 - risk.
_STARTS = (-16, -8, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Abstention:
    """Answer where confidence is at least ``threshold``, abstain elsewhere.

    ``answered`` is the share answered and ``risk`` the share of the answers that is wrong, both on the
    sample; ``risk_high`` bounds that of new samples. Where no threshold keeps the promise, ``threshold`` is
    infinite, ``answered`` 0 and the risks NaN.
    """

    threshold: float
    answered: float
    risk: float
    risk_high: float


def abstention(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    risk: float,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> Abstention:
    """The confidence from which on at most the share ``risk`` of answers is wrong, at the level given.

    The promise holds with probability ``level`` over draws of samples like these, independent of each other,
    whatever the model. Each threshold is tested once, by the binomial, in an order that is fixed beforehand,
    from the strictest on (Learn then Test, Angelopoulos 2021, section 2.2). Half of 1 - level is spent from
    the confidence 1 - risk on, from which a calibrated model keeps the promise; even shares of the rest from
    15 others. A test that succeeds hands what it had to the next one (the fallback procedure, Wiens 2003).
    Of ``groups`` (n,), samples that belong together, the tests are of one sample each, drawn by ``seed``.

    >>> sure, unsure = [[1.0, 0.0]] * 300, [[0.6, 0.4]] * 100
    >>> found = abstention(sure + unsure, [0] * 300 + [0, 1] * 50, risk=0.05)
    >>> round(found.threshold, 2), found.answered, found.risk
    (0.6, 0.75, 0.0)
    """
    for name, share in (("risk", risk), ("level", level)):
        if not 0 < share < 1:
            raise InputError(f"{name} must lie between 0 and 1, got {share}; 0.05 means 5 %")
    confidence, correct = top_label(probs, labels)
    codes = group_codes(groups, len(correct))
    rows = slice(None) if codes is None else one_of_each(codes, seed=seed)
    thresholds = _sequence(np.shape(probs)[1], risk)
    threshold, high = _lowest(confidence[rows], correct[rows], thresholds, risk=risk, level=level)
    answered = confidence >= threshold
    wrong = float((~correct[answered]).mean()) if math.isfinite(threshold) else math.nan
    return Abstention(threshold, float(answered.mean()), wrong, high)


def _lowest(
    confidence: Floats,
    correct: NDArray[np.bool_],
    thresholds: Iterator[tuple[float, float]],
    *,
    risk: float,
    level: float,
) -> tuple[float, float]:
    """The lowest threshold that passes its test, and the bound of its risk; infinite and NaN if none does."""
    order = np.argsort(-confidence)
    falling, errors = -confidence[order], np.concatenate([[0], np.cumsum(~correct[order])])
    best, spent = None, 0.0
    for threshold, share in thresholds:
        spent += (1 - level) * share
        if not spent:
            continue
        n = int(np.searchsorted(falling, -threshold, side="right"))
        k = int(errors[n])
        if n and binomial_at_most(k, n, risk) <= spent:
            best = (threshold, n, k, spent)
        else:
            spent = 0.0
    if best is None:
        return math.inf, math.nan
    threshold, n, k, paid = best
    return threshold, 1 - accuracy_at_least(n - k, n, risk=paid)


def _sequence(classes: int, risk: float) -> Iterator[tuple[float, float]]:
    """Thresholds from the strictest to 0, which answers everything, and the share of the errors spent there.

    They are evenly spaced in the logarithm of the odds, down to a confidence below 1 / K, which all reach.
    """
    last = -math.ceil(math.log2(classes)) * _STEPS
    usual = math.log2((1 - risk) / risk)
    shares = {_step(usual, last): 0.5}
    for doublings in _STARTS:
        step = _step(usual + doublings, last)
        shares[step] = shares.get(step, 0.0) + 0.5 / len(_STARTS)
    for step in range(_MOST * _STEPS, last, -1):
        yield 1 / (1 + 2 ** (-step / _STEPS)), shares.get(step, 0.0)
    yield 0.0, shares.get(last, 0.0)


def _step(doublings: float, last: int) -> int:
    return min(max(round(doublings * _STEPS), last), _MOST * _STEPS)


@dataclass(frozen=True)
class SelectiveEvaluation:
    """What a threshold does on ``n`` samples: the share ``answered``, and that of answers wrong, ``risk``.

    ``promised`` is the risk that was to be kept, None where none was; ``risk`` is NaN where nothing is
    answered.
    """

    n: int
    threshold: float
    answered: Estimate
    risk: Estimate
    promised: float | None = None

    def says(self) -> str:
        """A sentence for a person, and another where the promise is surely broken."""
        promise = "" if self.promised is None else f" (promised at most {100 * self.promised:.4g} %)"
        said = f"Answers from {self.threshold:.4f} confidence on: {with_interval(self.answered)} are answered"
        if math.isnan(self.risk.value):
            return f"{said}."
        said += f", {with_interval(self.risk)} of these are wrong{promise}."
        if self.promised is not None and self.risk.low > self.promised:
            said += " That is more than promised: these samples are not like those that the threshold is of."
        return said

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        shares = {"answered": self.answered.as_dict(), "risk": self.risk.as_dict()}
        return {"n": self.n, "threshold": self.threshold, "promised": self.promised, **shares}


def evaluate_abstention(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    threshold: float,
    promised: float | None = None,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> SelectiveEvaluation:
    """Answers where the top probability is at least ``threshold``, with exact intervals.

    ``groups`` (n,) say which samples belong together: intervals are then of as many as they are worth.

    >>> found = evaluate_abstention([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 1, 0], threshold=0.7)
    >>> round(found.answered, 2), found.risk.value
    (0.67, 0.5)
    """
    confidence, correct = top_label(probs, labels)
    codes = group_codes(groups, len(correct))
    kept = confidence >= threshold
    answered = share_of(kept, codes, level=level)
    of_answers = Estimate(math.nan)
    if kept.any():
        of_answers = share_of(~correct[kept], None if codes is None else codes[kept], level=level)
    return SelectiveEvaluation(len(correct), float(threshold), answered, of_answers, promised)


def with_interval(share: Estimate) -> str:
    """A share in percent with its interval, for a person."""
    ends = "" if math.isnan(share.low) else f" [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    return f"{100 * share.value:.1f} %{ends}"


def share_of(hits: NDArray[np.bool_], codes: NDArray[np.intp] | None, *, level: float) -> Estimate:
    """The share of hits (n,) with its exact interval, of as many samples as groups leave."""
    share, n = float(hits.mean()), float(len(hits))
    if codes is not None:
        codes = np.unique(codes, return_inverse=True)[1]
        groups = int(codes.max()) + 1
        if groups == 1:  # how much groups vary cannot be told from one
            return Estimate(share)
        # Where all are alike nothing varies: each group then counts once.
        n = float(groups) if share in (0, 1) else n / design_effect(hits.astype(np.float64), codes)
    return exact_interval(share * n, n, level=level)
