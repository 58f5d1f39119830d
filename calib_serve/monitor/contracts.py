"""Contracts in production: each promise is kept, broken or not yet known, at every moment.

Labels come in the order of their predictions and once each. A promise that holds for every prediction, given
those before, is said to be broken with a chance of at most ``ALPHA``, however often it is looked at.

A promise of 98 % may be wrong in 2 %: that is the error budget of what is acted on in the clause's time. The
burn rate is how many times faster than that errors are made (Beyer et al., The Site Reliability Workbook,
chapter 5); at a rate of 1 the budget is spent when the time is over.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Clause, Contract
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import InputError, LedgerError, of_a_newer
from calib_serve.core.names import as_duration
from calib_serve.ledger import LabelRecord, Ledger, note_recovery
from calib_serve.metrics import accuracy_at_least
from calib_serve.monitor.bets import Evidence, MeanBets, share_bets
from calib_serve.monitor.estimates import estimate, estimated_accuracy
from calib_serve.monitor.windows import Maturity, Window, read_windows
from calib_serve.receipts import DAY, Key, Sums, Version, merge_slices, scope_of

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

ALPHA = 0.05
"""The chance with which a promise that is kept may ever be said to be broken; and of bounds to be wrong."""

_FORMAT = 1
_TOGETHER = 256  # labels between looks at which way the bins are off


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
            together = max(len(rows.group), 1) if rows.group.any() else _TOGETHER
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


BURN_WINDOWS: Mapping[str, float] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21_600.0, "3d": 3 * DAY}
"""The windows that have a burn rate, in seconds; the clause's own time comes to them."""

_RISK = 0.025  # the lower end of a two-sided 95 % interval
_KIND = "clause"
_NOW = ("6h", "3d")  # the window whose rate says when the budget runs out: the first that has one


@dataclass(frozen=True)
class Burn:
    """A burn rate, and the lower end of its 95 % interval; NaN where labels do not tell it."""

    rate: float
    low: float


@dataclass(frozen=True)
class ClauseState:
    """The state of one clause: kept, broken or unknown, with its numbers.

    NaN: not known.

    Args:
        clause: Promise that the state is of.
        state: "broken" once there is evidence that it does not hold, which is wrong of a kept promise with a
            chance of at most 5 %, ever; "kept" while the bounds lie on its right side; else "unknown".
        said_at: Since when, in seconds since 1970.
        labels: Number of labels that speak of it, or of predictions for a coverage clause.
        value: Accuracy, error or share over the clause's time, estimated.
        low: Lower bound of the same since it is watched; both are right at all times at once with 95 %.
        high: Upper bound.
        budget_left: Share of the error budget that is left: 1 untouched, 0 spent, below that overspent.
        burn: Burn rate of each window.
        runs_out: Seconds until the budget is spent at the rate of the latest hours; infinite where it lasts.
        why: Reason for "unknown".
    """

    clause: Clause
    state: Literal["kept", "broken", "unknown"]
    said_at: float | None
    labels: float
    value: float
    low: float
    high: float
    budget_left: float
    burn: Mapping[str, Burn]
    runs_out: float
    why: str


def contract_states(
    ledger: Ledger, version: Version, contract: Contract, *, maturity: Maturity, now: float
) -> list[ClauseState]:
    """The states of the clauses, in order. Raises LedgerError where the ledger cannot be read."""
    judged = [one for one in contract.clauses if one.kind != "coverage"]
    evidence, damaged = kept_evidence(ledger, version, judged)
    for clause, error in damaged.items():
        log.error("%s %s: what was known of the clause %r begins anew: %s", *version, clause.name, error)
    sums = clause_sums(ledger, version, contract.clauses)
    lengths = {**BURN_WINDOWS, **{as_duration(one.per): one.per for one in contract.clauses}}
    windows = read_windows(ledger, version, lengths, maturity=maturity, now=now, lengths=lengths)
    found = []
    for clause in contract.clauses:
        if clause in evidence:
            told = _judged(evidence[clause], sums[clause])
        else:
            told = _covered(clause, ledger, version)
        found.append(_state(clause, told, windows, maturity))
    return found


class _Told(NamedTuple):
    """State, labels and bounds of a clause since it is watched."""

    state: Literal["kept", "broken", "unknown"]
    said_at: float | None
    labels: float
    low: float
    high: float


def _judged(evidence: ClauseEvidence, sums: Sums) -> _Told:
    low, high = evidence.bounds(shares_of(sums), unlabelled(sums))
    said_at = evidence.broken_at or evidence.kept_at
    state: Literal["kept", "broken", "unknown"] = "unknown"
    if said_at:
        state = "broken" if evidence.broken_at else "kept"
    return _Told(state, said_at, float(evidence.labels), low, high)


