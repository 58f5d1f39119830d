"""One calibration, three runtimes: numpy, torch and onnxruntime give the same for every fitter.

Tolerances on probabilities: 2e-6 in float32; in float16 1e-2, which is what the rounding of a float16
model's own logits amounts to. Rows with a probability this close to a table's edge may fall into either
bin: they are left out, and enough must remain.
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from live_server import exported
from safetensors.torch import load_file
from torch import nn

from calib_serve import Artifact
from calib_serve.artifact import InputShift, LogitMap, ProbTable
from calib_serve.fit import fit_neural_clamping, fit_neural_clamping_efficient
from calib_serve.fit.masked import fit_masked_head
from calib_serve.fit.output.candidates import CANDIDATES, fit_by_name
from calib_serve.fuse import calibrated, fuse_onnx
from calib_serve.metrics import ece
from calib_serve.models import load_model
from calib_serve.scores import softmax

K, N, SHAPE = 4, 800, (3, 8, 8)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-2}
NEAR = {torch.float32: 2e-6, torch.float16: 2e-3}
OF_LOGITS = tuple(CANDIDATES)
OF_MODELS = ("neural clamping", "neural clamping, efficient", "masked head")


class Net(nn.Module):
    """A small network whose graph starts with the normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc = nn.Linear(8, K)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv((x - 0.5) / 0.25)).mean((2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv((x - 0.5) / 0.25)).mean((2, 3))
        return self.fc(x)


@pytest.fixture(scope="module")
def network() -> Net:
    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False)
    net.fc.weight *= 12  # confident
    return net


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.clip(rng.normal(0.5, 0.25, (N, *SHAPE)) + rng.normal(0, 0.2, (N, 3, 1, 1)), 0, 1).astype("f4")


@pytest.fixture(scope="module")
def labels(network, images) -> np.ndarray:
    """Drawn from a softened model: so it is overconfident, and every fitter has something to do."""
    p = softmax(network(torch.from_numpy(images)).double().numpy() / 2)
    return (p.cumsum(axis=1) < np.random.default_rng(1).random((N, 1))).sum(axis=1).clip(0, K - 1)


