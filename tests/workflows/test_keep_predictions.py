"""``keep_predictions``: whatever is chosen, no prediction changes class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoke

from calib_serve import calibrate, compare_methods
from calib_serve.core.errors import InputError
from calib_serve.fit.measure import verdict
from calib_serve.scores import softmax

SPLITS = ("--split", "cal", "--test-split", "test")


def leaning(seed: int, n: int = 1500, classes: int = 4) -> tuple[Any, Any]:
    """Logits twice too sure, and too low for class 0: what is best changes classes."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(n, classes))
    p = softmax(z / 2 + np.where(np.arange(classes) == 0, 1.0, 0.0))
    return z, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def test_every_method_it_may_choose_keeps_the_class_of_every_row() -> None:
    z, y = leaning(0)
    free = calibrate(z, y, outputs="logits")
    assert free.data["moved"]["share"] > 0.05
    assert (free.of_logits(z).argmax(axis=1) != z.argmax(axis=1)).any()
    kept = calibrate(z, y, keep_predictions=True, outputs="logits")
    assert (kept.of_logits(z).argmax(axis=1) == z.argmax(axis=1)).all()
    assert kept.data["moved"]["share"] == 0
    for name in ("none", "temperature", "temperature-ece"):
        one = calibrate(z, y, keep_predictions=True, candidates=[name], outputs="logits")
        assert (one.of_logits(z).argmax(axis=1) == z.argmax(axis=1)).all(), name


@pytest.mark.parametrize("absent", [False, True])
def test_zeros_and_absent_classes_change_nothing_either(absent: bool) -> None:
    z, y = leaning(1)
    p = softmax(z)
    p[p < 1e-3] = 0
    p /= p.sum(axis=1, keepdims=True)
    keep = y != 3 if absent else np.ones(len(y), bool)
    made = calibrate(p[keep], y[keep], outputs="probabilities", keep_predictions=True)
    assert (made.probs(p).argmax(axis=1) == p.argmax(axis=1)).all()


def test_what_may_change_them_is_refused_by_name() -> None:
    z, y = leaning(2, n=300)
    with pytest.raises(InputError, match="vector may change predicted classes"):
        calibrate(z, y, keep_predictions=True, candidates=["temperature", "vector"], outputs="logits")
    with pytest.raises(InputError, match="prior"):
        calibrate(z, y, keep_predictions=True, prior=[0.4, 0.2, 0.2, 0.2], outputs="logits")
    with pytest.raises(InputError, match="has no option keep_predictions"):
        calibrate(z, y, "temperature", keep_predictions=True, outputs="logits")
    with pytest.raises(InputError, match="has no option keep_predictions"):
        calibrate(z, (z > 0).astype(int), outputs="label_logits", keep_predictions=True)


def test_the_artifact_and_every_command_say_what_moves(tmp_path: Path) -> None:
    (z, y), (x, t) = leaning(3), leaning(4)
    np.savez(tmp_path / "s.npz", cal_logits=z, cal_labels=y, test_logits=x, test_labels=t)
    made = calibrate(z, y, test=(x, t), outputs="logits")
    moved = float((made.of_logits(x).argmax(axis=1) != x.argmax(axis=1)).mean())
    assert made.data["moved"]["share"] == pytest.approx(moved)
    assert f"{100 * moved:.1f}" in " ".join(verdict(made).changed)

    def run(*words: str) -> str:
        done = invoke([str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.stdout

    files = ["--data", str(tmp_path / "s.npz"), "--split", "cal"]
    out = ["-o", str(tmp_path / "a"), "--force"]
    assert "of predictions change class" in run("fit", *files, "--test-split", "test", *out)
    assert "No prediction changes class" in run("fit", *files, *out, "--option", "keep_predictions=true")
    told = json.loads(run("compare", *files[:2], "--methods", "temperature,vector", "--json", *SPLITS))
    rows = {row["method"]: row["moved"] for row in told["methods"]}
    assert rows["temperature"] == 0
    assert rows["vector"] > 0.05
    again = compare_methods((z, y), (x, t), ["temperature", "vector"], outputs="logits")
    assert {one.method: one.moved for one in again} == rows
