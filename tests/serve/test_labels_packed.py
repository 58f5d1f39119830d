"""Multi-label handlers that are not ours: packed with an artifact of labels, refused with one of classes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from foreign_handlers import Foreign, archive, artifact, own
from label_handlers import LABELS, array_file, labels_artifact
from live_server import temperature_artifact, torchscript
from sizes import sized

from calib_serve.errors import CalibServeError, FuseError, ModelError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.fuse.torchserve import pack, pack_around, read_archive, recalibrated

pytestmark = pytest.mark.server

SUPPORT = Path(__file__).parents[1] / "support"
KINDS = {"after_sigmoid": "label_probabilities"}
PACKED = (*LABELS,)


@pytest.fixture(autouse=True)
def _torchvision_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "torchvision_ops"), prepend=os.pathsep)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PACKED)
def test_an_artifact_of_labels_is_packed_where_sigmoids_show(name: str, tmp_path: Path) -> None:
    foreign = LABELS[name]
    told = {"outputs": "label_logits"} if name == "one_tag" else {}
    made = pack_around(
        archive(name, tmp_path, foreign),
        labels_artifact(labels=foreign.out),
        tmp_path / "out",
        request=array_file(tmp_path),
        **foreign.options,
        **told,
    )
    assert ModelOptions.read(read_archive(made).config).outputs == KINDS.get(name, "label_logits")


@pytest.mark.parametrize(
    "name", sized(ci=("after_sigmoid",), nightly=("tagger", "by_numpy", "after_sigmoid"))
)
def test_an_artifact_of_classes_is_refused_and_names_the_flag(name: str, tmp_path: Path) -> None:
    source = archive(name, tmp_path, LABELS[name])
    with pytest.raises(FuseError, match=r"multi-label.*fit --from ARCHIVE --outputs label_"):
        pack_around(source, artifact(LABELS[name]), tmp_path / "out", request=array_file(tmp_path))
    assert not list((tmp_path / "out").glob("*"))


ASKED = (
    ("torch.sigmoid(z)", 10, "label_probabilities or label_logits or logits"),
    ("torch.sigmoid(z)", 1, "logit or label_logits or probability or label_probabilities"),
)


@pytest.mark.nightly
@pytest.mark.parametrize(("returns", "out", "may_be"), ASKED)
def test_what_numbers_cannot_tell_is_asked_for(returns: str, out: int, may_be: str, tmp_path: Path) -> None:
    # TorchScript hides its sigmoid.
    scripted = own(
        """
def initialize(self, context):
    super().initialize(context)
    self.model = torch.jit.script(self.model)

def postprocess(self, outputs):
    return outputs.tolist()
"""
    )
    foreign = Foreign(scripted, returns=returns, out=out)
    source, request = archive("hidden", tmp_path, foreign), array_file(tmp_path)
    fitted = labels_artifact("label_probabilities", labels=out)
    with pytest.raises(CalibServeError, match=f"may be {may_be}; say which with --outputs"):
        pack_around(source, fitted, tmp_path / "out", request=request)
    made = pack_around(source, fitted, tmp_path / "out", request=request, outputs="label_probabilities")
    assert ModelOptions.read(read_archive(made).config).outputs == "label_probabilities"


def test_an_archive_and_an_artifact_that_do_not_agree_are_refused_before_they_serve(tmp_path: Path) -> None:
    net = torchscript(tmp_path / "net.pt")
    for fitted, outputs in ((labels_artifact(), "logits"), (temperature_artifact(), "label_logits")):
        with pytest.raises(ModelError, match=r"--outputs \(outputs=\)"):
            pack(net, fitted, tmp_path / "out", name="n", outputs=outputs)
    with pytest.raises(ModelError, match="no one confidence to abstain by"):
        pack(net, labels_artifact(), tmp_path / "out", name="n", abstain_below=0.7)
    made = pack(net, labels_artifact(), tmp_path / "out", name="n")
    with pytest.raises(ModelError, match="label_logits"):
        recalibrated(made, temperature_artifact(), tmp_path / "again", version="2.0")
    assert "outputs: label_logits" in zipfile.ZipFile(made).read("model-config.yaml").decode()
