"""Multi-label handlers that are not ours: packed with an artifact of labels, refused with one of classes."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from foreign_handlers import FOREIGN, Foreign, archive, artifact, own
from label_handlers import LABELS, array_file, labels_artifact, logits_of, text_file
from live_server import CLASSES, inputs, temperature_artifact, torchscript
from sizes import sized

from calib_serve import Artifact, LogitMap
from calib_serve.errors import CalibServeError, FuseError, ModelError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.fuse.torchserve import pack, pack_around, read_archive, recalibrated
from calib_serve.metrics import sigmoid
from calib_serve.workflows.from_archive import scores_of_archive

SUPPORT = Path(__file__).parents[1] / "support"
KINDS = {"after_sigmoid": "label_probabilities"}
PACKED = sized(ci=("by_numpy",), nightly=(*LABELS,))


@pytest.fixture(autouse=True)
def _torchvision_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "torchvision_ops"), prepend=os.pathsep)


@pytest.mark.parametrize("name", PACKED)
def test_an_artifact_of_labels_is_packed_where_sigmoids_show(name: str, tmp_path: Path) -> None:
    foreign = LABELS[name]
    told = {"outputs": "label_logits"} if name == "one_tag" else {}
    request = text_file(tmp_path) if name == "pipeline" else array_file(tmp_path)
    made = pack_around(
        archive(name, tmp_path, foreign),
        labels_artifact(labels=foreign.out),
        tmp_path / "out",
        request=request,
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


@pytest.mark.nightly
def test_an_artifact_of_labels_is_refused_where_one_class_is_shown(tmp_path: Path) -> None:
    source = archive("plain", tmp_path)
    request = array_file(tmp_path)
    with pytest.raises(FuseError, match="say --outputs label_logits if each is of a label of its own"):
        pack_around(source, labels_artifact(), tmp_path / "out", request=request)
    with pytest.raises(ModelError, match=r"label_logits are expected .* its values are logits"):
        pack_around(source, labels_artifact(), tmp_path / "out", request=request, outputs="label_logits")


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


@pytest.mark.nightly
def test_one_column_of_a_binary_model_is_known_by_its_sigmoid(tmp_path: Path) -> None:
    binary = Artifact((LogitMap(np.array([1.0, 0.5]), np.zeros(2)),), method="vector", classes=2,
                      model={"outputs": "probability", "input_shape": [16]})  # fmt: skip
    after = Foreign(own("def postprocess(self, outputs):\n    return outputs[:, 0].tolist()"),
                    returns="torch.sigmoid(z)", out=1)  # fmt: skip
    made = pack_around(
        archive("after", tmp_path, after), binary, tmp_path / "a", request=array_file(tmp_path)
    )
    assert ModelOptions.read(read_archive(made).config).outputs == "probability"
    with pytest.raises(FuseError, match="fitted on probability, and logit pass"):
        pack_around(archive("one_logit", tmp_path), binary, tmp_path / "b", request=array_file(tmp_path))
    assert FOREIGN["one_logit"].out == 1


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


@pytest.mark.nightly
def test_scores_and_truths_of_labels_are_collected_from_an_archive(tmp_path: Path) -> None:
    source, x = archive("after_sigmoid", tmp_path, LABELS["after_sigmoid"]), inputs(7)
    truths = np.random.default_rng(0).integers(0, 2, (len(x), CLASSES))
    (tmp_path / "data").mkdir()
    rows = ["file,label"]
    for i, (row, truth) in enumerate(zip(x, truths, strict=True)):
        (tmp_path / "data" / f"{i}.json").write_text(json.dumps(row.tolist()))
        rows.append(f"{i}.json,{';'.join(map(str, np.flatnonzero(truth)))}")
    (tmp_path / "data" / "labels.csv").write_text("\n".join(rows))
    found = scores_of_archive(source, tmp_path / "data")
    (part,) = found.parts
    assert (found.facts.outputs, part.outputs) == ("label_probabilities", "label_logits")
    np.testing.assert_allclose(sigmoid(part.logits), sigmoid(logits_of(x)), atol=1e-6)
    np.testing.assert_array_equal(part.labels, truths)
