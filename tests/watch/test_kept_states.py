"""Detector states and samples that were written earlier are still read; see ``tests/kept/watch``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calib_serve.errors import InputError, LedgerError
from calib_serve.watch.drift import Detector, detector
from calib_serve.watch.samples import read_samples

KEPT = Path(__file__).parents[1] / "kept" / "watch"
SINCE = 5  # the first format that a release of this program wrote


@pytest.mark.parametrize("number", range(SINCE, detector._FORMAT + 1))
def test_a_detector_of_every_format_goes_on_where_it_was(number: int) -> None:
    kept = Detector.restore((KEPT / f"detector-format-{number}.state").read_bytes())
    then = json.loads((KEPT / f"detector-format-{number}.json").read_text())
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


def test_a_detector_of_a_format_that_is_not_known_says_so() -> None:
    head, _, body = (KEPT / f"detector-format-{SINCE}.state").read_bytes().partition(b"\n")
    other = json.dumps({**json.loads(head), "format": detector._FORMAT + 1}).encode()
    with pytest.raises(LedgerError, match=f"format {detector._FORMAT + 1}, which a newer calib-serve wrote"):
        Detector.restore(other + b"\n" + body)
    other = json.dumps({**json.loads(head), "format": SINCE - 1}).encode()
    with pytest.raises(InputError, match=f"format {SINCE - 1}, and this program reads {detector._FORMAT}"):
        Detector.restore(other + b"\n" + body)


def test_a_sample_log_of_receipts_of_today_is_read() -> None:
    found = read_samples(KEPT / "samples", model="pets", version="1")
    assert found.labels.tolist() == [0, 2]
    assert found.logits.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert (found.predictions, found.labels_seen, found.damaged) == (3, 2, 0)
