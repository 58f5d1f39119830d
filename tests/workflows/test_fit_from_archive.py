"""The scores of archives that nobody here wrote, as their handlers make them, and what is fitted to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import scripted
import torch
from foreign_handlers import FOREIGN, Foreign, archive, own, weights
from live_server import CLASSES, inputs
from PIL import Image
from sizes import sized

from calib_serve import Artifact, calibrate, evaluate
from calib_serve.core.errors import FuseError, InputError, ModelError
from calib_serve.core.options.data import ArchiveOptions
from calib_serve.scores import log_probs, softmax
from calib_serve.torchserve import pack_around, read_archive
from calib_serve.torchserve.foreign import calibrate_archive, look_at_archive, scores_of_archive
from calib_serve.torchserve.mar_options import ModelOptions

pytestmark = pytest.mark.server

N = 90
ONCE = "def postprocess(self, outputs):\n    return [outputs.argmax(1).tolist()][:1]"
DIES = """
def inference(self, data):
    if data.sum() > 900:
        print("this was too much")
        os._exit(3)
    return self.model(data)

def postprocess(self, outputs):
    return torch.softmax(outputs, 1).tolist()
"""
HERE = {
    "once": Foreign(own(ONCE), shows=False),
    "dies": Foreign(own(DIES)),
    "nan": Foreign(
        own("def postprocess(self, outputs):\n    return outputs.argmax(1).tolist()"),
        returns="torch.where(x.sum() > 900, torch.nan, z)",
    ),
}
LOGITS = sized(
    ci=["tuple"],
    nightly=[
        "plain", "dict", "half", "log_softmaxed_ids", "function", "rows", "ids_at_inference",
        "onnx_list",
    ],
)  # fmt: skip
OPTIONS = {"tuple": ArchiveOptions(seam=":0")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The archive of a name, packed once."""
    folder = tmp_path_factory.mktemp("archives")
    with pytest.MonkeyPatch.context() as patch:
        for name, foreign in HERE.items():
            patch.setitem(FOREIGN, name, foreign)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support" / "torchvision_ops"))
        yield (
            lambda name: (
                folder / f"{name}.mar" if (folder / f"{name}.mar").is_file() else archive(name, folder)
            )
        )


