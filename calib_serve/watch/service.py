"""One watched deployment: predictions and labels in, everything to publish out.

It joins the ledger (what is counted for good), the intake (what may be counted), the drift
detectors and a short history for the page. The HTTP app is a thin layer over it, and so may be
any program that embeds it.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from calib_serve.bins import Bins
from calib_serve.errors import InputError, LedgerError, Refused
from calib_serve.receipts import DAY, Keyring, Label
from calib_serve.watch.drift import Alarm, Detector
from calib_serve.watch.drift.confidence_shift import ConfidenceShift
from calib_serve.watch.history import History
from calib_serve.watch.intake import Classes, Intake, Outcome
from calib_serve.watch.ledger import Ledger, Version
from calib_serve.watch.ledger.sums import Key, Sums
from calib_serve.watch.samples import SampleLog

__all__ = ["OTHER", "Prediction", "Watch", "Watched"]

logger = logging.getLogger(__name__)

OTHER = "other"
"""The segment that counts what comes after ``max_segments`` different ones."""

_ALARMS = "watch/alarms"
_KEPT_ALARMS = 200


@dataclass(frozen=True)
class Watched:
    """A model version to watch: its classes, and its reference bins if it has an artifact."""

    classes: Classes
    reference: Bins | None = None


@dataclass(frozen=True)
class Prediction:
    """One served prediction: class id, top-1 confidence in [0, 1]; a segment and logits if any."""

    model: str
    version: str
    predicted: int
    confidence: float
    segment: str = ""
    logits: tuple[float, ...] | None = None


@dataclass
class _Counts:
    invalid: Counter[Version] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    shifts: Counter[Version] = field(default_factory=Counter)


class Watch:
    """Counts predictions and labels of the ``models`` and looks for drift; safe to use from threads.

    ``ttl``: seconds for which a label is welcome. ``max_segments``: how many different segments a
    version may have before the rest are counted as ``other``. ``log`` keeps a sample of logits and
    labels to refit on, of predictions that come with logits. Nothing is acknowledged before the
    ledger holds it; LedgerError means that nothing of the batch was counted.
    """

    def __init__(
        self,
        keyring: Keyring,
        ledger: Ledger,
        *,
        models: Mapping[Version, Watched],
        detector: Callable[[], Detector] | None = Detector,
        ttl: float = 30 * DAY,
        max_segments: int = 32,
        clock: Callable[[], float] = time.time,
        history_step: float = 300.0,
        log: SampleLog | None = None,
    ) -> None:
        if not models:
            raise InputError("no model to watch; give at least one model and version")
        self.keyring, self.ledger, self.models = keyring, ledger, dict(models)
        self.max_segments, self.ttl, self.log = max_segments, ttl, log
        self.counts = _Counts()
        self._clock = clock
        self._lock = threading.RLock()
        self.intake = Intake(
            keyring,
            ledger,
            models={version: watched.classes for version, watched in models.items()},
            detector=detector,
            ttl=ttl,
            clock=clock,
            on_counted=self._sample_labels,
            on_alarm=self._keep_alarm,
            segment=self._segment,
        )
        self.history = History(ledger, step=history_step, clock=clock)
        self.shifts = {v: ConfidenceShift(w.reference) for v, w in models.items() if w.reference is not None}
        self._segments: dict[Version, set[str]] = {}
        for key in ledger.by_segment():
            self._segments.setdefault((key.model, key.version), set()).add(key.segment)

    def predictions(
        self, items: Sequence[Prediction | Refused], *, once: bytes | None = None
    ) -> list[str | Refused]:
        """Count served predictions; a signed receipt for each, or why it was not counted.

        ``once``: a batch sent again under the same name is answered with fresh receipts and counted
        once.
        """
        now = self._clock()
        found = [item if isinstance(item, Refused) else self._admit(item) for item in items]
        good = [item for item in found if isinstance(item, Prediction)]
        with self._lock:
            grouped = _by_key(good)
            sums = {key: Sums.served(c, bins=self.ledger.bins) for key, c in grouped.items()}
            if self.ledger.add(sums, once=once, expires=now + DAY):
                self._look_for_shift(sums)
        self._beside("history", lambda: self.history.tick(self.ledger))
        nonces = [secrets.token_bytes(12) for _ in good]
        self._beside("samples", lambda: self._sample(good, nonces, now))
        fresh = iter(nonces)
        return [
            item if isinstance(item, Refused) else self._receipt(item, next(fresh), now) for item in found
        ]

    def labels(self, items: Sequence[object]) -> list[Outcome]:
        """Count late labels, ``{"receipt": ..., "label": ..., "segment": optional}``, once each."""
        with self._lock:
            outcomes = self.intake.take(items)
        self._beside("history", lambda: self.history.tick(self.ledger))
        return outcomes

    def alarms(self) -> list[dict[str, object]]:
        """The latest drift alarms, oldest first, as plain facts."""
        kept = self.ledger.load(_ALARMS)
        try:
            return [] if kept is None else list(json.loads(kept))
        except (ValueError, TypeError):
            return []  # they are told from here on; nothing is counted from them

    def _admit(self, item: Prediction) -> Prediction | Refused:
        version = (item.model, item.version)
        watched = self.models.get(version)
        if watched is None:
            return Refused("unknown_version", f"no model {item.model!r} version {item.version!r} here")
        if not 0 <= item.confidence <= 1:
            self.counts.invalid[version] += 1
            return Refused("malformed", f"confidence must be in [0, 1], got {item.confidence}")
        if not 0 <= item.predicted < watched.classes.count:
            return Refused(
                "malformed", f"predicted must be in [0, {watched.classes.count}), got {item.predicted}"
            )
        if item.logits is not None and len(item.logits) != watched.classes.count:
            return Refused("malformed", f"logits must be {watched.classes.count}, got {len(item.logits)}")
        return replace(item, segment=self._segment(version, item.segment))

    def _segment(self, version: Version, name: str) -> str:
        """The segment to count under: its own while there are few, ``other`` for the rest."""
        known = self._segments.setdefault(version, set())
        if not name or name in known:
            return name
        with self._lock:
            if len(known - {"", OTHER}) >= self.max_segments:
                return OTHER
            known.add(name)
        return name

    def _beside(self, stage: str, work: Callable[[], None]) -> None:
        """Do what must not undo an acknowledgement: its failure is counted, and the batch stays."""
        try:
            work()
        except (LedgerError, OSError) as error:
            logger.error("%s: %s", stage, error)
            self.counts.errors[stage] += 1

    def _sample_labels(self, labels: Sequence[Label]) -> None:
        if self.log is not None:
            log = self.log
            self._beside("samples", lambda: log.labelled(labels))

    def _sample(self, items: Sequence[Prediction], nonces: Sequence[bytes], now: float) -> None:
        if self.log is None:
            return
        by_version: dict[tuple[Version, int], list[tuple[bytes, tuple[float, ...]]]] = {}
        for item, nonce in zip(items, nonces, strict=True):
            if item.logits is not None:
                key = ((item.model, item.version), len(item.logits))
                by_version.setdefault(key, []).append((nonce, item.logits))
        for ((model, version), _), rows in by_version.items():
            kept, logits = zip(*rows, strict=True)
            self.log.predicted(model, version, kept, logits, times=[now] * len(kept))

    def _receipt(self, item: Prediction, nonce: bytes, now: float) -> str:
        return self.keyring.sign(
            model=item.model,
            version=item.version,
            predicted=item.predicted,
            confidence=item.confidence,
            time=now,
            nonce=nonce,
        )

    def _look_for_shift(self, sums: Mapping[Key, Sums]) -> None:
        for key, more in sums.items():
            version = (key.model, key.version)
            if version in self.shifts and self.shifts[version].update(more.predictions):
                self.counts.shifts[version] += 1

    def _keep_alarm(self, version: Version, alarm: Alarm) -> None:
        model, name = version
        said = {"model": model, "version": name, "at": self._clock(), **asdict(alarm)}

        def keep() -> None:
            with self.ledger.transaction():
                kept = [*self.alarms(), said]
                self.ledger.store(_ALARMS, json.dumps(kept[-_KEPT_ALARMS:]).encode())

        self._beside("alarms", keep)


def _by_key(items: Sequence[Prediction]) -> dict[Key, list[float]]:
    grouped: dict[Key, list[float]] = {}
    for item in items:
        grouped.setdefault(Key(item.model, item.version, item.segment), []).append(item.confidence)
    return grouped
