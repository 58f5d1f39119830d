"""The observer of a TorchServe worker: counts and signs predictions, and sends the counters on."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import CalibServeError, ModelError
from calib_serve.core.options.samples import SampleOptions
from calib_serve.core.process import on_hangup
from calib_serve.receipts import (
    KEYRING,
    LABEL_BUDGET,
    LEDGER,
    SAMPLE_RATE,
    SAMPLES,
    LiveKeyring,
    Recorder,
    ReporterShadow,
    SampleLog,
    SeriesKey,
    SignedReceipt,
    Tag,
    from_environment,
    parse_policy,
)
from calib_serve.torchserve._bound import REASONS, UnmatchedShare
from calib_serve.torchserve._channel import Emitter
from calib_serve.torchserve.mar_options import ModelOptions
from calib_serve.torchserve.metrics_file import of_this_worker, undeclared

if TYPE_CHECKING:
    from calib_serve.ledger import Binding, PredictionIds

log = logging.getLogger(__name__)

_DROPPED = (
    "the metrics file %s lacks %d of the series that this worker sends, such as %s: TorchServe drops them,"
    " unless model_metrics_auto_detect=true. All are in the file that this prints:"
    " python -m calib_serve.torchserve.metrics_file"
)
_UNMATCHED = (
    "%s %s: over a share of %g of the latest replies go out without a receipt: their class or numbers are not"
    " those of the scores that are calibrated, or nothing in them can be compared; by reason now: %s"
)


def live_keyring(path: str, emitter: Emitter) -> LiveKeyring:
    """Open the keyring in ``path``, read again when it changed and on SIGHUP; failures are counted.

    KeyringError where it cannot be read to begin with.
    """
    ring = LiveKeyring(path, failed=lambda: emitter.failed("keyring"))
    on_hangup(ring.again)
    return ring


def host_sample_log() -> SampleLog | None:
    """Open the log in ``CALIB_SERVE_SAMPLES``, at rate ``CALIB_SERVE_SAMPLE_RATE``; None where unset.

    Written every minute, as a server that stops kills its workers.
    """
    folder, rate = from_environment(SAMPLES), from_environment(SAMPLE_RATE)
    if folder is None:
        if rate is not None:
            log.warning("%s is of samples, and %s names no folder to keep them in", SAMPLE_RATE, SAMPLES)
        return None
    try:
        return SampleLog(folder, rate=float(rate or SampleOptions.sample_rate)).start()
    except (ValueError, OSError) as error:
        raise ModelError(f"cannot keep samples in {folder} at rate {rate}: {error}") from error


def observe(
    options: ModelOptions, artifact: Artifact, *, model: str, version: str, folder: Path | None = None
) -> Observer:
    """Make an observer for this worker; its ``flush`` sends the counts.

    ``folder``: where the archive lies, for the artifact that runs in the shadow of the served one, if any.
    """
    path = from_environment(KEYRING)
    if path is None:
        log.warning("receipts are off: %s does not name a keyring (calib-serve keys new FILE)", KEYRING)
    if (metrics := of_this_worker()) and (dropped := undeclared(metrics)):
        log.warning(_DROPPED, metrics, len(dropped), dropped[0])
    reference = artifact.reference
    emitter = Emitter(interval=options.flush_seconds)
    if reference is not None and reference.n:
        # The calibration set's bins, the same from every worker: the reference for drift.
        for b, count in enumerate(reference.count.tolist()):
            emitter.set("calib_reference_share", count / reference.n, model, version, str(b))
    # A sample is found by its receipt, and here each is of one label of it.
    if artifact.is_multilabel and from_environment(SAMPLES):
        log.warning("no samples are kept: of a multi-label model, receipts are of single labels")
    budget = from_environment(LABEL_BUDGET)
    observer = Observer(
        emitter,
        model=model,
        version=version,
        bins=15 if reference is None else len(reference),
        keyring=None if path is None else live_keyring(path, emitter),
        samples=None if artifact.is_multilabel else host_sample_log(),
        policy=None if budget is None else parse_policy(budget, workers=options.workers),
        shadow=_shadow(options, artifact, folder),
    )
    if options.shadow and observer.shadow is None:
        observer.broken("shadow")
    return observer


def _shadow(options: ModelOptions, artifact: Artifact, folder: Path | None) -> ReporterShadow | None:
    """Load the archive's shadow; a broken one is logged, and serving goes on without it."""
    if not options.shadow or folder is None:
        return None
    try:
        return ReporterShadow(folder / options.shadow, artifact)
    except CalibServeError as error:
        log.error("no shadow runs: %s", error)
        return None


