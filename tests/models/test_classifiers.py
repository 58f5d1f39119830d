"""Every kind of model file behind one face, and what a model is found out by measurement."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import scripted
import torch
from gpus import needs_gpu_of_torch
from safetensors.torch import save_file
from torch import nn

from calib_serve.artifact import Artifact, InputShift, LogitMap, ModelFacts
from calib_serve.core.errors import CalibServeError, InputError, ModelError, ShapeError
from calib_serve.models import from_module, load_model, logits_under

SHAPE = (1, 6, 6)
X = np.random.default_rng(0).random((21, *SHAPE), dtype=np.float32)


def network(*after: nn.Module) -> nn.Module:
    """Convolution, batch norm and dropout, so that a training mode would show."""
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))
    net = nn.Sequential(*body, nn.Linear(64, 5), *after)
    net[1].running_mean += 0.3
    return net.eval()


class Tail(nn.Module):
    """A sum of two linear layers: neither alone makes the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(36, 5), nn.Linear(36, 5)

    def forward(self, x):
        flat = x.flatten(1)
        return self.one(flat) + self.two(flat)


def script(net: nn.Module, path) -> str:
    return str(scripted.scripted(Path(path), net))


def traced(net: nn.Module, path) -> str:
    return str(scripted.traced(Path(path), net, torch.rand(2, *SHAPE)))


def exported(net: nn.Module, path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            net, (torch.rand(2, *SHAPE),), dynamic_shapes=({0: torch.export.Dim("n")},)
        )
        torch.export.save(program, str(path))
    return str(path)


def onnx_file(net: nn.Module, path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.rand(2, *SHAPE),), str(path), dynamo=False, input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    return str(path)


