"""What an artifact knows of its model: typed in code, verbatim on disk, and refused where it is nonsense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_models import everything, temperature

from calib_serve import Artifact
from calib_serve.artifact import ModelFacts
from calib_serve.artifact.manifest import digest
from calib_serve.errors import SchemaError
from calib_serve.pictures import Preprocessing


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
        {"mixed_precision": "yes"},
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


def test_how_pictures_became_inputs_is_a_fact_that_is_written_and_read(tmp_path: Path) -> None:
    pictures = {"mean": [0.5] * 3, "std": [0.2, 0.3, 0.4], "resize": 256, "crop": [224, 224], "channels": 3}
    artifact = Artifact(everything().steps, method="x", classes=3, model={"pictures": pictures})
    again = Artifact.load(artifact.save(tmp_path / "a"))
    assert again.model.pictures == Preprocessing.of(pictures)
    assert again.model.as_dict() == {"pictures": pictures}
    assert ModelFacts(pictures=Preprocessing.of(pictures)).as_dict() == {"pictures": pictures}
    assert "pictures" not in ModelFacts(sha256="ab").as_dict()
