"""What ``fit`` ends with: that accuracy fell, and commands that run as they are printed."""

from __future__ import annotations

from dataclasses import replace

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.workflows.measure import verdict


def _moved(before: float, after: float, **fit: object) -> Artifact:
    known = {"ece": {"value": 0.05}, "accuracy": {"value": before}}
    artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3, before=known)
    return replace(artifact, after={**known, "accuracy": {"value": after}}, fit=fit)


def test_a_fall_of_accuracy_is_told() -> None:
    """A head may be calibrated and wrong: its confidence does not show it."""
    (said,) = verdict(_moved(0.92, 0.06)).reasons
    assert said.startswith("Accuracy falls from 92.00 % to 6.00 %: do not serve this")
    judged = replace(_moved(0.92, 0.06), data={"verdict": "calibrated", "verdict_says": "It is."})
    assert any(reason == said for reason in verdict(judged).reasons)
    assert not verdict(_moved(0.92, 0.91)).reasons
    assert not verdict(_moved(0.92, 0.93)).reasons
    assert not verdict(_moved(0.92, 0.06, prior={"shares": [1, 1, 1]})).reasons
