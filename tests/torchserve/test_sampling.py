"""Samples for a refit: kept where the host asks, joined by receipt, and never in a prediction's way."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calib_serve.receipts import Keyring, Label
from calib_serve.receipts.samples import SampleLog, read_samples
from calib_serve.torchserve._channel import Emitter
from calib_serve.torchserve._observer import Observer

LOGITS = np.array([[2.0, 0.5, -1.0], [0.0, 1.0, 0.25]])
SERVED = [(0, 0.8), (1, 0.5)]


def observer(samples: SampleLog | None, ring: Keyring | None, sent: list[str]) -> Observer:
    emitter = Emitter(write=sent.append, interval=3600)
    return Observer(emitter, model="m", version="1", bins=15, keyring=ring, samples=samples)


def test_logits_and_late_labels_meet_again_by_receipt(tmp_path: Path) -> None:
    ring, log = Keyring.new(), SampleLog(tmp_path, rate=1.0)
    watched = observer(log, ring, [])
    receipts = watched.served(SERVED, logits=list(LOGITS))
    watched.flush()
    log.labelled([Label(ring.verify(str(receipts[1])), 2)])
    log.flush()
    kept = read_samples(tmp_path, model="m", version="1")
    assert (kept.predictions, kept.labels.tolist()) == (2, [2])
    assert np.allclose(kept.logits, LOGITS[1:])
