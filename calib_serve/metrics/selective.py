"""The confidence threshold below which to abstain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calib_serve.errors import InputError
from calib_serve.metrics.equal_mass import tie_ends
from calib_serve.metrics.scores import top_label
from calib_serve.metrics.tails import accuracy_at_least, binomial_at_most

__all__ = ["Abstention", "abstention"]


@dataclass(frozen=True)
class Abstention:
    """Answer where confidence is at least ``threshold``, abstain elsewhere.

    ``coverage`` is the share answered and ``accuracy`` that of the answers, both on the sample;
    ``accuracy_low`` bounds the accuracy from below. Where no threshold reaches the target, ``threshold`` is
    infinite, ``coverage`` 0 and the accuracies NaN.
    """

    threshold: float
    coverage: float
    accuracy: float
    accuracy_low: float


def abstention(probs: ArrayLike, labels: ArrayLike, *, target: float, level: float = 0.95) -> Abstention:
    """The confidence above which accuracy is at least ``target``, with probability ``level``.

    Selection with guaranteed risk (Geifman and El-Yaniv 2017, alg. 1): a binary search over the
    ranked confidences, whose every step is a binomial test at an even share of 1 - level. The
    guarantee is for samples drawn like these.

    >>> sure, unsure = [[1.0, 0.0]] * 300, [[0.6, 0.4]] * 100
    >>> found = abstention(sure + unsure, [0] * 300 + [0, 1] * 50, target=0.95)
    >>> found.threshold, found.coverage, found.accuracy
    (1.0, 0.75, 1.0)
    """
    for name, share in (("target", target), ("level", level)):
        if not 0 < share < 1:
            raise InputError(f"{name} must lie between 0 and 1, got {share}; 0.95 means 95 %")
    confidence, correct = top_label(probs, labels)
    order = np.argsort(confidence)
    confidence, errors = confidence[order], np.cumsum(~correct[order][::-1])
    n = len(confidence)
    starts = tie_ends(confidence)[:-1]  # a threshold answers all of its ties
    risk = (1 - level) / max(1, math.ceil(math.log2(len(starts) + 1)))
    best, low, high = None, 0, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        answered = n - int(starts[middle])
        wrong = int(errors[answered - 1])
        if binomial_at_most(wrong, answered, 1 - target) <= risk:
            best, high = (int(starts[middle]), answered, wrong), middle - 1
        else:
            low = middle + 1
    if best is None:
        return Abstention(math.inf, 0.0, math.nan, math.nan)
    start, answered, wrong = best
    right = answered - wrong
    bound = accuracy_at_least(right, answered, risk=risk)
    return Abstention(float(confidence[start]), answered / n, right / answered, bound)
