"""``calib-serve evaluate --report`` of logits and of the model itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import invoke
from live_server import exported

from calib_serve.artifact import Artifact, Head, InputShift, LogitMap
from calib_serve.metrics import ece
from calib_serve.scores import softmax

RNG = np.random.default_rng(8)
WEIGHT = RNG.standard_normal((3, 12)).astype(np.float32)
INPUTS = RNG.random((600, 3, 2, 2)).astype(np.float32)
LOGITS = 4 * (INPUTS.reshape(600, 12) - 0.5) @ WEIGHT.T
LABELS = np.array([RNG.choice(3, p=p) for p in softmax(LOGITS / 2)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report")
    linear = torch.nn.Linear(12, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(4 * WEIGHT))
        linear.bias.copy_(torch.from_numpy(-2 * WEIGHT.sum(axis=1)))
    exported(place / "model.pt2", torch.nn.Sequential(torch.nn.Flatten(), linear).eval(), 3, 2, 2)
    np.savez(place / "logits.npz", logits=LOGITS, labels=LABELS)
    np.savez(place / "data.npz", test_inputs=INPUTS[300:], test_labels=LABELS[300:])
    Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3).save(place / "cool")
    shift = InputShift(np.full((3, 2, 2), 0.01, np.float32), 0.0, 1.0)
    head = Head((2 * WEIGHT,), (-WEIGHT.sum(axis=1),))
    Artifact((shift, head), method="neural-clamping", classes=3).save(place / "deep")
    return place


def report(folder: Path, *arguments: str) -> dict:
    out = folder / "out.html"
    result = invoke(["evaluate", *arguments, "--report", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert out.read_text().startswith("<!doctype html>")
    shown = json.loads(result.stdout)
    assert shown["ece"] == shown["report"]["sides"][-1]["metrics"]["ece"]
    return dict(shown["report"])


def eces(found: dict) -> list[float]:
    return [side["metrics"]["ece"]["value"] for side in found["sides"]]


def test_a_report_compares_with_no_calibration(folder: Path) -> None:
    artifact = ("--artifact", str(folder / "cool"))
    found = report(folder, str(folder / "logits.npz"), *artifact)
    expected = [ece(softmax(LOGITS), LABELS), ece(softmax(LOGITS / 2), LABELS)]
    assert eces(found) == pytest.approx(expected)
    assert found["artifact"]["method"] == "temperature"


def test_a_model_that_is_changed_inside_is_run_on_its_data(folder: Path) -> None:
    arguments = ("--model", str(folder / "model.pt2"), "--data", str(folder / "data.npz"), "--split", "test")
    found = report(folder, *arguments, "--artifact", str(folder / "deep"))
    moved = np.clip(INPUTS[300:] + 0.01, 0, 1).reshape(300, 12)
    expected = 2 * (moved - 0.5) @ WEIGHT.T
    assert eces(found) == pytest.approx(
        [ece(softmax(LOGITS[300:]), LABELS[300:]), ece(softmax(expected), LABELS[300:])], abs=1e-5
    )


def test_what_logits_cannot_show_is_said(folder: Path) -> None:
    page = ["--report", str(folder / "none.html")]
    result = invoke(["evaluate", str(folder / "logits.npz"), "--artifact", str(folder / "deep"), *page])
    assert result.exit_code == 2
    assert "--model" in result.stderr
    assert not (folder / "none.html").exists()


def test_a_verdict_has_the_same_reasons_with_a_page(folder: Path) -> None:
    rows = "".join(f"{a},{b},{c},{y},x\n" for (a, b, c), y in zip(LOGITS, LABELS, strict=True))
    (folder / "t.csv").write_text("logit_0,logit_1,logit_2,label,note\n" + rows)
    asked = ["evaluate", str(folder / "t.csv"), "--artifact", str(folder / "cool"), "--json"]
    plain, paged = (
        json.loads(invoke([*asked, *page]).stdout) for page in ([], ["--report", str(folder / "t.html")])
    )
    assert any("'note'" in reason for reason in plain["verdict"]["reasons"])
    assert paged["verdict"]["reasons"] == plain["verdict"]["reasons"]
    assert {**paged, "verdict": 0, "report": 0} == {**plain, "verdict": 0, "report": 0}


def test_logits_cannot_show_what_another_calibration_changes_inside(folder: Path) -> None:
    both = ["--artifact", str(folder / "cool"), "--against", str(folder / "deep")]
    page = ["--report", str(folder / "none.html")]
    result = invoke(["evaluate", str(folder / "logits.npz"), *both, *page])
    assert (result.exit_code, "--model" in result.stderr) == (2, True), result.output
    assert not (folder / "none.html").exists()


def test_the_levels_of_a_tree_are_in_the_page_and_in_its_numbers(folder: Path) -> None:
    (folder / "tree.yaml").write_text("near: ['0', '1']\nfar: ['2']")
    found = report(folder, str(folder / "logits.npz"), "--artifact", str(folder / "cool"), "--tree",
                   str(folder / "tree.yaml"))  # fmt: skip
    (level,) = found["levels"]
    far = softmax(LOGITS / 2)[:, 2]
    assert level["nodes"] == ["near", "far"]
    assert level["metrics"]["brier"]["value"] == pytest.approx(2 * np.mean((far - (LABELS == 2)) ** 2))
    assert level["verdict"]["headline"] in (folder / "out.html").read_text()


def test_a_model_is_judged_on_its_inputs_without_a_page(folder: Path) -> None:
    asked = ["evaluate", str(folder / "data.npz"), "--model", str(folder / "model.pt2"), "--split", "test"]
    found = json.loads(invoke([*asked, "--json"]).stdout)
    assert found["ece"]["value"] == pytest.approx(ece(softmax(LOGITS[300:]), LABELS[300:]), abs=1e-5)
    assert "report" not in found


@pytest.mark.parametrize(
    ("says", "asked"),
    {
        "name --report": ("--artifact", "cool", "--against", "cool"),
        "wants an artifact": ("--against", "cool", "--report", "none.html"),
    }.items(),
)
def test_what_a_page_cannot_show_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, says: str, asked: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    result = invoke(["evaluate", "logits.npz", *asked])
    assert (result.exit_code, says in result.stderr) == (2, True), result.output
    assert not (folder / "none.html").exists()


def test_the_net_benefit_of_a_page_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    z = 2 * RNG.standard_normal((300, 2))
    y = np.array([RNG.choice(2, p=p) for p in softmax(z / 2)])
    np.savez(tmp_path / "two.npz", logits=z, labels=y)
    alone = invoke(["evaluate", str(tmp_path / "two.npz"), "--json"])
    monkeypatch.setattr("calib_serve.metrics.decision_curve", None)
    page = ["--report", str(tmp_path / "r.html")]
    done = invoke(["evaluate", str(tmp_path / "two.npz"), "--json", *page])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["decision_curve"] == json.loads(alone.stdout)["decision_curve"]
