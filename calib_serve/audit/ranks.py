"""What needs the order of all confidences, by window functions: AUROC and the equal-mass ECE.

Equal confidences are one row, so ties count half in the one and share their correct answers in the other, as
in ``calib_serve.metrics``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calib_serve.audit.joined import LABELLED, Asked
from calib_serve.audit.sums import Place, place_of
from calib_serve.metrics.calibration import equal_mass_edges


@dataclass(frozen=True)
class Ranks:
    """``auroc`` of confidence for right against wrong predictions, weighted; ``adaptive_ece``.

    NaN where it is not told: the AUROC if all are right or all wrong, the ECE of weighted predictions.
    """

    auroc: float
    adaptive_ece: float


def ranked(rows: Any, asked: Asked) -> Any:
    """One row for each place and pair of equal-mass bins that a confidence's predictions begin and end in.

    A pair of two different bins is of one confidence alone, as two cannot both lie over an edge.
    """
    import ibis  # noqa: PLC0415

    rows = rows.filter(rows["fate"] == LABELLED)
    keys = list(asked.keys)
    right, wrong = rows["correct"], 1.0 - rows["correct"]
    weight = rows["weight"] if "weight" in rows.columns else None
    steps = rows.group_by([*keys, "confidence"]).agg(
        n=rows.count(),
        right=right.sum(),
        heavy=(right if weight is None else weight * right).sum(),
        light=(wrong if weight is None else weight * wrong).sum(),
    )
    so_far = ibis.cumulative_window(group_by=keys or None, order_by="confidence")
    whole = ibis.window(group_by=keys or None)
    steps = steps.mutate(
        after=steps["n"].sum().over(so_far).cast("int64"),
        total=steps["n"].sum().over(whole).cast("int64"),
        below=steps["light"].sum().over(so_far) - steps["light"] / 2.0,
    )
    first = _bin_of_rank(steps["after"] - steps["n"], steps["total"], asked.bins)
    last = _bin_of_rank(steps["after"] - 1, steps["total"], asked.bins)
    steps = steps.mutate(first=first, last=last)
    return steps.group_by([*keys, "first", "last"]).agg(
        n=steps["n"].sum().cast("int64"),
        before=(steps["after"] - steps["n"]).min(),
        confidence=(steps["n"].cast("float64") * steps["confidence"]).sum(),
        right=steps["right"].sum(),
        heavy=steps["heavy"].sum(),
        light=steps["light"].sum(),
        pairs=(steps["heavy"] * steps["below"]).sum(),
    )


def _bin_of_rank(rank: Any, total: Any, bins: int) -> Any:
    """The equal-mass bin of a rank from 0, by the rule of ``equal_mass_edges``."""
    import ibis  # noqa: PLC0415

    size, longer = total // bins, total % bins
    in_longer = longer * (size + 1)
    small = longer + (rank - in_longer) // ibis.greatest(size, 1)
    return (rank < in_longer).ifelse(rank // (size + 1), small).cast("int64")


def ranks_of(rows: Iterable[Mapping[str, Any]], asked: Asked, *, weighted: bool) -> dict[Place, Ranks]:
    """The metrics of each place, of the rows of ``ranked``."""
    places: dict[Place, list[Mapping[str, Any]]] = {}
    for row in rows:
        places.setdefault(place_of(row, asked), []).append(row)
    return {
        place: Ranks(_auroc(found), math.nan if weighted else _adaptive_ece(found, asked.bins))
        for place, found in places.items()
    }


def _auroc(rows: Iterable[Mapping[str, Any]]) -> float:
    right, wrong, pairs = (
        math.fsum(float(row[name]) for row in rows) for name in ("heavy", "light", "pairs")
    )
    return pairs / right / wrong if right and wrong else math.nan


def _adaptive_ece(rows: Iterable[Mapping[str, Any]], bins: int) -> float:
    gaps, total = np.zeros(bins), sum(int(row["n"]) for row in rows)
    edges = equal_mass_edges(total, bins)
    for row in rows:
        n, before, gap = int(row["n"]), int(row["before"]), float(row["confidence"]) - float(row["right"])
        if row["first"] == row["last"]:
            gaps[int(row["first"])] += gap
        else:  # equal confidences over an edge: each bin has its share of them
            inside = np.minimum(edges[1:], before + n) - np.maximum(edges[:-1], before)
            gaps += np.maximum(inside, 0) / n * gap
    return float(np.abs(gaps).sum() / total)
