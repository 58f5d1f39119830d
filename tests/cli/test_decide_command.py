"""``calib-serve decide``, and what ``evaluate`` and ``inspect`` say of what it added."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calib_serve import Artifact, calibrate
from calib_serve.cli import app


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
