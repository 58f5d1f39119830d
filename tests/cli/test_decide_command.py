"""``calib-serve decide``, and what ``evaluate`` and ``inspect`` say of what it added."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calib_serve import Artifact, calibrate
from calib_serve.cli import app
from calib_serve.errors import CalibServeError


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 4))
    return (3 * z).astype(np.float32), (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    arrays = {}
    for seed, (name, n) in enumerate({"cal": 400, "held": 1000, "test": 1000}.items()):
        arrays[f"{name}_logits"], arrays[f"{name}_labels"] = draw(n, seed)
    np.savez(tmp_path / "z.npz", class_names=["ant", "bee", "cat", "dog"], **arrays)
    calibrate(arrays["cal_logits"], arrays["cal_labels"], "temperature", cross_validate=False).save(
        tmp_path / "artifact"
    )
    return tmp_path / "z.npz"


def run(*arguments: object) -> str:
    found = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def test_it_writes_what_it_promises_and_evaluate_measures_it(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "decided"
    held = ("--logits", file, "--split", "held")
    told = run(
        "decide", file.parent / "artifact", *held, "--coverage", 0.9, "--per-class", "--risk", 0.1, "-o", out
    )
    assert "90 % of the samples of every class (lac), by 1000 samples" in told
    assert "wrong in at most 10 %, with probability 0.95" in told
    artifact = Artifact.load(out)
    assert artifact.sets is not None
    assert artifact.sets.classes == 4
    how = ("--split", "test", "--artifact", out, "--replicates", 0)
    shown = " ".join(run("evaluate", file, *how).split())
    assert "The sets hold the true class in" in shown
    assert "Worst class: " in shown
    assert "are answered" in shown
    found = json.loads(run("evaluate", file, *how, "--json"))
    assert found["sets"]["promised"] == 0.9
    assert found["abstain"]["threshold"] == artifact.abstain.threshold
    assert len(found["sets"]["by_class"]) == 4
    plain = json.loads(run("evaluate", file, "--split", "test", "--replicates", 0, "--json"))
    assert not {"sets", "abstain"} & plain.keys()


def test_json_holds_the_facts(file: Path, tmp_path: Path) -> None:
    folder, out = file.parent / "artifact", tmp_path / "decided"
    held = ("--logits", file, "--split", "held")
    told = json.loads(run("decide", folder, *held, "--coverage", 0.9, "--score", "raps", "-o", out, "--json"))
    assert told["sets"]["score"] == "raps"
    assert told["sets"]["threshold"] == float(Artifact.load(out).sets.threshold)
    assert told["fit"]["decisions"]["sets"]["threshold_samples"] == 800
    assert told["promises"]
    assert json.loads(run("inspect", out, "--json"))["sets"] == told["sets"]
    assert "sets.coverage" in run("inspect", out)


def test_an_artifact_is_replaced_only_when_told(file: Path) -> None:
    folder = file.parent / "artifact"
    asked = ("decide", folder, "--logits", file, "--split", "held", "--coverage", 0.9, "-o", folder)
    with pytest.raises(CalibServeError, match="--force"):
        run(*asked)
    run(*asked, "--force")
    assert Artifact.load(folder).sets is not None


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_on_a_model_it_decides_as_on_its_logits(file: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 4))
    torch.jit.trace(model.eval(), torch.zeros(1, 1, 2, 2)).save(str(tmp_path / "model.pt"))
    x = np.random.default_rng(0).standard_normal((600, 1, 2, 2)).astype(np.float32)
    z = model(torch.from_numpy(x)).detach().numpy()
    y = (4 * z + np.random.default_rng(1).gumbel(size=z.shape)).argmax(axis=1)
    np.savez(tmp_path / "data.npz", inputs=x, labels=y)
    np.savez(tmp_path / "logits.npz", logits=z, labels=y)
    folder = tmp_path / "artifact"
    model_side = ("--model", tmp_path / "model.pt", "--data", tmp_path / "data.npz")
    thresholds = []
    for given in (model_side, ("--logits", tmp_path / "logits.npz")):
        run("decide", folder, *given, "--coverage", 0.9, "-o", tmp_path / "out", "--force")
        thresholds.append(float(Artifact.load(tmp_path / "out").sets.threshold))
    assert thresholds[0] == pytest.approx(thresholds[1], abs=1e-6)
