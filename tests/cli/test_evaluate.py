"""``calib-serve evaluate``: a file in, a table or JSON out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Done, invoke

from calib_serve import metrics
from calib_serve.artifact import Artifact, LogitMap

KEYS = {
    "accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "mce", "overconfidence_error",
    "smooth_ece", "signed_gap", "noise_floor", "entropy", "refinement_auroc", "mean_confidence",
}  # fmt: skip


@pytest.fixture
def logits() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = 4 * rng.standard_normal((400, 5)).astype("f4")
    return z, np.where(rng.random(400) < 0.6, z.argmax(1), rng.integers(0, 5, 400))


@pytest.fixture
def file(tmp_path: Path, logits: tuple[np.ndarray, np.ndarray]) -> Path:
    z, y = logits
    path = tmp_path / "some.npz"
    np.savez(path, cal_logits=z[:200], cal_labels=y[:200], test_logits=z[200:], test_labels=y[200:])
    return path


def evaluate(*arguments: object) -> Done:
    options = [] if "--replicates" in arguments else ["--replicates", "20"]
    return invoke(["evaluate", *map(str, arguments), *options])


def measured(*arguments: object) -> dict[str, dict[str, float]]:
    result = evaluate(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_holds_each_metric_with_its_interval(file: Path, logits) -> None:
    z, y = logits
    found = measured(file, "--split", "test")
    assert (found["n"], found["classes"]) == (200, 5)
    assert found.keys() >= KEYS
    for name in KEYS:
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"], name
    assert found["ece"]["value"] == pytest.approx(metrics.ece(metrics.softmax(z[200:]), y[200:]))
    assert found["nll"]["value"] == pytest.approx(metrics.nll_from_logits(z[200:], y[200:]))


def test_an_artifact_calibrates_first(tmp_path: Path, file: Path, logits) -> None:
    z, y = logits
    Artifact((LogitMap.temperature(3.0),), method="temperature", classes=5).save(tmp_path / "artifact")
    found = measured(file, "--split", "test", "--artifact", tmp_path / "artifact")
    probs = metrics.softmax(z[200:].astype(float) / 3)
    assert found["ece"]["value"] == pytest.approx(metrics.ece(probs, y[200:]))
    assert found["accuracy"] == measured(file, "--split", "test")["accuracy"]


def test_without_replicates_json_says_null_where_there_is_no_interval(file: Path) -> None:
    found = measured(file, "--split", "test", "--replicates", 0)
    assert found["ece"]["low"] is None
    assert found["nll"]["low"] is not None


def test_a_bad_file_and_a_bad_option_are_refused(file: Path, tmp_path: Path) -> None:
    assert "cal, test" in evaluate(file).stderr  # which split?
    assert evaluate(tmp_path / "none.npz").exit_code == 2
    assert evaluate(file, "--split", "test", "--edges", "both").exit_code == 2


def test_the_published_ece_of_a_real_file(data_dir: Path) -> None:
    found = measured(data_dir / "logits" / "kull_resnet110_c10.npz", "--split", "test")
    assert found["ece"]["value"] == pytest.approx(0.0475, abs=5e-5)
