"""The commands take a multi-label model's scores from file to report, and mix no kinds up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import calib_serve as call

from calib_serve import Artifact, Scores
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.report import prepare_report
from calib_serve.scores import sigmoid

NAMES = ["cat", "<b>dog</b>", "cat", "night"]


def done(*arguments: object) -> str:
    found = call(*arguments)
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"class_names": np.array(NAMES)}
    for part in ("cal", "test"):
        z = 2 * rng.normal(size=(500, 4))
        arrays[f"{part}_label_logits"] = z
        arrays[f"{part}_labels"] = (rng.random(z.shape) < sigmoid(0.6 * z - 1)).astype(int)
    np.savez(tmp_path / "labels.npz", **arrays)
    return tmp_path / "labels.npz"


def test_from_scores_to_a_report(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "artifact"
    told = json.loads(done("fit", file, "--split", "cal", "--test-split", "test", "-o", out, "--json"))
    assert told["model"] == {"outputs": "label_logits", "columns": ["label_logits"]}
    before = json.loads(done("evaluate", file, "--split", "test", "--json"))
    how = ("--split", "test", "--artifact", out)
    after = json.loads(done("evaluate", file, *how, "--json"))
    assert after["positive_ece"]["value"] < before["positive_ece"]["value"] / 2
    assert len(after["labels"]) == 4
    told = json.loads(done("compare", file, "--methods", "none,platt", "--json"))
    assert told["methods"][0]["metrics"]["positive_ece"]["value"] > 0.1
    page = tmp_path / "labels.html"
    shown = json.loads(done("evaluate", file, *how, "--report", page, "--json"))["report"]
    assert {row["name"] for row in shown["labels"]} == {"cat", "<b>dog</b>", "night"}
    text = page.read_text()
    assert "<b>dog</b>" not in text
    assert "&lt;b&gt;dog" in text


def test_applied_probabilities_can_be_read_again(file: Path, tmp_path: Path) -> None:
    out, made = tmp_path / "artifact", tmp_path / "probs.npz"
    done("fit", file, "--split", "cal", "--method", "platt", "-o", out)
    done("export", "probabilities", out, file, "--split", "test", "-o", made)
    again, given = Scores.read(made), Scores.read(file, split="test")
    assert again.outputs == "label_probabilities"
    np.testing.assert_allclose(again.values, Artifact.load(out).probs(given))
    with np.load(made) as arrays:
        np.testing.assert_array_equal(arrays["predictions"], again.values > 0.5)


def test_a_calibration_of_labels_is_not_applied_to_classes_nor_the_reverse(
    file: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "classes.npz", logits=rng.normal(size=(60, 4)), labels=rng.integers(0, 4, 60))
    done("fit", file, "--split", "cal", "--method", "platt", "-o", tmp_path / "labels")
    done("fit", tmp_path / "classes.npz", "--method", "histogram-mass", "-o", tmp_path / "classes")
    wrong = (
        ("export", "probabilities", tmp_path / "labels", tmp_path / "classes.npz", "-o", tmp_path / "x.npz"),
        ("export", "probabilities", tmp_path / "classes", file, "--split", "test", "-o", tmp_path / "x.npz"),
        ("evaluate", tmp_path / "classes.npz", "--artifact", tmp_path / "labels"),
        ("fit", file, "--split", "cal", "--method", "vector", "-o", tmp_path / "no"),
    )
    for arguments in wrong:
        assert call(*arguments).exit_code >= 2, arguments
    assert not (tmp_path / "x.npz").exists()


def test_one_label_off_vetoes_what_the_mean_over_many_hides() -> None:
    rng = np.random.default_rng(0)
    p = rng.random((2000, 40))
    y = (rng.random(p.shape) < p).astype(int)
    assert prepare_report(title="x", after=(p, y)).verdict.level in ("calibrated", "no_error_found")
    p[:, 7] = np.sqrt(p[:, 7])
    found = prepare_report(
        title="x", after=(p, y), options=ReportOptions(class_names=[f"l{k}" for k in range(40)])
    )
    assert found.verdict.level == "off"
    assert "“l7” is too high" in found.verdict.headline
