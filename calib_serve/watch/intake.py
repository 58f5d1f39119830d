"""Intake of labels: each one is verified, counted once, and passed to the drift detector.

receipt -> signature and age -> a model we know -> a label in its range -> the ledger -> detector.
An invalid item is refused alone; the rest of its batch is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calib_serve.errors import InputError, Reason, Refused
from calib_serve.receipts import DAY, Keyring, Label
from calib_serve.watch.drift import Alarm, Detector
from calib_serve.watch.ledger import Ledger, Version

__all__ = ["LONGEST_SEGMENT", "Classes", "Intake", "Outcome"]

LONGEST_SEGMENT = 64
"""Characters of a segment's name."""


@dataclass(frozen=True)
class Classes:
    """What a label of one model version may be: an id in [0, count), or one of ``names``.

    >>> Classes(2, ("cat", "dog")).find("dog")
    1
    """

    count: int
    names: tuple[str, ...] = ()

    def find(self, label: object) -> int:
        """The class id of an id or a name, or Refused."""
        if isinstance(label, str) and label in self.names:
            return self.names.index(label)
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < self.count:
            return label
        names = f" or one of {list(self.names[:5])} ..." if self.names else ""
        raise Refused(
            "bad_label", f"a label is a class id from 0 to {self.count - 1}{names}, got {str(label)[:40]!r}"
        )


@dataclass(frozen=True)
class Outcome:
    """What became of one item: counted, or refused for ``reason``."""

    accepted: bool
    reason: Reason | None = None
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        if self.accepted:
            return {"accepted": True}
        return {"accepted": False, "reason": self.reason, "message": self.message}


class Intake:
    """Takes labels for the model versions in ``models`` and counts each of them once.

    ``ttl``: seconds after its prediction for which a label is accepted. ``detector``: makes the drift
    detector of a version whose first label comes in (None: no detection); its state is kept in the
    ledger, so all processes that share a ledger feed one detector. ``refused`` counts refusals by
    reason and ``alarms`` counts alarms by version, both since this object was made. ``segment``
    says under which segment to count a label that came with one (by default: none).
    """

    def __init__(
        self,
        keyring: Keyring,
        ledger: Ledger,
        *,
        models: Mapping[Version, Classes],
        detector: Callable[[], Detector] | None = Detector,
        ttl: float = 30 * DAY,
        clock: Callable[[], float] = time.time,
        on_counted: Callable[[Sequence[Label]], None] | None = None,
        on_alarm: Callable[[Version, Alarm], None] | None = None,
        segment: Callable[[Version, str], str] = lambda _version, _name: "",
    ) -> None:
        self.keyring, self.ledger, self.models = keyring, ledger, dict(models)
        self.refused: Counter[Reason] = Counter()
        self.alarms: Counter[Version] = Counter()
        self.evidence: dict[Version, tuple[float, float]] = {}
        self._detector, self._ttl, self._clock = detector, ttl, clock
        self._on_counted, self._on_alarm, self._segment = on_counted, on_alarm, segment

    def take(self, items: Sequence[object]) -> list[Outcome]:
        """Count every item that is right; one outcome an item, in order.

        An item is a mapping ``{"receipt": token, "label": id or name}``. Raises LedgerError when
        the ledger cannot keep them: send all again, and each is counted once.
        """
        now = self._clock()
        checked = [self._check(item, now) for item in items]
        labels = [label for label in checked if isinstance(label, Label)]
        segments = [
            self._segment_of(item, one)
            for item, one in zip(items, checked, strict=True)
            if isinstance(one, Label)
        ]
        with self.ledger.transaction():
            expires = [one.receipt.time + self._ttl for one in labels]
            fresh = self.ledger.accept(labels, expires=expires, segments=segments)
            counted = [one for one, new in zip(labels, fresh, strict=True) if new]
            raised = self._detect(counted) if self._detector else []
        # Callbacks run only after the ledger has committed.
        if counted and self._on_counted:
            self._on_counted(counted)
        for version, alarm in raised:
            self.alarms[version] += 1
            if self._on_alarm:
                self._on_alarm(version, alarm)
        news = iter(fresh)
        outcomes = [
            (_COUNTED if next(news) else _DUPLICATE) if isinstance(one, Label) else one for one in checked
        ]
        self.refused.update(o.reason for o in outcomes if o.reason)
        return outcomes

    def _check(self, item: object, now: float) -> Label | Outcome:
        try:
            if not isinstance(item, Mapping) or "receipt" not in item or "label" not in item:
                raise Refused("malformed", 'an item is {"receipt": "...", "label": class id or name}')
            if "segment" in item and not _is_segment(item["segment"]):
                raise Refused("malformed", f"a segment is a text of at most {LONGEST_SEGMENT} characters")
            receipt = self.keyring.verify(item["receipt"], now=now, ttl=self._ttl)
            classes = self.models.get((receipt.model, receipt.version))
            if classes is None:
                raise Refused(
                    "unknown_version", f"no model {receipt.model!r} version {receipt.version!r} here"
                )
            return Label(receipt, classes.find(item["label"]))
        except Refused as refusal:
            return Outcome(False, refusal.reason, str(refusal))

    def _segment_of(self, item: object, label: Label) -> str:
        name = item.get("segment", "") if isinstance(item, Mapping) else ""
        version = (label.receipt.model, label.receipt.version)
        return self._segment(version, name)

    def _detect(self, counted: Sequence[Label]) -> list[tuple[Version, Alarm]]:
        by_version: dict[Version, list[Label]] = {}
        for label in counted:
            by_version.setdefault((label.receipt.model, label.receipt.version), []).append(label)
        raised = []
        for version, labels in by_version.items():
            detector = self._restored(version)
            alarms = detector.update(
                [one.receipt.confidence for one in labels],
                [one.correct for one in labels],
                time=[one.receipt.time for one in labels],
            )
            self.ledger.store(detector_key(version), detector.state())
            self.evidence[version] = (detector.log_evidence, detector.log_threshold)
            raised += [(version, alarm) for alarm in alarms]
        return raised

    def _restored(self, version: Version) -> Detector:
        assert self._detector is not None
        made = self._detector()
        state = self.ledger.load(detector_key(version))
        if state is None:
            return made
        try:
            kept = Detector.restore(state)
        except InputError:
            return made  # a state of another format cannot be read: start anew
        # After a change of options a new detector starts.
        same = kept.options == made.options
        return kept if same else made


def _is_segment(name: object) -> bool:
    """A short text that any store can hold: half of a character pair cannot be written as UTF-8."""
    return (
        isinstance(name, str)
        and len(name) <= LONGEST_SEGMENT
        and (name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name))
    )


def detector_key(version: Version) -> str:
    """Where a version's detector lives in the ledger."""
    model, name = version
    return f"detector/{len(model)}/{model}/{name}"


_COUNTED = Outcome(True)
_DUPLICATE = Outcome(False, "duplicate", "a label for this receipt was counted before")
