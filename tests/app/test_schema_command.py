"""``calib-serve schema`` writes down what scores are; other commands take it, and refuse data unlike it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Done, invoke
from command_line import by_schema as written

from calib_serve import evaluate
from calib_serve.artifact import Artifact
from calib_serve.scores import Schema, Scores, softmax

RNG = np.random.default_rng(5)
NAMES = ["cat", "dog", "owl"]


def drawn(n: int) -> tuple[np.ndarray, list[str]]:
    """Percents of three classes that are too sure, and the names of the true ones."""
    z = 2 * RNG.standard_normal((n, 3))
    true = [NAMES[RNG.choice(3, p=p)] for p in softmax(z / 2)]
    return (100 * softmax(z)).round(4), true


def write(path: Path, percents: np.ndarray, true: list[str], **more: list[Any]) -> Path:
    """A table whose columns say nothing of percent, beside a column of another kind."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*NAMES, "age", "animal", *more])
        for k, (row, label) in enumerate(zip(percents, true, strict=True)):
            rows.writerow([*row, 20 + k % 50, label, *(column[k] for column in more.values())])
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    percents, true = drawn(600)
    farms, times = [k // 3 for k in range(600)], [1 + k % 3 for k in range(600)]
    splits = ["cal" if k < 300 else "test" for k in range(600)]
    return write(tmp_path / "animals.csv", percents, true, farm=farms, times=times, split=splits)


SAID = ["--outputs", "percent", "--columns", "cat,dog,owl", "--labels", "animal", "--groups", "farm",
        "--sample-weight", "times", "--missing", "-1", "--ignore-label", "bat"]  # fmt: skip


def schema_of(table: Path, *said: str) -> tuple[Path, Done]:
    out = table.with_suffix(".yaml")
    return out, invoke(["schema", str(table), *said, "-o", str(out)])


def test_percent_is_said_once(table: Path, tmp_path: Path) -> None:
    assert invoke(["evaluate", str(table), "--split", "test"]).exit_code == 2
    path, done = schema_of(table, "--split", "cal", *SAID)
    assert done.exit_code == 0, done.stderr
    assert "300 rows of percent" in done.stdout
    assert yaml.safe_load(path.read_text()) == {
        "outputs": "percent",
        "class_names": NAMES,
        "columns": NAMES,
        "labels": "animal",
        "groups": "farm",
        "sample_weight": "times",
        "missing": ["-1"],
        "ignore_label": ["bat"],
    }
    by_schema = ["--schema", str(path)]
    found = invoke(["evaluate", str(table), "--split", "test", *by_schema, "--json"])
    assert found.exit_code == 0, found.stderr
    how = {"columns": NAMES, "groups": "farm", "sample_weight": "times", "missing": -1, "ignore_label": "bat"}
    said = Scores.read(table, split="test", outputs="percent", labels="animal", **how)
    assert json.loads(found.stdout)["ece"] == evaluate(said).estimates()["ece"].as_dict()
    artifact = tmp_path / "artifact"
    how = ["--split", "cal", "--test-split", "test", "--method", "temperature", *by_schema]
    done = invoke(["fit", str(table), *how, "-o", str(artifact)])
    assert done.exit_code == 0, done.stderr
    assert Artifact.load(artifact).temperature == pytest.approx(2, rel=0.3)
    page = tmp_path / "report.html"
    held = ["--split", "test", *by_schema, "--artifact", str(artifact), "--report", str(page)]
    done = invoke(["evaluate", str(table), *held])
    assert done.exit_code == 0, done.stderr
    assert page.is_file()
    split = ["--split", "cal", "--test-split", "test", "--methods", "temperature"]
    done = invoke(["compare", str(table), *split, *by_schema])
    assert done.exit_code == 0, done.stderr


def test_decisions_and_contracts_take_a_schema(table: Path, tmp_path: Path) -> None:
    path, _ = schema_of(table, "--split", "cal", *SAID[:-6])  # each sample counts once
    by_schema = ["--schema", str(path)]
    artifact = tmp_path / "artifact"
    done = invoke(
        ["fit", str(table), "--split", "cal", "--method", "temperature", *by_schema, "-o", str(artifact)]
    )
    assert done.exit_code == 0, done.stderr
    held = [str(artifact), str(table), "--split", "test", *by_schema]
    done = invoke(["decide", *held, "--coverage", "0.8", "-o", str(tmp_path / "decided")])
    assert done.exit_code == 0, done.stderr
    contract = tmp_path / "contract.yaml"
    contract.write_text("contract: 1\nact: {above: 0.5, accuracy: 0.5}\n")
    done = invoke(["contract", "check", *held, "--contract", str(contract)])
    assert done.exit_code in (0, 1), done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.replace("cat,", "feline,", 1), "no column 'cat'"),
        (lambda t: t.replace("animal", "species", 1), "no column 'animal'"),
        (lambda t: t.replace("farm", "herd", 1), "no column 'farm'"),
        (lambda t: t.replace(",owl", ",pig", 2).replace(",pig,", ",owl,", 1), "'pig'"),
    ],
)
def test_data_unlike_the_schema_are_refused(change: Any, says: str, table: Path) -> None:
    path, _ = schema_of(table, "--split", "cal", *SAID)
    table.write_text(change(table.read_text()))
    done = invoke(["evaluate", str(table), "--split", "cal", "--schema", str(path)])
    assert done.exit_code == 2
    assert says in done.stderr


