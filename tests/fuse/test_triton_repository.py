"""A Triton repository that Triton's own protobuf reads, with a step that signs and counts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from fuse_artifacts import artifact
from fuse_graphs import Builder, run
from google.protobuf import json_format, text_format
from onnx import TensorProto, helper
from typer.testing import CliRunner

from calib_serve import Bins, InputShift, Keyring, LogitMap
from calib_serve.cli import app
from calib_serve.errors import FuseError, InputError
from calib_serve.fuse.mar_options import KEYRING
from calib_serve.fuse.triton.config import Word, text
from calib_serve.fuse.triton.repository import Settings, fuse_triton
from calib_serve.watch.series import SERIES, SUMS

K = 3


def schema():
    """Triton's model_config_pb2, without the gRPC client around it."""
    package = importlib.util.find_spec("tritonclient")
    path = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCHEMA = schema()


def config(path: Path):
    return text_format.Parse((path / "config.pbtxt").read_text(), SCHEMA.ModelConfig())


def tensors(declared) -> dict[str, tuple]:
    return {t.name: (SCHEMA.DataType.Name(t.data_type), list(t.dims)) for t in declared}


def model_file(folder: Path, batch: int | str = "n", kind: int = TensorProto.FLOAT) -> Path:
    dtype = {TensorProto.FLOAT: "f4", TensorProto.FLOAT16: "f2"}[kind]
    b = Builder(np.dtype(dtype), np.random.default_rng(0))
    z = b.node("Gemm", b.node("Flatten", "image"), b.normal(12, K), b.normal(K), output="z")
    model = b.model(
        [helper.make_tensor_value_info("image", kind, [batch, 3, 2, 2])],
        [helper.make_tensor_value_info(z, kind, [batch, K])],
    )
    path = folder / "raw.onnx"
    onnx.save(model, path)
    return path


STEP = artifact(
    InputShift(np.full((3, 2, 2), 0.1)),
    LogitMap.temperature(2.0),
    classes=K,
    class_names=("cat", "dog\nor wolf", "ü"),
    reference=Bins.zeros(10),
)


@pytest.fixture
def repository(tmp_path) -> Path:
    fuse_triton(model_file(tmp_path), STEP, tmp_path / "repo", name="pets")
    return tmp_path / "repo"


def test_every_config_is_one_that_triton_reads(repository):
    names = sorted(p.name for p in repository.iterdir())
    assert names == ["pets", "pets_onnx", "pets_receipts"]
    for name in names:
        assert config(repository / name).name == name
        assert (repository / name / "1").is_dir()


def test_the_graph_is_batched_warmed_up_and_labelled(repository):
    graph = config(repository / "pets_onnx")
    assert (graph.backend, graph.max_batch_size) == ("onnxruntime", 32)
    assert tensors(graph.input) == {"image": ("TYPE_FP32", [3, 2, 2])}
    assert tensors(graph.output) == {
        "logits": ("TYPE_FP32", [K]),
        "probabilities": ("TYPE_FP32", [K]),
        "confidence": ("TYPE_FP32", [1]),
        "predicted": ("TYPE_INT64", [1]),
        "bin": ("TYPE_INT64", [1]),
    }
    reshaped = {t.name for t in graph.output if t.HasField("reshape") and not t.reshape.shape}
    assert reshaped == {"confidence", "predicted", "bin"}
    assert graph.dynamic_batching.max_queue_delay_microseconds == 500
    assert [(w.batch_size, list(w.inputs["image"].dims)) for w in graph.model_warmup] == [
        (1, [3, 2, 2]),
        (32, [3, 2, 2]),
    ]
    assert graph.instance_group[0].kind == SCHEMA.ModelInstanceGroup.KIND_GPU
    assert next(t.label_filename for t in graph.output if t.name == "probabilities") == "labels.txt"
    assert (repository / "pets_onnx" / "labels.txt").read_text() == "cat\ndog or wolf\nü\n"


def test_the_ensemble_hands_every_tensor_on(repository):
    whole = config(repository / "pets")
    assert whole.platform == "ensemble"
    graph, receipts = (config(repository / n) for n in ("pets_onnx", "pets_receipts"))
    shown = tensors(whole.output)
    assert shown.pop("receipt") == ("TYPE_STRING", [1])
    assert shown == tensors(graph.output)
    made = set(tensors(whole.input))
    for step, part in zip(whole.ensemble_scheduling.step, (graph, receipts), strict=True):
        assert step.model_name == part.name
        assert set(step.input_map) == set(tensors(part.input))
        assert set(step.input_map.values()) <= made
        assert set(step.output_map) == set(tensors(part.output))
        made |= set(step.output_map.values())
    assert set(tensors(whole.output)) <= made


