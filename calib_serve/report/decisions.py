"""The report's section on prediction sets and abstention: what is promised, and what the samples show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calib_serve.artifact import Artifact, DecisionsEvaluation, promises
from calib_serve.metrics import Estimate, SetEvaluation

__all__ = ["DecisionRows", "decision_rows"]

_CLASSES = 10


@dataclass(frozen=True)
class DecisionRows:
    """Sentences and two tables of text: sets by their size, and the classes most surely missed."""

    promised: tuple[str, ...]
    measured: tuple[str, ...]
    sizes: tuple[tuple[str, str, str], ...]
    classes: tuple[tuple[str, str], ...]


def decision_rows(artifact: Artifact, found: DecisionsEvaluation, class_names: Sequence[str]) -> DecisionRows:
    """The section of an artifact that has decisions; ``class_names`` (K,) or ()."""
    names = tuple(class_names)
    sets = found.sets
    return DecisionRows(
        tuple(promises(artifact)),
        tuple(found.says(names)),
        () if sets is None else tuple(_size(sets, i) for i in range(len(sets.by_size))),
        () if sets is None else _worst(sets, names),
    )


def _size(sets: SetEvaluation, i: int) -> tuple[str, str, str]:
    group = sets.by_size[i]
    sizes = str(group.smallest)
    if group.largest > group.smallest:
        sizes += f" to {group.largest}"
    return sizes, f"{group.count:,}", _share(group.coverage)


def _worst(sets: SetEvaluation, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    worst = sets.worst_classes()[:_CLASSES]
    return tuple((names[k] if names else str(k), _share(sets.by_class[k])) for k in worst)


def _share(share: Estimate) -> str:
    ends = "" if math.isnan(share.low) else f" ({100 * share.low:.1f} to {100 * share.high:.1f})"
    return f"{100 * share.value:.1f} %{ends}"
