"""Counters and receipts of served predictions. It never raises.

Monitoring fails open: a failure here does not change the prediction, and
``calib_monitor_errors_total`` counts it.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.fuse.mar_options import KEYRING, LABEL_BUDGET, SAMPLES, ModelOptions, from_environment
from calib_serve.nonces import Nonces
from calib_serve.receipts import Keyring, LiveKeyring, SignedReceipt, group_number
from calib_serve.serve.emit import Emitter, Key
from calib_serve.serve.keys import live_keyring
from calib_serve.serve.lifecycle import end_cleanly
from calib_serve.serve.metrics_file import of_this_worker, undeclared
from calib_serve.serve.sampling import host_sample_log
from calib_serve.watch.policy import LabelPolicy, parse_policy
from calib_serve.watch.samples import SampleLog
from calib_serve.watch.series import PUBLISHED

__all__ = ["FEEDBACK", "Observer", "Tag", "observe"]

log = logging.getLogger(__name__)

_PREDICTIONS = tuple(one for one in PUBLISHED if one.of == "predictions")
_SERVED = (
    *(one.name for one in _PREDICTIONS),
    "calib_invalid_outputs_total",
    "calib_uncalibrated_total",
)
FEEDBACK = (
    *(one.name for one in PUBLISHED if one.of == "labels"),
    "calib_drift_alarms_total",
    "calib_incidents_total",
    "calib_feedback_late_total",
)
"""The counters that labels feed, by model and version."""

_DROPPED = (
    "the metrics file %s lacks %d of the series that this worker sends, such as %s: TorchServe drops them,"
    " unless model_metrics_auto_detect=true. Print a file that has all:"
    " python -m calib_serve.serve.metrics_file %s"
)


class Tag(NamedTuple):
    """What a request names by its headers x-calib-segment and x-calib-group; "" where it does not."""

    segment: str = ""
    group: str = ""


_NO_TAG = Tag()


def observe(options: ModelOptions, artifact: Artifact, *, model: str, version: str) -> Observer:
    """An observer for this worker, which sends its last counts when the worker ends."""
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
    )
    observer.before_answer = end_cleanly(observer.flush)
    return observer


class Observer:
    """Counts and signs the predictions of one model version; ``keyring`` None means no receipts.

    ``samples`` keeps logits of signed predictions for a later refit; ``policy`` says whose labels are wanted.
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
    ) -> None:
        self._policy = policy
        self._samples = samples if keyring else None  # labels find their samples by receipts
        self._emitter, self._model, self._version, self._keyring = emitter, model, version, keyring
        self._nonces = Nonces()
        # The same edges as bins.bin_index; bisect is faster for a few values.
        self._inner = np.linspace(0, 1, bins + 1)[1:-1].tolist()
        self._sums = [
            [((one.name, (model, version, str(b))), one.adds) for one in _PREDICTIONS] for b in range(bins)
        ]
        self.before_answer: Callable[[], None] = lambda: None
        # The feedback model's series start here too, before its first label.
        emitter.create((*_SERVED, *FEEDBACK), model=model, version=version, bins=bins)
        emitter.failed("record", "receipt", "keyring", "samples", "emit", times=0)
        emitter.flush()
        emitter.start()

    def served(
        self,
        predictions: Sequence[tuple[int, float]],
        *,
        logits: Sequence[NDArray[Any]] = (),
        tags: Sequence[Tag] = (),
        invalid: int = 0,
        counted: NDArray[np.float64] | None = None,
    ) -> list[SignedReceipt | None]:
        """Count (predicted class, confidence) pairs and sign a receipt for each.

        ``logits`` (K,) of each are what the output calibration was applied to; ``tags``: what
        their requests name, or none where rows are not requests. ``counted`` (m,): the confidences of all
        that is predicted, where ``predictions`` are drawn from it, each with the same chance.
        """
        try:
            confidences = [confidence for _, confidence in predictions]
            self._emitter.add_all(self._changes(confidences) if counted is None else self._many(counted))
            if invalid:
                self._emitter.add("calib_invalid_outputs_total", invalid, self._model, self._version)
        except Exception as error:  # fails open
            self.broken("record", error)
        now, nonces = time.time(), [self._nonces.draw() for _ in predictions]
        tags = tags if len(tags) == len(predictions) else [_NO_TAG] * len(predictions)
        share = 1.0 if counted is None else len(predictions) / max(len(counted), 1)
        receipts = self._signed(predictions, nonces, tags, now, share)
        if self._samples and nonces:
            self._keep(self._samples, nonces, logits, now)
        self.before_answer()
        return receipts

    def _changes(self, confidences: Sequence[float]) -> dict[Key, float]:
        changes: dict[Key, float] = {}
        for confidence in confidences:
            for key, adds in self._sums[bisect.bisect_left(self._inner, confidence)]:
                changes[key] = changes.get(key, 0) + adds(confidence, 0, 1)
        return changes

    def _many(self, confidences: NDArray[np.float64]) -> dict[Key, float]:
        """The same of an array."""
        at = np.searchsorted(self._inner, confidences)
        return {
            key: float(np.sum(adds(confidences[at == b], 0, 1)))
            for b in np.unique(at).tolist()
            for key, adds in self._sums[b]
        }

    @property
    def signs(self) -> bool:
        """Whether predictions get receipts."""
        return self._keyring is not None

    def uncalibrated(self, requests: int) -> None:
        """Count requests whose answer went out as the model gave it."""
        try:
            self._emitter.add("calib_uncalibrated_total", requests, self._model, self._version)
        except Exception as error:  # fails open
            self.broken("record", error)

    def _keep(self, samples: SampleLog, nonces: list[bytes], logits: Sequence[Any], now: float) -> None:
        try:
            times = [now] * len(nonces)
            samples.predicted(self._model, self._version, nonces, np.stack(logits), times=times)
        except Exception as error:  # fails open
            self.broken("samples", error)

    def flush(self) -> None:
        """Send pending counts."""
        try:
            if self._samples:
                self._samples.flush()
        except Exception as error:  # fails open
            self.broken("samples", error)
        try:
            self._emitter.flush()
        except Exception as error:  # fails open
            self.broken("record", error)

    def _signed(
        self,
        predictions: Sequence[tuple[int, float]],
        nonces: Sequence[bytes],
        tags: Sequence[Tag],
        now: float,
        share: float,
    ) -> list[SignedReceipt | None]:
        if self._keyring is None:
            return [None] * len(predictions)
        try:
            wanted, inclusion = [True] * len(predictions), [1.0] * len(predictions)
            if self._policy is not None:
                drawn, chance = self._policy.draw([confidence for _, confidence in predictions])
                wanted, inclusion = drawn.tolist(), chance.tolist()
            ring = self._keyring.current()
            return [
                ring.sign(
                    model=self._model,
                    version=self._version,
                    predicted=predicted,
                    confidence=confidence,
                    time=now,
                    nonce=nonce,
                    segment=tag.segment,
                    group=group_number(tag.group),
                    wanted=asked,
                    inclusion=pi * share,
                )
                for (predicted, confidence), nonce, tag, asked, pi in zip(
                    predictions, nonces, tags, wanted, inclusion, strict=True
                )
            ]
        except Exception as error:  # fails open
            self.broken("receipt", error, times=len(predictions))
            return [None] * len(predictions)

    def broken(self, stage: str, error: Exception | None = None, *, times: int = 1) -> None:
        """Count a failure of the monitoring at ``stage``, by ``error`` if by one; never raises."""
        try:
            self._emitter.failed(stage, times=times)
        except Exception:  # the counter itself failed: only log it
            log.warning("monitoring failed at %s: %s", stage, type(error).__name__)
