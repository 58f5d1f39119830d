"""Parity of decisions: a fused model decides as the artifact does, where rounding leaves no doubt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Choice, Contract, PredictionSets
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FuseError
from calib_serve.fuse._decisions import act_least

_UNDERFLOW = 1e-30  # below it, float32 may hold 0 instead


def sure_sets(sets: PredictionSets, probs: AnyFloats, relative: float) -> NDArray[np.bool_]:
    """The classes (n, K) of probabilities (n, K) whose place in or out of the set survives rounding.

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
        rounding = size * 2.0**-24 * (relative > 1e-6)  # of a running sum in float32
        least = (sums[sure] + penalties[0]) * (1 - relative) - rounding
        most = (sums[may] - p + penalties[1]) * (1 + relative) + rounding
    inside, outside = most <= sets.threshold, (least > sets.threshold) & ~may_be_top
    alone = may_be_top & (may_be_top.sum() == 1)
    return np.asarray(inside | outside | alone)


def check_decisions(
    artifact: Artifact,
    probs: AnyFloats,
    found: Mapping[str, Any],
    *,
    tolerance: float,
    rows: NDArray[np.bool_],
    report: str,
) -> int:
    """Compare decisions by name with the artifact's of ``probs`` (n, K), whose logits may be off.

    Only ``rows`` (n,) count. Returns how many decisions lie so close to their threshold that rounding may
    turn them; raises FuseError, ending in ``report``, where another one differs.
    """
    # A difference d of logits changes p by the share 2 d at most.
    relative, close = 2 * tolerance, 0
    if artifact.sets is not None:
        sure = sure_sets(artifact.sets, probs, relative)
        close += _compare("set", found, artifact.sets(probs), sure, rows[:, None], report=report)
    if artifact.abstain is not None:
        top = np.max(probs, axis=1)
        sure = np.abs(top - artifact.abstain.threshold) > relative * top
        close += _compare("abstain", found, artifact.abstain(probs), sure, rows, report=report)
    if artifact.contract is not None:
        acts = artifact.contract.acts(np.max(probs, axis=1), np.argmax(probs, axis=1))
        sure = _sure_acts(artifact.contract, probs, relative)
        close += _compare("act", found, acts, sure, rows, report=report)
    if artifact.choice is not None:
        sure = _sure_choice(artifact.choice, probs, relative)
        close += _compare("decision", found, artifact.choice(probs), sure, rows, report=report)
    return close


def _sure_choice(choice: Choice, probs: AnyFloats, relative: float) -> NDArray[np.bool_]:
    """The rows (n,) whose action survives rounding: sums of terms that are not negative are off as these."""
    if choice.threshold is not None:
        return np.asarray(np.abs(probs[:, 1] - choice.threshold) > relative * probs[:, 1])
    ranked = np.sort(np.asarray(probs, np.float64) @ choice.regrets, axis=1)
    off = relative + len(choice.regrets) * 2.0**-24
    return np.asarray(ranked[:, 1] - ranked[:, 0] > 2 * off * ranked[:, 1] + _UNDERFLOW)


def _sure_acts(contract: Contract, probs: AnyFloats, relative: float) -> NDArray[np.bool_]:
    """The rows (n,) whose act survives rounding, and whose class does where thresholds differ."""
    classes = probs.shape[1]
    least = np.broadcast_to(act_least(contract, classes, np.float64), classes)
    ranked = np.sort(probs, axis=1)
    top, second = ranked[:, -1], ranked[:, -2]
    far = np.abs(top - least[np.argmax(probs, axis=1)]) > relative * top
    alike = bool((least == least[0]).all())
    return np.asarray(far & (alike | (top - second > relative * top)))


def _compare(
    name: str,
    found: Mapping[str, Any],
    expected: NDArray[Any],
    sure: NDArray[np.bool_],
    rows: NDArray[np.bool_],
    *,
    report: str,
) -> int:
    actual = np.asarray(found[name])
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        wanted = f"{expected.dtype} {expected.shape}"
        raise FuseError(f"{name!r} is {actual.dtype} {actual.shape}, not {wanted}; {report}")
    wrong = (actual != expected) & sure & rows
    if wrong.any():
        raise FuseError(f"{int(wrong.sum())} of {wrong.size} entries of {name!r} differ; {report}")
    return int((~sure & rows).sum())
