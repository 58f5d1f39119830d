"""A report's verdict is that of ``judge``, with what a calibration changed and what to do about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.judgement import Verdict
from calib_serve.metrics import softmax
from calib_serve.report import prepare_report


def binary(n: int, *, off: float, seed: int = 0, high: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, confidences even in [.6, high], right that often less ``off``."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.6, high, n)
    return np.stack([c, 1 - c], axis=1), (rng.random(n) >= c - off).astype(int)


def verdict(after: tuple[np.ndarray, np.ndarray], **more: object) -> Verdict:
    return prepare_report(title="x", after=after, replicates=200, **more).verdict  # type: ignore[arg-type]


def test_a_large_error_is_called_by_its_direction_and_what_to_do_is_said() -> None:
    found = verdict(binary(5000, off=0.1))
    assert found.level == "off"
    assert "overconfident" in found.headline
    assert any(line.startswith("Calibrate it on held-out samples") for line in found.do)


def test_a_calibration_that_costs_accuracy_is_not_to_be_deployed() -> None:
    probs, labels = binary(5000, off=0.0)
    rng = np.random.default_rng(0)
    flipped = np.where((rng.random(5000) < 0.1)[:, None], probs[:, ::-1], probs)
    found = verdict((flipped, labels), before=(probs, labels))
    assert found.do[0].startswith("Do not deploy")
    assert "accuracy fell" in found.do[0]
    assert not any(line.startswith("Deploy") for line in found.do)


def test_on_a_real_shift_the_remedy_is_data(data_dir: Path) -> None:
    with np.load(data_dir / "logits" / "pneumonia_cnn_inhouse.npz") as arrays:
        cal, test = (
            tuple(arrays[f"{part}_{what}"] for what in ("logits", "labels")) for part in ("cal", "test")
        )
    artifact = fit_temperature(*cal)
    after = artifact.probs(test[0]), test[1]
    found = verdict(after, before=(softmax(test[0]), test[1]), artifact=artifact)
    assert found.level == "off"
    assert any("The test data differ from the calibration data" in line for line in found.do)
