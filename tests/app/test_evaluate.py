"""``calib-serve evaluate``: a file in, a table or JSON out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Done, by_schema, invoke

from calib_serve import metrics
from calib_serve.artifact import Abstain, Artifact, LogitMap, PredictionSets

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
    return invoke(["evaluate", *map(str, arguments)])


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
        value, debiased = found[name]["value"], found[name].get("debiased")
        assert found[name]["low"] <= (value if debiased is None else debiased) <= found[name]["high"], name
    assert found["ece"]["value"] == pytest.approx(metrics.ece(metrics.softmax(z[200:]), y[200:]))
    assert found["nll"]["value"] == pytest.approx(metrics.nll(metrics.softmax(z[200:]), y[200:]))


def test_an_artifact_calibrates_first(tmp_path: Path, file: Path, logits) -> None:
    z, y = logits
    Artifact((LogitMap.temperature(3.0),), method="temperature", classes=5).save(tmp_path / "artifact")
    found = measured(file, "--split", "test", "--artifact", tmp_path / "artifact")
    probs = metrics.softmax(z[200:].astype(float) / 3)
    assert found["ece"]["value"] == pytest.approx(metrics.ece(probs, y[200:]))
    assert found["accuracy"] == measured(file, "--split", "test")["accuracy"]


def test_several_labels_may_stand_for_none(tmp_path: Path, logits) -> None:
    z, y = logits
    void = np.arange(len(y)) % 4
    np.savez(tmp_path / "void.npz", logits=z, labels=np.select([void == 1, void == 2], [255, 99], y))
    path = tmp_path / "void.npz"
    found = measured(path, *by_schema(path, "--ignore-label", "255,99"))
    np.savez(tmp_path / "kept.npz", logits=z[(void == 0) | (void == 3)], labels=y[(void == 0) | (void == 3)])
    wanted = measured(tmp_path / "kept.npz")
    assert [found[name] for name in ("n", "nll", "ece")] == [wanted[name] for name in ("n", "nll", "ece")]


def test_decisions_are_measured_on_rows_as_often_as_they_weigh(tmp_path: Path, logits) -> None:
    z, y = logits
    counts = np.random.default_rng(1).integers(0, 4, len(y))
    sets = PredictionSets(np.array(0.5), coverage=0.9)
    fitted = Artifact((LogitMap.temperature(3.0),), method="temperature", classes=5)
    replace(fitted, sets=sets, abstain=Abstain(0.6, risk=0.3)).save(tmp_path / "artifact")
    again = np.repeat(np.arange(len(y)), counts)
    np.savez(tmp_path / "w.npz", logits=z, labels=y, weights=counts)
    near = z[again] + 1e-6 * np.random.default_rng(2).random((len(again), 1))  # else they are known as copies
    np.savez(tmp_path / "r.npz", logits=near, labels=y[again])
    one, other = (
        json.loads(
            json.dumps(measured(tmp_path / f"{n}.npz", "--artifact", tmp_path / "artifact")),
            parse_float=lambda text: round(float(text), 9),
        )
        for n in "wr"
    )
    assert one["sets"] == other["sets"]
    assert one["abstain"] == other["abstain"]


def test_a_bad_file_and_a_bad_option_are_refused(file: Path, tmp_path: Path) -> None:
    assert "cal, test" in evaluate(file).stderr  # which split?
    assert evaluate(tmp_path / "none.npz").exit_code == 2
    assert evaluate(file, "--split", "test", "--edges", "both").exit_code == 2


def test_the_published_ece_of_a_real_file(data_dir: Path) -> None:
    found = measured(data_dir / "logits" / "kull_resnet110_c10.npz", "--split", "test")
    assert found["ece"]["value"] == pytest.approx(0.0475, abs=5e-5)


TREE = "{animal: {mammal: ['0', '1'], bird: ['2']}, vehicle: [3, 4]}"


def test_a_tree_of_classes_is_judged_level_by_level(tmp_path: Path, file: Path, logits) -> None:
    z, y = logits
    (tmp_path / "tree.yaml").write_text(TREE)
    found = measured(file, "--split", "test", "--tree", tmp_path / "tree.yaml")["levels"]
    assert [one["nodes"] for one in found] == [["animal", "vehicle"], ["mammal", "bird", "3", "4"]]
    animal = metrics.softmax(z[200:])[:, :3].sum(axis=1)
    right = (animal > 0.5) == (y[200:] < 3)
    assert found[0]["metrics"]["accuracy"]["value"] == right.mean()
    shown = evaluate(file, "--split", "test", "--tree", tmp_path / "tree.yaml").stdout
    assert "level by level" in shown


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ("{a: ['0', '1'], a: ['2', '3', '4']}", "twice"),
        ("a: &x ['0', '1']\nb: *x", "alias"),
        ("a: [", "not YAML"),
        ("a: ['0', '1']\nb: ['2', '3']", "'4' is missing"),
        (None, "cannot read"),
    ],
)
def test_a_tree_that_cannot_be_read_is_refused(
    tmp_path: Path, file: Path, tree: str | None, says: str
) -> None:
    if tree is not None:
        (tmp_path / "tree.yaml").write_text(tree)
    result = evaluate(file, "--split", "test", "--tree", tmp_path / "tree.yaml")
    assert result.exit_code == 2
    assert says in result.output


def test_labels_of_an_inner_node_are_refused(tmp_path: Path) -> None:
    rows = ["animal/cat,animal/dog,car,label", *["0.5,0.25,0.25,car", "0.5,0.25,0.25,animal"] * 20]
    (tmp_path / "scores.csv").write_text("\n".join(rows))
    result = evaluate(tmp_path / "scores.csv", "--outputs", "probabilities", "--tree", "sep:/")
    assert result.exit_code == 2
    assert "animal" in result.output


def test_samples_of_no_known_class_are_measured_apart(tmp_path: Path, file: Path, logits) -> None:
    z, _ = logits
    rng = np.random.default_rng(1)
    other = 2 * rng.standard_normal((100, 5)).astype("f4")
    np.savez(tmp_path / "other.npz", logits=other)
    fitted = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=5)
    replace(fitted, abstain=Abstain(0.5, known_refused=0.2)).save(tmp_path / "artifact")
    asked = (
        file,
        "--split",
        "test",
        "--artifact",
        tmp_path / "artifact",
        "--unknown",
        tmp_path / "other.npz",
    )
    found = measured(*asked)["unknown"]
    known, unknown = (metrics.softmax(part / 2).max(axis=1) for part in (z[200:], other))
    assert found["auroc"]["value"] == pytest.approx(metrics.open_set(known, unknown)["auroc"].value)
    assert found["known_refused"]["value"] == (known < 0.5).mean()
    assert found["unknown_refused"]["value"] == (unknown < 0.5).mean()
    assert "unknown refused" in evaluate(*asked).stdout
    alone = measured(file, "--split", "test", "--unknown", tmp_path / "other.npz")["unknown"]
    assert [*alone] == ["auroc"]
    np.savez(tmp_path / "named.npz", logits=z[200:], truth=np.load(file)["test_labels"])
    said = by_schema(tmp_path / "named.npz", "--labels", "truth")
    by_name = measured(tmp_path / "named.npz", *said, "--unknown", tmp_path / "other.npz")
    assert by_name["unknown"] == alone


def test_unknown_samples_of_another_model_are_refused(tmp_path: Path, file: Path) -> None:
    np.savez(tmp_path / "other.npz", logits=np.random.default_rng(0).normal(size=(50, 4)))
    result = evaluate(file, "--split", "test", "--unknown", tmp_path / "other.npz")
    assert result.exit_code == 2
    assert "--unknown" in result.output


def test_levels_of_the_samples_of_the_fit_prove_nothing(tmp_path: Path, file: Path) -> None:
    out = tmp_path / "fitted"
    made = invoke(["fit", str(file), "--split", "cal", "--method", "temperature", "-o", str(out)])
    assert made.exit_code == 0, made.output
    (tmp_path / "tree.yaml").write_text(TREE)
    asked = (file, "--split", "cal", "--artifact", out, "--tree", tmp_path / "tree.yaml")
    found = measured(*asked)
    assert {one["verdict"]["level"] for one in (found, *found["levels"])} == {"too_little"}
    page = measured(*asked, "--report", tmp_path / "r.html")
    for levels in (page["levels"], page["report"]["levels"]):
        assert {one["verdict"]["level"] for one in levels} == {"too_little"}
