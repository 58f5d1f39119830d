"""Two packages of onnxruntime in one environment: told, with the command that mends it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from calib_serve.distributions import check_onnxruntime, registered
from calib_serve.errors import ModelError
from calib_serve.fuse.sessions import open_session


def install(site: Path, name: str, version: str) -> None:
    """What pip leaves of a package, as far as it is read here: its metadata and the one import package."""
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "onnxruntime").mkdir(exist_ok=True)
    (site / "onnxruntime" / "__init__.py").write_text(f"__version__ = {version!r}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of packages that this process sees."""
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-gpu", "onnxruntime-directml"])
def test_one_package_is_right(site: Path, name: str) -> None:
    install(site, name, "1.31.1")
    check_onnxruntime()
    assert registered() == {name: "1.31.1"}


def test_two_of_one_version_are_warned_of(site: Path) -> None:
    install(site, "onnxruntime", "1.31.1")
    install(site, "onnxruntime-gpu", "1.31.1")
    mend = re.escape("pip uninstall -y onnxruntime onnxruntime-gpu, then pip install 'calib-serve[onnx]'")
    with pytest.warns(RuntimeWarning, match=mend):
        check_onnxruntime()


def test_two_versions_over_one_another_are_an_error(site: Path) -> None:
    install(site, "onnxruntime", "1.32.0")
    install(site, "onnxruntime-gpu", "1.31.1")
    both = r"onnxruntime 1\.32\.0 and onnxruntime-gpu 1\.31\.1 are both installed"
    with pytest.raises(ModelError, match=both):
        open_session(b"")


@pytest.mark.parametrize("left", ["an empty folder", "nothing"])
def test_files_that_went_with_the_other_package_are_told(site: Path, left: str) -> None:
    install(site, "onnxruntime-gpu", "1.31.1")
    (site / "onnxruntime" / "__init__.py").unlink()
    if left == "nothing":
        (site / "onnxruntime").rmdir()
    mend = re.escape("pip install --force-reinstall --no-deps onnxruntime-gpu==1.31.1")
    with pytest.raises(ModelError, match=f"its files went .*{mend}"):
        open_session(b"")
