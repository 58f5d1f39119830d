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
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Clause, Contract
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import InputError
from calib_serve.core.names import as_duration
from calib_serve.ledger import LabelRecord, Ledger, note_recovery
from calib_serve.metrics import accuracy_at_least
from calib_serve.monitor.bets import MeanBets
from calib_serve.monitor.clause_evidence import (
    ALPHA,
    ClauseEvidence,
    Labelled,
    for_all,
    shares_of,
    unlabelled,
)
from calib_serve.monitor.estimates import estimate, estimated_accuracy
from calib_serve.monitor.windows import Maturity, Window, read_windows
from calib_serve.receipts import DAY, Key, Sums, Version, merge_slices, scope_of

log = logging.getLogger(__name__)


BURN_WINDOWS: Mapping[str, float] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21_600.0, "3d": 3 * DAY}
"""The windows that have a burn rate, in seconds; the clause's own time comes to them."""

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
    evidence, damaged = _kept_evidence(ledger, version, judged)
    for clause, error in damaged.items():
        log.error("%s %s: what was known of the clause %r begins anew: %s", *version, clause.name, error)
    sums = _clause_sums(ledger, version, contract.clauses)
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
        return Burn(1 - met / of, accuracy_at_least(of - met, of, risk=0.025))  # two-sided: 95 %
    key = Key(*window.version, clause.id, "clause")
    sums = window.slices.get(key, Sums.zeros(window.bins)) if _is_sliced(clause) else window.sums
    if not sums.labels.any():
        return Burn(math.nan, math.nan)
    if clause.kind == "calibration":
        ece = (estimate(sums) if _is_sliced(clause) else window.estimates).debiased_ece
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
        evidence, damaged = _kept_evidence(self._ledger, version, clauses)
        for clause, error in damaged.items():
            what = f"what was known of the clause {clause.name!r}"
            note_recovery(self._ledger, version, what, error, now=now)
        sums = _clause_sums(self._ledger, version, clauses)
        labels = _labelled(rows, bins=self._ledger.bins)
        for clause in clauses:
            own = sums[clause]
            mine = labels.part(_of(clause, rows))
            evidence[clause] = evidence[clause].after(
                mine._replace(weight=for_all(own, mine)),
                shares=shares_of(own),
                now=now,
                unlabelled=unlabelled(own),
            )
            kept = json.dumps(evidence[clause].state).encode()
            self._ledger.keep(_KIND, version, clause.id, kept, now=now)


def _kept_evidence(
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


def _clause_sums(ledger: Ledger, version: Version, clauses: Sequence[Clause]) -> dict[Clause, Sums]:
    """Lifetime sums by clause; of a coverage clause, over the predictions that satisfy it."""
    apart, none = ledger.slices("clause", version=version), Sums.zeros(ledger.bins)
    found = {clause: apart.get(Key(*version, clause.id, "clause"), none) for clause in clauses}
    if of_all := [clause for clause in clauses if not _is_sliced(clause)]:
        whole = merge_slices(ledger.slices("segment", version=version)).get(version, none)
        found |= dict.fromkeys(of_all, whole)
    return found


def _is_sliced(clause: Clause) -> bool:
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
    if not _is_sliced(clause):
        return np.ones(len(rows), np.bool_)
    return np.array(
        [any(key.name == clause.id and key.kind == "clause" for key in row.slices) for row in rows], np.bool_
    )
