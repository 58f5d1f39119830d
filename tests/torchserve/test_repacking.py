"""An archive that is served already gets a calibrated sister; it stays itself, and nothing of it is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import calib_serve
from live_server import temperature_artifact
from others_archives import archived

from calib_serve.torchserve import read_archive, recalibrated, remarks
from calib_serve.torchserve.archive._archive import CONFIG, MANIFEST

pytestmark = pytest.mark.server

CALIBRATED = "pets-3.1-calibrated.mar"


def call(*arguments: object) -> str:
    done = calib_serve(*arguments)
    assert done.exit_code == 0, done.output
    return done.output


def edited(path: Path, **changes: Any) -> Path:
    """An archive with other entries in its manifest; ``model_X`` is the model's X, None removes."""
    with zipfile.ZipFile(path) as old:
        files = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(files[MANIFEST])
    for key, value in changes.items():
        where = manifest["model"] if key.startswith("model_") else manifest
        where[key.removeprefix("model_")] = value
    with zipfile.ZipFile(path, "w") as new:
        for name, content in {**files, MANIFEST: json.dumps(manifest).encode()}.items():
            new.writestr(name, content)
    return path


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archived(tmp_path_factory.mktemp("pets"))


@pytest.fixture
def store(pets: Path, tmp_path: Path) -> Path:
    temperature_artifact().save(tmp_path / "artifact")
    (tmp_path / "store").mkdir()
    return Path(shutil.copy(pets, tmp_path / "store")).parent


def around(store: Path, *options: object) -> str:
    fixed = ("--from", store / "pets.mar", "--artifact", store.parent / "artifact", "-o", store)
    return call("pack", *fixed, "--untried", "--unproven", *options)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_old_archive_stays_and_the_new_one_is_another_version_beside_it(store: Path) -> None:
    before = digest(store / "pets.mar")
    said = around(store)
    assert f"pets.mar {CALIBRATED}" in said
    assert {path.name for path in store.iterdir()} == {"pets.mar", CALIBRATED}
    assert digest(store / "pets.mar") == before
    new = read_archive(store / CALIBRATED)
    assert (new.name, new.version) == ("pets", "3.1-calibrated")
    around(store)  # the same again is the same
    assert digest(store / "pets.mar") == before


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_the_source_is_not_replaced_even_by_force(store: Path, force: list[str]) -> None:
    shutil.move(store / "pets.mar", store / "pets-2.mar")
    before = digest(store / "pets-2.mar")
    (store / "pets.mar").symlink_to("pets-2.mar")
    for source in ("pets-2.mar", "pets.mar"):
        done = calib_serve(
            *("pack", "--from", store / source, "--artifact", store.parent / "artifact", "-o", store),
            *("--untried", "--unproven", "--version", 2, *force),
        )
        assert (done.exit_code, "made from" in done.stderr) == (3, True)
    assert digest(store / "pets-2.mar") == before


def test_the_configuration_keeps_what_is_not_given(store: Path, tmp_path: Path) -> None:
    config = {"minWorkers": 2, "maxWorkers": 4, "batchSize": 16, "responseTimeout": 99, "handler": {"a": [1]}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config))
    archived(store, "--config-file", tmp_path / "own.yaml", "--force")
    around(store)
    kept = read_archive(store / CALIBRATED)
    section = kept.config["calib_serve"]
    assert {**kept.config, "calib_serve": None} == {**config, "calib_serve": None}
    assert section["workers"] == 2
    assert kept.model["configFile"] == "own.yaml"
    assert CONFIG not in kept.files
    around(store, "--option", "workers=3", "--batch-size", 4, "--name", "animals", "--version", "4")
    new = read_archive(store / "animals-4.mar")
    assert (new.name, new.version) == ("animals", "4")
    changed = {"minWorkers": 3, "maxWorkers": 3, "batchSize": 4}
    assert {**new.config, "calib_serve": None} == {**config, **changed, "calib_serve": None}
    assert new.config["calib_serve"]["workers"] == 3


def test_every_file_and_every_entry_of_the_manifest_is_kept(store: Path, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    (extra / "deep" / "er").mkdir(parents=True)
    (extra / "deep" / "er" / "vocab.txt").write_text("a b")
    (extra / "index.txt").write_text("c")
    (tmp_path / "model.py").write_text("x = 1")
    (tmp_path / "requirements.txt").write_text("einops")
    options = {
        "--extra-files": extra,
        "--model-file": tmp_path / "model.py",
        "--requirements-file": tmp_path / "requirements.txt",
        "--runtime": "python3",
    }
    old = archived(store, "--force", *(word for pair in options.items() for word in pair))
    edited(
        old,
        description="Cats..\\dogs",
        licence={"name": "MIT", "year": 2024, "share": 0.1},
        model_extensions={"onnx": [1, 2.5, None]},
        model_version="seven",
        model_sourceVocab="deep/er/vocab.txt",
        model_description="..",
    )
    said = around(store)
    assert "note: pets-3.1-calibrated.mar was not tried" in said
    assert "note: pets-3.1-calibrated.mar requires packages (requirements.txt)" in said
    before, after = read_archive(old), read_archive(store / CALIBRATED)
    assert set(before.files) <= set(after.files)
    assert {"deep/er/vocab.txt", "index.txt", "model.py", "requirements.txt"} <= set(after.files)
    for name in set(before.files) - {MANIFEST}:
        assert after.read(name) == before.read(name)
    ours = {"handler": "calibrated_wrapper.py", "configFile": CONFIG, "modelVersion": "3.1-calibrated"}
    assert after.model == {**before.model, **ours}
    assert {**after.manifest, "model": 0} == {**before.manifest, "model": 0}
    assert after.manifest["licence"] == {"name": "MIT", "year": 2024, "share": 0.1}
    assert after.config["calib_serve"]["wraps"] == "mine.py"
    assert not any("requires packages" in remark for remark in remarks(after, installs=True))
    again = recalibrated(after.path, temperature_artifact(3.0), tmp_path, version="4")
    assert read_archive(again).manifest == {
        **after.manifest,
        "model": {**after.model, "modelVersion": "4"},
    }
