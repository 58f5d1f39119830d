"""An artifact's prediction sets, abstention and acts in the precision of a model, and their check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, PredictionSets
from calib_serve.errors import FuseError

__all__ = [
    "NAMES",
    "act_least",
    "check_decidable",
    "check_decisions",
    "decided",
    "lac_least",
    "left_out",
    "rank_offsets",
    "rounded_up",
    "sure_sets",
    "undecided",
]

NAMES = ("set", "abstain", "act")
"""What fused models call them: which classes are in the set (n, K), whether there is no answer (n,), and
whether a prediction may be acted on (n,)."""

Floats = NDArray[np.floating[Any]]


def decided(artifact: Artifact) -> tuple[str, ...]:
    """Which of ``NAMES`` the artifact decides."""
    acts = artifact.contract is not None and artifact.contract.decides
    held = (artifact.sets is not None, artifact.abstain is not None, acts)
    return tuple(name for name, there in zip(NAMES, held, strict=True) if there)


def check_decidable(artifact: Artifact, without: str) -> None:
    """FuseError where what may be acted on depends on segments, which no model knows.

    ``without``: what to do to fuse it all the same.
    """
    segments = () if artifact.contract is None else artifact.contract.segments
    if segments:
        raise FuseError(
            f"the contract has thresholds of its own for {', '.join(segments)}, and a model does not know of "
            f"which segment its input is: serve it with TorchServe, the gateway or a reporter, or {without}"
        )


def act_least(artifact: Artifact, dtype: Any) -> Floats:
    """The smallest confidence of ``dtype`` to act on for each predicted class (K,); 2 where none suffices.

    () where it is the same for all.
    """
    contract = artifact.contract
    bounds = np.array([2.0 if contract is None else contract.bound(k) for k in range(artifact.classes)])
    least = rounded_up(np.minimum(bounds, 2.0), dtype)
    return least[0] if (least == least[0]).all() else least


def undecided(artifact: Artifact) -> Artifact:
    """The same probabilities, and nothing decided by them."""
    return replace(artifact, sets=None, abstain=None, contract=None)


def left_out(artifact: Artifact, what: str) -> list[str]:
    """The sentence that says what ``what`` does not do, of an artifact that decides something."""
    told = {"set": "prediction sets", "abstain": "abstention", "act": "acts by its contract"}
    names = " and ".join(told[name] for name in decided(artifact))
    return [f"the artifact's {names} are left out: {what}"] if names else []


def rounded_up(least: Floats, dtype: Any) -> Floats:
    """The smallest float of ``dtype`` not below each number: p >= number means the same for every such p.

    >>> 0.1 <= float(rounded_up(np.array(0.1), np.float32)) < 0.10000001
    True
    """
    near = np.asarray(least).astype(dtype)
    return np.where(near.astype(np.float64) < least, np.nextafter(near, np.array(np.inf, dtype)), near)


def lac_least(threshold: Floats, dtype: Any) -> Floats:
    """The smallest float p of ``dtype`` for which 1 - p, as float64 rounds it, is at most the threshold.

    Of float64 itself, it may be off by that rounding.

    >>> float(lac_least(np.array(0.25), np.float32))
    0.75
    """
    least = rounded_up(np.maximum(1 - threshold, -1.0), dtype)
    below = np.nextafter(least, np.array(-np.inf, dtype))
    return np.where(1 - below.astype(np.float64) <= threshold, below, least)


def rank_offsets(sets: PredictionSets, classes: int) -> NDArray[np.float64]:
    """What is added to the sum of probabilities above each rank (K,), so that the first is always below.

    A sum is at most 1 and a threshold not negative: -4 puts the likeliest class in, whatever its score.

    >>> rank_offsets(PredictionSets(np.array(0.5), 0.9, "raps", penalty=0.25, free_ranks=1), 4).tolist()
    [-4.0, 0.25, 0.5, 0.75]
    """
    offsets = sets.penalty * np.maximum(np.arange(1, classes + 1) - sets.free_ranks, 0.0)
    offsets[0] = -4.0
    return np.asarray(np.minimum(offsets, _LARGE))


def sure_sets(sets: PredictionSets, probs: Floats, relative: float) -> NDArray[np.bool_]:
    """For which classes (n, K) of probabilities (n, K) the set is the same after rounding.

    Every probability may be off by the share ``relative`` of itself. So may its rank be, where others are as
    close as that, and what is summed up to it.
    """
    return np.array([_sure_row(sets, row, min(relative, 0.5)) for row in np.asarray(probs, np.float64)])


def _sure_row(sets: PredictionSets, p: NDArray[np.float64], relative: float) -> NDArray[np.bool_]:
    low, high = p * (1 - relative), p * (1 + relative) + _UNDERFLOW
    may_be_top = high >= low.max()
    if sets.score == "lac":
        least, most = 1 - high, 1 - low
    else:
        rising, size = np.sort(p), len(p)
        # Sums of the largest: of those surely above a class, and of those that may be, it among them.
        sums = np.append(np.cumsum(rising[::-1])[::-1], 0.0)
        sure = np.searchsorted(rising * (1 - relative), high, side="right")
        may = np.searchsorted(rising * (1 + relative) + _UNDERFLOW, low, side="left")
        penalties = [
            sets.penalty * np.maximum(size - found + own - sets.free_ranks, 0)
            for found, own in ((sure, 1), (may, 0))
        ]
        rounding = size * 2.0**-24 * (relative > _OF_DOUBLE)  # of a running sum in float32
        least = (sums[sure] + penalties[0]) * (1 - relative) - rounding
        most = (sums[may] - p + penalties[1]) * (1 + relative) + rounding
    inside, outside = most <= sets.threshold, (least > sets.threshold) & ~may_be_top
    alone = may_be_top & (may_be_top.sum() == 1)
    return np.asarray(inside | outside | alone)


_LARGE = 1e30  # that float32 still holds
_UNDERFLOW = 1e-30  # below it, float32 may hold 0 instead
_OF_DOUBLE = 1e-6


def check_decisions(
    artifact: Artifact,
    probs: Floats,
    found: Mapping[str, Any],
    *,
    tolerance: float,
    rows: NDArray[np.bool_],
    report: str,
    shown: float | None = None,
) -> int:
    """Compare decisions by name with the artifact's of ``probs`` (n, K), whose logits may be off.

    Only ``rows`` (n,) count. ``shown``: the tolerance of confidences as they are returned, by which is acted;
    the same if not given. Returns how many decisions lie so close to their threshold that rounding may
    turn them; raises FuseError, ending in ``report``, where another one differs.
    """
    relative, close = 2 * tolerance, 0
    if artifact.sets is not None:
        sure = sure_sets(artifact.sets, probs, relative)
        close += _compare("set", found, artifact.sets(probs), sure, rows[:, None], report=report)
    if artifact.abstain is not None:
        top = np.max(probs, axis=1)
        sure = np.abs(top - artifact.abstain.threshold) > relative * top
        close += _compare("abstain", found, artifact.abstain(probs), sure, rows, report=report)
    if artifact.contract is not None and artifact.contract.decides:
        acts = artifact.contract.acts(np.max(probs, axis=1), np.argmax(probs, axis=1))
        sure = _sure_acts(artifact, probs, relative if shown is None else 2 * shown)
        close += _compare("act", found, acts, sure, rows, report=report)
    return close


def _sure_acts(artifact: Artifact, probs: Floats, relative: float) -> NDArray[np.bool_]:
    """Of which rows (n,) rounding changes neither the class, where thresholds differ, nor the act."""
    least = np.broadcast_to(act_least(artifact, np.float64), artifact.classes)
    ranked = np.sort(probs, axis=1)
    top, second = ranked[:, -1], ranked[:, -2]
    far = np.abs(top - least[np.argmax(probs, axis=1)]) > relative * top
    alike = bool((least == least[0]).all())
    return np.asarray(far & (alike | (top - second > relative * top)))


def _compare(
    name: str,
    found: Mapping[str, Any],
    expected: NDArray[np.bool_],
    sure: NDArray[np.bool_],
    rows: NDArray[np.bool_],
    *,
    report: str,
) -> int:
    actual = np.asarray(found[name])
    if actual.shape != expected.shape or actual.dtype != np.bool_:
        raise FuseError(f"{name!r} is {actual.dtype} {actual.shape}, not bool {expected.shape}; {report}")
    wrong = (actual != expected) & sure & rows
    if wrong.any():
        raise FuseError(f"{int(wrong.sum())} of {wrong.size} entries of {name!r} differ; {report}")
    return int((~sure & rows).sum())
