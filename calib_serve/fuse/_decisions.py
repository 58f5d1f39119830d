"""An artifact's prediction sets, abstention, acts and actions, in the precision of a model.

A threshold is rounded once, so that comparing in float32 gives what comparing in float64 gave.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Abstain, Artifact, Choice, Contract, PredictionSets
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FuseError

NAMES = ("set", "abstain", "act", "decision")
"""What fused models call them: which classes are in the set (n, K), whether there is no answer (n,), whether
a prediction may be acted on (n,), and the id of the chosen action (n,)."""


def decision_names(artifact: Artifact) -> tuple[str, ...]:
    """The decisions among ``NAMES`` that the artifact makes."""
    acts = artifact.contract is not None
    held = (artifact.sets is not None, artifact.abstain is not None, acts, artifact.choice is not None)
    return tuple(name for name, there in zip(NAMES, held, strict=True) if there)


def has_logits(artifact: Artifact) -> bool:
    """Whether calibrated logits exist: behind a mixture or table there are probabilities alone."""
    return artifact.mixture is None and artifact.table is None


def with_decisions(artifact: Artifact, *, wanted: bool, option: str) -> tuple[Artifact, tuple[str, ...]]:
    """The artifact with its decisions if they are ``wanted``, else without, and a remark on the loss.

    ``option``: how to say that they are, or are not. Raises FuseError where what may be acted on depends on
    segments, which no model knows.
    """
    names = decision_names(artifact)
    if not wanted:
        words = {
            "set": "prediction sets",
            "abstain": "abstention",
            "act": "acts by its contract",
            "decision": "actions",
        }
        said = " and ".join(words[name] for name in names)
        left = (f"the artifact's {said} are left out: {option}",) if names else ()
        return replace(artifact, sets=None, abstain=None, contract=None, choice=None), left
    segments = () if artifact.contract is None else artifact.contract.segments
    if segments:
        raise FuseError(
            f"the contract has thresholds of its own for {', '.join(segments)}, and a model does not know of "
            "which segment its input is: serve it with TorchServe, the gateway or a reporter, or fuse it "
            f"without decisions ({option})"
        )
    return artifact, ()


def act_least(contract: Contract, classes: int, dtype: Any) -> AnyFloats:
    """The smallest confidence of ``dtype`` to act on by predicted class (K,); 2 where none suffices.

    () where it is the same for all.
    """
    least = _rounded_up(np.minimum([contract.bound(k) for k in range(classes)], 2.0), dtype)
    return least[0] if (least == least[0]).all() else least


def abstain_least(rule: Abstain, dtype: Any) -> AnyFloats:
    """The smallest top probability of ``dtype`` that is answered."""
    return _rounded_up(np.array(rule.threshold), dtype)


def choice_least(choice: Choice, dtype: Any) -> AnyFloats:
    """The smallest probability of class 1, of ``dtype``, at which it is chosen; 0 where costs decide."""
    return _rounded_up(np.array(choice.threshold or 0.0), dtype)


def inner_edges(artifact: Artifact) -> NDArray[np.float64]:
    """The inner edges between bins of confidence: the reference's, else those of 15 bins."""
    bins = 15 if artifact.reference is None else len(artifact.reference)
    return np.linspace(0, 1, bins + 1)[1:-1]


def rounded_down(edges: AnyFloats) -> AnyFloats:
    """Round edges down to float32: c > edge then means the same for every float32 c.

    >>> float(rounded_down(np.array([0.1]))[0]) <= 0.1 < float(np.float32(0.1))
    True
    """
    with np.errstate(over="ignore"):  # beyond its range, the largest float is meant
        near = edges.astype(np.float32)
    return np.where(near > edges, np.nextafter(near, np.float32(-np.inf)), near)


def _rounded_up(least: AnyFloats, dtype: Any) -> AnyFloats:
    """Round up to floats of ``dtype``: p >= number then means the same for every such p.

    >>> 0.1 <= float(_rounded_up(np.array(0.1), np.float32)) < 0.10000001
    True
    """
    near = np.asarray(least).astype(dtype)
    return np.where(near.astype(np.float64) < least, np.nextafter(near, np.array(np.inf, dtype)), near)


def lac_least(threshold: AnyFloats, dtype: Any) -> AnyFloats:
    """The smallest p of ``dtype`` for which 1 - p, as float64 rounds it, is at most the threshold.

    Of float64 itself, it may be off by that rounding.

    >>> float(lac_least(np.array(0.25), np.float32))
    0.75
    """
    least = _rounded_up(np.maximum(1 - threshold, -1.0), dtype)
    below = np.nextafter(least, np.array(-np.inf, dtype))
    return np.where(1 - below.astype(np.float64) <= threshold, below, least)


def rank_offsets(sets: PredictionSets, classes: int) -> NDArray[np.float64]:
    """Offsets of each rank (K,) to the probability summed above it; the first rank is always below.

    A sum is at most 1 and a threshold not negative: -4 puts the likeliest class in, whatever its score.

    >>> rank_offsets(PredictionSets(np.array(0.5), 0.9, "raps", penalty=0.25, free_ranks=1), 4).tolist()
    [-4.0, 0.25, 0.5, 0.75]
    """
    offsets = sets.penalty * np.maximum(np.arange(1, classes + 1) - sets.free_ranks, 0.0)
    # A set is never empty: the likeliest class is in it, whatever the threshold.
    offsets[0] = -4.0
    return np.asarray(np.minimum(offsets, 1e30))  # which float32 still holds
