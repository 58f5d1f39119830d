"""Where a detector's state ends, and the statistics beside it at their edges."""

from __future__ import annotations

import json

import pytest

from calib_serve.errors import InputError
from calib_serve.watch.drift import Detector


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


@pytest.mark.parametrize(
    ("options", "good"),
    [
        ({"arl": 2}, True), ({"arl": 1.99}, False), ({"arl": 1e30}, True), ({"arl": 1.01e30}, False),
        ({"tolerance": 0.0}, True), ({"tolerance": -0.001}, False), ({"tolerance": 0.499}, True),
        ({"tolerance": 0.5}, False), ({"bins": 1}, True), ({"bins": 0}, False), ({"bins": 1000}, True),
        ({"bins": 1001}, False), ({"block": 1}, True), ({"block": 0}, False),
    ],
)  # fmt: skip
def test_options_are_taken_up_to_their_limits(options: dict[str, float], good: bool) -> None:
    if good:
        (name,) = options
        assert getattr(Detector(**options), name) == options[name]  # type: ignore[arg-type]
        return
    with pytest.raises(InputError):
        Detector(**options)  # type: ignore[arg-type]
