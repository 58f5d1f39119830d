"""The evidence about a clause of a contract: bets on its labels, which stand for all predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError
from calib_serve.monitor._bin_gaps import standing
from calib_serve.monitor.bets import ALPHA, Evidence, MeanBets, share_bets, units
from calib_serve.monitor.state_format import FORMAT, check_state
from calib_serve.receipts import Sums


class Labelled(NamedTuple):
    """Labels (n,) under a clause: right or not, weight, bin and group (0: no group).

    Weights make them stand for all that was predicted; their mean over all labels is 1.
    """

    correct: Floats
    weight: Floats
    bin: NDArray[np.intp]
    group: NDArray[np.int64]

    def part(self, of: NDArray[np.bool_]) -> Labelled:
        """The labels that ``of`` (n,) says."""
        return Labelled(self.correct[of], self.weight[of], self.bin[of], self.group[of])


@dataclass(frozen=True, eq=False)
class ClauseEvidence:
    """The evidence about a promise; ``promise`` is the accuracy that it says, the same in all calls.

    ``mean`` is of what is wrong beyond the promise, weighed by up to 1: ``heaviest`` is the largest weight so
    far, and ``units`` the sum of those that were bet on. ``broken_at`` and ``kept_at``: when that was first
    known, seconds since 1970.
    """

    labels: int = 0
    against: Evidence = Evidence.none()  # noqa: RUF009 - frozen
    mean: MeanBets = MeanBets()  # noqa: RUF009
    heaviest: float = 0.0
    units: float = 0.0
    broken_at: float | None = None
    kept_at: float | None = None

    def after(self, rows: Labelled, promise: float, *, now: float, unlabelled: float = 0.0) -> ClauseEvidence:
        """The evidence after more labels.

        ``unlabelled``: the share of predictions in bins without a label. Whatever these are is left open: so
        much worse must the others be than promised.
        """
        against = self.against
        least = (promise - unlabelled) / max(1 - unlabelled, 1e-9)
        if least > 0:
            payoffs, scale = share_bets(rows.correct, least)
            payoffs, weights = units(payoffs, rows.weight, rows.group)
            against = against.after(payoffs, scale, weights=weights)
        heaviest = np.maximum.accumulate(np.append(self.heaviest, rows.weight))
        weight = rows.weight / np.maximum(heaviest[1:], 1e-300)
        worse, scales = units(promise - rows.correct, weight, rows.group)
        found = replace(
            self,
            labels=self.labels + len(rows.correct),
            against=against,
            mean=self.mean.seen((worse * scales).clip(-1, 1)),
            heaviest=float(heaviest[-1]),
            units=self.units + float(scales.sum()),
        )
        kept = found.bounds(promise, unlabelled)[0] > promise
        return replace(
            found,
            broken_at=found.broken_at or (now if against.peak >= -math.log(ALPHA) else None),
            kept_at=(found.kept_at or now) if kept else None,
        )

    def bounds(self, promise: float, unlabelled: float) -> tuple[float, float]:
        """Bound the accuracy since the clause is watched; NaN before any label.

        Every label so far is in it alike. ``unlabelled`` as in ``after``.
        """
        if not self.labels:
            return math.nan, math.nan
        scale = self.units / self.mean.count if self.units else 1.0
        low, high = (end / scale for end in self.mean.interval(alpha=ALPHA))
        told = 1 - unlabelled
        return max(promise - high, 0.0) * told, min(promise - low, 1.0) * told + unlabelled

    def state(self) -> dict[str, Any]:
        """As plain values for JSON, which ``restored`` reads back."""
        return {
            "format": FORMAT,
            **vars(self),
            "against": [_text(v) for v in self.against.flat()],
            "mean": self.mean.flat(),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> ClauseEvidence:
        """Rebuild the evidence from a kept state; InputError for anything else.

        LedgerError where a newer program wrote it, which goes on with it after an upgrade.
        """
        try:
            check_state(state, "evidence about a clause")
            labels, heaviest, units = int(state["labels"]), float(state["heaviest"]), float(state["units"])
            if not all(0 <= number < math.inf for number in (labels, heaviest, units)):
                raise InputError("these are no sums")
            broken_at, kept_at = (
                None if (at := state[name]) is None else float(at) for name in ("broken_at", "kept_at")
            )
            against = Evidence.from_flat([float(v) for v in state["against"]])
            mean = MeanBets.from_flat(state["mean"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"it is damaged ({error!r})") from error
        return cls(labels, against, mean, heaviest, units, broken_at, kept_at)


def _text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON knows no infinity


def for_all(sums: Sums, rows: Labelled) -> Floats:
    """The weights (n,) by which these labels stand for all predictions; their mean over all labels is 1.

    Bins are weighed by the predictions served in them, where these are counted; ``standing`` says how labels
    stand for those of their bin.
    """
    labels, served = sums.labels, sums["calib_feedback_weight_total"]
    if sums.predictions.any():
        served = np.where(labels > 0, np.maximum(sums.predictions, labels), 0.0)
    alone, by_weight = standing(sums, served, served > 0)
    mean = labels.sum() / served.sum() if served.sum() else 1.0
    found: Floats = mean * (alone[rows.bin] + by_weight[rows.bin] * rows.weight)
    return found


def unlabelled(sums: Sums) -> float:
    """The share of predictions in bins without a label; 0 where predictions are not counted."""
    served = sums.predictions
    return float(served[sums.labels == 0].sum() / served.sum()) if served.any() else 0.0
