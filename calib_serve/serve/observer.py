"""What a TorchServe worker does with its predictions: a recorder, set up by this host's settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
from calib_serve.options import ServeOptions
from calib_serve.receipts import Keyring, LiveKeyring, SignedReceipt
from calib_serve.reporter.recorder import Recorder
from calib_serve.reporter.shadow import ReporterShadow
from calib_serve.serve.emit import Emitter
from calib_serve.serve.ids import IdWriter
from calib_serve.serve.lifecycle import end_cleanly
from calib_serve.serve.metrics_file import of_this_worker, undeclared
from calib_serve.signals import on_hangup
from calib_serve.watch.policy import LabelPolicy, parse_policy
from calib_serve.watch.samples import SampleLog

__all__ = ["Observer", "host_sample_log", "live_keyring", "observe"]


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

_DROPPED = (
    "the metrics file %s lacks %d of the series that this worker sends, such as %s: TorchServe drops them,"
    " unless model_metrics_auto_detect=true. Print a file that has all:"
    " python -m calib_serve.serve.metrics_file %s"
)


def observe(
    options: ModelOptions, artifact: Artifact, *, model: str, version: str, folder: Path | None = None
) -> Observer:
    """An observer for this worker, which sends its last counts when the worker ends.

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
    observer.before_answer = end_cleanly(observer.flush)
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
    """A recorder into the ``emitter`` of a worker; ``before_answer`` is called before each reply.

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
        self.before_answer: Callable[[], None] = lambda: None
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
        self.before_answer()
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
