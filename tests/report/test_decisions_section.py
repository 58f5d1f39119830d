"""The report says what sets and abstention promise, and what the samples show."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calib_serve import Artifact, calibrate, decide
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.report import prepare_report, render


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 4))
    return 3 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    fitted = calibrate(
        *draw(400, 0), "temperature", cross_validate=False, class_names=[*"abc", "<d>"], outputs="logits"
    )
    return decide(fitted, *draw(600, 1), coverage=0.9, risk=0.15)


def test_the_section_and_the_numbers_are_there(artifact: Artifact) -> None:
    z, y = draw(500, 2)
    p = artifact.probs(z)
    found = prepare_report(
        title="four", after=(p, y), artifact=artifact, options=ReportOptions(replicates=20)
    )
    page = render(found)
    assert "Sets and abstention: promised and kept" in page
    assert "Sets hold the true class of 90 % of new samples (lac), by 600 samples." in page
    assert "&lt;d&gt;" in page
    assert "<d>" not in page
    assert "prediction sets: coverage" in page
    told = json.loads(json.dumps(found.as_dict(), allow_nan=False))["decisions"]
    held = artifact.sets(p)[np.arange(500), y].mean()
    assert told["sets"]["coverage"]["value"] == pytest.approx(held)
    assert told["abstain"]["answered"]["value"] == pytest.approx((~artifact.abstain(p)).mean())
