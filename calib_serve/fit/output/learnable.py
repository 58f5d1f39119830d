"""Gaps of a calibration set, and sets that nothing can be learnt from."""

from __future__ import annotations

import numpy as np

from calib_serve.core.arrays import content_of
from calib_serve.core.errors import FitError
from calib_serve.core.text import a_few
from calib_serve.fit.samples import Samples


def sample_remarks(samples: Samples) -> list[str]:
    """Warn of the set's gaps, a sentence each.

    Raises FitError, saying what to do, for labels of one class, logits that are the same for every sample,
    and sets of which no sample is right: whatever is fitted to them is wrong for others.
    """
    n, k = len(samples), samples.classes
    right, tied = np.empty((2, n), bool)
    same = np.empty(n)  # what tells a row from others, whatever constant is added to it

    def look(span: slice) -> None:
        for part in samples.parts(within=span):
            z = samples.read(part, np.float64)
            predicted = z.argmax(axis=1)
            d = z - z[np.arange(len(z)), predicted, None]
            right[part] = predicted == samples.labels[part]
            tied[part] = np.count_nonzero(d == 0, axis=1) > 1
            same[part] = content_of(d)

    samples.over_cores(look)
    counted = samples.labels if samples.weight is None else samples.labels[samples.weight > 0]
    seen = np.unique(counted)
    if len(seen) == 1:
        raise FitError(
            f"all {n} labels are of class {seen[0]}: a calibration fitted to them would predict that class "
            "alone; add samples of other classes"
        )
    if np.ptp(same) <= 1e-12 * max(1, np.abs(same).max()):  # but for rounding
        raise FitError(
            "the logits are the same for every sample, so that only the share of each class could be learnt; "
            "check that these are the model's scores of different inputs"
        )
    if not right.any():
        raise FitError(
            f"not one of {n} samples is classified right; check that the labels belong to these logits and "
            "classes are in one order"
        )
    said = []
    if n < 20:
        said.append(f"{n} samples tell little: gather at least 20, and some of each class")
    if right.all():
        said.append(
            "every sample is classified right: how often the model is wrong is not known, but for less than "
            f"about 1 in {n + 1}"
        )
    if len(seen) < k:
        missing = np.setdiff1d(np.arange(k), seen)
        said.append(
            f"{len(missing)} of {k} classes have no sample ({a_few(missing)}): no label says how likely they "
            "are"
        )
    distinct = len(np.unique(same))
    if n - distinct >= 0.5 * n:
        said.append(f"only {distinct} of {n} rows of logits are distinct: intervals take all for independent")
    if tied.mean() > 0.01:
        said.append(f"in {int(tied.sum())} of {n} rows the largest logit ties: the first class is taken")
    return said