def network(x: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return weights()(torch.from_numpy(x)).numpy()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with labels that the network is overconfident of, in two splits."""
    folder, rng, parts = tmp_path_factory.mktemp("data"), np.random.default_rng(4), {}
    for seed, split in enumerate(("cal", "test")):
        x = inputs(N, seed)
        z = network(x)
        y = np.where(rng.random(N) < 0.6, z.argmax(1), rng.integers(0, CLASSES, N))
        parts |= {f"{split}_inputs": x, f"{split}_labels": y}
    np.savez(folder / "data.npz", **parts)
    return folder / "data.npz"


def as_files(folder: Path, rows: np.ndarray) -> Path:
    """Each row as {"x": row} in a JSON file, labelled by its number."""
    folder.mkdir()
    lines = ["file,label"]
    for i, row in enumerate(rows):
        (folder / f"{i}.json").write_text(json.dumps({"x": row.tolist()}))
        lines.append(f"{i}.json,{i % CLASSES}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("name", LOGITS)
def test_the_logits_are_those_of_the_model(name: str, made: Callable[[str], Path], data: Path) -> None:
    found = scores_of_archive(made(name), data, ("cal",), OPTIONS.get(name))
    z = network(inputs(N))
    if "softmax" in FOREIGN[name].returns:
        z = log_probs(softmax(z))
    np.testing.assert_allclose(found.parts[0].logits, z, atol=3e-2 if name == "half" else 2e-6)
    assert found.parts[0].labels.tolist() == np.load(data)["cal_labels"].tolist()


@pytest.mark.nightly
def test_pictures_are_matched_by_the_names_of_the_archive(
    made: Callable[[str], Path], tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 256, 256, 3), np.uint8)
    for name, rows in {"thing 7": pixels[:1], "thing 2": pixels[1:]}.items():
        (tmp_path / "d" / name).mkdir(parents=True)
        for i, picture in enumerate(rows):
            Image.fromarray(picture).save(tmp_path / "d" / name / f"{i}.png")
    found = scores_of_archive(made("image_classifier"), tmp_path / "d")
    (scores,) = found.parts
    assert scores.labels.tolist() == [2, 2, 2, 7], "not 0 and 1, as the folders alone would have it"
    assert scores.class_names == tuple(f"thing {k}" for k in range(CLASSES))
    x = (np.roll(pixels, -1, axis=0)[:, 16:240, 16:240] / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    with torch.inference_mode():
        net = scripted.load(made("image_classifier").parent / "image_classifier_parts" / "net.pt")
        z = net(torch.from_numpy(x.transpose(0, 3, 1, 2).astype("f4"))).numpy()
    np.testing.assert_allclose(scores.logits, z, atol=1e-5)


@pytest.fixture(scope="module")
def fitted(made: Callable[[str], Path], data: Path) -> Artifact:
    return calibrate_archive(made("plain"), data, "temperature", splits=("cal", "test"))


def test_the_artifact_knows_its_archive_and_packs_around_it(
    fitted: Artifact, made: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    facts = fitted.model
    assert (facts.source, facts.seam, facts.output, facts.outputs) == ("plain.mar", "inference", "", "logits")
    assert fitted.data["measured_on"] == "test"
    direct = calibrate(network(inputs(N)), np.load(data)["cal_labels"], "temperature", outputs="logits")
    assert fitted.fit["temperature"] == pytest.approx(direct.fit["temperature"], rel=1e-5)
    out = pack_around(made("plain"), fitted.save(tmp_path / "artifact"), tmp_path / "out", unproven=True)
    assert ModelOptions.read(read_archive(out).config).seam == "inference"
    # What the packed archive serves is measured as the artifact itself would have it.
    served = scores_of_archive(out, data, ("test",))
    assert served.artifact is not None
    assert served.artifact.fingerprint == fitted.fingerprint
    z, y = network(inputs(N, 1)), np.load(data)["test_labels"]
    ours = evaluate(served.artifact.probs(served.parts[0].logits), served.parts[0].labels, replicates=0)
    assert float(ours.nll) == pytest.approx(float(evaluate(fitted.probs(z), y, replicates=0).nll), abs=1e-6)
    with pytest.raises(InputError, match="calibrated already"):
        calibrate_archive(out, data, "temperature", splits=("cal",))


@pytest.mark.nightly
def test_it_acts_on_no_other_scores_than_it_was_fitted_on(
    fitted: Artifact, made: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    with pytest.raises(FuseError, match="is not the model that the artifact was fitted on"):
        pack_around(made("torchscript"), fitted, tmp_path, unproven=True)
    with pytest.raises(FuseError, match="fitted with seam 'inference', and is to act with 'model'"):
        pack_around(made("plain"), fitted, tmp_path, seam="model", unproven=True)
    with pytest.raises(InputError, match="not the one that the artifact was fitted on"):
        scores_of_archive(made("torchscript"), data, ("cal",), artifact=fitted)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dies", r"ended \(code 3\) after 4 of 6 samples; (.*\n)+.*too much"),
        pytest.param("nan", r"5.json: the scores \[nan.*not finite", marks=pytest.mark.nightly),
        pytest.param("micro_batching", "which sample each row is of", marks=pytest.mark.nightly),
    ],
)
def test_scores_that_are_none_or_of_nobody_are_refused(
    name: str, told: str, made: Callable[[str], Path], tmp_path: Path
) -> None:
    rows = inputs(6)
    rows[5] += 1000
    with pytest.raises(ModelError, match=told):
        scores_of_archive(made(name), as_files(tmp_path / "d", rows))


@pytest.mark.nightly
def test_a_handler_that_replies_once_for_two_is_asked_one_at_a_time(
    made: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = as_files(tmp_path / "d", inputs(3))
    found = scores_of_archive(made("once"), folder)
    np.testing.assert_allclose(found.parts[0].logits, network(inputs(3)), atol=1e-6)


def test_a_look_says_what_is_there_and_what_can_be_fitted(
    made: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    as_files(tmp_path / "d", inputs(1))
    look = look_at_archive(made("plain"), probe=tmp_path / "d" / "0.json")
    assert (look.seam, look.outputs, look.classes) == ("inference", "logits", 10)
    assert look.shows == ("reply maps classes to probabilities",)
    assert "--probe-data" in look.alone_because
    assert look.request.startswith("application/json, ")
