"""Where a detector's state ends, and the statistics beside it at their edges."""

from __future__ import annotations

import json

import pytest

from calib_serve.core.errors import InputError
from calib_serve.monitor import Detector


def changed(state: bytes, **changes: object) -> bytes:
    head, _, body = state.partition(b"\n")
    return json.dumps(json.loads(head) | changes).encode() + b"\n" + body


def test_a_state_of_another_format_or_of_impossible_counts_is_refused() -> None:
    detector = Detector(arl=1000, tolerance=0.02, bins=5, block=3)
    detector.update([0.9] * 7, [1] * 7, group=[0, 0, 0, 5, 5, 6, 0])
    state = detector.state()
    head = json.loads(state.partition(b"\n")[0])
    assert (head["format"], head["options"]) == (1, [1000.0, 0.02, 5, 3])
    assert Detector.restore(changed(state)).state() == state
    for wrong in (
        {"format": 0}, {"format": "x"}, {"groups": -1}, {"groups": 4097}, {"waiting": -1},
        {"classes": list(range(16))}, {"options": [1, 0.02, 5, 3]}, {"labels": "x"},
    ):  # fmt: skip
        with pytest.raises(InputError, match="detector"):
            Detector.restore(changed(state, **wrong))
