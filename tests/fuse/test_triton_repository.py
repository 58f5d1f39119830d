"""A Triton repository that Triton's own protobuf reads, with a step that signs and counts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from command_line import invoke
from deciding import deciding
from fuse_artifacts import artifact
from fuse_graphs import Builder, run
from google.protobuf import text_format
from onnx import TensorProto, helper

from calib_serve import Bins, Keyring
from calib_serve.artifact import InputShift, LogitMap
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.core.options.fuse import TritonOptions
from calib_serve.fuse import fuse_triton
from calib_serve.fuse.triton.step import VERSION, Monitor

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
    fuse_triton(model_file(tmp_path), STEP, tmp_path / "repo", name="pets", unproven=True)
    return tmp_path / "repo"


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
        VERSION: ("TYPE_INT64", [1]),
    }
    reshaped = {t.name for t in graph.output if t.HasField("reshape") and not t.reshape.shape}
    assert reshaped == {"confidence", "predicted", "bin", VERSION}
    assert graph.dynamic_batching.max_queue_delay_microseconds == 500
    assert [(w.batch_size, list(w.inputs["image"].dims)) for w in graph.model_warmup] == [
        (1, [3, 2, 2]),
        (32, [3, 2, 2]),
    ]
    assert graph.instance_group[0].kind == SCHEMA.ModelInstanceGroup.KIND_GPU
    assert next(t.label_filename for t in graph.output if t.name == "probabilities") == "labels.txt"
    assert (repository / "pets_onnx" / "labels.txt").read_text() == "cat\ndog or wolf\nü\n"


def test_a_fixed_batch_is_left_to_the_client_and_said(tmp_path):
    report = fuse_triton(model_file(tmp_path, batch=2), STEP, tmp_path / "repo", name="m", unproven=True)
    assert any(
        "warning: the graph's batch is fixed at 2: Triton gets max_batch_size 0" in what
        and "max_batch=32 has no effect" in what
        and "dynamic_axes={'image': {0: 'batch'}}" in what
        for what in report.done
    )
    graph = config(tmp_path / "repo" / "m_onnx")
    assert graph.max_batch_size == 0
    assert not graph.HasField("dynamic_batching")
    assert tensors(graph.input)["image"][1] == [2, 3, 2, 2]
    assert tensors(graph.output)["confidence"][1] == [2]


def tree(folder: Path) -> dict[str, tuple]:
    """Every path below with what Triton looks at: its time, and the bytes."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        stat = path.stat()
        found[str(path)] = (stat.st_mtime_ns, stat.st_ctime_ns, path.read_bytes() if path.is_file() else b"")
    return found


OTHER = artifact(LogitMap.temperature(2.0), classes=K + 1)
"""Of a model with more classes: its fusion is refused."""

BACKENDS = ["onnxruntime", "python"]


def bfloat16_file(folder: Path) -> Path:
    """A model that is fused, and whose other output Triton's Python backend cannot hold."""
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    z = b.node("Gemm", b.node("Flatten", "image"), b.normal(12, K), b.normal(K), output="z")
    b.node("Cast", b.node("Gemm", z, b.normal(K, 2), b.normal(2)), to=TensorProto.BFLOAT16, output="half")
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 2, 2])
    shown = [
        helper.make_tensor_value_info(z, TensorProto.FLOAT, ["n", K]),
        helper.make_tensor_value_info("half", TensorProto.BFLOAT16, ["n", 2]),
    ]
    onnx.save(b.model([image], shown), folder / "late.onnx")
    return folder / "late.onnx"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refused_pack_leaves_nothing_and_a_retry_works(backend, tmp_path):
    settings = TritonOptions(backend=backend)
    path, repo = model_file(tmp_path), tmp_path / "repo"
    with pytest.raises(ModelError):
        fuse_triton(path, OTHER, repo, settings, name="pets", unproven=True)
    late = bfloat16_file(tmp_path)
    with pytest.raises(FuseError, match="has no bfloat16"):
        fuse_triton(late, STEP, repo, settings, name="pets", unproven=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".repo.lock", "late.onnx", "raw.onnx"]
    fuse_triton(path, STEP, repo, settings, name="pets", unproven=True)
    before = tree(repo)
    with pytest.raises(ModelError):
        fuse_triton(path, OTHER, repo, settings, name="pets", version=2, unproven=True)
    assert tree(repo) == before
    fuse_triton(path, STEP, repo, settings, name="pets", version=2, unproven=True)
    first = {path: seen for path, seen in before.items() if "/1" in path or path.endswith((".txt", ".pbtxt"))}
    assert first.items() <= tree(repo).items()


