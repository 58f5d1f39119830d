"""What ``fit`` ends with: that accuracy fell, and commands that run as they are printed."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exported import export
from typer.testing import CliRunner

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.cli import app
from calib_serve.workflows.measure import verdict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network as .pt2 and ONNX, its inputs and its logits, in three splits."""
    where, rng = tmp_path_factory.mktemp("my models"), np.random.default_rng(0)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
    export(network, (1, 4, 4), where / "model")
    inputs, logits = {}, {}
    for split in ("train", "cal", "test"):
        x = rng.random((120, 1, 4, 4)).astype("float32")
        with torch.inference_mode():
            z = network(torch.from_numpy(x)).numpy()
        y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        inputs |= {f"{split}_inputs": x, f"{split}_labels": y}
        logits |= {f"{split}_logits": z, f"{split}_labels": y}
    np.savez(where / "data.npz", **inputs)
    np.savez(where / "logits.npz", **logits)
    np.savez(where / "plain.npz", logits=logits["cal_logits"], labels=logits["cal_labels"])
    return where


def next_commands(words: list[str]) -> list[list[str]]:
    """The commands that a fit prints, without calib-serve."""
    done = CliRunner().invoke(app, ["fit", *words, "--method", "temperature"])
    assert done.exit_code == 0, done.exception
    _, _, after = done.stdout.partition("next: ")
    return [shlex.split(line)[1:] for line in after.splitlines()]


@pytest.mark.parametrize(
    ("source", "commands"),
    [
        (["--logits", "logits.npz", "--split", "cal", "--eval-split", "train"], ["report", "inspect"]),
        (["--logits", "plain.npz"], ["inspect"]),
        (["--model", "model.pt2", "--data", "data.npz", "--split", "cal"], ["report", "fuse", "inspect"]),
    ],
)
def test_the_commands_that_fit_prints_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, source: list[str], commands: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(folder / word) if "." in word else word for word in source]
    printed = next_commands([*words, "-o", "an artifact"])
    assert [command[0] for command in printed] == commands
    for command in printed:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (command, done.exception)
    if "report" in commands:
        held = "train" if "train" in source else "test"
        assert printed[0][printed[0].index("--split") + 1] == held  # not what it was fitted to


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