@pytest.fixture(scope="module")
def files(network, tmp_path_factory) -> dict[tuple[torch.dtype, bool], Path]:
    """The network in ONNX: by dtype and exporter, with a free batch."""
    folder = tmp_path_factory.mktemp("onnx")
    made = {}
    for dtype in TOLERANCE:
        net, x = Net().eval().requires_grad_(False), torch.rand(2, *SHAPE).to(dtype)
        net.load_state_dict(network.state_dict())
        net.to(dtype)
        for new in (False, True):
            path = made[dtype, new] = folder / f"{dtype}-{new}.onnx"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the old exporter, that it is old
                if new:
                    free = ({0: torch.export.Dim("n")},)
                    torch.onnx.export(net, (x,), path, dynamo=True, dynamic_shapes=free, verbose=False)
                else:
                    axes = {"x": {0: "n"}}
                    torch.onnx.export(net, (x,), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
    return made


@pytest.fixture(scope="module")
def fitted(network, images, labels, tmp_path_factory):
    """An artifact by its fitter's name, each fitted once."""
    logits = network(torch.from_numpy(images)).numpy()
    path = tmp_path_factory.mktemp("model") / "net.pt2"
    exported(path, network, *SHAPE)
    known: dict[str, Artifact] = {}

    def fit(name: str) -> Artifact:
        if name not in known:
            known[name] = fit_one(name)
        return known[name]

    def fit_one(name: str) -> Artifact:
        if name in CANDIDATES:
            return fit_by_name(name, logits, labels)
        if name == "masked head":
            features = network.features(torch.from_numpy(images)).numpy()
            return fit_masked_head(features, labels, classes=K)
        classifier = load_model(path)
        if name == "neural clamping":
            return fit_neural_clamping(classifier, images, labels, penalty=0.01, resolution=4)
        return fit_neural_clamping_efficient(classifier, images, labels)

    return fit


def in_numpy(network: Net, artifact: Artifact, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities by the artifact alone, and which rows do not hang on the last digits of the logits."""
    shifted = x if artifact.input_shift is None else artifact.input_shift(x)
    image = torch.from_numpy(shifted)
    if artifact.head is None:
        z = network(image).double().numpy()
    else:
        z = artifact.head(network.features(image).double().numpy())
    return artifact.probs(z), away_from_edges(artifact, z, NEAR[image.dtype])


def away_from_edges(artifact: Artifact, z: np.ndarray, near: float) -> np.ndarray:
    """Rows whose probabilities, before a table, stay clear of its edges and of a tie for the top."""
    tables = [s for s in artifact.steps if isinstance(s, ProbTable)]
    if not tables:
        return np.ones(len(z), bool)
    p = replace(artifact, steps=artifact.steps[:-1]).probs(z)
    edges = tables[0].edges
    if len(edges) > 1:
        return (np.abs(p[:, :, None] - edges) > near).all(axis=(1, 2))
    second, top = np.sort(p, axis=1)[:, -2:].T
    return (np.abs(top[:, None] - edges[0]) > near).all(axis=1) & (top - second > near)


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", [*OF_LOGITS, *OF_MODELS])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_numpy_torch_and_onnxruntime_agree(name, dtype, network, images, files, fitted, tmp_path):
    artifact, atol = fitted(name), TOLERANCE[dtype]
    own = Net().eval().requires_grad_(False)
    own.load_state_dict(network.state_dict())
    own.to(dtype)
    x = images[:200].astype("f4" if dtype == torch.float32 else "f2")
    expected, sure = in_numpy(own, artifact, x)
    assert sure.mean() > (0.9 if dtype == torch.float32 else 0.1)
    whole = calibrated(own, artifact)
    for n in (1, len(x)):
        got = whole(torch.from_numpy(x[:n])).double().numpy()
        np.testing.assert_allclose(got[sure[:n]], expected[:n][sure[:n]], atol=atol)
    for new in (False, True):
        out = tmp_path / f"{new}.onnx"
        # Clamping was fitted on the TorchScript file of the same network.
        fuse_onnx(files[dtype, new], artifact, out, returns="probabilities", unproven=True)
        running = session(out)
        feed = running.get_inputs()[0].name
        for n in (1, len(x)):
            got = running.run(["probabilities"], {feed: x[:n]})[0].astype("f8")
            np.testing.assert_allclose(got[sure[:n]], expected[:n][sure[:n]], atol=atol)


@pytest.mark.parametrize("new", [False, True], ids=["old exporter", "new exporter"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_no_shift_and_no_temperature_is_the_raw_model_to_the_last_bit(dtype, new, images, files, tmp_path):
    nothing = Artifact((InputShift(np.zeros(SHAPE)), LogitMap.temperature(1.0)), method="none", classes=K)
    fuse_onnx(files[dtype, new], nothing, tmp_path / "out.onnx", unproven=True)
    raw, fused = session(files[dtype, new]), session(tmp_path / "out.onnx")
    feed = {raw.get_inputs()[0].name: images.astype("f4" if dtype == torch.float32 else "f2")}
    np.testing.assert_array_equal(fused.run(None, feed)[0], raw.run(None, feed)[0])


def benchmark(name: str):
    """A module beside the benchmarks: one definition of an architecture for both."""
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_real_network_is_calibrated_in_its_file(data_dir, tmp_path):
    """ResNet-20 on CIFAR-10's test images: fused, it is what temperature scaling makes of it."""
    cifar = benchmark("cifar")
    net = cifar.resnet20()
    net.load_state_dict(load_file(data_dir / "models" / "akamaster_resnet20_c10.safetensors"), strict=False)
    images, labels = cifar.cifar10_test(data_dir)
    images, labels = images[::8], labels[::8]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.eval(),
            (torch.rand(2, 3, 32, 32),),
            tmp_path / "raw.onnx",
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
        )
    with np.load(data_dir / "logits" / "akamaster_resnet20_c10.npz") as known:
        artifact = fit_by_name("temperature", known["cal_logits"], known["cal_labels"])
    report = fuse_onnx(
        tmp_path / "raw.onnx", artifact, tmp_path / "out.onnx", inputs={"x": images[:64]}, unproven=True
    )
    assert report.nodes_after <= report.nodes_before
    raw, fused = (
        np.concatenate([running.run(None, {"x": batch})[0] for batch in np.split(images, 10)])
        for running in (session(tmp_path / "raw.onnx"), session(tmp_path / "out.onnx"))
    )
    np.testing.assert_array_equal(fused.argmax(axis=1), raw.argmax(axis=1))
    np.testing.assert_allclose(softmax(fused), artifact.probs(raw), atol=2e-6)
    assert ece(softmax(fused), labels) < ece(softmax(raw), labels) / 2
