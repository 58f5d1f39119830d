"""What a TorchServe worker does with its predictions: a recorder, set up by this host's settings."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import CalibServeError, ModelError
from calib_serve.fuse.mar_options import (
    KEYRING,
    LABEL_BUDGET,
    LEDGER,
    SAMPLE_RATE,
    SAMPLE_SECONDS,
    SAMPLES,
    ModelOptions,
    from_environment,
)
from calib_serve.options.serve import ServeOptions
from calib_serve.receipts import Keyring, LiveKeyring, SignedReceipt
from calib_serve.reporter.given import ReporterShadow
from calib_serve.reporter.recorder import Recorder, Tag
from calib_serve.serve.emit import Emitter
from calib_serve.serve.metrics_file import of_this_worker, undeclared
from calib_serve.signals import on_hangup
from calib_serve.watch.policy import LabelPolicy, parse_policy
from calib_serve.watch.samples import SampleLog

if TYPE_CHECKING:
    from calib_serve.watch.intake import Binding, PredictionIds

__all__ = ["IdWriter", "Observer", "host_sample_log", "live_keyring", "observe"]


def live_keyring(path: str, emitter: Emitter) -> LiveKeyring:
    """The keyring in ``path``, read again when it changed and on SIGHUP; a failure of that is counted.

    KeyringError where it cannot be read to begin with.
    """
    ring = LiveKeyring(path, failed=lambda: emitter.failed("keyring"))
    on_hangup(ring.again)
    return ring


def host_sample_log() -> SampleLog | None:
    """The log in ``CALIB_SERVE_SAMPLES``, at rate ``CALIB_SERVE_SAMPLE_RATE``; None where unset.

    Written every ``CALIB_SERVE_SAMPLE_SECONDS``: a server that stops kills its workers. Both default to those
    of ``ServeOptions``.
    """
    folder, rate = from_environment(SAMPLES), from_environment(SAMPLE_RATE)
    if folder is None:
        return None
    try:
        seconds = float(from_environment(SAMPLE_SECONDS) or ServeOptions.sample_seconds)
        return SampleLog(folder, rate=float(rate or ServeOptions.sample_rate), flush_seconds=seconds).start()
    except (ValueError, OSError) as error:
        raise ModelError(f"cannot keep samples in {folder} at rate {rate}: {error}") from error


log = logging.getLogger(__name__)

_MOST_IDS = 100_000  # ids that wait for the ledger
_IDS_AT_ONCE = 500
_PATIENCE = 0.25  # seconds that one prediction waits for a ledger which others write to

_DROPPED = (
    "the metrics file %s lacks %d of the series that this worker sends, such as %s: TorchServe drops them,"
    " unless model_metrics_auto_detect=true. Print a file that has all:"
    " python -m calib_serve.serve.metrics_file %s"
)


def observe(
    options: ModelOptions, artifact: Artifact, *, model: str, version: str, folder: Path | None = None
) -> Observer:
    """An observer for this worker; its ``flush`` sends what is counted.

    ``folder``: where the archive lies, for the artifact that runs in the shadow of the served one, if any.
    """
    path = from_environment(KEYRING)
    if path is None:
        log.warning("receipts are off: %s does not name a keyring (calib-serve keys new FILE)", KEYRING)
    if (metrics := of_this_worker()) and (dropped := undeclared(metrics)):
        log.warning(_DROPPED, metrics, len(dropped), dropped[0], metrics)
    reference = artifact.reference
    emitter = Emitter(interval=options.flush_seconds)
    if reference is not None and reference.n:
        # The calibration set's bins, the same from every worker: the reference for drift.
        for b, count in enumerate(reference.count.tolist()):
            emitter.set("calib_reference_share", count / reference.n, model, version, str(b))
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
    """The archive's shadow; a broken one is said, and what is served goes on without."""
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
        self,
        emitter: Emitter,
        *,
        model: str,
        version: str,
        bins: int,
        keyring: Keyring | LiveKeyring | None,
        samples: SampleLog | None = None,
        policy: LabelPolicy | None = None,
        shadow: ReporterShadow | None = None,
    ) -> None:
        super().__init__(
            emitter,
            model=model,
            version=version,
            bins=bins,
            keyring=keyring,
            samples=samples,
            policy=policy,
            shadow_tag=b"" if shadow is None else shadow.tag,
        )
        self._emitter, self.shadow = emitter, shadow
        self._ids = IdWriter(
            from_environment(LEDGER), model=model, failed=lambda times: self.broken("ids", times=times)
        )
        emitter.before_flush = self.settle
        emitter.failed("emit", "ids", times=0)
        emitter.flush()
        emitter.start()

    def served(
        self, predictions: Sequence[tuple[int, float]], *, logits: Sequence[NDArray[Any]] = (), **more: Any
    ) -> list[SignedReceipt | None]:
        """See Recorder."""
        if self.shadow is not None and predictions:
            try:
                rows = range(len(predictions))
                more["shadows"] = self.shadow.says(rows, probs=None, logits=np.stack(logits))
            except Exception as error:  # fails open
                self.broken("shadow", error, times=len(predictions))
        receipts = super().served(predictions, logits=logits, **more)
        tags = more.get("tags", ())
        if any(tag.id for tag in tags):
            try:
                self._ids.put(tags, receipts)
            except Exception as error:  # fails open
                self.broken("ids", error, times=len(tags))
        return receipts

    def settle(self) -> None:
        """Add up what waits, and bind the ids that came."""
        super().settle()
        try:
            self._ids.flush()
        except Exception as error:  # fails open
            self.broken("ids", error)

    def flush(self) -> None:
        """Send pending counts, and write the samples that wait."""
        super().flush()
        try:
            self._emitter.flush()
        except Exception as error:  # fails open
            self.broken("record", error)


class IdWriter:
    """Binds the ids of one model's predictions in the ledger ``where``; None: there is none.

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
        """Bind the ids among ``tags``, with the next ``flush`` where the ledger was away at the last one."""
        from calib_serve.watch.intake import Binding  # noqa: PLC0415 - only where ids come
        from calib_serve.watch.slices import is_id  # noqa: PLC0415 - only where ids come

        named = [(tag.id, receipt) for tag, receipt in zip(tags, receipts, strict=True) if tag.id]
        if self._where is None and named and not self._said:
            self._said = True
            log.warning(
                "requests name ids, and %s names no ledger to keep them: labels need receipts", LEDGER
            )
        room = 0 if self._where is None else _MOST_IDS - len(self._waiting)
        made = [Binding(self._model, id, str(one)) for id, one in named if one is not None and is_id(id)]
        self._waiting.extend(made[:room])
        if lost := len(named) - len(made[:room]):
            self._failed(lost)
        if not self._away:
            self.flush()

    def flush(self) -> None:
        """Bind what waits, durable on return; it goes on to wait where the ledger fails."""
        with self._turn:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), _IDS_AT_ONCE))]
            try:
                bound = self._opened().bind(some, now=time.time())
            except (CalibServeError, OSError) as error:
                log.error("ids cannot be kept yet: %s", error)
                self._waiting.extendleft(reversed(some))
                self._failed(len(some))
                self._away = True
                return
            self._away = False
            if lost := len(bound) - sum(bound):  # another prediction has the id
                self._failed(lost)

    def _opened(self) -> PredictionIds:
        if self._ids is None:
            from calib_serve.watch.intake import PredictionIds  # noqa: PLC0415 - SQLAlchemy takes a while
            from calib_serve.watch.ledger import Ledger  # noqa: PLC0415

            self._ids = PredictionIds(Ledger(str(self._where), timeout=_PATIENCE))
        return self._ids
