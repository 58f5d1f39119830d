"""Prequential evidence against a served calibration.

Each label is predicted by a fit to those before it alone, so that all labels judge, and the evidence may be
read after any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import CalibServeError
from calib_serve.fit.samples import Samples
from calib_serve.scores import log_probs

Probs = Callable[[NDArray[np.floating[Any]]], Floats]
"""Logits (n, K) -> probabilities (n, K)."""

FIRST = 100  # labels, to which the first fit is made
_OLD = 0.02  # the current calibration's share of what is bet on: a label costs at most log(0.02)


@dataclass(frozen=True, eq=False)
class Prequential:
    """The probabilities of the current and the new calibrations for each label, oldest first.

    Each array is (2, n), of the current one and of a fit to earlier blocks: the ``nll`` of the label, the
    ``confidence`` of the top class and whether it was ``right``. In the first block, and in one after which
    nothing could be fitted, the second row is the current one's. ``log_evidence`` (n,) is after each label.
    ``judging`` (m,) are the rows that judge: all, or of each group the first, which no fit to those before it
    has seen.
    """

    nll: Floats
    confidence: Floats
    right: NDArray[np.bool_]
    log_evidence: Floats
    judging: NDArray[np.intp]


def prequential(
    samples: Samples, current: Probs, fit: Callable[[Samples], Probs], *, fitted_to: float = math.inf
) -> Prequential:
    """Judge the current calibration against a ``fit`` to all that came before each block of samples.

    ``fitted_to`` is how many samples the current one was fitted to. Raises the error of the last block's fit
    where no block could be fitted.
    """
    n, y = len(samples), samples.labels
    nll, confidence, right = np.empty((2, n)), np.empty((2, n)), np.empty((2, n), np.bool_)
    pays = np.zeros(n)

    def judge(row: int, part: slice, probs: Floats) -> None:
        top = probs.argmax(axis=1)
        rows = np.arange(len(probs))
        nll[row, part] = -log_probs(probs[rows, y[part]])
        confidence[row, part] = np.minimum(probs[rows, top], 1.0)
        right[row, part] = top == y[part]

    for part, z in samples.chunks(np.float64):
        judge(0, part, current(z))
    nll[1], confidence[1], right[1] = nll[0], confidence[0], right[0]
    starts, failed = block_starts(n), list[CalibServeError]()
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        try:
            new = fit(samples.take(slice(0, start)))
        except CalibServeError as error:  # such as no finite optimum: then nothing is bet on this block
            failed.append(error)
            continue
        # So far would as many served samples move a fit to the calibration set, by chance alone.
        share = start / (fitted_to + start)
        for part in samples.parts(within=slice(start, stop)):
            z = samples.read(part, np.float64)
            probs = new(z)
            judge(1, part, probs)
            pays[part] = payoff(current(z), probs, y[part], share=share)
    if len(failed) == len(starts):
        raise failed[-1]
    judging = np.arange(n)
    if samples.groups is not None:
        # Labels of a group come together: a bet that wins one would win them all.
        judging = np.sort(np.unique(samples.groups, return_index=True)[1])
        pays[np.setdiff1d(np.arange(n), judging)] = 0
    return Prequential(nll, confidence, right, log_evidence(pays, starts), judging)


def block_starts(n: int) -> list[int]:
    """Return the first sample of each block: after ``FIRST`` samples, then at half as many again.

    They do not depend on n, so with more samples at the end the same evidence goes on.

    >>> block_starts(300)
    [100, 150, 225]
    """
    found = [FIRST]
    while (following := math.ceil(found[-1] * 1.5)) < n:
        found.append(following)
    return found


def payoff(old: Floats, new: Floats, labels: NDArray[np.intp], *, share: float) -> Floats:
    """Return the payoff of a bet on each label (n,), as a logarithm: log q(y) over r(y).

    ``old`` (n, K) are the current p, ``new`` those of a fit to what came before. q is nearly all of
    the new ones and a little of p, and r is p moved to q by ``share``: proportional to p^(1 - share)
    q^share, as a calibration that was fitted to few samples would itself be moved by so many served ones.
    While labels follow p, or r, its exponential is at most 1 in expectation: the sums over classes of p q / r
    and of q are at most 1 (Hoelder's inequality).

    >>> p, q = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    >>> np.exp(payoff(p, q, np.array([0]), share=0.0)).round(4).tolist()  # (0.98 + 0.02 / 2) / 0.5
    [1.98]
    """
    log_p = log_probs(old)
    log_q = np.logaddexp(math.log1p(-_OLD) + log_probs(new), math.log(_OLD) + log_p)
    moved = np.exp((1 - share) * log_p + share * log_q).sum(axis=1)
    rows = np.arange(len(labels))
    return np.asarray((1 - share) * (log_q - log_p)[rows, labels] + np.log(moved))


def log_evidence(pays: Floats, starts: list[int]) -> Floats:
    """Return the logarithm of the evidence against the current calibration after each label, (n,).

    ``pays`` (n,) is what each label's bet pays. The evidence that began at label s is what a stake of 1 has
    become from there on: a test supermartingale while labels follow the current calibration (Ramdas 2023,
    section 3.2), so with a chance of at most alpha it ever reaches 1 / alpha (Ville 1939). The stake is split
    over the ``starts``, 1 / ((j + 1) (j + 2)) to the j-th: what early fits to few samples lose need not be
    made good (van Erven 2012, the switch distribution).

    >>> bets = log_evidence(np.log([1.98, 1.98]), [0, 1])
    >>> np.exp(bets).round(4).tolist()  # 1.98 / 2 + 1 / 2, then 1.98 ** 2 / 2 + 1.98 / 6 + 1 / 3
    [1.49, 2.6235]
    """
    worth = np.concatenate([[0.0], np.cumsum(pays)])
    # What is left for starts that are still to come is not bet.
    total = np.full(len(pays), -math.log(len(starts) + 1))
    for j, start in enumerate(starts):
        path = np.where(np.arange(len(pays)) < start, 0.0, worth[1:] - worth[start])
        total = np.logaddexp(total, path - math.log((j + 1) * (j + 2)))
    return np.asarray(total)