def test_a_version_that_shares_too_little_with_the_served_one_is_refused(repository, tmp_path):
    before = tree(repository)
    other = artifact(LogitMap.temperature(2.0), classes=K, class_names=("cat", "dog", "cow"))
    wrong = [
        (STEP, TritonOptions(max_batch=8), "another max_batch_size"),
        (STEP, TritonOptions(backend="python"), "another backend"),
        (STEP, TritonOptions(receipts=False), "another backend"),
        (other, TritonOptions(), r"another labels\.txt"),
        (deciding(STEP), TritonOptions(), "another .*output"),
    ]
    for step, settings, said in wrong:
        with pytest.raises(FuseError, match=f"{said}.*choose another --name"):
            fuse_triton(
                tmp_path / "raw.onnx", step, repository, settings, name="pets", version=2, unproven=True
            )
    assert tree(repository) == before


def test_settings_of_the_served_model_are_kept_and_the_report_says_so(repository, tmp_path):
    path = repository / "pets_onnx" / "config.pbtxt"
    edited = f"# mine\n{path.read_text()}version_policy {{ specific {{ versions: [1] }} }}\n"
    path.write_text(edited.replace("count: 1", "count : 3"))
    edited = path.read_text()
    report = fuse_triton(tmp_path / "raw.onnx", STEP, repository, name="pets", version=2, unproven=True)
    assert path.read_text() == edited
    assert report.done[-1] == (
        "pets_onnx/config.pbtxt kept, with its own instance_group: it holds for all versions"
    )


def test_folders_of_somebody_else_are_not_taken(tmp_path):
    path = model_file(tmp_path)
    for name in ("pets", "pets_onnx", "pets_receipts"):
        theirs = tmp_path / "repo" / name
        theirs.mkdir(parents=True)
        (theirs / "mine.txt").write_text("mine")
        before = tree(tmp_path / "repo")
        with pytest.raises(FuseError, match=f"{name} is there, and no part of 'pets'; choose another --name"):
            fuse_triton(path, STEP, tmp_path / "repo", name="pets", unproven=True)
        assert tree(tmp_path / "repo") == before
        (theirs / "mine.txt").unlink()
        theirs.rmdir()
    fuse_triton(path, STEP, tmp_path / "repo", name="pets", unproven=True)
    with pytest.raises(FuseError, match="choose another --name"):
        fuse_triton(path, STEP, tmp_path / "repo", name="pets_onnx", version=2, unproven=True)


DIES = """
import os, sys
from calib_serve import load_artifact
from calib_serve.fuse import fuse_triton
from pathlib import Path
from calib_serve.core.options.fuse import TritonOptions
left, rename = int(sys.argv[1]), Path.rename
def move(old, new):
    global left
    if not left:
        os.kill(os.getpid(), 9)
    left -= 1
    return rename(old, new)
Path.rename = move
raw, fitted, repository, version = sys.argv[2:]
settings = TritonOptions(device="cpu", unproven=True)
fuse_triton(raw, load_artifact(fitted), repository, settings, name="pets", version=int(version))
"""


def killed_after(moves: int, raw: Path, repository: Path, version: int = 1) -> bool:
    """Pack in a process that is killed after so many moves; whether it was."""
    fitted = raw.with_suffix(".artifact")
    if not fitted.exists():
        STEP.save(fitted)
    told = [str(one) for one in (moves, raw, fitted, repository, version)]
    ended = subprocess.run([sys.executable, "-c", DIES, *told], stderr=subprocess.PIPE, check=False)
    assert ended.returncode in (0, -9), ended.stderr.decode()
    return ended.returncode == -9


