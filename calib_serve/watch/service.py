"""One watched deployment: predictions and labels in, everything to publish out.

It joins the ledger (what is counted for good), the intake (what may be counted), the drift
detectors and a short history for the page. The HTTP app is a thin layer over it, and so may be
any program that embeds it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calib_serve.artifact import Artifact
from calib_serve.bins import Bins
from calib_serve.errors import InputError, LedgerError, Refused
from calib_serve.receipts import DAY, Keyring, Label
from calib_serve.watch.alarms import AlarmLog
from calib_serve.watch.drift import Alarm, ConfidenceShift, Detector
from calib_serve.watch.history import History
from calib_serve.watch.intake import Classes, Intake, Outcome
from calib_serve.watch.ledger import Key, Ledger, Sums, Version, open_ledger
from calib_serve.watch.samples import SampleLog
from calib_serve.watch.segments import Segments

__all__ = ["ServedPrediction", "Watch", "Watched"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watched:
    """A model version to watch: its classes, and its reference bins if it has an artifact."""

    classes: Classes
    reference: Bins | None = None

    @classmethod
    def of(cls, what: Artifact | str | Path | int) -> Watched:
        """Of an artifact, an artifact's folder, or the number of classes."""
        if isinstance(what, int):
            return cls(Classes(what))
        artifact = what if isinstance(what, Artifact) else Artifact.load(what)
        return cls(Classes(artifact.classes, artifact.class_names), artifact.reference)


@dataclass(frozen=True)
class ServedPrediction:
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

    ``Watch.open`` makes one from files; this constructor takes what is open already. ``detector`` makes
    the drift detector of a model version (None: no detection). ``ttl``: seconds after its prediction for
    which a label is accepted. ``max_segments``: how many different segments a version may have before the
    rest are counted as ``other``. ``history_step``: seconds between points of the page's curve. ``samples``
    keeps a sample of logits and labels to refit on, of predictions that come with logits.

    Nothing is acknowledged before the ledger holds it; LedgerError means that nothing of the batch was
    counted, and that it may be sent again.

    >>> import tempfile
    >>> from calib_serve import Keyring
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = f"{folder.name}/ledger.db"
    >>> with Watch.open({("digits", "1.0"): 10}, keyring=Keyring.new(), ledger=ledger) as watch:
    ...     (receipt,) = watch.predictions([ServedPrediction("digits", "1.0", predicted=7, confidence=0.9)])
    ...     outcomes = watch.labels([{"receipt": receipt, "label": 7}] * 2)
    >>> [(outcome.accepted, outcome.reason) for outcome in outcomes]
    [(True, None), (False, 'duplicate')]
    >>> folder.cleanup()
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
        samples: SampleLog | None = None,
    ) -> None:
        if not models:
            raise InputError("no model to watch; give at least one model and version")
        self.keyring, self.ledger, self.models, self.samples = keyring, ledger, dict(models), samples
        self.counts = _Counts()
        self.segments = Segments(max_segments, known=ledger.by_segment())
        self._alarms = AlarmLog(ledger, clock=clock)
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
            segment=self.segments.under,
        )
        self.history = History(ledger, step=history_step, clock=clock)
        self.shifts = {v: ConfidenceShift(w.reference) for v, w in models.items() if w.reference is not None}

    @classmethod
    def open(
        cls,
        models: Mapping[Version, Artifact | str | Path | int],
        *,
        keyring: Keyring | str | Path,
        ledger: str | Path = "ledger.db",
        writer: str = "",
        arl: float = 100_000,
        tolerance: float = 0.01,
        block: int = 1,
        ttl: float = 30 * DAY,
        max_segments: int = 32,
        history_step: float = 300.0,
        samples: str | Path | None = None,
        sample_rate: float = 0.1,
        sample_days: float = 30.0,
    ) -> Watch:
        """A watch over files; close it, or use it as a context manager.

        ``models``: by (model, version), an artifact, its folder, or the number of classes. ``keyring``:
        keys or their file. ``ledger``: a file, or ``redis://host:port/db`` with a ``writer`` for each
        replica. ``arl``, ``tolerance``, ``block``: those of the drift ``Detector``. ``samples``: a folder
        for a share ``sample_rate`` of logits and labels, each kept for ``sample_days``. The others are
        those of the constructor. Detector options, keyring, models and samples are
        validated before the ledger is opened.
        """
        detector = functools.partial(Detector, arl=arl, tolerance=tolerance, block=block)
        detector()  # validates its options at start-up
        ring = keyring if isinstance(keyring, Keyring) else Keyring.load(keyring)
        watched = {version: Watched.of(what) for version, what in models.items()}
        log = None if samples is None else SampleLog(samples, rate=sample_rate, days=sample_days)
        with contextlib.ExitStack() as on_error:
            book = open_ledger(str(ledger), writer=writer)
            on_error.callback(book.close)
            watch = cls(
                ring,
                book,
                models=watched,
                detector=functools.partial(detector, bins=book.bins),
                ttl=ttl,
                max_segments=max_segments,
                history_step=history_step,
                samples=log,
            )
            on_error.pop_all()
        if log is not None:
            log.start()
        return watch

    def close(self) -> None:
        """Close the ledger and write the samples that wait."""
        self.ledger.close()
        if self.samples is not None:
            self.samples.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def predictions(
        self, items: Sequence[ServedPrediction | Refused], *, once: bytes | None = None
    ) -> list[str | Refused]:
        """Count served predictions; a signed receipt for each, or why it was not counted.

        ``once``: a batch sent again under the same name is answered with fresh receipts and counted
        once.
        """
        now = self._clock()
        found = [item if isinstance(item, Refused) else self._admit(item) for item in items]
        good = [item for item in found if isinstance(item, ServedPrediction)]
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

    def alarms(self) -> list[dict[str, Any]]:
        """The latest drift alarms, oldest first: an ``Alarm``'s fields, model, version, and when (``at``)."""
        return self._alarms.latest()

    def _admit(self, item: ServedPrediction) -> ServedPrediction | Refused:
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
        return replace(item, segment=self.segments.under(version, item.segment))

    def _beside(self, stage: str, work: Callable[[], None]) -> None:
        """Run ``work``; its failure is counted and logged, and does not undo what was acknowledged."""
        try:
            work()
        except (LedgerError, OSError) as error:
            logger.error("%s: %s", stage, error)
            self.counts.errors[stage] += 1

    def _sample_labels(self, labels: Sequence[Label]) -> None:
        if samples := self.samples:
            self._beside("samples", lambda: samples.labelled(labels))

    def _sample(self, items: Sequence[ServedPrediction], nonces: Sequence[bytes], now: float) -> None:
        if self.samples is None:
            return
        by_version: dict[tuple[Version, int], list[tuple[bytes, tuple[float, ...]]]] = {}
        for item, nonce in zip(items, nonces, strict=True):
            if item.logits is not None:
                key = ((item.model, item.version), len(item.logits))
                by_version.setdefault(key, []).append((nonce, item.logits))
        for ((model, version), _), rows in by_version.items():
            kept, logits = zip(*rows, strict=True)
            self.samples.predicted(model, version, kept, logits, times=[now] * len(kept))

    def _receipt(self, item: ServedPrediction, nonce: bytes, now: float) -> str:
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
        self._beside("alarms", lambda: self._alarms.add(version, alarm))


def _by_key(items: Sequence[ServedPrediction]) -> dict[Key, list[float]]:
    grouped: dict[Key, list[float]] = {}
    for item in items:
        grouped.setdefault(Key(item.model, item.version, item.segment), []).append(item.confidence)
    return grouped