@pytest.mark.parametrize("save", [script, traced, exported, onnx_file])
def test_every_file_gives_the_module_s_logits_and_the_features_that_make_them(save, tmp_path) -> None:
    net = network()
    suffix = {exported: ".pt2", onnx_file: ".onnx"}.get(save, ".pt")
    with scripted.told(suffix == ".pt"):
        model = load_model(
            save(net, tmp_path / f"model{suffix}"), input_shape=SHAPE, device="cpu", batch_size=8
        )
    with torch.no_grad():
        wanted = net(torch.from_numpy(X)).numpy()
        features = net[:4](torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(model.logits(X), wanted, atol=1e-6)
    np.testing.assert_allclose(model.features(X), features, atol=1e-6)
    np.testing.assert_allclose(model.head(model.features(X)), model.logits(X), atol=1e-5)
    assert (model.outputs, model.classes, model.input_shape) == ("logits", 5, SHAPE)
    assert len(model.fingerprint) == 64


def test_a_factory_takes_its_weights_from_safetensors_or_a_state_dict(tmp_path) -> None:
    net = network()
    with torch.no_grad():
        net[5].bias += 7
    save_file(net.state_dict(), tmp_path / "weights.safetensors")
    torch.save({"state_dict": net.state_dict()}, tmp_path / "weights.pt")
    wanted = from_module(net, input_shape=SHAPE, device="cpu").logits(X)
    for name in ("weights.safetensors", "weights.pt"):
        model = load_model(f"{__file__}:network", weights=tmp_path / name, input_shape=SHAPE, device="cpu")
        assert np.array_equal(model.logits(X), wanted)


def test_the_input_gradient_is_autograd_s_and_summed_over_batches() -> None:
    net = network()
    model = from_module(net, input_shape=SHAPE, device="cpu", batch_size=4)
    gradient, logits = model.input_gradient(X, lambda z, rows: z.logsumexp(dim=1))
    x = torch.from_numpy(X).requires_grad_()
    net(x).logsumexp(dim=1).sum().backward()
    np.testing.assert_allclose(gradient, x.grad.sum(dim=0).numpy(), atol=1e-5)
    np.testing.assert_allclose(logits, model.logits(X), atol=1e-6)


@pytest.mark.parametrize(
    ("after", "kind"), [(nn.Softmax(1), "probabilities"), (nn.LogSoftmax(1), "log_probs")]
)
@pytest.mark.parametrize("save", [traced, onnx_file])
def test_a_softmax_at_the_end_is_seen_and_its_features_refused(after, kind, save, tmp_path) -> None:
    suffix = ".onnx" if save is onnx_file else ".pt"
    with scripted.told(suffix == ".pt"):
        model = load_model(save(network(after), tmp_path / f"m{suffix}"), input_shape=SHAPE, device="cpu")
    assert model.outputs == kind
    plain = from_module(network(), input_shape=SHAPE, device="cpu").logits(X)
    again = plain - torch.from_numpy(plain).logsumexp(1, keepdim=True).numpy()
    np.testing.assert_allclose(model.logits(X), again, atol=1e-4)
    with pytest.raises(ModelError, match="softmax"):
        model.features(X)
    vector = LogitMap(np.linspace(0.5, 1, plain.shape[1]), np.zeros(plain.shape[1]))
    fitted = Artifact((vector,), method="vector", classes=plain.shape[1], model=ModelFacts(outputs="logits"))
    with pytest.raises(InputError, match="fitted on logits"):
        logits_under(model, X, fitted)


def test_a_model_in_training_mode_is_refused_however_it_was_saved(tmp_path) -> None:
    with pytest.raises(ModelError, match=r"training mode; call model\.eval"):
        from_module(network().train(), input_shape=SHAPE)
    with scripted.told(), pytest.raises(ModelError, match="training mode"):
        load_model(script(network().train(), tmp_path / "script.pt"), input_shape=SHAPE)

    class Forgetful(nn.Module):
        """Eval mode by its flag, dropout on all the same, as an export in training mode leaves it."""

        def forward(self, x):
            return nn.functional.dropout(x.flatten(1)[:, :5], training=True)

    with pytest.raises(ModelError, match="training mode"):
        from_module(Forgetful().eval(), input_shape=SHAPE)


def test_no_last_linear_layer_is_said_when_it_is_needed_and_not_before() -> None:
    model = from_module(Tail().eval(), input_shape=SHAPE, device="cpu")
    assert model.logits(X).shape == (21, 5)
    with pytest.raises(ModelError, match=r"makes the model's 5 logits.*its matrices are: one, two"):
        model.features(X)
    with pytest.raises(ModelError, match="no linear layer"):
        _ = model.head
    with pytest.raises(ModelError, match="'nothing' is not a linear layer"):
        from_module(network(), input_shape=SHAPE, last_linear="nothing")
    assert from_module(network(), input_shape=SHAPE, last_linear="5").facts().last_linear == "5"


def test_inputs_that_cannot_be_right_are_refused(tmp_path) -> None:
    model = from_module(network(), input_shape=SHAPE, device="cpu", batch_size=4)
    with pytest.raises(ShapeError, match=r"\(n, 1, 6, 6\), got \(21, 36\)"):
        model.logits(X.reshape(21, 36))
    with pytest.raises(InputError, match="numbers"):
        model.logits(X.astype(str))
    for bad in (np.nan, np.inf, 1e300):
        torn = X.astype(np.float64)
        torn[13, 0, 2, 2] = bad
        with pytest.raises(InputError, match="input 13 holds NaN or infinity"):
            model.logits(torn)
    with pytest.raises(ModelError, match="refuses inputs of shape"):
        from_module(network(), input_shape=(3, 6, 6))


@needs_gpu_of_torch
def test_a_gpu_gives_what_the_cpu_gives() -> None:
    cpu, gpu = (from_module(network(), input_shape=SHAPE, device=where) for where in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.logits(X), cpu.logits(X), atol=1e-5)
    np.testing.assert_allclose(gpu.features(X), cpu.features(X), atol=1e-5)
    one, other = (m.input_gradient(X, lambda z, rows: z.logsumexp(1))[0] for m in (cpu, gpu))
    np.testing.assert_allclose(one, other, atol=1e-5)


class Watching(nn.Linear):
    """A linear model that notes whether convolutions might run in TF32 as it is called."""

    allowed: ClassVar[list[bool]] = []

    def forward(self, x):
        self.allowed.append(torch.backends.cudnn.allow_tf32)
        return super().forward(x)


class OfIds(nn.Module):
    """Ids (n, 6) of twenty words to logits (n, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(20, 8), nn.Linear(8, 5)

    def forward(self, ids):
        return self.last(self.words(ids.long()).mean(dim=1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_an_onnx_file_of_whole_numbers_gets_them_as_it_takes_them(dtype: torch.dtype, tmp_path) -> None:
    torch.manual_seed(0)
    net, path, ids = OfIds().eval(), str(tmp_path / "m.onnx"), torch.randint(0, 20, (21, 6)).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (ids[:2],), path, dynamo=False, input_names=["ids"], dynamic_axes={"ids": {0: "n"}}
        )
    model, x = load_model(path), ids.numpy().astype(np.int64)
    with torch.no_grad():
        wanted = net(ids).numpy()
    assert np.abs(model.logits(x) - wanted).max() < 1e-5
    assert np.abs(model.features(x) @ model.head.weights[0].T + model.head.biases[0] - wanted).max() < 1e-5
    assert model.facts().input_dtype == str(dtype).removeprefix("torch.")
    for wrong in (0.5, np.nan, 2.0**70):
        with pytest.raises(InputError, match="input 3 holds a number that"):
            model.logits(np.where(np.arange(21)[:, None] == 3, wrong, x))
    with pytest.raises(ModelError, match="whole numbers"):
        model.logits(x, shift=InputShift(np.zeros(6)))


@pytest.mark.parametrize("at_once", [1, 4])
def test_an_onnx_file_of_a_fixed_batch_is_filled_up(at_once: int, tmp_path) -> None:
    net, path = network(), str(tmp_path / "m.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.rand(at_once, *SHAPE),), path, dynamo=False)
    model = load_model(path)
    with torch.no_grad():
        wanted = net(torch.from_numpy(X)).numpy()
    assert np.abs(model.logits(X) - wanted).max() < 1e-5
    assert model.features(X).shape == (len(X), 64)
    assert model.logits(X[:0]).shape == (0, 5)


def test_an_exported_program_of_whole_numbers_gets_them_too(tmp_path) -> None:
    torch.manual_seed(0)
    net, ids = OfIds().eval(), torch.randint(0, 20, (21, 6), dtype=torch.int32)
    program = torch.export.export(net, (ids[:2],), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, str(tmp_path / "m.pt2"))
    model = load_model(tmp_path / "m.pt2")
    with torch.no_grad():
        assert np.abs(model.logits(ids.numpy()) - net(ids).numpy()).max() < 1e-6
    assert (model.facts().input_dtype, model.facts().input_shape) == ("int32", (6,))
    assert not model.differentiable
    with pytest.raises(InputError, match="input 0 holds a number that int32 cannot hold"):
        model.logits(ids.numpy() + 0.5)


def test_an_onnx_file_runs_where_it_was_asked_to_or_says_why_not(tmp_path, monkeypatch) -> None:
    path = onnx_file(network(), tmp_path / "m.onnx")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    for device in ("cuda", "cuda:1"):
        with pytest.raises(ModelError, match=f"{device} was asked for"):
            load_model(path, input_shape=SHAPE, device=device)
    with pytest.raises(CalibServeError, match="must be 'cpu', 'cuda' or 'cuda:N'"):
        load_model(path, input_shape=SHAPE, device="gpu")
    asked = []
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, providers, **__: asked.extend(providers))
    with pytest.raises(ModelError, match="cannot load"):
        load_model(path, input_shape=SHAPE, device="cuda:1")
    assert asked[0] == ("CUDAExecutionProvider", {"device_id": 1})


@pytest.mark.parametrize("before", [True, False])
def test_convolutions_are_in_float32_and_the_process_stays_as_it_was_set(before: bool, monkeypatch) -> None:
    monkeypatch.setattr(Watching, "allowed", [])
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    model, x = from_module(Watching(6, 3).eval(), input_shape=(6,), device="cpu"), X[:, 0, 0]
    model.logits(x), model.features(x), model.input_gradient(x, lambda z, rows: z.logsumexp(1))
    assert Watching.allowed
    assert not any(Watching.allowed)
    assert torch.backends.cudnn.allow_tf32 is before


class OfTwo(nn.Module):
    def forward(self, x, y):
        return x.flatten(1)[:, :5] + y


def test_files_that_are_no_models_are_refused(tmp_path) -> None:
    net = network()
    torch.save(net.state_dict(), tmp_path / "state.pt")
    save_file(net.state_dict(), tmp_path / "state.safetensors")
    torch.save(net.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "text.pt").write_text("not a model")
    whole = Path(script(net, tmp_path / "whole.pt")).read_bytes()
    (tmp_path / "torn.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "torn.onnx").write_bytes(b"\x08\x07\x12 nothing")
    for name in ("keras.h5", "pickled.joblib", "own.py"):
        (tmp_path / name).write_bytes(b"anything")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    for name, said in (
        ("state.pt", "weights alone"), ("state.safetensors", "weights alone"), ("old.pth", "weights alone"),
        ("text.pt", "cut off"), ("torn.pt", "cut off"), ("torn.onnx", "cannot load"),
        ("missing.pt", "no model file"), ("keras.h5", "a Keras model, which is not read"),
        ("pickled.joblib", "a pickled estimator"), ("own.py", "own.py:NAME"), ("saved", "a TensorFlow model"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=said):
            load_model(tmp_path / name, input_shape=SHAPE)
    with scripted.told(), pytest.raises(ModelError, match="give input_shape"):
        load_model(tmp_path / "whole.pt")
    program = torch.export.export(OfTwo(), (torch.rand(2, *SHAPE), torch.rand(2, 5)))
    torch.export.save(program, str(tmp_path / "two.pt2"))
    with pytest.raises(ModelError, match="the file does not say what it takes: give input_shape"):
        load_model(tmp_path / "two.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        two = (torch.rand(2, *SHAPE), torch.rand(2, 5))
        torch.onnx.export(OfTwo().eval(), two, str(tmp_path / "two.onnx"), dynamo=False)
    with pytest.raises(ModelError, match="must take one tensor"):
        load_model(tmp_path / "two.onnx", input_shape=SHAPE)


def number() -> int:
    return 3


def test_a_factory_and_its_weights_that_cannot_be_are_refused(tmp_path) -> None:
    (tmp_path / "text.pt").write_text("not a model")
    made, whole = f"{__file__}:network", exported(network(), tmp_path / "net.pt2")
    for spec, options, said in (
        (made, {"weights": tmp_path / "text.pt", "input_shape": SHAPE}, "cannot load the weights"),
        (made, {}, "does not say what its model takes: give input_shape"),
        (f"{__file__}:number", {"input_shape": SHAPE}, "must return an nn.Module, got int"),
        (f"{__file__}:nothing", {"input_shape": SHAPE}, "made no model"),
        (whole, {"weights": tmp_path / "text.pt"}, "holds its own weights"),
        (whole, {"output_name": "z"}, "is no ONNX file"),
        (whole, {"custom_ops": "ops.so"}, "is no ONNX file"),
        (whole, {"input_shape": (1, 5, 5)}, None),
    ):
        with pytest.raises(ShapeError if said is None else ModelError, match=said or "takes inputs of shape"):
            load_model(spec, **options)
