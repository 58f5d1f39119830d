"""Gives mature labels to the evidence about the clauses of their version's contract."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Clause, Contract
from calib_serve.bins import bin_index
from calib_serve.errors import InputError
from calib_serve.watch.anew import note_anew
from calib_serve.watch.contracts.evidence import ClauseEvidence, Labelled
from calib_serve.watch.ledger import Key, Ledger, Noted, Sums, Version, merge_slices

__all__ = ["ContractFollower", "clause_sums", "is_sliced", "kept_evidence", "shares_of", "unlabelled"]

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]


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
        kept = {clause.id: one.state for clause, one in evidence.items()}
        self._ledger.store(_key(version), json.dumps(kept).encode())


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
    kept = _kept(ledger, version, anew)
    found = {}
    for clause in clauses:
        found[clause] = ClauseEvidence.none(clause, bins=ledger.bins)
        if clause.id in kept:
            try:
                found[clause] = found[clause].restored(kept[clause.id])
            except InputError as error:
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


def _kept(ledger: Ledger, version: Version, anew: Callable[[str, object], None]) -> Mapping[str, Any]:
    try:
        found = json.loads(ledger.load(_key(version)) or b"{}")
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    anew("what was known of the contract", "it is damaged")
    return {}


def _key(version: Version) -> str:
    model, name = version
    return f"contract/{len(model)}/{model}/{name}"


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
