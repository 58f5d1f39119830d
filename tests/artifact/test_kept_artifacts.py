"""Artifacts of schema 1 that were kept: later versions read them, and write them again byte for byte.

Run this file as a program to write them. A later schema gets files of its own beside these.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from calib_serve import Artifact, Bins
from calib_serve.artifact import (
    Abstain,
    Contract,
    Examples,
    Head,
    InputShift,
    LogitMap,
    Mixture,
    PredictionSets,
    ProbTable,
)
from calib_serve.artifact.manifest import SCHEMA
from calib_serve.core.errors import SchemaError

KEPT = Path(__file__).parents[1] / "kept"
NAMES = ("cat", "dog", "Ærfugl")
LOGITS = [[2.5, -2.0, 2.0], [0.5, 1.0, 0.25]]
PROBS = [
    [0.46837959204900825, 0.32406666305205767, 0.20755374489893413],
    [0.297640450218031, 0.557781938979851, 0.1445776108021179],
]
CONTRACT = """
contract: 1
act: {above: 0.9, accuracy: 0.98}
segments:
  de: {act: {above: 0.95, accuracy: 0.99}}
classes:
  cat: {act: {above: 0.97, accuracy: 0.99}}
"""


def of_classes() -> Artifact:
    """Every step but a table, and every fact and decision."""
    steps = (
        InputShift(np.array([[0.125, -0.25]]), 0.0, 1.0),
        Head((np.array([[1.0, 0.5], [0.0, -1.0], [2.0, 0.25]]),), (np.array([0.5, 0.0, -0.5]),)),
        LogitMap.temperature(2.0),
        LogitMap(np.diag([1.0, 0.5, 2.0]), np.array([0.0, 0.25, -0.25]), "log_probs"),
        Mixture([1.0, 0.5], [0.5, 0.25, 0.25]),
    )
    return Artifact(
        steps,
        method="everything but a table",
        classes=3,
        class_names=NAMES,
        model={"sha256": "0" * 64, "input_shape": [1, 2], "outputs": "logits"},
        data={"samples": 4},
        fit={"temperature": 2.0},
        before={"ece": {"value": 0.25, "low": 0.125, "high": 0.5}},
        after={"ece": {"value": 0.0625, "low": None, "high": None}},
        reference=Bins([0, 1, 3], [0, 0.5, 2.5], [0, 1, 2]),
        reference_classes=(1, 0, 3),
        versions={"calib-serve": "0.2.0"},
        examples=Examples(LOGITS, PROBS),
        sets=PredictionSets([0.75, 0.5, 0.875], coverage=0.9, score="raps", penalty=0.125, free_ranks=1),
        abstain=Abstain(0.5, risk=0.05, level=0.95),
        contract=Contract.of(yaml.safe_load(CONTRACT), NAMES),
    )


def of_labels() -> Artifact:
    """A table, and classes that are labels."""
    return Artifact(
        (
            LogitMap(np.array([0.5, 2.0]), np.array([0.25, -0.5])),
            ProbTable([[0.5], [0.5]], [[0.125, 0.75], [0.25, 0.875]]),
        ),
        method="isotonic",
        classes=2,
        model={"outputs": "label_logits"},
    )


MADE = {"artifact-schema-1": of_classes, "artifact-schema-1-labels": of_labels}


@pytest.mark.parametrize("name", MADE)
def test_a_kept_artifact_is_what_it_was_and_is_written_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    kept, made = Artifact.load(KEPT / name), MADE[name]()
    again = kept.save(tmp_path / "again")
    assert kept.fingerprint == made.fingerprint
    assert kept.fingerprint == yaml.safe_load((KEPT / name / "manifest.yaml").read_text())["sha256"]
    for file in ("manifest.yaml", "params.safetensors"):
        assert (again / file).read_bytes() == (KEPT / name / file).read_bytes()
    facts = "class_names", "fit", "after", "reference", "reference_classes", "abstain", "contract", "model"
    assert [getattr(kept, fact) for fact in facts] == [getattr(made, fact) for fact in facts]
    assert [type(step) for step in kept.steps] == [type(step) for step in made.steps]


def test_a_kept_artifact_gives_the_probabilities_and_decisions_it_gave() -> None:
    artifact = Artifact.load(KEPT / "artifact-schema-1")
    assert artifact.input_shift is not None
    assert artifact.input_shift(np.array([[[0.5, 0.5]], [[1.0, 0.0]]], "f4")).tolist() == [
        [[0.625, 0.25]],
        [[1.0, 0.0]],
    ]
    assert artifact.head is not None
    logits = artifact.head(np.array([[1.0, 2.0]]))
    assert logits.tolist() == [[2.5, -2.0, 2.0]]
    # By hand: half the logits, log-probabilities w of these mapped to (w1, w2 / 2 + 1/4, 2 w3 - 1/4), then
    # half of the softmax, a quarter of it at half scale, and a quarter of a third each.
    w = logits / 2 - np.log(np.exp(logits / 2).sum())
    z = w * [1, 0.5, 2] + [0, 0.25, -0.25]
    full, half = np.exp(z) / np.exp(z).sum(), np.exp(z / 2) / np.exp(z / 2).sum()
    expected = 0.5 * full + 0.25 * half + 0.25 / 3
    np.testing.assert_allclose(artifact.probs(logits), expected, rtol=1e-12)
    assert artifact.examples is not None
    np.testing.assert_allclose(artifact.probs(artifact.examples.logits), artifact.examples.probs, rtol=1e-12)
    assert artifact.sets is not None
    assert artifact.abstain is not None
    # By hand: nothing lies above the first; above the second .5, and .125 for its rank, then .75 + 2 x .125.
    probs = np.array([[0.5, 0.25, 0.25], [0.25, 0.375, 0.375]])
    assert artifact.sets.scores(probs)[0].tolist() == [0.0, 0.625, 1.0]
    assert artifact.sets(probs).tolist() == [[True, False, False], [False, True, True]]
    assert artifact.abstain(probs).tolist() == [False, True]
    assert artifact.contract is not None
    assert artifact.contract.acts([0.96, 0.96, 0.96], [1, 1, 0], ["", "de", ""]).tolist() == [
        True,
        True,
        False,
    ]


def test_kept_labels_get_the_probabilities_they_got() -> None:
    artifact = Artifact.load(KEPT / "artifact-schema-1-labels")
    assert artifact.is_multilabel
    # By hand: half the first log-odds and a quarter, twice the second less a half; then above a half or not.
    assert artifact.probs(np.array([[1.0, 0.125], [-1.0, 1.0]])).tolist() == [[0.75, 0.25], [0.125, 0.875]]


@pytest.mark.parametrize("schema", [0, SCHEMA + 1, "1", None, True, [1]])
def test_another_schema_is_refused_and_a_later_one_asks_for_an_upgrade(
    schema: object, tmp_path: Path
) -> None:
    shutil.copytree(KEPT / "artifact-schema-1", tmp_path / "a")
    manifest = yaml.safe_load((tmp_path / "a" / "manifest.yaml").read_text())
    (tmp_path / "a" / "manifest.yaml").write_text(yaml.safe_dump({**manifest, "schema": schema}))
    with pytest.raises(SchemaError, match="upgrade" if schema == SCHEMA + 1 else "fit the artifact again"):
        Artifact.load(tmp_path / "a")


if __name__ == "__main__":
    for name, make in MADE.items():
        make().save(KEPT / name)
