"""What a served prediction leads to: its set of classes, whether there is an answer, and whether to act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact

__all__ = ["NOTHING", "Decided", "as_dict", "decide_rows", "insides"]


class Decided(NamedTuple):
    """The ids of the classes in the set, likeliest first; whether to abstain; whether it may be acted on.

    None where not decided.
    """

    in_set: tuple[int, ...] | None = None
    abstain: bool | None = None
    act: bool | None = None


NOTHING = Decided()


def decide_rows(
    artifact: Artifact,
    probs: Sequence[NDArray[np.float64]],
    *,
    abstain_below: float | None = None,
    segments: str | Sequence[str] = "",
) -> list[Decided]:
    """What the artifact decides by calibrated probabilities, each (K,); ``abstain_below`` of the archive.

    ``segments`` of each, or of all: what may be acted on there may depend on them.
    """
    rules = (artifact.sets, artifact.abstain, abstain_below, artifact.contract)
    if not probs or all(rule is None for rule in rules):
        return [NOTHING] * len(probs)
    p = np.stack(probs)
    sets: Sequence[Any] = [None] * len(p)
    if artifact.sets is not None:
        inside = artifact.sets(p)
        sets = [_likeliest_first(row, np.flatnonzero(of)) for row, of in zip(p, inside, strict=True)]
    below: Sequence[Any] = [None] * len(p)
    if artifact.abstain is not None:
        below = artifact.abstain(p).tolist()
    elif abstain_below is not None:
        below = (p.max(axis=1) < abstain_below).tolist()
    acts: Sequence[Any] = [None] * len(p)
    if artifact.contract is not None and artifact.contract.decides:
        acts = artifact.contract.acts(p.max(axis=1), p.argmax(axis=1), segments).tolist()
    return [Decided(*one) for one in zip(sets, below, acts, strict=True)]


def _likeliest_first(probs: NDArray[np.float64], ids: NDArray[np.intp]) -> tuple[int, ...]:
    return tuple(ids[np.argsort(-probs[ids], kind="stable")].tolist())


def as_dict(decided: Decided, names: Sequence[str]) -> dict[str, Any]:
    """For JSON: classes by their ``names``, or by their ids where there are none.

    >>> as_dict(Decided((2, 0), False, True), ["cat", "dog", "emu"])
    {'set': ['emu', 'cat'], 'abstain': False, 'act': True}
    """
    found: dict[str, Any] = {}
    if decided.in_set is not None:
        found["set"] = [names[k] if names else k for k in decided.in_set]
    if decided.abstain is not None:
        found["abstain"] = decided.abstain
    if decided.act is not None:
        found["act"] = decided.act
    return found


def insides(rows: Sequence[Decided], classes: int) -> NDArray[np.bool_]:
    """The sets as (n, K): whether each class is in, as fused models return it.

    >>> insides([Decided((2, 0))], 3).tolist()
    [[True, False, True]]
    """
    found = np.zeros((len(rows), classes), np.bool_)
    for row, one in zip(found, rows, strict=True):
        row[list(one.in_set or ())] = True
    return found
