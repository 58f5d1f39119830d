"""Artifacts: built, saved, loaded; their decisions, tensors and what is known of the model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from small_models import TABLE, everything, temperature

from calib_serve import Artifact
from calib_serve.artifact import (
    Abstain,
    AbstainFacts,
    DecisionFacts,
    FitRecord,
    LogitMap,
    ModelFacts,
    PredictionSets,
    PriorCorrection,
    ProbTable,
    Score,
    Selection,
    SetFacts,
)
from calib_serve.artifact.manifest import digest
from calib_serve.core.errors import ArtifactError, CalibServeError, IntegrityError, SchemaError


def tamper(folder: Path, change) -> None:
    """Change the manifest and make its hash right again, as a clever attacker would."""
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    manifest.pop("sha256")
    change(manifest)
    digest = json.dumps(manifest, sort_keys=True, allow_nan=True, ensure_ascii=False).encode()
    manifest["sha256"] = hashlib.sha256(digest).hexdigest()
    (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True))


def replace_tensor(folder: Path, name: str, value: np.ndarray) -> None:
    tensors = load_tensors((folder / "params.safetensors").read_bytes()) | {name: value}
    content = save_tensors(tensors)
    (folder / "params.safetensors").write_bytes(content)
    tamper(folder, lambda m: m.update(params_sha256=hashlib.sha256(content).hexdigest()))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return everything().save(tmp_path / "artifact")


def test_saving_over_an_artifact_replaces_it_and_leaves_nothing_behind(saved: Path) -> None:
    plain = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3)
    plain.save(saved)
    assert Artifact.load(saved).method == "temperature"
    assert [p.name for p in saved.parent.iterdir()] == ["artifact"]


def test_saving_over_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ArtifactError, match="not an artifact"):
        everything().save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(classes=4),
        lambda m: m.update(classes="many"),
        lambda m: m.update(steps=m["steps"][::-1]),
        lambda m: m.update(steps=m["steps"][:-1]),
        lambda m: m["steps"][0].update(kind="../../etc/passwd"),
        lambda m: m["steps"][0].update(low=2.0),
        lambda m: m["steps"][1].update(layers=10**9),
        lambda m: m["steps"][3].update(on="probs"),
        lambda m: m["steps"].insert(0, {"kind": "mixture"}),
        lambda m: m.update(sets={"coverage": 0.9, "score": "lac", "penalty": 0.0, "free_ranks": 0}),
        lambda m: m.update(abstain={"threshold": 1.5, "risk": 0.1, "level": 0.95}),
        lambda m: m.update(contract={"contract": 1}),
        lambda m: m.update(contract={"contract": 1, "classes": {"7": {"calibration": {"error": 0.1}}}}),
        lambda m: m.update(reference={"count": [1], "confidence": [1, 2], "correct": [1]}),
        lambda m: m.pop("method"),
        lambda m: m.update(class_names=[1, 2, 3]),
        lambda m: m.update(fit={"x": float("nan")}),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(saved: Path, change) -> None:
    tamper(saved, change)
    with pytest.raises(SchemaError):
        Artifact.load(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step2.weight", np.array(0.0)),
        ("step2.weight", np.array(np.nan)),
        ("step0.delta", np.full((1, 4, 4), np.inf, "f4")),
        ("step1.weight1", np.zeros((3, 6), "f4")),
        ("step4.values", np.full((3, 3), 1.5)),
        ("step4.edges", np.tile([0.5, 0.25], (3, 1))),
        ("step2.extra", np.array(1.0)),
        ("../../evil", np.array(1.0)),
    ],
)
def test_tensors_that_cannot_be_right_are_refused(saved: Path, name: str, value: np.ndarray) -> None:
    replace_tensor(saved, name, value)
    with pytest.raises(SchemaError):
        Artifact.load(saved)


def test_a_manifest_without_the_hash_of_its_tensors_is_refused(saved: Path) -> None:
    tamper(saved, lambda m: m.pop("params_sha256"))
    with pytest.raises(IntegrityError):
        Artifact.load(saved)


def test_a_manifest_edited_by_hand_is_noticed(saved: Path) -> None:
    text = (saved / "manifest.yaml").read_text()
    (saved / "manifest.yaml").write_text(text.replace("method: everything", "method: nothing"))
    with pytest.raises(IntegrityError, match="changed"):
        Artifact.load(saved)


LOGITS = arrays(np.float64, (7, 3), elements=st.floats(-30, 30))


@given(LOGITS, st.floats(0.05, 20))
def test_a_temperature_never_changes_the_order(logits: np.ndarray, t: float) -> None:
    probs = Artifact((LogitMap.temperature(t),), method="temperature", classes=3).probs(logits)
    assert np.allclose(probs.sum(axis=1), 1)
    rows = np.arange(7)
    assert (probs[rows, logits.argmax(1)] >= probs.max(1) - 1e-15).all()


@given(LOGITS)
def test_tables_give_distributions(logits: np.ndarray) -> None:
    one = ProbTable(np.array([[0.5]]), np.array([[0.3, 0.9]]))
    for table in (TABLE, one):
        probs = Artifact((table,), method="histogram", classes=3).probs(logits, outputs="logits")
        assert np.allclose(probs.sum(axis=1), 1)
        assert (probs >= 0).all()


PLAIN = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3)


def test_aps_takes_each_class_that_less_mass_than_the_threshold_lies_above() -> None:
    p = np.random.default_rng(1).dirichlet(np.ones(6), size=200)
    inside = PredictionSets(np.array(0.8), coverage=0.9, score="aps")(p)
    for row, kept in zip(p, inside, strict=True):
        order = np.argsort(-row, kind="stable")
        above = np.cumsum(row[order]) - row[order]
        size = max(1, int((above <= 0.8).sum()))
        assert sorted(np.flatnonzero(kept)) == sorted(order[:size])


@pytest.mark.parametrize(
    "wrong",
    [
        {"coverage": 1.0},
        {"threshold": np.array([[0.5]])},
        {"threshold": np.array(-0.5)},
        {"threshold": np.array(np.nan)},
        {"score": "saps"},
        {"penalty": 0.1},
        {"score": "raps", "penalty": -1.0},
    ],
)
def test_rules_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CalibServeError):
        PredictionSets(**{"threshold": np.array(0.5), "coverage": 0.9, **wrong})


def test_thresholds_of_other_classes_and_decisions_on_labels_are_refused() -> None:
    with pytest.raises(CalibServeError, match="3 classes but 2"):
        replace(PLAIN, sets=PredictionSets(np.array([0.5, 0.5]), coverage=0.9))
    with pytest.raises(CalibServeError, match="not for labels"):
        Artifact(
            (), method="none", classes=3, model={"outputs": "label_logits"}, abstain=Abstain(0.5, risk=0.1)
        )
    with pytest.raises(CalibServeError, match="threshold"):
        Abstain(1.5, risk=0.1)


def with_model(folder: Path, model: Any) -> Path:
    """An artifact whose manifest says ``model``, its hashes right."""
    saved = temperature().save(folder / "artifact")
    manifest = yaml.safe_load((saved / "manifest.yaml").read_text())
    manifest = {**manifest, "model": model}
    manifest.pop("sha256")
    (saved / "manifest.yaml").write_text(yaml.safe_dump({**manifest, "sha256": digest(manifest)}))
    return saved


@pytest.mark.parametrize(
    "model",
    [
        {"sha256": 7},
        {"source": {"a": 1}},
        {"input_shape": "3,224,224"},
        {"input_shape": [True]},
        {"input_dtype": 32},
        {"outputs": "scores"},
        {"pictures": "normalised"},
        {"pictures": {"mean": 0, "std": 0}},
        "model.onnx",
        ["sha256"],
    ],
    ids=str,
)
def test_facts_of_the_wrong_type_are_refused_when_the_artifact_is_read(tmp_path: Path, model: Any) -> None:
    with pytest.raises(SchemaError, match="model"):
        Artifact.load(with_model(tmp_path, model))


def test_what_a_file_held_is_written_back_as_it_was(tmp_path: Path) -> None:
    held = {
        "sha256": "ab" * 32,
        "outputs": "log_probs",
        "input_shape": [3, 8, 8],
        "last_linear": None,
        "a key of later": [1, {"x": 2.5}],
    }
    artifact = Artifact.load(with_model(tmp_path, held))
    assert artifact.model == ModelFacts(sha256="ab" * 32, outputs="log_probs", input_shape=(3, 8, 8))
    again = artifact.save(tmp_path / "again")
    assert yaml.safe_load((again / "manifest.yaml").read_text())["model"] == held
    assert (again / "manifest.yaml").read_bytes() == artifact.save(tmp_path / "b" / "again").joinpath(
        "manifest.yaml"
    ).read_bytes()
    assert Artifact.load(again).fingerprint == artifact.fingerprint


FOUND_ON = {"samples": 10, "sha256": "ab" * 32, "seed": 0}
RECORD = FitRecord(
    {"temperature": np.float64(2.0), "undefined": float("nan"), "steps": [1, {"a": True}]},
    selection=Selection(
        criterion="nll",
        rule="the simplest",
        folds=5,
        seed=0,
        tolerance=0.005,
        level=0.95,
        best="vector",
        chosen="temperature",
        scores=(Score("none", refused="accuracy falls"), Score("temperature", 0.5, 0.0, 0.01)),
    ),
    prior=PriorCorrection((0.5, 0.25, 0.25), (0.25, 0.25, 0.5), "given"),
    decisions=DecisionFacts(
        SetFacts(**FOUND_ON, groups=5, threshold_samples=8, top_right=0.5, held=1.0, always_in=(2,)),
        AbstainFacts(**FOUND_ON, answered=0.5),
    ),
    remarks=("10 samples are few",),
)


def test_the_record_of_a_fit_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = replace(temperature(), fit=RECORD)
    again = Artifact.load(made.save(tmp_path / "a"))
    # Scores that are NaN are equal to none from Python 3.13 on.
    assert (repr(again.fit), again.fingerprint) == (repr(RECORD), made.fingerprint)
    assert again.fit["temperature"] == 2.0
    written = yaml.safe_load((tmp_path / "a" / "manifest.yaml").read_text())["fit"]
    assert list(written) == [*RECORD.facts, "selection", "prior", "decisions", "remarks"]
    assert written["selection"]["scores"][0] == {"method": "none", "refused": "accuracy falls"}
    assert written["decisions"]["abstain"] == {**FOUND_ON, "answered": 0.5}
    assert repr(replace(made, fit=written).fit) == repr(RECORD)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(fit=[["temperature", 2.0]]),
        lambda m: m["fit"].update(selection=None),
        lambda m: m["fit"]["selection"].pop("scores"),
        lambda m: m["fit"]["selection"].update(of_a_later_version=1),
        lambda m: m["fit"]["selection"]["scores"][1].update(score="0.5"),
        lambda m: m["fit"]["prior"].update(new=[0.5, 0.5]),
        lambda m: m["fit"]["prior"].update(old="a third each"),
        lambda m: m["fit"]["decisions"].update(sets=5),
        lambda m: m["fit"]["decisions"]["abstain"].pop("answered"),
        lambda m: m["fit"].update(remarks="one text"),
        lambda m: m["fit"].update(remarks=[1]),
    ],
)
def test_a_record_with_a_part_of_another_shape_is_refused(tmp_path: Path, change) -> None:
    folder = replace(temperature(), fit=RECORD).save(tmp_path / "a")
    tamper(folder, change)
    with pytest.raises(SchemaError):
        Artifact.load(folder)
