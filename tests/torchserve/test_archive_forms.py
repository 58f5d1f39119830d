"""Archives that torch-model-archiver makes; none of them can harm us."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from live_server import temperature_artifact
from others_archives import HANDLER, archived

from calib_serve import load_artifact
from calib_serve.core.errors import ModelError
from calib_serve.torchserve import pack_around, read_archive, stored_archives
from calib_serve.torchserve.archive._archive import MANIFEST

pytestmark = pytest.mark.server


def test_an_archive_is_read_and_packed_again(tmp_path: Path) -> None:
    old = archived(tmp_path / "store")
    found = read_archive(old)
    assert (found.name, found.version, found.model["handler"]) == ("pets", "3.1", "mine.py")
    assert found.files == (MANIFEST, "mine.py", "net.pt")
    assert found.read("mine.py").decode() == HANDLER
    assert stored_archives(tmp_path / "store") == [old]
    new = read_archive(
        pack_around(old, temperature_artifact(), tmp_path / "store", untried=True, unproven=True)
    )
    assert new.path.name == "pets-3.1-calibrated.mar"
    assert new.read("net.pt") == found.read("net.pt")
    assert load_artifact(new.path).fingerprint == temperature_artifact().fingerprint


@pytest.mark.parametrize("name", ["x.tar.gz", "x.zip"])
def test_what_is_not_called_mar_is_refused(name: str, tmp_path: Path) -> None:
    path = archived(tmp_path / "store").rename(tmp_path / "store" / name)
    with pytest.raises(ModelError, match=r"a zip called \.mar"):
        read_archive(path)
    assert stored_archives(tmp_path / "store") == []


@pytest.mark.parametrize(("written", "version"), [("1", "1"), ("1.0", "1.0"), ("1.10", "1.10"), ('"1"', "1")])
def test_a_version_is_what_is_written(written: str, version: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.mar", "w") as archive:
        archive.writestr(MANIFEST, '{"model": {"modelName": "m", "modelVersion": ' + written + "}}")
    assert read_archive(tmp_path / "x.mar").version == version
