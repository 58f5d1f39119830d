"""Folds: every class spread evenly over them, no group parted and no row that is there twice.

They depend on what the samples are and on the seed, not on their order: a row that is repeated, and one that
weighs as much, are in the same fold, and so are all the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import Codes, content_of
from calib_serve.core.errors import InputError
from calib_serve.fit.samples import Samples

FOLDS = 5
"""Folds by default; a caller makes fewer where samples are few."""


def content(samples: Samples) -> NDArray[np.float64]:
    """A number (n,) that tells rows of logits apart; a constant added to a row does not change it."""
    same = np.empty(len(samples))
    for part, z in samples.chunks(np.float64):
        same[part] = content_of(z - z.max(axis=1, keepdims=True))
    return same


def folds_of(samples: Samples, *, folds: int, seed: int) -> Codes:
    """The fold (n,) of each sample, every class spread evenly over all of them.

    Rows of which there are many, as of a model of few distinct scores, are spread like any other. InputError
    for more folds than there are samples, or groups.
    """
    classes = samples.labels if samples.labels.ndim == 1 else np.zeros(len(samples), np.intp)
    if samples.groups is not None:
        return _of_groups(samples.groups, folds=folds, seed=seed)
    if len(samples) > 1_000_000:  # rows are not compared: as many hide what is repeated
        return stratified(classes, folds=folds, seed=seed)
    return stratified(classes, folds=folds, seed=seed, same=content(samples))


def fits_of_folds(
    samples: Samples,
    fold: Codes,
    fit: Callable[[Samples], Artifact],
    progress: Callable[[int, int], None] | None = None,
) -> list[Artifact]:
    """The fit to all samples but those of a fold, for each ``fold`` (n,)."""
    fits = []
    for f in range(folds := int(fold.max()) + 1):
        if progress:
            progress(f, folds)
        fits.append(fit(samples.take(fold != f)))
    return fits


def stratified(
    labels: NDArray[Any], *, folds: int, seed: int, same: NDArray[np.float64] | None = None
) -> Codes:
    """The fold (n,) of each sample: drawn by ``seed``, every class spread evenly over all folds.

    ``same`` (n,) is what rows are known by: equal ones share a fold, in whatever order they come.

    >>> stratified(np.array([0, 0, 1, 1]), folds=2, seed=0).reshape(2, 2).sum(axis=1).tolist()
    [1, 1]
    """
    n = len(labels)
    if not 2 <= folds <= n:
        raise InputError(f"folds must be between 2 and the number of samples, {n}, got {folds}")
    rng = np.random.default_rng(seed)
    if same is None:
        return _dealt(labels, rng, folds)
    order, unit = _units(labels, same, most=max(n // (20 * folds), 1))
    first = np.flatnonzero(np.diff(unit, prepend=-1))
    fold = np.empty(n, np.intp)
    fold[order] = _dealt(labels[order[first]], rng, folds)[unit]
    # Few distinct rows may leave a fold empty: then they are spread, too.
    return fold if len(np.unique(fold)) == folds else _dealt(labels, rng, folds)


def _dealt(labels: NDArray[Any], rng: np.random.Generator, folds: int) -> Codes:
    n = len(labels)
    shuffled = rng.permutation(n)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold = np.empty(n, np.intp)
    fold[by_class] = np.arange(n) % folds
    return fold


def _units(labels: NDArray[Any], same: NDArray[np.float64], *, most: int) -> tuple[Codes, Codes]:
    """Order the rows by label and content; return the unit (n,) of each, too. Large units are split."""
    scale = float(np.abs(same).max(initial=0)) or 1.0
    known = np.rint(same * (1e9 / scale))  # the last bits of a sum are no difference
    order = np.lexsort((known, labels))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(known[order]) != 0) | (np.diff(labels[order]) != 0)
    unit = np.cumsum(new) - 1
    new |= np.bincount(unit)[unit] > most
    return order, np.cumsum(new) - 1


def _of_groups(groups: Codes, *, folds: int, seed: int) -> Codes:
    """Assign whole groups, the largest first, each to the fold that holds least by then."""
    count = int(groups.max()) + 1
    if not 2 <= folds <= count:
        raise InputError(f"folds must be between 2 and the number of groups, {count}, got {folds}")
    size = np.bincount(groups, minlength=count)
    # The largest first: a large group that came last would leave one fold far larger.
    drawn = np.random.default_rng(seed).permutation(count)
    held = np.zeros(folds)
    fold = np.empty(count, np.intp)
    for group in drawn[np.argsort(-size[drawn], kind="stable")]:
        fold[group] = held.argmin()
        held[fold[group]] += size[group]
    return fold[groups]