def test_fractions_are_not_read_as_the_percents_of_a_schema(tmp_path: Path) -> None:
    percents, true = drawn(200)
    path, _ = schema_of(write(tmp_path / "percents.csv", percents, true), *SAID[:6])
    other = write(tmp_path / "fractions.csv", percents / 100, true)
    done = invoke(["evaluate", str(other), "--schema", str(path)])
    assert done.exit_code == 2
    assert "sum to" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("outputs: logits\nunits: percent\n", "'units'"),
        ("outputs: parsecs\n", "'parsecs'"),
        ("columns: cat\n", "columns"),
        ("- logits\n", "a list"),
        ("outputs: [", "a.yaml"),
    ],
)
def test_a_wrong_schema_is_refused(text: str, says: str, table: Path, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    done = invoke(["evaluate", str(table), "--split", "cal", "--schema", str(tmp_path / "a.yaml")])
    assert done.exit_code == 2
    assert says in done.stderr
    assert "a.yaml" in done.stderr


def test_a_schema_replaces_nothing_unasked(table: Path) -> None:
    path, _ = schema_of(table, "--split", "cal", *SAID)
    before = path.read_text()
    path, done = schema_of(table, "--split", "cal", *SAID[:6])
    assert (done.exit_code, path.read_text()) == (2, before)
    _, done = schema_of(table, "--split", "cal", *SAID[:6], "--force")
    assert done.exit_code == 0
    assert path.read_text() != before


def test_nothing_is_written_of_what_cannot_be_read(table: Path) -> None:
    path, done = schema_of(table, "--split", "cal")
    assert (done.exit_code, path.exists()) == (2, False)


def test_what_is_said_now_wins_over_the_schema(table: Path) -> None:
    path, _ = schema_of(table, "--split", "cal", *SAID)
    read = Scores.read(table, split="cal", schema=path, groups="age")
    assert set(read.groups) == {str(age) for age in range(20, 70)}
    assert read.weights is not None


def test_scores_that_were_read_take_no_schema() -> None:
    made = Scores.of([[0.0, 1.0]], outputs="logits")
    with pytest.raises(ValueError, match="schema="):
        Scores.of(made, schema=Schema("percent"))


def test_what_a_command_lacks_is_found_from_its_message(tmp_path: Path) -> None:
    rows = [f"{k % 2},{k % 3 % 2},{k % 5 % 2}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["logit 0,logit 1,label", *rows]))
    (tmp_path / "u.csv").write_text("\n".join(["u,v,label", *rows]))
    fitted = ["fit", str(tmp_path / "t.csv"), "--method", "temperature", "-o", str(tmp_path / "a")]
    assert "--option seed=VALUE" in invoke([*fitted, "--seed", "1"]).stderr
    invoke(fitted)
    says = invoke(["decide", str(tmp_path / "a"), str(tmp_path / "u.csv"), "--risk", ".5", "-o", "b"]).stderr
    assert "--columns" in says  # which decide does not take itself
    assert says.endswith("--schema FILE takes it\n")


def test_export_leaves_out_and_tells_what_stands_for_none(tmp_path: Path) -> None:
    z = 2 * RNG.standard_normal((100, 3))
    y = np.array([RNG.choice(3, p=p) for p in softmax(z / 2)])
    np.savez(tmp_path / "z.npz", logits=z, labels=y)
    invoke(["fit", str(tmp_path / "z.npz"), "--method", "temperature", "-o", str(tmp_path / "a")])
    z[:7] = -999
    np.savez(tmp_path / "z.npz", logits=z)
    words = [
        "export",
        "probabilities",
        str(tmp_path / "a"),
        str(tmp_path / "z.npz"),
        "-o",
        str(tmp_path / "p.npz"),
    ]
    assert (
        "export takes no --missing; calib-serve schema DATA" in invoke([*words, "--missing", "-999"]).stderr
    )
    says = invoke(words).stderr
    assert "schema --missing -999" in says
    assert says.endswith("--schema FILE takes it\n")
    done = invoke([*words, *written(tmp_path / "z.npz", "--missing", "-999")])
    assert "7 of 100 rows are left out" in done.stderr
    assert len(np.load(tmp_path / "p.npz")["probs"]) == 93


def test_an_array_beside_the_scores_is_named_and_asked_of_no_unknown_samples(tmp_path: Path) -> None:
    z = 2 * RNG.standard_normal((100, 3))
    y = np.array([RNG.choice(3, p=p) for p in softmax(z / 2)])
    np.savez(tmp_path / "z.npz", logits=z, labels=y)
    np.savez(tmp_path / "other.npz", logits=z[:40] / 9)
    np.save(tmp_path / "w.npy", 1.0 + np.arange(100) % 3)
    path, done = schema_of(tmp_path / "z.npz", "--sample-weight", str(tmp_path / "w.npy"))
    assert "w.npy' weighs the rows" in done.stdout
    known = ["evaluate", str(tmp_path / "z.npz"), "--schema", str(path), "--json"]
    done = invoke([*known, "--unknown", str(tmp_path / "other.npz")])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["unknown"]["auroc"]["value"] > 0.5
