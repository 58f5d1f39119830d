"""Archives: the same bytes every time, and none that could leave its folder is taken."""

from __future__ import annotations

import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import calib_serve
from live_server import exported, temperature_artifact

from calib_serve.core.errors import FuseError, IntegrityError, ModelError
from calib_serve.core.files import shipped
from calib_serve.torchserve import pack, pack_around
from calib_serve.torchserve.archive._archive import MANIFEST, read_archive, write_archive
from calib_serve.torchserve.asking import unpacked
from calib_serve.torchserve.mar_options import ModelOptions
from calib_serve.torchserve.metrics_file import metrics_file


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return pack(
        exported(tmp_path / "net.pt2"),
        temperature_artifact(),
        tmp_path,
        name="digits",
        unproven=True,
    )


def test_the_same_inputs_make_the_same_bytes(packed: Path, tmp_path: Path) -> None:
    time.sleep(2)  # a zip's clock ticks in steps of two seconds
    again = pack(
        tmp_path / "net.pt2",
        temperature_artifact(),
        tmp_path / "b",
        name="digits",
        unproven=True,
    )
    assert again.read_bytes() == packed.read_bytes()


@pytest.mark.parametrize(
    "name", ["model.pt2", "artifact/manifest.yaml", "calibrated_classifier.py", MANIFEST]
)
def test_any_changed_file_is_noticed(packed: Path, tmp_path: Path, name: str) -> None:
    changed = tmp_path / "changed.mar"
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.namelist():
            content = old.read(entry)
            new.writestr(entry, content + b" " if entry == name else content)
    with pytest.raises(IntegrityError, match="changed after"):
        read_archive(changed)
    assert "changed after" in calib_serve("inspect", changed).stderr


def test_an_added_file_is_noticed(packed: Path) -> None:
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("torch.py", "print('mine')")
    with pytest.raises(IntegrityError):
        read_archive(packed)


@pytest.mark.parametrize("name", ["", "../x", "a b", "a/b", "a\nb", "é", "-x", "x" * 101])
def test_names_that_a_server_or_a_path_could_trip_over_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FuseError, match="letters"):
        write_archive(tmp_path / "x.mar", {}, name=name, version="1.0", handler="h.py")


@pytest.mark.parametrize(
    ("handler", "says"),
    [("image_segmenter", "is no classifier"), ("", "names no handler"), ("gone.py", "does not carry it")],
)
def test_an_archive_without_a_classifiers_handler_is_refused(tmp_path: Path, handler: str, says: str) -> None:
    path = write_archive(tmp_path / "x.mar", {}, name="x", version="1.0", handler=handler)
    with pytest.raises(FuseError, match=says), unpacked(path):
        pass


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"outputs": "scores"}, "outputs must be one of .*, got 'scores'"),
        ({"receipts": "no"}, "receipts must be one of"),
        ({"seams": "model"}, "unknown keys .'seams'.; known: .*'seam'"),
        ({"threshold": 0.3}, "threshold is of several labels"),
        ({"outputs": "label_logits", "abstain_below": 0.3}, "no one confidence to abstain by"),
        ({"input_dtype": "int64"}, "cannot be read: pictures become fractions, the model takes int64"),
    ],
)
def test_a_section_of_options_that_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    section = {"kind": "onnx", "model": "m.onnx", "sha256": "0", "input_shape": [3, 4, 4]}
    section["pictures"] = {"mean": [0.0] * 3, "std": [1.0] * 3}
    assert ModelOptions.read({"calib_serve": section}).input_shape == (3, 4, 4)
    with pytest.raises(ModelError, match=says):
        ModelOptions.read({"calib_serve": {**section, **changes}})
    with pytest.raises(ModelError, match="has no 'calib_serve' section"):
        ModelOptions.read({})


def test_a_model_that_is_no_file_to_pack_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for name, says in (
        (tmp_path, "is a folder; .*--from"),
        ("nets:make", "makes a network; write it to a .pt2"),
        (tmp_path / "none.pt2", "there is no file"),
        (Path(__file__), "is not .pt2, .onnx or TorchScript"),
    ):
        with pytest.raises(FuseError, match=says):
            pack(name, temperature_artifact(), tmp_path, name="m", unproven=True)
    fitted = replace(temperature_artifact(), model={})
    with pytest.raises(FuseError, match="does not say what the model takes"):
        pack(exported(tmp_path / "net.pt2"), fitted, tmp_path, name="m", unproven=True)


HANDLER = "def handle(data, context): return data"


@pytest.mark.parametrize(
    ("config", "manifest", "says"),
    [
        ("", {"runtime": "LSP"}, "for the runtime 'LSP'"),
        ("continuousBatching: true", {}, "continuousBatching, where replies are not made batch by batch"),
        ("batchSize: many", {}, "batchSize in .* is not a number"),
        ("minWorkers: [1]", {}, "minWorkers in .* is not a number"),
        ("", {"model": {"serializedFile": "net.pt"}}, "names the model net.pt but does not carry it"),
    ],
)
def test_a_foreign_archive_that_cannot_be_calibrated_is_refused(
    tmp_path: Path, config: str, manifest: dict[str, Any], says: str
) -> None:
    files = {"mine.py": HANDLER.encode(), "model-config.yaml": config.encode()}
    how = {"handler": "mine.py", "config_file": "model-config.yaml", "manifest": manifest}
    old = write_archive(tmp_path / "old.mar", files, name="old", version="1", **how)
    with pytest.raises(FuseError, match=says):
        pack_around(old, temperature_artifact(), tmp_path / "out", untried=True, unproven=True)
    assert not (tmp_path / "out").exists()


def test_the_metrics_file_is_the_one_that_the_series_ask_for() -> None:
    assert shipped("handlers/metrics.yaml").read_text() == metrics_file()
