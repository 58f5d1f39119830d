"""The kept detector state and samples of format 1 are read from now on; an unknown format is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calib_serve.watch.drift import Detector
from calib_serve.watch.samples import read_samples

KEPT = Path(__file__).parents[1] / "kept" / "watch"
STATE = KEPT / "detector-format-1.state"


def test_a_kept_detector_goes_on_where_it_was() -> None:
    kept = Detector.restore(STATE.read_bytes())
    then = json.loads((KEPT / "detector-format-1.json").read_text())
    assert kept.labels == then["labels"]
    alarms = kept.update(
        then["confidence"],
        then["correct"],
        time=300 + np.arange(400.0),
        predicted=np.arange(400) % 3,
        group=np.zeros(400, int),
    )
    assert kept.labels == then["labels"] + 400
    assert [[one.label, one.direction] for one in alarms] == then["alarms"]
    assert kept.log_evidence == pytest.approx(then["log_evidence"], rel=1e-9)


def test_kept_samples_are_read() -> None:
    found = read_samples(KEPT / "samples", model="pets", version="1")
    assert found.labels.tolist() == [0, 2]
    assert found.logits.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert (found.predictions, found.labels_seen, found.damaged) == (3, 2, 0)
