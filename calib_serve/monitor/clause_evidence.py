"""The evidence about a clause of a contract: bets on its labels, which stand for all predictions."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Clause
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError, LedgerError, of_a_newer
from calib_serve.monitor._bin_gaps import standing
from calib_serve.monitor.bets import Evidence, MeanBets, share_bets
from calib_serve.receipts import Sums

log = logging.getLogger(__name__)


ALPHA = 0.05
"""The chance with which a promise that is kept may ever be said to be broken; and of bounds to be wrong."""

_FORMAT = 1


class Labelled(NamedTuple):
    """Labels (n,) under a clause: confidence, right or not, weight, bin and group (0: no group).

    Weights make them stand for all that was predicted; their mean over all labels is 1.
    """

    confidence: Floats
    correct: Floats
    weight: Floats
    bin: NDArray[np.intp]
    group: NDArray[np.int64]

    def part(self, of: slice | NDArray[np.bool_]) -> Labelled:
        """A part of the labels."""
        c, y, w, b, g = self
        return Labelled(c[of], y[of], w[of], b[of], g[of])


@dataclass(frozen=True, eq=False)
class ClauseEvidence:
    """The evidence about an act or a calibration clause; begin with ``none``.

    ``mean`` is of what is wrong beyond the promise, weighed by up to 1: ``heaviest`` is the largest weight so
    far, and ``units`` the sum of those that were bet on. Of a calibration clause, ``off`` (bins,) are the
    sums of confidence less outcome, which say on which side the next bets are, and ``by_bin`` the same means
    by bin. ``broken_at`` and ``kept_at``: when that was first known, seconds since 1970.
    """

    clause: Clause
    labels: int
    against: Evidence
    mean: MeanBets
    heaviest: float
    units: float
    off: Floats
    by_bin: tuple[MeanBets, ...]
    broken_at: float | None = None
    kept_at: float | None = None

    @classmethod
    def none(cls, clause: Clause, *, bins: int) -> ClauseEvidence:
        """The evidence before the first label."""
        by_bin = tuple(MeanBets() for _ in range(bins)) if clause.kind == "calibration" else ()
        return cls(clause, 0, Evidence.none(), MeanBets(), 0.0, 0.0, np.zeros(bins), by_bin)

    def after(self, rows: Labelled, *, shares: Floats, now: float, unlabelled: float = 0.0) -> ClauseEvidence:
        """The evidence after more labels; ``shares`` (bins,) of all predictions under the clause.

        ``unlabelled``: the share of predictions in bins without a label. Whatever these are is left open: so
        much worse must the others be than promised.
        """
        found = self
        if self.clause.kind == "act":
            worse = self.clause.promise - rows.correct
            against, least = self.against, (self.clause.promise - unlabelled) / max(1 - unlabelled, 1e-9)
            if least > 0:
                payoffs, scale = share_bets(rows.correct, least)
                payoffs, weights = _units(payoffs, rows.weight, rows.group)
                against = against.after(payoffs, scale, weights=weights)
            found = replace(self, against=against)._seen(worse, rows)
        else:
            # A group's labels bet together: none may choose the side on which the others are bet.
            # Without groups, which way the bins are off is looked at every so many labels.
            together = max(len(rows.group), 1) if rows.group.any() else 256
            for at in range(0, len(rows.confidence), together):
                found = found._after_signed(rows.part(slice(at, at + together)), unlabelled)
        found = replace(found, labels=self.labels + len(rows.confidence))
        low, high = found.bounds(shares, unlabelled)
        kept = low > self.clause.promise if self.clause.kind == "act" else high < self.clause.promise
        return replace(
            found,
            broken_at=found.broken_at or (now if found.against.peak >= -math.log(ALPHA) else None),
            kept_at=(found.kept_at or now) if kept else None,
        )

    def _after_signed(self, rows: Labelled, unlabelled: float) -> ClauseEvidence:
        # Whatever the signs, the weighed mean of sign (c - y) is at most the calibration error.
        sign = np.where(self.off >= 0, 1.0, -1.0)[rows.bin]
        error, gap = self.clause.promise, rows.confidence - rows.correct
        worse = (sign * gap - error) / (1 + error)
        off, by_bin = self.off.copy(), list(self.by_bin)
        np.add.at(off, rows.bin, gap)
        for b in np.unique(rows.bin).tolist():
            one = rows.part(rows.bin == b)
            inside, _ = _units(one.confidence - one.correct, np.ones(len(one.bin)), one.group)
            by_bin[b] = by_bin[b].seen(inside)
        most = error / max(1 - unlabelled, 1e-9)
        payoffs, weights = _units((sign * gap - most) / (1 + most), rows.weight, rows.group)
        against = self.against.after(payoffs, weights=weights)
        return replace(self, against=against, off=off, by_bin=tuple(by_bin))._seen(worse, rows)

    def _seen(self, worse: Floats, rows: Labelled) -> ClauseEvidence:
        """Advance the bets on ``worse``, numbers in [-1, 1]: how much worse than promised each label is."""
        heaviest = np.maximum.accumulate(np.append(self.heaviest, rows.weight))[1:]
        weight = rows.weight / np.maximum(heaviest, 1e-300)
        numbers, scales = _units(worse, weight, rows.group)
        return replace(
            self,
            mean=self.mean.seen((numbers * scales).clip(-1, 1)),
            heaviest=float(heaviest[-1]) if len(heaviest) else self.heaviest,
            units=self.units + float(scales.sum()),
        )

    def bounds(self, shares: Floats, unlabelled: float = 0.0) -> tuple[float, float]:
        """Bound the accuracy or the calibration error since the clause is watched; NaN before any label.

        Every label so far is in it alike. ``shares`` and ``unlabelled`` as in ``after``.
        """
        if not self.labels:
            return math.nan, math.nan
        scale = self.units / self.mean.count if self.units else 1.0
        low, high = (end / scale for end in self.mean.interval(alpha=ALPHA))
        promise = self.clause.promise
        if self.clause.kind == "act":
            told = 1 - unlabelled
            return max(promise - high, 0.0) * told, min(promise - low, 1.0) * told + unlabelled
        ends = np.array([one.interval(alpha=ALPHA / len(self.by_bin)) for one in self.by_bin])
        most = float(shares @ np.abs(ends).max(axis=1)) if shares.any() else 1.0
        return max(low * (1 + promise) + promise, 0.0) * (1 - unlabelled), min(most, 1.0)

    @property
    def state(self) -> dict[str, Any]:
        """As plain values for JSON, which ``restored`` reads back."""
        return {
            "format": _FORMAT,
            "labels": self.labels,
            "against": [_text(v) for v in self.against.flat()],
            "mean": _bets(self.mean),
            "heaviest": self.heaviest,
            "units": self.units,
            "off": self.off.tolist(),
            "by_bin": [_bets(one) for one in self.by_bin],
            "broken_at": self.broken_at,
            "kept_at": self.kept_at,
        }

    def restored(self, state: Mapping[str, Any]) -> ClauseEvidence:
        """Rebuild the evidence of this clause from a kept state; InputError for any other state.

        LedgerError where a newer program wrote it, which goes on with it after an upgrade.
        """
        try:
            if (found := int(state["format"])) > _FORMAT:
                raise LedgerError(f"evidence about a clause {of_a_newer(found, reads=_FORMAT)}")
            if found != _FORMAT:
                raise InputError(f"it is of format {found}, and this program reads {_FORMAT}")
            off = np.asarray(state["off"], np.float64)
            by_bin = tuple(map(_bets_of, state["by_bin"]))
            heaviest, units = float(state["heaviest"]), float(state["units"])
            labels, times = int(state["labels"]), [state["broken_at"], state["kept_at"]]
            sane = all(0 <= number < math.inf for number in (labels, heaviest, units))
            if len(by_bin) != len(self.by_bin):
                raise InputError("these are of other bins")
            if off.shape != self.off.shape or not np.isfinite(off).all() or not sane:
                raise InputError("these are no sums over the bins")
            return replace(
                self,
                labels=labels,
                against=Evidence.from_flat([float(v) for v in state["against"]]),
                mean=_bets_of(state["mean"]),
                heaviest=heaviest,
                units=units,
                off=off,
                by_bin=by_bin,
                broken_at=None if times[0] is None else float(times[0]),
                kept_at=None if times[1] is None else float(times[1]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"it is damaged ({error!r})") from error


def _text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON knows no infinity


def _bets(one: MeanBets) -> list[Any]:
    return [one.count, one.up.tolist(), one.down.tolist()]


def _bets_of(kept: Any) -> MeanBets:
    count, up, down = kept
    return MeanBets(float(count), np.asarray(up, np.float64), np.asarray(down, np.float64))


def _units(numbers: Floats, weights: Floats, groups: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The units of a bet: labels, or the means of labels of one group, which may be dependent.

    Returns numbers in the range of the given ones, and the weight of each, which is known before any outcome.
    """
    if not groups.any():
        return numbers, weights
    lone = np.flatnonzero(groups == 0)
    names = groups.copy()
    names[lone] = -1 - np.arange(len(lone))
    _, first, place, count = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    bound = np.zeros(len(count))
    np.maximum.at(bound, place, weights)
    mean = np.bincount(place, weights * numbers) / count
    return (mean / np.maximum(bound, 1e-300))[order], bound[order]


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


def shares_of(sums: Sums) -> Floats:
    """The share of each bin (bins,), of predictions, or else of labels; 0 without either."""
    of = sums.predictions if sums.predictions.any() else sums["calib_feedback_weight_total"]
    return np.asarray(of / of.sum() if of.any() else np.zeros(sums.bins))
