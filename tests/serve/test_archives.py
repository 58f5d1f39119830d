"""Archives: the same bytes every time, and none that could leave its folder is taken."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import pytest
from live_server import network, temperature_artifact, torchscript
from safetensors.torch import save_file
from typer.testing import CliRunner

from calib_serve.cli import app
from calib_serve.errors import FuseError, IntegrityError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.fuse.torchserve import labelled_models, pack, pack_around, pack_feedback
from calib_serve.fuse.torchserve.archive import MANIFEST, read_archive, write_archive
from calib_serve.fuse.torchserve.contents import shipped
from calib_serve.pictures import Preprocessing
from calib_serve.serve.metrics_file import metrics_file


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return pack(
        torchscript(tmp_path / "net.pt"), temperature_artifact(), tmp_path, name="digits", standalone=True
    )


def test_the_same_inputs_make_the_same_bytes(packed: Path, tmp_path: Path) -> None:
    time.sleep(2)  # a zip's clock ticks in steps of two seconds
    again = pack(tmp_path / "net.pt", temperature_artifact(), tmp_path / "b", name="digits", standalone=True)
    assert again.read_bytes() == packed.read_bytes()


@pytest.mark.parametrize("name", ["model.pt", "artifact/manifest.yaml", "calibrated_classifier.py", MANIFEST])
def test_any_changed_file_is_noticed(packed: Path, tmp_path: Path, name: str) -> None:
    changed = tmp_path / "changed.mar"
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.namelist():
            content = old.read(entry)
            new.writestr(entry, content + b" " if entry == name else content)
    with pytest.raises(IntegrityError, match="changed after"):
        read_archive(changed)
    result = CliRunner().invoke(app, ["inspect", str(changed)])
    assert isinstance(result.exception, IntegrityError)


def test_an_added_file_is_noticed(packed: Path) -> None:
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("torch.py", "print('mine')")
    with pytest.raises(IntegrityError):
        read_archive(packed)


def manifest(**model: str) -> str:
    return json.dumps({"model": {"modelName": "m", "modelVersion": "1", "handler": "h.py", **model}})


@pytest.mark.parametrize("name", ["", "../x", "a b", "a/b", "a\nb", "é", "-x", "x" * 101])
def test_names_that_a_server_or_a_path_could_trip_over_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FuseError, match="letters"):
        write_archive(tmp_path / "x.mar", {}, name=name, version="1.0", handler="h.py")


def test_an_eager_model_wants_safetensors_and_a_state_dict_alone_is_no_model(tmp_path: Path) -> None:
    import torch

    torch.save(network().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(FuseError, match="safetensors"):
        pack("net:make", temperature_artifact(), tmp_path, name="m", weights=tmp_path / "weights.pt")
    with pytest.raises(FuseError, match="module:factory"):
        pack(tmp_path / "weights.pt", temperature_artifact(), tmp_path, name="m")
    save_file(network().state_dict(), tmp_path / "weights.safetensors")
    assert pack(
        "net:make", temperature_artifact(), tmp_path, name="m", weights=tmp_path / "weights.safetensors"
    ).is_file()


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ("", "names no handler"),
        ("mine.py:predict", "does not carry it"),
        ("mine.py", "does not carry it"),
        ("object_detector", "no classifier"),
        ("image_segmenter", "no classifier"),
    ],
)
def test_a_handler_that_cannot_be_wrapped_is_told_when_packing(
    tmp_path: Path, handler: str, says: str
) -> None:
    files = {"net.pt": torchscript(tmp_path / "net.pt")}
    fields = {"handler": handler, "serializedFile": "net.pt"}
    old = write_archive(tmp_path / "old.mar", files, name="old", version="1", **fields)
    with pytest.raises(FuseError, match=says):
        pack_around(old, temperature_artifact(), tmp_path / "new")


def test_the_feedback_archive_knows_whose_labels_are_welcome(packed: Path, tmp_path: Path) -> None:
    (listed,) = labelled_models([packed, pack_feedback(tmp_path)])
    assert (listed["name"], listed["version"], listed["classes"]) == ("digits", "1.0", 10)
    config = read_archive(pack_feedback(tmp_path / "b", archives=[packed])).config
    assert config["calib_serve"]["models"] == [listed]
    assert config["maxWorkers"] == 1


def test_the_metrics_file_is_the_one_that_the_series_ask_for() -> None:
    assert shipped("handlers/metrics.yaml").read_text() == metrics_file()


def test_options_survive_the_yaml(tmp_path: Path) -> None:
    path = pack(
        torchscript(tmp_path / "net.pt"),
        temperature_artifact(),
        tmp_path,
        name="m",
        abstain_below=0.6,
        input_shape=(1, 4, -1),
        pictures={"mean": 0.5, "std": 0.25, "resize": 5, "crop": 4, "interpolation": "bicubic"},
        max_pixels=1000,
        threads=2,
        outputs="log_probs",
    )
    options = ModelOptions.read(read_archive(path).config)
    assert (options.abstain_below, options.max_pixels, options.threads) == (0.6, 1000, 2)
    assert options.pictures == Preprocessing((0.5,), (0.25,), 5, (4, 4), "bicubic", 1)
    assert options.outputs == "log_probs"
    assert options.input_shape == (1, 4, None)
