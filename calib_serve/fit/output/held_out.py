"""Held-out results of a candidate: every sample under a fit to the other folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import FitError
from calib_serve.fit.samples import Samples
from calib_serve.metrics import log_probs
from calib_serve.metrics.refinement import Separation

__all__ = ["FoldFit", "HeldOut", "auroc", "described", "over_folds", "raced"]

Floats = NDArray[np.float64]
FoldFit = Callable[[int], Artifact]
"""A fold -> the fit to all others."""

_BEATEN = 4.0  # standard errors, on the first fold
_MUCH = 0.05  # of the score


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One candidate's held-out results per sample, each (n,).

    ``predicted`` is the top class, not of labels; of two classes ``positive`` is P(y = 1), ``came_true``
    whether it was.
    """

    nll: Floats
    brier: Floats
    confidence: Floats
    correct: Floats
    predicted: Floats | None = None
    positive: Floats | None = None
    came_true: Floats | None = None


def raced(
    fit: FoldFit,
    samples: Samples,
    fold: NDArray[np.intp],
    rivals: Mapping[str, HeldOut],
    criterion: str,
) -> HeldOut:
    """The held-out results; FitError where the first fold alone shows that a rival is better."""
    first = np.flatnonzero(fold == 0)

    def beaten(out: Floats) -> None:
        ours = getattr(HeldOut(*out), criterion)[first]
        for name, rival in rivals.items():
            worse = ours - getattr(rival, criterion)[first]
            if worse.mean() > max(_BEATEN * worse.std() / math.sqrt(len(first)), _MUCH * ours.mean()):
                raise FitError(
                    f"dropped after the first fold: its {criterion} is {worse.mean():.4f} above {name}'s"
                )

    return over_folds(fit, samples, fold, after_first=beaten if rivals else None)


def over_folds(
    fit: FoldFit,
    samples: Samples,
    fold: NDArray[np.intp],
    *,
    progress: Callable[[int, int], None] | None = None,
    after_first: Callable[[Floats], None] | None = None,
    probs: Floats | None = None,
) -> HeldOut:
    """The results of each fold's ``fit`` on that fold; ``after_first`` sees those of the first.

    ``probs`` (n, K), where given, is filled with the held-out probabilities.
    """
    out = np.empty((7 if samples.classes == 2 else 5, len(samples)))
    folds = int(fold.max()) + 1
    for f in range(folds):
        if progress:
            progress(f, folds)
        artifact = fit(f)
        index = np.flatnonzero(fold == f)
        test = samples.take(index)
        for part, chunk in test.chunks(np.float64):
            held = artifact.probs(chunk)
            out[:, index[part]] = described(held, test.labels[part])
            if probs is not None:
                probs[index[part]] = held
        if f == 0 and after_first:
            after_first(out)
    return HeldOut(*out)


def described(p: Floats, labels: NDArray[np.intp]) -> Floats:
    """Rows of a HeldOut of probabilities (n, K) and class ids (n,)."""
    p_true = p[np.arange(len(p)), labels]
    nll = -log_probs(p_true)  # finite where p_true is 0
    brier = np.einsum("nk,nk->n", p, p) - 2 * p_true + 1
    positive = [np.clip(p[:, 1], 0, 1), labels == 1] if p.shape[1] == 2 else []
    top = p.argmax(axis=1)
    return np.stack([nll, brier, np.minimum(p.max(axis=1), 1.0), top == labels, top, *positive])


def auroc(held: HeldOut, weights: Floats | None = None) -> Floats:
    """P(right above wrong) by confidence, for every row of sample weights (r, n)."""
    order = np.argsort(held.confidence, kind="stable")
    ends = np.flatnonzero(np.diff(held.confidence[order], append=np.inf)) + 1
    w = np.ones((1, len(order))) if weights is None else weights[:, order]
    right = np.cumsum(w * held.correct[order], axis=1)
    seen = np.cumsum(w, axis=1)
    at = np.concatenate([[0], ends])
    right, seen = (np.concatenate([np.zeros((len(w), 1)), c], axis=1)[:, at] for c in (right, seen))
    with np.errstate(invalid="ignore"):
        found = Separation(right, seen - right).auroc()
    return found if weights is not None else np.asarray(found[0])