class Observer(Recorder):
    """A recorder into the ``emitter`` of a worker.

    ``shadow`` says of the logits that come with predictions what it would have served.
    """

    def __init__(
        self, emitter: Emitter, *, model: str, shadow: ReporterShadow | None = None, **more: Any
    ) -> None:
        tag = b"" if shadow is None else shadow.tag
        super().__init__(emitter, model=model, shadow_tag=tag, **more)
        self._emitter, self.shadow = emitter, shadow
        self._ids = IdWriter(
            from_environment(LEDGER), model=model, failed=lambda times: self.broken("ids", times=times)
        )
        emitter.before_flush = self.settle
        self._share, self._well, self._note_at = UnmatchedShare(), True, 0.0
        emitter.add_all({self._unmatched(reason): 0 for reason in REASONS})
        emitter.failed("emit", "ids", times=0)
        emitter.flush()
        emitter.start()

    def sign(
        self,
        predictions: Sequence[tuple[int, float]],
        tags: Sequence[Tag] = (),
        *,
        logits: Sequence[NDArray[Any]] = (),
        shadows: Sequence[tuple[int, float] | None] = (),
        share: float = 1.0,
    ) -> list[SignedReceipt | None]:
        """Sign predictions, as Recorder does, and bind their ids."""
        if self.shadow is not None and predictions:
            try:
                # Before the receipts are signed: they carry what the shadow would have served.
                rows = range(len(predictions))
                shadows = self.shadow.says(rows, probs=None, logits=np.stack(logits))
            except Exception as error:  # fails open
                self.broken("shadow", error, times=len(predictions))
        receipts = super().sign(predictions, tags, logits=logits, shadows=shadows, share=share)
        if any(tag.id for tag in tags):
            try:
                self._ids.put(tags, receipts)
            except Exception as error:  # fails open
                self.broken("ids", error, times=len(tags))
        return receipts

    def unmatched(self, replies: Sequence[tuple[str, int]]) -> None:
        """Count predictions that go out without a receipt, and check that they are few.

        ``replies``: of each the reason why it has none, or "", and its number of predictions.
        """
        counts = Counter[str]()
        for reason, predictions in replies:
            if reason:
                counts[reason] += predictions
        if counts:
            self._emitter.add_all({self._unmatched(name): n for name, n in counts.items()})
        before, self._well = self._well, self._share.update(bool(reason) for reason, _ in replies)
        if before and not self._well:
            log.warning(_UNMATCHED, self.model, self.version, UnmatchedShare.most, dict(counts))

    def _unmatched(self, reason: str) -> SeriesKey:
        return "calib_unmatched_total", (self.model, self.version, reason)

    def settle(self) -> None:
        """Add up the queued predictions, bind their ids, and note in the ledger that the check fails."""
        super().settle()
        try:
            self._ids.flush()
        except Exception as error:  # fails open
            self.broken("ids", error)
        if not self._well and time.monotonic() >= self._note_at:
            self._note_at = time.monotonic() + 60  # the ledger tells it for five minutes
            try:
                self._ids.note_replies(f"{self.model} {self.version} at {socket.gethostname()}")
            except Exception as error:  # fails open
                self.broken("record", error)

    def flush(self) -> None:
        """Send pending counts, and write the waiting samples."""
        super().flush()
        try:
            self._emitter.flush()
        except Exception as error:  # fails open
            self.broken("record", error)


class IdWriter:
    """Binds the ids of one model's predictions in the ledger ``where``; None: without a ledger.

    An id is bound before its prediction is answered, so that its label may come at once. While the ledger is
    away predictions do not wait for it, and their ids do. ``failed`` is called with a number of ids that name
    no prediction, or cannot yet.
    """

    def __init__(self, where: str | None, *, model: str, failed: Callable[[int], None]) -> None:
        self._where, self._model, self._failed = where, model, failed
        self._waiting: deque[Binding] = deque()
        self._ids: PredictionIds | None = None
        self._said, self._away = False, False
        self._turn = threading.Lock()

    def put(self, tags: Sequence[Tag], receipts: Sequence[SignedReceipt | None]) -> None:
        """Bind the ids among ``tags``, or with the next ``flush`` where the ledger failed the last time."""
        from calib_serve.ledger import Binding  # noqa: PLC0415 - only where ids come
        from calib_serve.receipts import is_id  # noqa: PLC0415 - only where ids come

        named = [(tag.id, receipt) for tag, receipt in zip(tags, receipts, strict=True) if tag.id]
        if self._where is None and named and not self._said:
            self._said = True
            log.warning(
                "requests name ids, and %s names no ledger to keep them: labels need receipts", LEDGER
            )
        # Bounded: a ledger that stays away must not take the worker's memory.
        room = 0 if self._where is None else 100_000 - len(self._waiting)
        made = [Binding(self._model, id, str(one)) for id, one in named if one is not None and is_id(id)]
        self._waiting.extend(made[:room])
        if lost := len(named) - len(made[:room]):
            self._failed(lost)
        if not self._away:
            self.flush()

    def flush(self) -> None:
        """Bind the waiting ids, durable on return; they go on to wait where the ledger fails."""
        with self._turn:
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(len(self._waiting), 500))]
                try:
                    ids = self._opened()
                    bound = ids.bind(some, now=self._ledger.time.now())
                except (CalibServeError, OSError) as error:
                    log.error("ids cannot be kept yet: %s", error)
                    self._waiting.extendleft(reversed(some))
                    self._failed(len(some))
                    self._away = True
                    return
                self._away = False
                if lost := len(bound) - sum(bound):  # another prediction has the id
                    self._failed(lost)

    def note_replies(self, server: str) -> None:
        """Note in the ledger, where there is one, that this server's replies show other scores."""
        from calib_serve.monitor import note_replies  # noqa: PLC0415 - SQLAlchemy takes a while

        if self._where is not None:
            with self._turn:
                self._opened()
                note_replies(self._ledger, server, now=self._ledger.time.now())

    def _opened(self) -> PredictionIds:
        if self._ids is None:
            from calib_serve.ledger import Ledger, PredictionIds  # noqa: PLC0415 - SQLAlchemy takes a while

            # Seconds that one prediction waits for a ledger which others write to.
            self._ledger = Ledger(str(self._where), timeout=0.25)
            self._ids = PredictionIds(self._ledger)
        return self._ids