@pytest.mark.server
@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_pack_that_was_killed_leaves_whole_models_and_a_retry_finishes_it(version, tmp_path):
    raw, moves, killed = model_file(tmp_path), 0, True
    while killed:
        repo = tmp_path / f"repo{moves}"
        if version == 2:
            fuse_triton(raw, STEP, repo, TritonOptions(device="cpu"), name="pets", unproven=True)
        killed = killed_after(moves, raw, repo, version)
        for folder in repo.iterdir() if repo.exists() else []:
            assert config(folder).name == folder.name
            assert all(any(inner.iterdir()) for inner in folder.iterdir() if inner.is_dir())
        if killed:
            fuse_triton(
                raw, STEP, repo, TritonOptions(device="cpu"), name="pets", version=version, unproven=True
            )
        assert sorted(p.name for p in repo.iterdir()) == ["pets", "pets_onnx", "pets_receipts"]
        assert all((repo / name / str(version)).is_dir() for name in ("pets", "pets_onnx", "pets_receipts"))
        assert not (tmp_path / f".repo{moves}.staging").exists()
        moves += 1
    assert moves == 4  # three moves, and the process that was let live


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_two_packs_at_the_same_time_one_is_refused(backend, tmp_path):
    path = model_file(tmp_path)
    settings = TritonOptions(backend=backend)

    def pack(number: int) -> str:
        step = artifact(LogitMap.temperature(1.0 + number), classes=K)
        try:
            return fuse_triton(path, step, tmp_path / "repo", settings, name="pets", unproven=True).artifact
        except FuseError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(pack, range(4)))
    (won,) = [one for one in told if len(one) == 64]
    assert sum("a served version must not change" in one for one in told) == 3
    (graph,) = (tmp_path / "repo").rglob("model.onnx")
    assert {p.key: p.value for p in onnx.load(graph).metadata_props}["calib_serve.fingerprint"] == won


def test_a_repository_on_a_file_system_of_its_own_is_refused(tmp_path):
    shared = Path("/dev/shm")
    if (
        not shared.is_dir()
        or not os.access("/dev", os.W_OK)
        or shared.stat().st_dev == Path("/dev").stat().st_dev
    ):
        pytest.skip("there is no mounted folder here whose parent may be written")
    with pytest.raises(FuseError, match="a file system of its own"):
        fuse_triton(model_file(tmp_path), STEP, shared, name="pets", unproven=True)


DEPLOY = Path(__file__).parents[2] / "deploy" / "triton"


@pytest.mark.server
def test_the_image_copies_files_that_are_there_and_the_step_needs_no_more_than_the_ground():
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (DEPLOY.parents[1] / source).exists(), source
    code = "import sys, calib_serve.fuse.triton.step; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"torch", "onnx", "onnx_ir", "onnxruntime", "scipy"} & set(loaded)


def test_labels_are_decisions_of_a_row(tmp_path, monkeypatch):
    """The step that signs, on what the graph of a multi-label model gives."""
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    b.node("Sigmoid", b.node("Gemm", "x", b.normal(4, K), b.normal(K)), output="p")
    raw, info = tmp_path / "raw.onnx", helper.make_tensor_value_info
    onnx.save(b.model([info("x", 1, ["n", 4])], [info("p", 1, ["n", K])]), raw)
    artifact(LogitMap.temperature(2.0), classes=K, outputs="label_logits").save(tmp_path / "a")
    typed = [
        "fuse",
        "triton",
        str(raw),
        str(tmp_path / "a"),
        "-o",
        str(tmp_path / "models"),
        "--device",
        "cpu",
        "--unproven",
    ]
    for name, backend in (("one", "python"), ("two", "onnxruntime")):
        invoke([*typed, "--name", name, "--backend", backend])
    for step in ("one", "two_receipts"):
        assert '"multilabel"' in (tmp_path / "models" / step / "config.pbtxt").read_text()
    made = run(
        str(tmp_path / "models/one/1/model.onnx"),
        {"x": np.random.default_rng(0).normal(size=(5, 4)).astype("f4")},
    )
    unsigned = Monitor(Mock(), {"model": "one", "bins": "15", "multilabel": "true"})
    assert not unsigned.receipts("1", made["confidence"], made["predicted"]).any(), "without keys"
    ring = Keyring.new()
    ring.save(tmp_path / "keyring.json")
    monkeypatch.setenv("CALIB_SERVE_KEYRING", str(tmp_path / "keyring.json"))
    monitor = Monitor(Mock(), {"model": "one", "bins": "15", "multilabel": "true"})
    signed = monitor.receipts("1", made["confidence"], made["predicted"])
    told = [[ring.verify(token.decode()) for token in row] for row in signed]
    assert [[r.predicted for r in row] for row in told] == (2 * np.arange(K) + made["predicted"]).tolist()
    groups = [{r.group for r in row} for row in told]
    assert all(len(own) == 1 and own != {0} for own in groups), "the decisions of a row depend on one another"
    assert len(set.union(*groups)) == len(groups)


def test_settings_of_other_servers_that_the_step_does_not_read_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CALIB_SERVE_KEYRING", raising=False)
    monkeypatch.setenv("CALIB_SERVE_LABEL_BUDGET", "500/day")
    Monitor(Mock(), {"model": "one", "bins": "15"})
    found = [record.getMessage().partition(" ")[0] for record in caplog.records]
    assert found == ["CALIB_SERVE_KEYRING", "CALIB_SERVE_LABEL_BUDGET"]