def _state(clause: Clause, told: _Told, windows: Mapping[str, Window], maturity: Maturity) -> ClauseState:
    own = as_duration(clause.per)
    amounts = {name: _amount(clause, windows[name]) for name in (*BURN_WINDOWS, own)}
    allowed = clause.promise if clause.kind == "calibration" else 1 - clause.promise
    burn = {name: Burn(one.rate / allowed, one.low / allowed) for name, one in amounts.items()}
    used = amounts[own].rate
    value = used if clause.kind == "calibration" else 1 - used
    return ClauseState(
        clause,
        told.state,
        told.said_at,
        told.labels,
        value,
        told.low,
        told.high,
        1 - used / allowed,
        burn,
        _runs_out(clause, burn, own),
        "" if told.state != "unknown" else _why(clause, told.labels, maturity),
    )


def _amount(clause: Clause, window: Window) -> Burn:
    """Estimate the share of the window that breaks the clause, with its lower end; NaN if unknown."""
    if clause.kind == "coverage":
        met, of = _coverage(clause, window.slices, window.version, window.bins)
        if not of or met > of:
            return Burn(math.nan, math.nan)
        # The bound keeps a few predictions of a quiet hour from paging anybody.
        return Burn(1 - met / of, accuracy_at_least(of - met, of, risk=_RISK))
    key = Key(*window.version, clause.id, "clause")
    sums = window.slices.get(key, Sums.zeros(window.bins)) if is_sliced(clause) else window.sums
    if not sums.labels.any():
        return Burn(math.nan, math.nan)
    if clause.kind == "calibration":
        ece = (estimate(sums) if is_sliced(clause) else window.estimates).debiased_ece
        return Burn(ece.value, ece.low)
    accuracy = estimated_accuracy(sums)
    return Burn(1 - accuracy.value, max(1 - accuracy.high, 0.0))


def _coverage(clause: Clause, slices: Mapping[Key, Sums], version: Version, bins: int) -> tuple[float, float]:
    """The number of predictions that fulfil the clause, and the number under it."""
    met, of = (
        slices.get(Key(*version, name, "clause"), Sums.zeros(bins)) for name in (clause.id, scope_of(clause))
    )
    return float(met.predictions.sum()), float(of.predictions.sum())


def _covered(clause: Clause, ledger: Ledger, version: Version) -> _Told:
    """Judge a coverage clause by counted predictions, labelled or not."""
    slices = ledger.slices("clause", version=version)
    met, of = _coverage(clause, slices, version, ledger.bins)
    if not of or met > of:
        return _Told("unknown", None, of, math.nan, math.nan)
    low, high = MeanBets.of_successes(met, of).interval(alpha=ALPHA)
    if high < clause.promise:
        return _Told("broken", None, of, low, high)
    return _Told("kept" if low > clause.promise else "unknown", None, of, low, high)


def _runs_out(clause: Clause, burn: Mapping[str, Burn], own: str) -> float:
    """Estimate the seconds until the budget is spent, if the present rate goes on."""
    so_far = burn[own].rate
    rate = next((burn[name].rate for name in _NOW if math.isfinite(burn[name].rate)), math.nan)
    if math.isnan(so_far) or math.isnan(rate):
        return math.nan
    if so_far >= 1:
        return 0.0
    return clause.per * (1 - so_far) / (rate - so_far) if rate > 1 else math.inf


def _why(clause: Clause, labels: float, maturity: Maturity) -> str:
    if clause.kind == "coverage":
        return (
            "too few predictions to be sure"
            if labels
            else "predictions are not counted here: a coverage is known where they are"
        )
    if labels:
        return f"{labels:.0f} labels are too few to be sure"
    if not maturity.known:
        return "how late labels come is not known yet"
    return "no label that is mature is of it"


