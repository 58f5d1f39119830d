"""How each clause of a contract stands: its promise since it is watched, and its budget over its time.

A promise of 98 % may be wrong in 2 %: that is the error budget of what is acted on in the clause's time. The
burn rate is how many times faster than that errors are made (Beyer et al., The Site Reliability Workbook,
chapter 5); at a rate of 1 the budget is spent when the time is over.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Clause, Contract
from calib_serve.bins import bin_index
from calib_serve.errors import InputError
from calib_serve.judgement import MeanBets
from calib_serve.metrics.tails import accuracy_at_least
from calib_serve.names import as_duration
from calib_serve.receipts import DAY
from calib_serve.watch.anew import note_anew
from calib_serve.watch.contracts.evidence import ALPHA, ClauseEvidence, Labelled
from calib_serve.watch.estimates import estimate, estimated_accuracy
from calib_serve.watch.ledger import Ledger, Noted
from calib_serve.watch.slices import scope_of
from calib_serve.watch.sums import Key, Sums, Version, merge_slices
from calib_serve.watch.windows import Maturity, Window, read_windows

__all__ = [
    "BURN_WINDOWS", "Burn", "ClauseState", "ContractFollower", "clause_sums", "contract_states",
    "is_sliced", "kept_evidence", "shares_of", "unlabelled",
]  # fmt: skip

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

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
    """How one promise stands.

    ``state``: "broken" once there is evidence that it does not hold, which is said of a promise that does
    with a chance of at most 5 %, ever; "kept" while the bounds lie on its right side; else "unknown", and
    ``why`` says what is missing. ``said_at``: since when, seconds since 1970. ``labels``: how many tell, or
    predictions of a coverage clause. ``low`` and ``high``: bounds of the accuracy, error or share since it is
    watched, right at all times at once with 95 %. ``value``: the same over the clause's time, estimated.
    ``budget_left``: 1 untouched, 0 spent, below that overspent. ``burn`` by window. ``runs_out``: seconds
    until the budget is spent at the rate of the latest hours, infinite where it lasts. NaN: not known.
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
    """How the clauses stand, in their order. Raises LedgerError where the ledger cannot be read."""
    judged = [one for one in contract.clauses if one.kind != "coverage"]
    evidence = kept_evidence(ledger, version, judged)
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
    """What is said of a clause since it is watched."""

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
    """What of the window is wrong, off or not covered: the estimate and its lower end; NaN if not known."""
    if clause.kind == "coverage":
        met, of = _coverage(clause, window.slices, window.version, window.bins)
        if not of or met > of:
            return Burn(math.nan, math.nan)
        # So that a few predictions of a quiet hour page nobody.
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
    """How many predictions fulfil the clause, and of how many."""
    met, of = (
        slices.get(Key(*version, name, "clause"), Sums.zeros(bins)) for name in (clause.id, scope_of(clause))
    )
    return float(met.predictions.sum()), float(of.predictions.sum())


def _covered(clause: Clause, ledger: Ledger, version: Version) -> _Told:
    """Of a coverage clause: predictions are counted, whoever labels them."""
    slices = ledger.slices("clause", version=version)
    met, of = _coverage(clause, slices, version, ledger.bins)
    if not of or met > of:
        return _Told("unknown", None, of, math.nan, math.nan)
    low, high = MeanBets.of_successes(met, of).interval(alpha=ALPHA)
    if high < clause.promise:
        return _Told("broken", None, of, low, high)
    return _Told("kept" if low > clause.promise else "unknown", None, of, low, high)


def _runs_out(clause: Clause, burn: Mapping[str, Burn], own: str) -> float:
    """Of a time that goes on: what is oldest in it leaves at the rate of all of it."""
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
    """A follower of the drift feed; the evidence lies in the ledger, so that each label is in it once.

    ``contracts`` by version, which may be set anew; versions without one are passed over.
    """

    def __init__(self, ledger: Ledger, contracts: Mapping[Version, Contract]) -> None:
        self._ledger, self.contracts = ledger, dict(contracts)

    def feed(self, version: Version, rows: Sequence[Noted], *, now: float) -> None:
        """Take labels in the order of their predictions, in the transaction that takes them out."""
        contract = self.contracts.get(version)
        clauses = [one for one in contract.clauses if one.kind != "coverage"] if contract else []
        if not clauses or not rows:
            return
        anew = partial(note_anew, self._ledger, version, now=now)
        evidence = kept_evidence(self._ledger, version, clauses, anew=anew)
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
    ledger: Ledger,
    version: Version,
    clauses: Sequence[Clause],
    *,
    anew: Callable[[str, object], None] | None = None,
) -> dict[Clause, ClauseEvidence]:
    """The evidence about these clauses; of one that is new, or damaged in the ledger, there is none.

    ``anew`` is told what begins anew, and why. LedgerError where a newer program wrote it.
    """
    anew = anew or partial(_logged, version)
    kept = {state.name: state.value for state in ledger.states(_KIND, version)}
    found = {}
    for clause in clauses:
        found[clause] = ClauseEvidence.none(clause, bins=ledger.bins)
        if clause.id in kept:
            try:
                found[clause] = found[clause].restored(json.loads(kept[clause.id]))
            except (InputError, ValueError) as error:
                anew(f"what was known of the clause {clause.name!r}", error)
    return found


def clause_sums(ledger: Ledger, version: Version, clauses: Sequence[Clause]) -> dict[Clause, Sums]:
    """The sums over all time of what each clause is of; of a coverage clause, of what fulfils it."""
    apart, none = ledger.slices("clause", version=version), Sums.zeros(ledger.bins)
    found = {clause: apart.get(Key(*version, clause.id, "clause"), none) for clause in clauses}
    if of_all := [clause for clause in clauses if not is_sliced(clause)]:
        whole = merge_slices(ledger.slices("segment", version=version)).get(version, none)
        found |= dict.fromkeys(of_all, whole)
    return found


def is_sliced(clause: Clause) -> bool:
    """Whether its predictions are counted in a slice: those of a calibration of all are all."""
    return clause.kind != "calibration" or clause.is_scoped


def _logged(version: Version, what: str, why: object) -> None:
    log.error("%s %s: %s begins anew with the next labels: %s", *version, what, why)


def _labelled(rows: Sequence[Noted], *, bins: int) -> Labelled:
    confidence = np.array([row.confidence for row in rows], np.float64)
    return Labelled(
        confidence,
        np.array([row.correct for row in rows], np.float64),
        np.array([1 / row.inclusion for row in rows], np.float64),
        bin_index(confidence, bins=bins),
        np.array([row.group for row in rows], np.int64),
    )


def _of(clause: Clause, rows: Sequence[Noted]) -> NDArray[np.bool_]:
    """Which of the labels the clause is of: as they were counted."""
    if not is_sliced(clause):
        return np.ones(len(rows), np.bool_)
    return np.array(
        [any(key.name == clause.id and key.kind == "clause" for key in row.slices) for row in rows], np.bool_
    )


def for_all(sums: Sums) -> Floats:
    """What to multiply weights by, in each bin, so that labels stand for all that was predicted.

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
    """The share of predictions in bins of which no label has come; 0 where predictions are not counted."""
    served = sums.predictions
    return float(served[sums.labels == 0].sum() / served.sum()) if served.any() else 0.0


def shares_of(sums: Sums) -> Floats:
    """The share of each bin (bins,), of what is predicted, or else of what is labelled; 0 of nothing."""
    of = sums.predictions if sums.predictions.any() else sums["calib_feedback_weight_total"]
    return np.asarray(of / of.sum() if of.any() else np.zeros(sums.bins))
