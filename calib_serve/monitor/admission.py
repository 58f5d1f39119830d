"""Predictions at the door of the watch: which may be counted, or the reason why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from calib_serve.core.bins import bin_index
from calib_serve.core.errors import Refused
from calib_serve.ledger import Ledger
from calib_serve.monitor.versions import Watched
from calib_serve.receipts import (
    LONGEST_ID,
    LONGEST_SEGMENT,
    TAG,
    Carried,
    Item,
    Keyring,
    LiveKeyring,
    ServedPrediction,
    ServedSums,
    Shadow,
    Version,
    carried,
    is_id,
    is_segment,
)


class Admission:
    """Refuses what cannot be counted; ``models`` are the versions that are known by now.

    ``invalid`` counts confidences that are none, by version. Of versions that are not known little can be
    told: they are looked at again when they are.
    """

    def __init__(
        self, keyring: Keyring | LiveKeyring, ledger: Ledger, *, ttl: float, invalid: Counter[Version]
    ) -> None:
        self._keyring, self._ledger, self._ttl, self._invalid = keyring, ledger, ttl, invalid
        self.models: Mapping[Version, Watched] = {}

    def admit(self, items: Sequence[Item], *, now: float) -> list[ServedPrediction | Carried | Refused]:
        """Verify the receipts of a batch, each of which counts once in it, and look at each prediction."""
        found, seen = [self._admitted(one, now) for one in items], set[bytes]()
        for i, one in enumerate(found):
            if isinstance(one, Carried):
                if one.nonce in seen:
                    found[i] = Refused("duplicate", "the receipt is in this batch already")
                seen.add(one.nonce)
        return found

    def _admitted(self, item: Item, now: float) -> ServedPrediction | Carried | Refused:
        if isinstance(item, Refused):
            return item
        if isinstance(item, ServedPrediction):
            return self._refusal(item) or item
        ttl = self._ttl + self._ledger.time.lag
        try:
            found = carried(item, self._keyring.verify(item.receipt, now=now, ttl=ttl))
        except Refused as refusal:
            return refusal
        return self._refusal(found.item) or found

    def wrong_sums(self, one: ServedSums) -> Refused | None:
        """The refusal of invalid sums, or None."""
        bins = self._ledger.bins
        sound = 0 <= one.low <= one.high <= 1 and one.count > 0
        # A sum of many terms is off by as many roundings: 280,000 times 0.8 by 1e-6.
        if not sound or not one.low - 1e-6 <= one.confidence / one.count <= one.high + 1e-6:
            self._invalid[one.model, one.version] += 1
            return Refused("malformed", "confidences lie in [0, 1], and their sum between their ends")
        if len(set(bin_index([one.low, one.high], bins=bins).tolist())) > 1:
            return Refused("malformed", f"low and high lie in one of {bins} bins")
        return self._refusal(ServedPrediction(one.model, one.version, one.predicted, one.high, one.segment))

    def _refusal(self, item: ServedPrediction) -> Refused | None:
        if not 0 <= item.confidence <= 1:
            self._invalid[item.model, item.version] += 1
            return Refused("malformed", f"confidence must be in [0, 1], got {item.confidence}")
        wrong = _malformed(item, self.models.get((item.model, item.version)))
        return Refused("malformed", wrong) if wrong else None


def _malformed(item: ServedPrediction, watched: Watched | None) -> str:  # noqa: PLR0911  a list of reasons
    """The reason why a prediction cannot be counted; empty if it can."""
    segment = f"a segment is a text of at most {LONGEST_SEGMENT} characters"
    if watched is None:  # held until it is known
        return "" if is_segment(item.segment) else segment
    classes = watched.classes.count
    if not 0 <= item.predicted < classes:
        return f"predicted must be in [0, {classes}), got {item.predicted}"
    if not is_segment(item.segment):
        return segment
    if item.shadow is not None and (wrong := _wrong_shadow(item.shadow, classes)):
        return wrong
    if item.id and not is_id(item.id):
        return f"an id is a text of 1 to {LONGEST_ID} characters"
    logits = 0 if watched.classes.pairs else classes
    if item.logits is not None and len(item.logits) != logits:
        none = "; of a multi-label model none are kept" if watched.classes.pairs else ""
        return f"logits must be {logits}, got {len(item.logits)}{none}"
    return ""


def _wrong_shadow(shadow: Shadow, classes: int) -> str:
    """The reason why a receipt may not hold this shadow; empty if it may."""
    if not 0 <= shadow.confidence <= 1:
        return f"the shadow's confidence must be in [0, 1], got {shadow.confidence}"
    if not 0 <= shadow.predicted < classes:
        return f"the shadow's predicted must be in [0, {classes}), got {shadow.predicted}"
    return "" if len(shadow.tag) == TAG else f"the shadow's tag must be {TAG} bytes, got {len(shadow.tag)}"