def test_the_model_in_it_is_the_calibrated_one(repository, tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 3, 2, 2)).astype("f4")
    z = run(str(tmp_path / "raw.onnx"), {"image": STEP.input_shift(x)})["z"]
    got = run(str(repository / "pets_onnx" / "1" / "model.onnx"), {"image": x})
    np.testing.assert_allclose(got["probabilities"], STEP.probs(z), atol=1e-6)
    inner = np.linspace(0, 1, 11)[1:-1]  # the reference has 10 bins
    np.testing.assert_array_equal(got["bin"], np.searchsorted(inner, got["confidence"].astype("f8")))


def test_a_second_version_joins_the_first_and_none_is_overwritten(repository, tmp_path):
    fuse_triton(tmp_path / "raw.onnx", STEP, repository, name="pets", version=2)
    for name in ("pets", "pets_onnx", "pets_receipts"):
        assert sorted(p.name for p in (repository / name).iterdir() if p.is_dir()) == ["1", "2"]
    with pytest.raises(FuseError, match="a served version must not change"):
        fuse_triton(tmp_path / "raw.onnx", STEP, repository, name="pets", version=2)


def test_tensorrt_a_cpu_and_no_receipts_are_settings(tmp_path):
    path = model_file(tmp_path, kind=TensorProto.FLOAT16)
    settings = Settings(tensorrt="FP16", instances=2, max_batch=8, delay=100, receipts=False)
    fuse_triton(path, STEP, tmp_path / "repo", name="m", settings=settings)
    assert [p.name for p in (tmp_path / "repo").iterdir()] == ["m"]
    graph = config(tmp_path / "repo" / "m")
    (accelerator,) = graph.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert accelerator.parameters["precision_mode"] == "FP16"
    assert tensors(graph.input)["image"] == ("TYPE_FP16", [3, 2, 2])
    assert graph.instance_group[0].count == 2
    fuse_triton(path, STEP, tmp_path / "cpu", name="m", settings=Settings(device="cpu"))
    group = config(tmp_path / "cpu" / "m_onnx").instance_group[0]
    assert group.kind == SCHEMA.ModelInstanceGroup.KIND_CPU
    with pytest.raises(InputError, match="TensorRT needs a GPU"):
        Settings(tensorrt="FP32", device="cpu")


def test_a_fixed_batch_is_left_to_the_client(tmp_path):
    fuse_triton(model_file(tmp_path, batch=2), STEP, tmp_path / "repo", name="m")
    graph = config(tmp_path / "repo" / "m_onnx")
    assert graph.max_batch_size == 0
    assert not graph.HasField("dynamic_batching")
    assert tensors(graph.input)["image"][1] == [2, 3, 2, 2]
    assert tensors(graph.output)["confidence"][1] == [2]


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 101])
def test_names_that_are_no_folders_are_refused(name, tmp_path):
    with pytest.raises(InputError, match="a name is"):
        fuse_triton(model_file(tmp_path), STEP, tmp_path / "repo", name=name)
    assert not (tmp_path / "repo").exists()


def test_text_survives_quotes_and_line_breaks():
    parsed = text_format.Parse(text({"name": 'a "b"\\\nü', "max_batch_size": 3}), SCHEMA.ModelConfig())
    assert (parsed.name, parsed.max_batch_size) == ('a "b"\\\nü', 3)
    assert text({"kind": Word("KIND_CPU"), "flags": []}) == "kind: KIND_CPU\nflags: []\n"


# --- the step that signs and counts, run against the interface Triton documents ----------------


class Metric:
    def __init__(self) -> None:
        self.value = 0.0

    def increment(self, amount: float) -> None:
        assert amount >= 0
        self.value += amount


class MetricFamily:
    COUNTER = "counter"

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        assert kind == self.COUNTER
        self.description, self.metrics = description, {}
        FAMILIES[name] = self

    def Metric(self, *, labels: dict[str, str]) -> Metric:  # Triton's name
        return self.metrics.setdefault(tuple(labels.items()), Metric())


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name, self.array = name, array

    def as_numpy(self) -> np.ndarray:
        return self.array

    @classmethod
    def from_dlpack(cls, name: str, array: np.ndarray) -> Tensor:
        return cls(name, np.from_dlpack(array))


FAMILIES: dict[str, MetricFamily] = {}


@pytest.fixture
def triton(monkeypatch):
    """The module that exists only inside Triton's Python backend."""
    module = types.ModuleType("triton_python_backend_utils")
    module.MetricFamily, module.Tensor = MetricFamily, Tensor
    module.InferenceResponse = lambda tensors: {t.name: t.as_numpy() for t in tensors}
    module.get_input_tensor_by_name = lambda request, name: Tensor(name, request[name])
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    FAMILIES.clear()


