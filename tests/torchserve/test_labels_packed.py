"""Multi-label handlers that are not ours: packed with an artifact of labels, refused with one of classes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from foreign_handlers import archive, artifact
from label_handlers import LABELS, array_files, labels_artifact
from live_server import exported, temperature_artifact
from sizes import sized

from calib_serve.core.errors import FuseError, ModelError
from calib_serve.torchserve import pack, pack_around, recalibrated

pytestmark = pytest.mark.server

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def _torchvision_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "torchvision_ops"), prepend=os.pathsep)


@pytest.mark.parametrize(
    "name", sized(ci=("after_sigmoid",), nightly=("tagger", "by_numpy", "after_sigmoid"))
)
def test_an_artifact_of_classes_is_refused_and_names_the_flag(name: str, tmp_path: Path) -> None:
    source = archive(name, tmp_path, LABELS[name])
    data = array_files(tmp_path)
    with pytest.raises(FuseError, match=r"scores of labels.*scores of classes.*fit --outputs label_"):
        pack_around(source, artifact(LABELS[name]), tmp_path / "out", probe_data=data, unproven=True)
    assert not list((tmp_path / "out").glob("*"))


def test_an_archive_and_an_artifact_that_do_not_agree_are_refused_before_they_serve(tmp_path: Path) -> None:
    net = exported(tmp_path / "net.pt2")
    for fitted, outputs in ((labels_artifact(), "logits"), (temperature_artifact(), "label_logits")):
        with pytest.raises(ModelError, match=r"--outputs \(outputs=\)"):
            pack(net, fitted, tmp_path / "out", name="n", outputs=outputs, unproven=True)
    with pytest.raises(ModelError, match="no one confidence to abstain by"):
        pack(net, labels_artifact(), tmp_path / "out", name="n", abstain_below=0.7, unproven=True)
    made = pack(net, labels_artifact(), tmp_path / "out", name="n", unproven=True)
    with pytest.raises(ModelError, match="label_logits"):
        recalibrated(made, temperature_artifact(), tmp_path / "again", version="2.0")
    assert "outputs: label_logits" in zipfile.ZipFile(made).read("model-config.yaml").decode()
