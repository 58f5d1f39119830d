"""The commands around output calibration, as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

from calib_serve import Artifact
from calib_serve.app import main
from calib_serve.metrics import nll
from calib_serve.scores import softmax


def split(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 3))
    return (3 * z).astype(np.float32), (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """400 calibration and 300 test samples of an overconfident model."""
    (cal, y), (test, t) = split(400, 0), split(300, 1)
    np.savez(tmp_path / "z.npz", cal_logits=cal, cal_labels=y, test_logits=test, test_labels=t)
    return tmp_path / "z.npz"


def run(*arguments: object, code: int = 0) -> str:
    found = invoke([str(a) for a in arguments])
    assert found.exit_code == code, found.output
    return found.stdout


def refused(match: str, *arguments: object) -> None:
    found = invoke([str(a) for a in arguments])
    assert found.exit_code == 2, found.output
    assert re.search(match, found.stderr), found.stderr


def test_fit_measures_before_and_after_on_a_held_out_split(file: Path, tmp_path: Path):
    out = tmp_path / "artifact"
    how = ("--split", "cal", "--test-split", "test", "--method", "vector")
    run("fit", "--data", file, *how, "-o", out)
    artifact = Artifact.load(out)
    with np.load(file) as data:
        after = nll(artifact.probs(data["test_logits"]), data["test_labels"])
    assert artifact.after["nll"]["value"] == pytest.approx(after, rel=1e-9)
    assert artifact.after["nll"]["value"] < artifact.before["nll"]["value"]


def test_an_artifact_is_replaced_only_where_that_is_asked_for(file: Path, tmp_path: Path):
    arguments = ("fit", "--data", file, "--split", "cal", "-o", tmp_path / "a", "--method")
    run(*arguments, "temperature")
    before = Artifact.load(tmp_path / "a").fingerprint
    refused("a exists; give --force", *arguments, "vector")
    assert Artifact.load(tmp_path / "a").fingerprint == before
    run(*arguments, "vector", "--force")
    assert Artifact.load(tmp_path / "a").method == "vector"


def test_apply_writes_probabilities_that_can_be_read_again(file: Path, tmp_path: Path):
    run("fit", "--data", file, "--split", "cal", "--method", "structured-matrix", "-o", tmp_path / "a")
    export = ("export", "probabilities", tmp_path / "a", "--data", file, "--split", "test")
    run(*export, "-o", tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as found, np.load(file) as data:
        expected = Artifact.load(tmp_path / "a").probs(data["test_logits"])
        np.testing.assert_array_equal(found["probs"], expected)
        np.testing.assert_array_equal(found["labels"], data["test_labels"])
        np.testing.assert_array_equal(found["predictions"], expected.argmax(axis=1))
    told = json.loads(run("evaluate", tmp_path / "p.npz", "--json"))
    assert told["nll"]["value"] == pytest.approx(nll(expected, split(300, 1)[1]), rel=1e-9)
    refused("npz", *export, "-o", tmp_path / "p.csv")


def test_compare_measures_on_the_split_that_no_fit_has_seen(file: Path, tmp_path: Path):
    arguments = ("--methods", "none,temperature,auto")
    told = json.loads(run("compare", "--data", file, *arguments, "--json"))
    rows = {row["method"]: row for row in told["methods"]}
    (test, labels) = split(300, 1)
    assert rows["none"]["metrics"]["nll"]["value"] == pytest.approx(nll(softmax(test), labels), rel=1e-6)
    assert rows["temperature"]["metrics"]["ece"]["value"] < rows["none"]["metrics"]["ece"]["value"]
    assert list(rows)[2].startswith("auto: ")
    ece = rows["none"]["metrics"]["ece"]
    assert ece["low"] <= ece["value"] <= ece["high"]
    refused("-o is of two models", "compare", "--data", file, "-o", tmp_path / "table.csv")


def test_compare_ends_with_1_where_no_method_could_be_fitted(tmp_path: Path):
    z = 9 * np.eye(3)[np.arange(30) % 3]
    arrays = {
        f"{s}_{what}": a for s in ("cal", "test") for what, a in (("logits", z), ("labels", z.argmax(1)))
    }
    np.savez(tmp_path / "z.npz", **arrays)
    arguments = ("--data", tmp_path / "z.npz", "--methods", "temperature")
    run("compare", *arguments, code=1)


def test_the_program_ends_with_2_and_one_line_for_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["calib-serve", "fit", "none.npz", "--method", "none", "-o", "a"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "calib-serve: there is no file none.npz\n")