def started(repository: Path):
    """The step as Triton starts it: from its model.py, with its config as JSON."""
    spec = importlib.util.spec_from_file_location("step", repository / "pets_receipts" / "1" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    step = module.TritonPythonModel()
    declared = json_format.MessageToJson(
        config(repository / "pets_receipts"), preserving_proto_field_name=True
    )
    step.initialize({"model_config": declared, "model_version": "1"})
    return step


def requests(confidence, predicted, index) -> list[dict]:
    columns = (np.array(confidence, "f4"), np.array(predicted), np.array(index))
    return [dict(zip(("confidence", "predicted", "bin"), (c[:, None] for c in columns), strict=True))]


def values(name: str) -> dict[tuple, float]:
    return {labels: m.value for labels, m in FAMILIES[name].metrics.items()}


def test_the_step_signs_receipts_and_counts_by_bin(repository, triton, tmp_path, monkeypatch):
    ring = Keyring.new()
    ring.save(tmp_path / "keys.json")
    monkeypatch.setenv("CALIB_SERVE_KEYRING", str(tmp_path / "keys.json"))
    step = started(repository)
    zero = values("calib_predictions_total")
    assert len(zero) == 10
    assert set(zero.values()) == {0.0}
    (response,) = step.execute(requests([0.75, 0.5, 0.72], [2, 0, 1], [7, 4, 7]))
    assert response["receipt"].shape == (3, 1)
    receipts = [ring.verify(token.decode()) for token in response["receipt"][:, 0]]
    assert [(r.model, r.version, r.predicted, r.confidence) for r in receipts] == [
        ("pets", "1", 2, 0.75),
        ("pets", "1", 0, 0.5),
        ("pets", "1", 1, float(np.float32(0.72))),
    ]
    counted = {labels[2][1]: v for labels, v in values("calib_predictions_total").items() if v}
    assert counted == {"7": 2.0, "4": 1.0}
    summed = {labels[2][1]: v for labels, v in values("calib_predictions_confidence_total").items() if v}
    assert summed == pytest.approx({"7": 1.47, "4": 0.5})


def test_its_series_are_those_of_every_other_server(repository, triton):
    started(repository)
    known = {s.name: s for s in SERIES}
    served = {one.name for one in SUMS if one.of == "predictions"}
    assert set(FAMILIES) == {*served, "calib_invalid_outputs_total", "calib_monitor_errors_total"}
    for name, family in FAMILIES.items():
        assert family.description == known[name].help
        for labels in family.metrics:
            assert tuple(k for k, _ in labels) == known[name].labels


def test_without_keys_it_counts_and_with_nan_it_neither_signs_nor_breaks(repository, triton, monkeypatch):
    monkeypatch.delenv("CALIB_SERVE_KEYRING", raising=False)
    (response,) = started(repository).execute(requests([0.75, np.nan], [2, 0], [7, 0]))
    assert response["receipt"].tolist() == [[b""], [b""]]
    assert sum(values("calib_predictions_total").values()) == 1
    assert list(values("calib_invalid_outputs_total").values()) == [1]


def test_a_failure_of_monitoring_does_not_reach_the_client(repository, triton, tmp_path, monkeypatch):
    Keyring.new().save(tmp_path / "keys.json")
    monkeypatch.setenv("CALIB_SERVE_KEYRING", str(tmp_path / "keys.json"))
    step = started(repository)
    (response,) = step.execute(requests([1.5], [0], [9]))  # no confidence: it cannot be signed
    assert response["receipt"].tolist() == [[b""]]
    assert values("calib_monitor_errors_total")[(("stage", "receipt"),)] == 1
    assert json.dumps(list(FAMILIES))


# --- the files to deploy it with: what can be held of them without a container engine -----------

DEPLOY = Path(__file__).parents[2] / "deploy" / "triton"


def test_the_example_shows_nothing_beyond_this_host_and_mounts_what_is_there():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    published = [port for s in services.values() for port in s.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    ignored = (DEPLOY / ".gitignore").read_text().split()
    for mount in (m for s in services.values() for m in s["volumes"] if m.startswith(".")):
        source = mount.split(":")[0]
        assert (DEPLOY / source).exists() or f"/{source.removeprefix('./')}/" in ignored, mount
    assert services["triton"]["environment"] == {KEYRING: "/keys/keyring.json"}


def test_the_examples_watch_takes_the_options_it_is_given():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    known = CliRunner().invoke(app, ["watch", "--help"], env={"COLUMNS": "200"}).output
    options = [part.split("=")[0] for part in services["watch"]["command"] if part.startswith("--")]
    assert options
    assert all(option in known for option in options)


def test_the_examples_prometheus_scrapes_both_sides_and_loads_the_rules():
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    targets = {t for job in config["scrape_configs"] for s in job["static_configs"] for t in s["targets"]}
    assert targets == {"127.0.0.1:8002", "127.0.0.1:9300"}
    assert all((DEPLOY.parent / "prometheus" / name).is_file() for name in config["rule_files"])


def test_the_image_copies_files_that_are_there_and_the_step_needs_no_more_than_the_ground():
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (DEPLOY.parents[1] / source).exists(), source
    code = "import sys, calib_serve.serve.triton; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"torch", "onnx", "onnx_ir", "onnxruntime", "scipy"} & set(loaded)
