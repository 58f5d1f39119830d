"""Archives: the same bytes every time, and none that could leave its folder is taken."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import pytest
from command_line import calib_serve
from live_server import exported, temperature_artifact

from calib_serve.core.errors import FuseError, IntegrityError
from calib_serve.core.files import shipped
from calib_serve.torchserve import pack
from calib_serve.torchserve.archive._archive import MANIFEST, read_archive, write_archive
from calib_serve.torchserve.asking import unpacked
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


def test_the_metrics_file_is_the_one_that_the_series_ask_for() -> None:
    assert shipped("handlers/metrics.yaml").read_text() == metrics_file()