class ContractFollower:
    """A follower of the drift feed; its evidence lies in the ledger, so that each label counts once.

    ``contracts`` by version, which may be set anew; versions without one are passed over.
    """

    def __init__(self, ledger: Ledger, contracts: Mapping[Version, Contract]) -> None:
        self._ledger, self.contracts = ledger, dict(contracts)

    def feed(self, version: Version, rows: Sequence[LabelRecord], *, now: float) -> None:
        """Count labels, in the order of their predictions, in the transaction that takes them out."""
        contract = self.contracts.get(version)
        clauses = [one for one in contract.clauses if one.kind != "coverage"] if contract else []
        if not clauses or not rows:
            return
        evidence, damaged = kept_evidence(self._ledger, version, clauses)
        for clause, error in damaged.items():
            what = f"what was known of the clause {clause.name!r}"
            note_recovery(self._ledger, version, what, error, now=now)
        sums = clause_sums(self._ledger, version, clauses)
        labels = _labelled(rows, bins=self._ledger.bins)
        for clause in clauses:
            own = sums[clause]
            mine = labels.part(_of(clause, rows))
            weight = mine.weight * for_all(own)[mine.bin]
            evidence[clause] = evidence[clause].after(
                mine._replace(weight=weight), shares=shares_of(own), now=now, unlabelled=unlabelled(own)
            )
            kept = json.dumps(evidence[clause].state).encode()
            self._ledger.keep(_KIND, version, clause.id, kept, now=now)


def kept_evidence(
    ledger: Ledger, version: Version, clauses: Sequence[Clause]
) -> tuple[dict[Clause, ClauseEvidence], dict[Clause, Exception]]:
    """Read the evidence about these clauses, empty for new ones; and the errors of damaged evidence.

    LedgerError where a newer program wrote it.
    """
    kept = {state.name: state.value for state in ledger.states(_KIND, version)}
    found, damaged = {}, dict[Clause, Exception]()
    for clause in clauses:
        found[clause] = ClauseEvidence.none(clause, bins=ledger.bins)
        if clause.id in kept:
            try:
                found[clause] = found[clause].restored(json.loads(kept[clause.id]))
            except (InputError, ValueError, RecursionError) as error:  # as of ``read_kept``
                damaged[clause] = error
    return found, damaged


def clause_sums(ledger: Ledger, version: Version, clauses: Sequence[Clause]) -> dict[Clause, Sums]:
    """Lifetime sums by clause; of a coverage clause, over the predictions that satisfy it."""
    apart, none = ledger.slices("clause", version=version), Sums.zeros(ledger.bins)
    found = {clause: apart.get(Key(*version, clause.id, "clause"), none) for clause in clauses}
    if of_all := [clause for clause in clauses if not is_sliced(clause)]:
        whole = merge_slices(ledger.slices("segment", version=version)).get(version, none)
        found |= dict.fromkeys(of_all, whole)
    return found


def is_sliced(clause: Clause) -> bool:
    """Whether predictions of a clause have a slice; a calibration clause of all uses the whole sums."""
    return clause.kind != "calibration" or clause.is_scoped


def _labelled(rows: Sequence[LabelRecord], *, bins: int) -> Labelled:
    confidence = np.array([row.confidence for row in rows], np.float64)
    return Labelled(
        confidence,
        np.array([row.correct for row in rows], np.float64),
        np.array([1 / row.inclusion for row in rows], np.float64),
        bin_index(confidence, bins=bins),
        np.array([row.group for row in rows], np.int64),
    )


def _of(clause: Clause, rows: Sequence[LabelRecord]) -> NDArray[np.bool_]:
    """Which of the labels (n,) are under the clause, as they were counted."""
    if not is_sliced(clause):
        return np.ones(len(rows), np.bool_)
    return np.array(
        [any(key.name == clause.id and key.kind == "clause" for key in row.slices) for row in rows], np.bool_
    )


def for_all(sums: Sums) -> Floats:
    """Factors of the weights in each bin by which labels stand for all predictions.

    Bins are weighed by the predictions served in them, where these are counted; the mean over labels is 1.
    """
    labels, weight = sums.labels, sums["calib_feedback_weight_total"]
    if not weight.sum():
        return np.ones(sums.bins)
    mean = labels.sum() / weight.sum()
    served = np.where(weight > 0, sums.predictions, 0.0)
    if not served.sum():
        return np.full(sums.bins, mean)
    share = np.divide(weight, weight.sum(), out=np.ones(sums.bins), where=weight > 0)
    found: Floats = np.where(weight > 0, mean * served / served.sum() / share, mean)
    return found


def unlabelled(sums: Sums) -> float:
    """The share of predictions in bins without a label; 0 where predictions are not counted."""
    served = sums.predictions
    return float(served[sums.labels == 0].sum() / served.sum()) if served.any() else 0.0


def shares_of(sums: Sums) -> Floats:
    """The share of each bin (bins,), of predictions, or else of labels; 0 without either."""
    of = sums.predictions if sums.predictions.any() else sums["calib_feedback_weight_total"]
    return np.asarray(of / of.sum() if of.any() else np.zeros(sums.bins))
