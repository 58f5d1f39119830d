"""What a calibration set can teach: sets that teach nothing are refused, what they lack is said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import FitError
from calib_serve.fit.samples import Samples, content

_FEW = 20  # samples
_REPEATED = 0.5  # share of rows that others repeat, which is worth a word
_TIED = 0.01  # share of rows whose largest logit is not alone
_NAMED = 10  # classes


@dataclass(frozen=True, eq=False)
class Rows:
    """Of each sample: is it right, does its largest logit tie, and a number that tells rows apart."""

    right: NDArray[np.bool_]
    tied: NDArray[np.bool_]
    same: NDArray[np.float64]
    constant: bool

    @classmethod
    def of(cls, samples: Samples) -> Rows:
        """One pass over the logits; a constant added to a row makes no other row."""
        right, tied = np.empty((2, len(samples)), bool)
        first, constant = None, True
        for part, z in samples.chunks(np.float64):
            d = z - z.max(axis=1, keepdims=True)
            right[part] = z.argmax(axis=1) == samples.labels[part]
            tied[part] = (d == 0).sum(axis=1) > 1
            first = d[0] if first is None else first
            constant = constant and np.allclose(d, first, rtol=1e-9, atol=1e-12 * max(1, np.abs(first).max()))
        return cls(right, tied, content(samples), constant)


def remarks(samples: Samples) -> list[str]:
    """What the set cannot teach, a sentence each.

    Raises FitError, saying what to do, for labels of one class, logits that are the same for every sample,
    and sets of which no sample is right: whatever is fitted to them is wrong for others.
    """
    rows, n, k = Rows.of(samples), len(samples), samples.classes
    counted = samples.labels if samples.weight is None else samples.labels[samples.weight > 0]
    seen = np.unique(counted)
    if len(seen) == 1:
        raise FitError(
            f"all {n} labels are of class {seen[0]}: a calibration fitted to them would predict that class "
            "alone; add samples of other classes"
        )
    if rows.constant:
        raise FitError(
            "the logits are the same for every sample, so that only the share of each class could be learnt; "
            "check that these are the model's scores of different inputs"
        )
    if not rows.right.any():
        raise FitError(
            f"not one of {n} samples is classified right; check that the labels belong to these logits and "
            "classes are in one order"
        )
    said = []
    if n < _FEW:
        said.append(f"{n} samples tell little: gather at least {_FEW}, and some of each class")
    if rows.right.all():
        said.append(
            "every sample is classified right: how often the model is wrong is not known, but for less than "
            f"about 1 in {n + 1}"
        )
    if len(seen) < k:
        missing = np.setdiff1d(np.arange(k), seen)
        named = ", ".join(map(str, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
        said.append(
            f"{len(missing)} of {k} classes have no sample ({named}): no label says how likely they are"
        )
    distinct = len(np.unique(rows.same))
    if n - distinct >= _REPEATED * n:
        said.append(f"only {distinct} of {n} rows of logits are distinct: intervals take all for independent")
    if rows.tied.mean() > _TIED:
        said.append(f"in {int(rows.tied.sum())} of {n} rows the largest logit ties: the first class is taken")
    return said
