"""``calib-serve fit DATA --model``: from a model file and its data to an artifact that is measured."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import onnx.parser
import pytest
import scripted
import torch
from command_line import invoke
from safetensors.torch import save_file
from torch import nn

from calib_serve.artifact import Artifact
from calib_serve.core.errors import ModelError
from calib_serve.models import load_model


def network() -> nn.Module:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 3))
    with torch.no_grad():
        net[3].weight *= 30
    return net


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> list[str]:
    """A model that is three times too sure, and three splits of what it is asked to calibrate on."""
    folder, rng = tmp_path_factory.mktemp("model"), np.random.default_rng(0)
    net = network().eval()
    save_file(net.state_dict(), folder / "weights.safetensors")
    arrays = {"class_names": np.array(["ant", "bee", "cat"])}
    for split, n in (("train", 300), ("cal", 300), ("test", 600)):
        x = rng.random((n, 1, 6, 6), dtype=np.float32)
        with torch.no_grad():
            p = (net(torch.from_numpy(x)) / 3).softmax(1).double().numpy()
        drawn = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
        arrays |= {f"{split}_inputs": x, f"{split}_labels": np.minimum(drawn, 2)}
    np.savez(folder / "data.npz", **arrays)
    return [
        "fit", "--model", f"{__file__}:network", "--data", str(folder / "data.npz"), "--split", "cal",
        "--weights", str(folder / "weights.safetensors"), "--option", "device=cpu",
    ]  # fmt: skip


def run(arguments: list[str]):
    return invoke(arguments)


@pytest.mark.parametrize(
    ("method", "options", "steps"),
    [
        ("neural-clamping", ["--option", "resolution=2"], ["input_shift", "logit_map"]),
        (
            "masked-head",
            ["--train-split", "train", "--option", "then=temperature"],
            ["head", "logit_map"],
        ),
    ],
)
def test_every_method_writes_an_artifact_that_is_measured_on_another_split(
    asked, tmp_path, method, options, steps
) -> None:
    out = tmp_path / "artifact"
    done = run([*asked, "--method", method, "--test-split", "test", "-o", str(out), "--json", *options])
    assert done.exit_code == 0, done.output
    facts, artifact = json.loads(done.stdout), Artifact.load(out)
    assert facts["fingerprint"] == artifact.fingerprint
    assert [step["kind"] for step in facts["steps"]] == steps
    assert artifact.method == method
    assert artifact.class_names == ("ant", "bee", "cat")
    assert artifact.model.input_shape == (1, 6, 6)
    assert len(artifact.model.sha256) == 64
    assert artifact.data["measured_on"] == "test"
    if method == "neural-clamping":
        assert artifact.after["nll"]["value"] < artifact.before["nll"]["value"]


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("1,6,6", ""),
        ("36", r"takes inputs of shape \(n, 36\), got \(n, 1, 6, 6\)"),
        ("1,5,5", "refuses inputs of shape"),
        ("wide", "--option input_shape is the sizes of one input, such as 3,224,224, got 'wide'"),
        ("1,-6,6", "--option input_shape is the sizes of one input"),
    ],
)
def test_the_shape_of_an_input_is_an_option_and_named_so(asked, tmp_path, shape: str, says: str) -> None:
    options = ["--method", "none", "--option", f"input_shape={shape}", "-o", str(tmp_path / "artifact")]
    done = run([*asked, *options])
    assert bool(done.exit_code) == bool(says), done.output
    assert re.search(says, " ".join(done.output.split()))


@pytest.mark.parametrize("suffix", [".ts", ".onnx"])
def test_a_file_that_does_not_say_its_shape_asks_for_what_can_be_given(tmp_path, suffix: str) -> None:
    path = tmp_path / f"net{suffix}"
    if suffix == ".ts":
        scripted.traced(path, network().eval(), torch.zeros(2, 1, 6, 6))
    else:
        graph = "g (float[n, m] x) => (float[n, m] y) { y = Identity(x) }"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'), path)
    refused = pytest.raises(ModelError, match=r"give input_shape.*--option input_shape=3,224,224")
    with scripted.told(suffix == ".ts"), refused:
        load_model(path)


def test_auto_takes_the_best_output_method_of_the_model_s_logits(asked, tmp_path) -> None:
    out = tmp_path / "artifact"
    few = ("--method", "auto", "--option", "candidates=temperature,vector")
    done = run([*asked, *few, "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    chosen = json.loads(done.stdout)["fit"]["selection"]["chosen"]
    assert Artifact.load(out).method == chosen in ("none", "temperature", "vector")


def test_a_model_is_judged_with_the_weights_that_it_was_fitted_with(asked) -> None:
    model = [*asked[1:5], "--split", "test", *asked[7:9]]
    found = json.loads(run(["evaluate", *model, "--json"]).stdout)
    data = np.load(asked[4])
    with torch.no_grad():
        z = network().eval()(torch.from_numpy(data["test_inputs"]))
    assert found["accuracy"]["value"] == pytest.approx((z.argmax(1).numpy() == data["test_labels"]).mean())
    assert "makes other weights" not in run(["evaluate", *model]).output


def test_delta_behind_a_normalisation_is_refused_where_pictures_are_normalised_outside(tmp_path) -> None:
    from PIL import Image

    rows, net = ["file,label"], network().eval()
    pixels = np.random.default_rng(0).integers(0, 255, (40, 6, 6), np.uint8)
    with torch.no_grad():
        predicted = net(torch.from_numpy(pixels[:, None] / np.float32(255))).argmax(1).tolist()
    for i, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{(predicted[i] + (i % 4 == 0)) % 3}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    save_file(network().state_dict(), tmp_path / "weights.safetensors")
    asked = [
        "fit", "--model", f"{__file__}:network", "--weights", str(tmp_path / "weights.safetensors"),
        "--data", str(tmp_path), "--option", "device=cpu", "--method", "neural-clamping",
        "--option", "resolution=2", "--option", "penalty=0.1", "--option", "gamma=0",
        "--option", "normalisation=0.5,0.25",
    ]  # fmt: skip
    twice = run([*asked, "--pictures", "mean=0.5", "--pictures", "std=0.25", "-o", str(tmp_path / "a")])
    assert twice.exit_code == 2
    assert "normalised already" in twice.stderr
    inside = run([*asked, "--pictures", "mean=0", "--pictures", "std=1", "-o", str(tmp_path / "b")])
    assert inside.exit_code == 0, inside.output
    facts = Artifact.load(tmp_path / "b").model
    assert facts.pictures is not None
    assert facts.pictures.as_dict() == {"mean": [0.0], "std": [1.0], "channels": 1}
