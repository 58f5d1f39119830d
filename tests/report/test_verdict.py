"""A report's verdict is that of ``judge``, with what a calibration changed and what to do about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.judgement import Verdict
from calib_serve.metrics import softmax
from calib_serve.report import prepare_report


def verdict(after: tuple[np.ndarray, np.ndarray], **more: object) -> Verdict:
    return prepare_report(title="x", after=after, replicates=200, **more).verdict  # type: ignore[arg-type]


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
