"""What is remembered of served predictions: counters and receipts. It never raises.

Monitoring fails open: whatever breaks in here, the prediction goes out as it would have, and
``calib_monitor_errors_total`` counts what broke.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.fuse.mar_options import KEYRING, ModelOptions, from_environment
from calib_serve.receipts import Keyring
from calib_serve.serve.emit import Emitter, Key
from calib_serve.serve.lifecycle import end_cleanly

__all__ = ["FEEDBACK", "Observer", "observe"]

log = logging.getLogger(__name__)

_SERVED = ("calib_predictions_total", "calib_predictions_confidence_total", "calib_invalid_outputs_total")
FEEDBACK = (
    "calib_feedback_total",
    "calib_feedback_confidence_total",
    "calib_feedback_correct_total",
    "calib_feedback_confidence_squared_total",
    "calib_feedback_confidence_correct_total",
    "calib_drift_alarms_total",
)


def observe(options: ModelOptions, artifact: Artifact, *, model: str, version: str) -> Observer:
    """An observer for this worker, which sends its last counts when the worker ends."""
    path = from_environment(KEYRING)
    if path is None:
        log.warning("receipts are off: %s does not name a keyring (calib-serve keys new FILE)", KEYRING)
    reference = artifact.reference
    emitter = Emitter(interval=options.flush_seconds)
    if reference is not None and reference.n:
        # What the calibration set looked like, the same from every worker: drift is seen against it.
        for b, count in enumerate(reference.count.tolist()):
            emitter.set("calib_reference_share", count / reference.n, model, version, str(b))
    observer = Observer(
        emitter,
        model=model,
        version=version,
        bins=15 if reference is None else len(reference),
        keyring=None if path is None else Keyring.load(path),
    )
    end_cleanly(observer.close)
    return observer


class Observer:
    """Counts and signs the predictions of one model version; ``keyring`` None means no receipts."""

    def __init__(
        self, emitter: Emitter, *, model: str, version: str, bins: int, keyring: Keyring | None
    ) -> None:
        self._emitter, self._model, self._version, self._keyring = emitter, model, version, keyring
        # The same edges as bins.bin_index, which is made for arrays: bisect is quicker for a few.
        self._inner = np.linspace(0, 1, bins + 1)[1:-1].tolist()
        self._keys = [tuple((name, (model, version, str(b))) for name in _SERVED[:2]) for b in range(bins)]
        # Labels may come before the feedback model counts its first: its series start here too.
        emitter.create((*_SERVED, *FEEDBACK), model=model, version=version, bins=bins)
        emitter.add("calib_monitor_errors_total", 0, "record")
        emitter.add("calib_monitor_errors_total", 0, "receipt")
        emitter.flush()
        emitter.start()

    def served(self, predictions: Sequence[tuple[int, float]], *, invalid: int = 0) -> list[str | None]:
        """Count (predicted class, confidence) pairs and sign a receipt for each."""
        try:
            changes: dict[Key, float] = {}
            for _, confidence in predictions:
                count, total = self._keys[bisect.bisect_left(self._inner, confidence)]
                changes[count] = changes.get(count, 0) + 1
                changes[total] = changes.get(total, 0) + confidence
            self._emitter.add_all(changes)
            if invalid:
                self._emitter.add("calib_invalid_outputs_total", invalid, self._model, self._version)
        except Exception as error:  # fails open
            self._broken("record", error)
        return [self._sign(predicted, confidence) for predicted, confidence in predictions]

    def close(self) -> None:
        """Send what is waiting, for the last time."""
        try:
            self._emitter.close()
        except Exception as error:  # fails open
            self._broken("record", error)

    def _sign(self, predicted: int, confidence: float) -> str | None:
        if self._keyring is None:
            return None
        try:
            return self._keyring.sign(
                model=self._model, version=self._version, predicted=predicted, confidence=confidence
            )
        except Exception as error:  # fails open
            self._broken("receipt", error)
            return None

    def _broken(self, stage: str, error: Exception) -> None:
        try:
            self._emitter.add("calib_monitor_errors_total", 1, stage)
        except Exception:  # the counter itself is broken: a log line is all that is left
            log.warning("monitoring failed at %s: %s", stage, type(error).__name__)
