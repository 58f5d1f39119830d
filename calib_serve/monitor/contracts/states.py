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
from typing import Literal

import numpy as np

from calib_serve.artifact import Clause, Contract
from calib_serve.core.bins import bin_index
from calib_serve.core.names import as_duration
from calib_serve.ledger import LabelRecord, Ledger, note_recovery, read_kept
from calib_serve.monitor.contracts.evidence import ClauseEvidence, Labelled, for_all, unlabelled
from calib_serve.monitor.estimates import estimated_accuracy
from calib_serve.monitor.windows import Maturity, Window, read_windows
from calib_serve.receipts import DAY, Key, Sums, Version

log = logging.getLogger(__name__)

BURN_WINDOWS: Mapping[str, float] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21_600.0, "3d": 3 * DAY}
"""The windows that have a burn rate, in seconds; the clause's own time comes to them."""

_KIND = "clause"
State = Literal["kept", "broken", "unknown"]


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
        labels: Number of labels that speak of it.
        value: Accuracy over the clause's time, estimated.
        low: Lower bound of the same since it is watched; both are right at all times at once with 95 %.
        high: Upper bound.
        budget_left: Share of the error budget that is left: 1 untouched, 0 spent, below that overspent.
        burn: Burn rate of each window.
        runs_out: Seconds until the budget is spent at the rate of the latest hours; infinite where it lasts.
        why: Reason for "unknown".
    """

    clause: Clause
    state: State
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
    evidence, damaged = _kept_evidence(ledger, version)
    sums = ledger.slices("clause", version=version)
    lengths = {**BURN_WINDOWS, **{as_duration(one.per): one.per for one in contract.clauses}}
    windows = read_windows(ledger, version, lengths, maturity=maturity, now=now, lengths=lengths)
    states = []
    for clause in contract.clauses:
        if error := damaged.get(clause.id):
            log.error("%s %s: what was known of the clause %r begins anew: %s", *version, clause.name, error)
        known = evidence.get(clause.id, ClauseEvidence())
        states.append(_state(clause, known, _sums_of(clause, sums, version, ledger.bins), windows, maturity))
    return states


def _state(
    clause: Clause, evidence: ClauseEvidence, sums: Sums, windows: Mapping[str, Window], maturity: Maturity
) -> ClauseState:
    own = as_duration(clause.per)
    burn = {name: _burn(clause, windows[name]) for name in (*BURN_WINDOWS, own)}
    spent = burn[own].rate
    low, high = evidence.bounds(clause.promise, unlabelled(sums))
    state: State = "broken" if evidence.broken_at else "kept" if evidence.kept_at else "unknown"
    return ClauseState(
        clause,
        state,
        evidence.broken_at or evidence.kept_at,
        float(evidence.labels),
        1 - spent * (1 - clause.promise),
        low,
        high,
        1 - spent,
        burn,
        _runs_out(clause, burn, spent),
        _why(evidence.labels, maturity) if state == "unknown" else "",
    )


def _burn(clause: Clause, window: Window) -> Burn:
    sums = _sums_of(clause, window.slices, window.version, window.bins)
    if not sums.labels.any():
        return Burn(math.nan, math.nan)
    accuracy, allowed = estimated_accuracy(sums), 1 - clause.promise
    return Burn((1 - accuracy.value) / allowed, max(1 - accuracy.high, 0.0) / allowed)


def _sums_of(clause: Clause, slices: Mapping[Key, Sums], version: Version, bins: int) -> Sums:
    return slices.get(Key(*version, clause.id, "clause"), Sums.zeros(bins))


def _runs_out(clause: Clause, burn: Mapping[str, Burn], spent: float) -> float:
    """Estimate the seconds until the budget is spent, if the present rate goes on."""
    present = [burn[name].rate for name in ("6h", "3d") if math.isfinite(burn[name].rate)]
    if math.isnan(spent) or not present:
        return math.nan
    if spent >= 1:
        return 0.0
    return clause.per * (1 - spent) / (present[0] - spent) if present[0] > 1 else math.inf


def _why(labels: int, maturity: Maturity) -> str:
    if labels:
        return f"{labels} labels are too few to be sure"
    if not maturity.known:
        return "how late labels come is not known yet"
    return "no label that is mature is of it"


class ContractFollower:
    """A follower of the drift feed; its evidence lies in the ledger, so that each label counts once.

    ``contracts`` by version, which may be set anew; versions without one are passed over.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self.contracts = ledger, dict[Version, Contract]()

    def feed(self, version: Version, rows: Sequence[LabelRecord], *, now: float) -> None:
        """Count labels, in the order of their predictions, in the transaction that takes them out."""
        contract = self.contracts.get(version)
        if contract is None or not rows:
            return
        ledger = self._ledger
        evidence, damaged = _kept_evidence(ledger, version)
        slices, labels = ledger.slices("clause", version=version), _labelled(rows, bins=ledger.bins)
        for clause in contract.clauses:
            if error := damaged.get(clause.id):
                what = f"what was known of the clause {clause.name!r}"
                note_recovery(ledger, version, what, error, now=now)
            sums, key = _sums_of(clause, slices, version, ledger.bins), Key(*version, clause.id, "clause")
            mine = labels.part(np.array([key in row.slices for row in rows], np.bool_))
            after = evidence.get(clause.id, ClauseEvidence()).after(
                mine._replace(weight=for_all(sums, mine)),
                clause.promise,
                now=now,
                unlabelled=unlabelled(sums),
            )
            kept = json.dumps(after.state()).encode()
            ledger.followers.keep(_KIND, version, clause.id, kept, now=now)


def _kept_evidence(
    ledger: Ledger, version: Version
) -> tuple[dict[str, ClauseEvidence], dict[str, Exception]]:
    """The evidence about clauses, and the errors of what is damaged, by the clauses' ids."""
    return read_kept(ledger, _KIND, version, lambda state: ClauseEvidence.restored(json.loads(state)))


def _labelled(rows: Sequence[LabelRecord], *, bins: int) -> Labelled:
    return Labelled(
        np.array([row.correct for row in rows], np.float64),
        np.array([1 / row.inclusion for row in rows], np.float64),
        bin_index([row.confidence for row in rows], bins=bins),
        np.array([row.group for row in rows], np.int64),
    )
