"""The intake of labels: each is verified and counted once, by its receipt or by the user's own id.

receipt -> signature and age -> a model we know -> a label that was wanted, in its range -> the ledger.
An invalid item is refused alone; the rest of its batch is counted.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calib_serve.core.errors import Reason, Refused
from calib_serve.ledger.entries import Entry, Held
from calib_serve.ledger.ledger import Ledger
from calib_serve.ledger.prediction_ids import PredictionIds, ReceiptsById, receipt_of
from calib_serve.receipts import (
    DAY,
    LONGEST_ID,
    LONGEST_SEGMENT,
    Classes,
    Keyring,
    Label,
    LiveKeyring,
    Outcome,
    Receipt,
    Slices,
    Version,
    is_id,
    is_segment,
)

MOST_HELD = 100_000
"""Predictions and labels that may wait for their versions."""

_Item = Mapping[str, Any]
_NOTHING: _Item = {}  # for an item that is no mapping, and is refused as one without keys

_OUTCOMES: dict[str, Outcome] = {
    "counted": Outcome(True),
    "duplicate": Outcome(False, "duplicate", "a label for this receipt was counted before"),
    "forgotten": Outcome(
        False, "forgotten", "the receipt is so old that the ledger may have forgotten whether it was counted"
    ),
    "corrected": Outcome(True, corrected=True),
    "revoked": Outcome(False, "revoked", "the label of this receipt was revoked: none counts in its place"),
}


@dataclass(frozen=True)
class Taken:
    """The outcome of each item of a batch, in order, and the counted labels."""

    outcomes: list[Outcome]
    counted: list[Label]


class _UnknownVersion(Refused):
    """A sound receipt of a model version that is not known here."""

    def __init__(self, receipt: Receipt, token: str) -> None:
        super().__init__("unknown_version", f"no model {receipt.model!r} version {receipt.version!r} here")
        self.receipt, self.token = receipt, token


class Intake:
    """Takes labels for some model versions and counts each of them once.

    ``accepted`` counts labels by version, ``corrected`` those that took the place of others, ``refused``
    refusals by reason, since this object was made; ``ahead``: by how many seconds the last receipt that was
    dated ahead of the clock was so, and when it came, by ``time.monotonic``.

    Args:
        keyring: Keys that verify receipts.
        ledger: Ledger that counts.
        models: Classes of each version.
        slices: Slices of its version that each label counts in; None: the usual ones.
        ttl: Seconds after its prediction for which a label is accepted.
        clock: Seconds since 1970; None: the ledger's.
        detect: Whether labels wait for a drift detector (``DriftFeed``).
        ids: Receipts of labels that name their prediction by the user's own id; None: such labels are
            refused.
        hold: Whether labels of versions that are not known wait in the ledger until they are, or are refused.
    """

    def __init__(
        self,
        keyring: Keyring | LiveKeyring,
        ledger: Ledger,
        *,
        models: Mapping[Version, Classes],
        slices: Slices | None = None,
        ttl: float = 30 * DAY,
        clock: Callable[[], float] | None = None,
        detect: bool = True,
        ids: PredictionIds | None = None,
        hold: bool = False,
    ) -> None:
        self.keyring, self.ledger, self._holds = keyring, ledger, hold
        self.accepted: Counter[Version] = Counter()
        self.corrected: Counter[Version] = Counter()
        self.refused: Counter[Reason] = Counter()
        self.ahead = (0.0, -math.inf)
        self._lock = threading.Lock()
        self._ttl, self._clock, self._detect, self._ids = ttl, clock or ledger.time.now, detect, ids
        self.set_versions(models, slices or Slices({version: one.count for version, one in models.items()}))

    def set_versions(self, models: Mapping[Version, Classes], slices: Slices) -> None:
        """Take labels of some versions from now on.

        Args:
            models: Classes of each version.
            slices: Slices that labels count in.
        """
        self.models, self._slices = dict(models), slices

    def take(
        self,
        items: Sequence[object],
        *,
        source: str | Sequence[str] = "",
        ids_of: str | None = None,
        at: Sequence[float] | None = None,
    ) -> Taken:
        """Count every valid item.

        An item is a mapping ``{"receipt": token, "label": see Classes}``; it may have ``by``, "id" or "name",
        ``segment``, and ``replaces``: true for one that counts in the place of the prediction's label, if it
        has one. Without a receipt it has ``id``, the user's own of the prediction, and ``model`` if
        predictions of two models have that id.

        Args:
            items: Items, as they came.
            source: Name of the sender, or of the sender of each; empty: not known.
            ids_of: Name of the sender whose predictions an id may name, an id of others being refused as one
                that nobody has; None: anybody's.
            at: When each came, in seconds since 1970; None: now.

        Raises:
            LedgerError: Where the ledger cannot keep them, or ids cannot be looked up: send all again, and
                each is counted once.
        """
        times = [self._clock()] * len(items) if at is None else at
        given = [item if isinstance(item, Mapping) else _NOTHING for item in items]
        found = self._found(given, ids_of)
        ttl = self._ttl + self.ledger.time.lag  # none expires on the word of a clock that is ahead
        checked = [self._check(item, now, found, ttl) for item, now in zip(given, times, strict=True)]
        senders = [source] * len(items) if isinstance(source, str) else source
        entries = [
            Entry(
                one,
                now,
                self._slices.of_label(one.receipt, segment=item.get("segment", ""), source=who),
                who,
                _replaces(item),
            )
            for item, one, who, now in zip(given, checked, senders, times, strict=True)
            if isinstance(one, Label)
        ]
        fates = self.ledger.accept(entries, detect=self._detect)
        pairs = [(one.label, fate) for one, fate in zip(entries, fates, strict=True)]
        counted = [label for label, fate in pairs if fate in ("counted", "corrected")]
        # After the ledger took the others: a full waiting room keeps no label of a known version out.
        held = self._held(given, checked, senders, times)
        news = iter(fates)
        outcomes = [
            _OUTCOMES[next(news)]
            if isinstance(one, Label)
            else Outcome(True, held=True)
            if held and isinstance(one, _UnknownVersion)
            else Outcome(False, one.reason, str(one))
            for one in checked
        ]
        with self._lock:
            for counts, of in ((self.accepted, "counted"), (self.corrected, "corrected")):
                counts.update((one.receipt.model, one.receipt.version) for one, fate in pairs if fate == of)
            self.refused.update(o.reason for o in outcomes if o.reason)
        return Taken(outcomes, counted)

    def has_room(self, more: int) -> bool:
        """Whether so many more predictions and labels may wait for their versions."""
        return sum(self.ledger.held.counts().values()) + more <= MOST_HELD

    def _held(
        self,
        items: Sequence[_Item],
        checked: Sequence[Label | Refused],
        senders: Sequence[str],
        times: Sequence[float],
    ) -> bool:
        """Store labels of unknown versions, by their receipts; False where none are, or too many wait."""
        unknown = [(i, one) for i, one in enumerate(checked) if isinstance(one, _UnknownVersion)]
        if not (self._holds and unknown and self.has_room(len(unknown))):
            return False
        self.ledger.held.add(
            [
                Held(
                    "label",
                    one.receipt.nonce.hex(),
                    (one.receipt.model, one.receipt.version),
                    # By its receipt: its id may be forgotten before its version is known.
                    json.dumps({**items[i], "receipt": one.token}),
                    senders[i],
                    times[i],
                )
                for i, one in unknown
            ]
        )
        return True

    def _found(self, items: Sequence[_Item], source: str | None) -> ReceiptsById:
        """The receipts, by model, of each id of ``source`` that an item names."""
        ids = {item["id"]: None for item in items if _names_id(item) and is_id(item["id"])}
        if not ids or self._ids is None:
            return {}
        return dict(zip(ids, self._ids.find(list(ids), source=source), strict=True))

    def _check(self, item: _Item, now: float, found: ReceiptsById, ttl: float) -> Label | Refused:
        try:
            return self._label(item, now, found, ttl)
        except Refused as refusal:
            self._note_ahead(refusal.ahead)
            return refusal.with_traceback(None)  # which would keep the whole batch alive

    def _note_ahead(self, seconds: float) -> None:
        if seconds > 1.0:  # as far as clocks of hosts are apart when all is well
            self.ahead = (seconds, time.monotonic())

    def _label(self, item: _Item, now: float, found: ReceiptsById, ttl: float) -> Label:
        """The label of an item, or Refused; ``found``: receipts of ids."""
        if "label" not in item or not ("receipt" in item or "id" in item):
            raise Refused(
                "malformed",
                'an item is {"receipt": "...", "label": class id or name}, or has "id" for "receipt"',
            )
        if "segment" in item and not is_segment(item["segment"]):
            raise Refused("malformed", f"a segment is a text of at most {LONGEST_SEGMENT} characters")
        if item.get("by") not in (None, "id", "name"):
            raise Refused("malformed", 'what a label is "by" is "id" or "name"')
        if not isinstance(item.get("replaces", False), bool):
            raise Refused("malformed", "replaces is true or false")
        token = self._receipt(item, found) if _names_id(item) else item["receipt"]
        receipt = self.keyring.verify(token, now=now, ttl=ttl)
        # Accepted within the tolerance; a check warns before clocks drift beyond it.
        self._note_ahead(receipt.time - now)
        classes = self.models.get((receipt.model, receipt.version))
        if classes is None and _replaces(item):  # one that waits could overtake the other label
            told = f"no model {receipt.model!r} version {receipt.version!r} here; what replaces is not held"
            raise Refused("unknown_version", told)
        if classes is None:
            raise _UnknownVersion(receipt, token)
        if not receipt.wanted:
            raise Refused("not_wanted", "no label was asked for: counting it would bend what is estimated")
        return Label(receipt, classes.find(item["label"], receipt.predicted, item.get("by")))

    def _receipt(self, item: _Item, found: ReceiptsById) -> str:
        if not is_id(item["id"]):
            raise Refused("malformed", f"an id is a text of 1 to {LONGEST_ID} characters")
        if self._ids is None:
            raise Refused("unknown_id", "no ids of predictions are kept here; send the receipt")
        return receipt_of(found[item["id"]], id=item["id"], model=item.get("model") or None)


def _names_id(item: _Item) -> bool:
    """Whether an item names its prediction by an id; a receipt takes precedence."""
    return "id" in item and item.get("receipt") in (None, "")


def _replaces(item: _Item) -> bool:
    return item.get("replaces") is True
