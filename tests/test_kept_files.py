"""What earlier versions wrote is still read: files of every schema, kept as they were written.

They are never made again. A new schema or receipt format adds files of its own beside them, and these
tests ask for one of each number, so that raising a number without reading the older ones fails here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from calib_serve import Artifact, Head, InputShift, LogitMap, Mixture, ProbTable
from calib_serve.artifact.manifest import SCHEMA
from calib_serve.errors import SchemaError

DATA = Path(__file__).parent / "kept"
SCHEMAS = range(1, SCHEMA + 1)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_artifact_of_every_schema_loads_and_says_what_it_said(schema: int) -> None:
    artifact = Artifact.load(DATA / f"artifact-schema-{schema}")
    assert [type(step) for step in artifact.steps] == [InputShift, Head, LogitMap, LogitMap, Mixture]
    assert artifact.input_shift is not None
    assert artifact.input_shift.delta.tolist() == [[0.125, -0.25]]
    assert (artifact.input_shift.low, artifact.input_shift.high) == (0.0, 1.0)
    assert artifact.class_names == ("cat", "dog", "Ærfugl")
    assert artifact.fit["temperature"] == 2.0
    assert artifact.after["ece"] == {"value": 0.0625, "low": None, "high": None}
    assert artifact.reference is not None
    assert artifact.reference.count.tolist() == [0, 1, 3]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_artifact_of_every_schema_gives_the_probabilities_it_gave(schema: int) -> None:
    artifact = Artifact.load(DATA / f"artifact-schema-{schema}")
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


def test_the_fit_s_own_scores_still_get_the_fit_s_own_probabilities() -> None:
    artifact = Artifact.load(DATA / "artifact-schema-2")
    assert artifact.model.outputs == "logits"
    assert artifact.examples is not None
    np.testing.assert_allclose(artifact.probs(artifact.examples.logits), artifact.examples.probs, rtol=1e-12)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_table_of_every_schema_gives_the_probabilities_it_gave(schema: int) -> None:
    artifact = Artifact.load(DATA / f"artifact-schema-{schema}-table")
    assert [type(step) for step in artifact.steps] == [LogitMap, ProbTable]
    sure, unsure = artifact.probs(np.array([[2.0, 0.0, -1.0], [0.1, 0.2, 0.3]]))
    assert sure.max() == 0.875  # doubled logits: .98, above the edge at .75
    assert unsure.max() == 0.5


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_artifact_is_written_again_as_it_was(schema: int, tmp_path: Path) -> None:
    kept = Artifact.load(DATA / f"artifact-schema-{schema}")
    again = Artifact.load(kept.save(tmp_path / "again"))
    assert again.fingerprint == kept.fingerprint


def test_an_artifact_of_a_later_schema_is_refused_and_says_whose_fault_that_is(tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(DATA / f"artifact-schema-{SCHEMA}", folder)
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    (folder / "manifest.yaml").write_text(yaml.safe_dump({**manifest, "schema": SCHEMA + 1}))
    with pytest.raises(SchemaError, match=rf"schema {SCHEMA + 1}.*a newer calib-serve wrote it; upgrade"):
        Artifact.load(folder)


def test_an_artifact_of_labels_gives_the_probabilities_it_gave() -> None:
    artifact = Artifact.load(DATA / "artifact-schema-2-labels")
    assert artifact.is_multilabel
    # By hand: half the first log-odds and a quarter, twice the second less a half; then above a half or not.
    assert artifact.probs(np.array([[1.0, 0.125], [-1.0, 1.0]])).tolist() == [[0.75, 0.25], [0.125, 0.875]]


def test_the_decisions_that_an_artifact_holds_are_still_made() -> None:
    artifact = Artifact.load(DATA / "artifact-schema-3")
    assert artifact.sets is not None
    assert artifact.abstain is not None
    # By hand: .5, then .5 + .25 + .125 for the second rank and 1 + 2 x .125 for the third.
    probs = np.array([[0.5, 0.25, 0.25], [0.25, 0.375, 0.375]])
    assert artifact.sets.scores(probs)[0].tolist() == [0.5, 0.875, 1.25]
    assert artifact.sets(probs).tolist() == [[True, False, False], [False, True, True]]
    assert artifact.abstain(probs).tolist() == [False, True]
