"""Files that lie, are cut off or too large, and tensors in files beside a model."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import Builder, run
from fuse_texts import DELTA, LAYER, K, W, X, graph
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from calib_serve.artifact import InputShift, LogitMap
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.core.files import sha256
from calib_serve.fuse import fuse_onnx
from calib_serve.fuse.onnx._files import read, write

STEP = artifact(LogitMap.temperature(2.0), classes=K)
ROWS = np.random.default_rng(1).normal(size=(5, 6)).astype("f4")


def info(name: str, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def classifier() -> onnx.ModelProto:
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    hidden = b.node("Relu", b.node("Gemm", "x", b.normal(6, 8), b.normal(8)))
    z = b.node("Gemm", hidden, b.normal(8, K), b.normal(K), output="z")
    return b.model([info("x", "n", 6)], [info(z, "n", K)])


@pytest.fixture
def raw(tmp_path) -> Path:
    path = tmp_path / "raw.onnx"
    onnx.save(classifier(), path)
    return path


def external(folder: Path, location: str = "weights.bin", offset: int = 0) -> Path:
    """The classifier with its weights in another file, said to be at ``location`` from ``offset`` on."""
    model = classifier()
    folder.mkdir(parents=True, exist_ok=True)
    content = b""
    for tensor in model.graph.initializer:
        data = tensor.raw_data
        set_external_data(tensor, location, offset=offset + len(content), length=len(data))
        tensor.ClearField("raw_data")
        content += data
    (folder / "weights.bin").write_bytes(content)
    path = folder / "raw.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def only(folder: Path, *names: str) -> None:
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)


def test_the_fingerprint_is_in_the_metadata_and_a_second_fusion_is_refused(raw, tmp_path):
    out = tmp_path / "out.onnx"
    fuse_onnx(raw, STEP, out, unproven=True)
    metadata = {p.key: p.value for p in onnx.load(out).metadata_props}
    assert metadata["calib_serve.fingerprint"] == STEP.fingerprint
    assert metadata["calib_serve.model"] == sha256(raw)
    with pytest.raises(FuseError, match=r"calibrated already.*fuse into the original"):
        fuse_onnx(out, STEP, tmp_path / "twice.onnx", unproven=True)
    only(tmp_path, "out.onnx", "raw.onnx")
    # Of which scores it is no longer says, so it may be of any.
    half = onnx.load(out)
    kept = [p for p in half.metadata_props if p.key != "calib_serve.outputs"]
    del half.metadata_props[:]
    half.metadata_props.extend(kept)
    onnx.save(half, out)
    with pytest.raises(FuseError, match=r"calibrated already.*fuse into the original$"):
        fuse_onnx(out, STEP, tmp_path / "twice.onnx", unproven=True)


def test_nothing_is_left_behind_where_parity_does_not_hold(raw, tmp_path, monkeypatch):
    out = tmp_path / "out.onnx"
    out.write_bytes(b"the model that is served now")
    # A pass that is wrong: the proof must catch it.
    monkeypatch.setattr(
        "calib_serve.fuse.onnx._plan.map_logits", lambda editor, tail, step: (tail, "did nothing")
    )
    with pytest.raises(FuseError, match=r"probabilities differ by .*rounding allows"):
        fuse_onnx(raw, STEP, out, unproven=True)
    assert out.read_bytes() == b"the model that is served now"
    only(tmp_path, "out.onnx", "raw.onnx")


@pytest.mark.parametrize("location", ["../weights.bin", "sub/../../weights.bin", "{}/weights.bin"])
def test_external_data_outside_of_the_folder_is_refused(location, tmp_path):
    external(tmp_path)  # weights.bin lies above the model's folder
    path = external(tmp_path / "model", location.format(tmp_path))
    (tmp_path / "model" / "sub").mkdir()
    with pytest.raises(ModelError, match="outside of its folder"):
        fuse_onnx(path, STEP, tmp_path / "out" / "out.onnx", unproven=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights on Windows")
def test_external_data_behind_a_link_out_of_the_folder_is_refused(tmp_path):
    path = external(tmp_path / "model")
    (tmp_path / "model" / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (tmp_path / "model" / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(ModelError, match="outside of its folder"):
        fuse_onnx(path, STEP, tmp_path / "out.onnx", unproven=True)


@pytest.mark.server
@pytest.mark.nightly
def test_more_than_two_gigabytes_are_not_loaded(tmp_path):
    """A model whose data file is 2.2 GB, nearly all of it holes: fusing must not need that memory."""
    width = 24_000
    rows = 23_000  # 24,000 x 23,000 floats
    shapes = {"big": (width, rows), "w": (rows, K)}
    tensors = [onnx.TensorProto(name=n, data_type=TensorProto.FLOAT, dims=d) for n, d in shapes.items()]
    sizes = [width * rows * 4, rows * K * 4]
    for tensor, offset, size in zip(tensors, (0, sizes[0]), sizes, strict=True):
        tensor.raw_data = b"-"  # set_external_data wants some
        set_external_data(tensor, "weights.bin", offset=offset, length=size)
        tensor.ClearField("raw_data")
    nodes = [helper.make_node("Gather", ["big", "x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["z"])]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])
    graph = helper.make_graph(nodes, "g", [x], [info("z", "n", K)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    (tmp_path / "raw.onnx").write_bytes(model.SerializeToString())
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(sum(sizes))
    STEP.save(tmp_path / "artifact")
    # Edited in a process of its own, to read the memory it needed. Running such a model needs its
    # weights in memory, so what is measured is everything but the parity check.
    code = (
        "import json, re, sys\nfrom pathlib import Path\n"
        "from calib_serve import Artifact\n"
        "from calib_serve.fuse.onnx._graph import Editor\n"
        "from calib_serve.fuse.onnx._plan import carry_out, make_plan\n"
        "from calib_serve.core.options.fuse import OnnxOptions\n"
        "from calib_serve.fuse.onnx._files import pending, read, write\n"
        "folder = Path(sys.argv[1])\nmodel = read(folder / 'raw.onnx')\n"
        "editor = Editor(model)\n"
        "done, _ = carry_out(editor, make_plan(editor, Artifact.load(folder / 'artifact'), OnnxOptions()))\n"
        "with pending(folder / 'out.onnx') as partial:\n"
        "    write(model, partial, out=folder / 'out.onnx')\n"
        # Not ru_maxrss: that is inherited from whoever started this process.
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "print(json.dumps([done, int(peak)]))\n"
    )
    done, kilobytes = json.loads(
        subprocess.check_output([sys.executable, "-c", code, str(tmp_path)], text=True)
    )
    assert done == ["logit map folded into MatMul 'z'"]
    assert kilobytes < 500_000
    assert (tmp_path / "out.onnx").stat().st_size < 1_000_000


HALF = artifact(LogitMap.temperature(2.0), classes=K)


def outside(tensor: onnx.TensorProto, numbers: np.ndarray, location: str, **where: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    set_external_data(tensor, location, **where)
    tensor.ClearField("raw_data")


def two_layers(folder: Path, one: np.ndarray = W, other: np.ndarray = W) -> Path:
    """x one other + b, with weights in two data files, the second behind 8 bytes of something else."""
    model = graph("h = MatMul(x, one) z = MatMul(h, other) y = Add(z, b)")
    for name in ("one", "other", "b"):
        model.graph.initializer.append(onnx.TensorProto(name=name))
    for tensor, numbers, location, offset in zip(
        model.graph.initializer,
        (one, other, W[0]),
        ("one.bin", "other.bin", "other.bin"),
        (None, 8, 44),
        strict=True,
    ):
        outside(tensor, numbers, location, offset=offset, length=None if offset is None else numbers.nbytes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "one.bin").write_bytes(one.tobytes())
    (folder / "other.bin").write_bytes(b"-" * 8 + other.tobytes() + W[0].tobytes())
    onnx.save(model, folder / "raw.onnx")
    return folder / "raw.onnx"


def test_new_weights_of_the_same_size_replace_the_old_ones(tmp_path: Path) -> None:
    out, step = tmp_path / "out" / "fused.onnx", artifact(InputShift(DELTA, 0.0, 1.0), classes=K)
    shifted = np.clip(X + DELTA, 0, 1)
    for one in (W, -W):  # trained again: the graph is the same to the byte
        fuse_onnx(two_layers(tmp_path / "model", one), step, out, unproven=True)
        np.testing.assert_allclose(run(str(out), {"x": X})["y"], shifted @ one @ W + W[0], atol=1e-5)


def test_a_copy_that_was_spoilt_is_made_again_and_a_good_one_is_left(tmp_path: Path) -> None:
    path, out = two_layers(tmp_path / "model"), tmp_path / "out" / "fused.onnx"
    step = artifact(InputShift(DELTA, 0.0, 1.0), classes=K)
    fuse_onnx(path, step, out, unproven=True)
    one, other = (
        out.with_name(f"fused.{sha256(path.with_name(f'{n}.bin'))[:16]}.data") for n in ("one", "other")
    )
    one.write_bytes(bytes(one.stat().st_size))
    before = other.stat()
    fuse_onnx(path, step, out, unproven=True)
    assert one.read_bytes() == W.tobytes()
    assert (other.stat().st_ino, other.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


FUNCTION = f'<domain: "of.ours", opset_import: ["" : 17]> Layer (a) => (r) {{ {LAYER} r = MatMul(a, w) }}'
BRANCH = f"""y = If(yes) <then_branch = t () => (float[n, 3] a) {{ {LAYER} a = MatMul(x, w) }},
    else_branch = e () => (float[n, 3] d) {{ d = Identity(x) }}>"""


def constant_outside(folder: Path, location: str = "w.bin", within: str = "graph") -> Path:
    """A model whose weight is the attribute of a node, in the file ``location``."""
    bodies = {
        "graph": LAYER + "y = MatMul(x, w)",
        "function": "h = of.ours.Layer(x) y = Neg(h)",
        "branch": BRANCH,
    }
    model = graph(bodies[within], "float[n, 3] x, bool yes" if within == "branch" else "float[n, 3] x")
    node = model.graph.node[0]
    if within == "function":
        model.functions.append(onnx.parser.parse_function(FUNCTION))
        node = model.functions[0].node[0]
    elif within == "branch":
        node = node.attribute[0].g.node[0]
    node.attribute[0].t.name = "w"
    outside(node.attribute[0].t, W, location, offset=0, length=W.nbytes)
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "w.bin").write_bytes(W.tobytes())
    onnx.save(model, folder / "model" / "raw.onnx")
    return folder / "model" / "raw.onnx"


@pytest.mark.parametrize("within", ["graph", "function", "branch"])
def test_the_numbers_of_an_attribute_come_along_too(within: str, tmp_path: Path) -> None:
    path, out = constant_outside(tmp_path, within=within), tmp_path / "out" / "fused.onnx"
    fuse_onnx(path, artifact(InputShift(DELTA, 0.0, 1.0), classes=K), out, unproven=True)
    path.with_name("w.bin").unlink()
    feeds = {"x": X} | ({"yes": np.array(True)} if within == "branch" else {})
    want = np.clip(X + DELTA, 0, 1) @ W * (-1 if within == "function" else 1)
    np.testing.assert_allclose(run(str(out), feeds)["y"], want, atol=1e-5)


def test_the_numbers_of_an_attribute_are_not_read_outside_of_the_folder(tmp_path: Path) -> None:
    path = constant_outside(tmp_path, "../w.bin")
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(ModelError, match=r"keeps 'w' outside of its folder, in '\.\./w\.bin'"):
        fuse_onnx(path, HALF, tmp_path / "out.onnx", unproven=True)


@pytest.mark.parametrize("where", [{"offset": 0, "length": 32}, {"offset": 1, "length": 36}, {"offset": 4}])
def test_a_tensor_that_is_longer_than_its_file_or_its_part_is_refused(
    where: dict[str, int], tmp_path: Path
) -> None:
    model = graph("y = MatMul(x, w)")
    model.graph.initializer.append(onnx.TensorProto(name="w"))
    outside(model.graph.initializer[0], W, "w.bin", **where)
    onnx.save(model, tmp_path / "raw.onnx")
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(ModelError) as raised:
        fuse_onnx(tmp_path / "raw.onnx", HALF, tmp_path / "out.onnx", unproven=True)
    assert str(raised.value) == (
        f"{tmp_path / 'raw.onnx'} keeps 'w' in 'w.bin', which ends before it: 36 < {36 + where['offset']}; "
        "copy the whole file"
    )


@pytest.mark.parametrize("location", ["gone.bin", "nul\0.bin"])
def test_a_data_file_that_cannot_be_read_is_named(location: str, tmp_path: Path) -> None:
    model = graph("y = MatMul(x, w)")
    model.graph.initializer.append(onnx.TensorProto(name="w"))
    outside(model.graph.initializer[0], W, location)
    (tmp_path / "raw.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as raised:
        fuse_onnx(tmp_path / "raw.onnx", HALF, tmp_path / "out.onnx", unproven=True)
    assert f"keeps 'w' in {location!r}, which cannot be read" in str(raised.value)


def test_a_file_that_is_no_model_is_refused_and_an_archive_is_told_from_it(tmp_path: Path) -> None:
    path = tmp_path / "raw.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match="is not an ONNX model") as raised:
        fuse_onnx(path, HALF, tmp_path / "out.onnx", unproven=True)
    assert "torch" not in str(raised.value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", "")
    with pytest.raises(ModelError, match="a torch file takes fuse torch"):
        fuse_onnx(path, HALF, tmp_path / "out.onnx", unproven=True)


@pytest.mark.parametrize("sound", [True, False])
def test_a_written_model_passes_the_check_that_the_read_one_passed(sound: bool, tmp_path: Path) -> None:
    onnx.save(
        graph("y = Neg(x)", outputs="float[n, 3] y" if sound else "float[n, 4] y"), tmp_path / "raw.onnx"
    )
    model = read(tmp_path / "raw.onnx")
    assert model.meta["strict"]  # a false shape is corrected
    model.graph[0].op_type = "Not"
    with pytest.raises(FuseError, match="the fused model fails onnx's full check"):
        write(model, tmp_path / "out.onnx", out=tmp_path / "out.onnx")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_damaged_file_is_refused_or_still_right(seed):
    """Bytes changed, left out or put in anywhere: an error of ours, or a file that holds what it says."""
    rng = np.random.default_rng(seed)
    content = bytearray(classifier().SerializeToString())
    for _ in range(rng.integers(1, 6)):
        kind, at = rng.integers(3), int(rng.integers(len(content)))
        noise = rng.bytes(int(rng.integers(1, 9)))
        content[at : at + (0 if kind == 2 else len(noise))] = b"" if kind == 1 else noise
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "raw.onnx").write_bytes(content)
        try:
            fuse_onnx(folder / "raw.onnx", STEP, folder / "out.onnx", unproven=True)
        except (ModelError, FuseError):
            only(folder, "raw.onnx")
            return
        raw, got = (next(iter(run(str(folder / n), {"x": ROWS}).values())) for n in ("raw.onnx", "out.onnx"))
        np.testing.assert_allclose(got, raw / 2, rtol=1e-4, atol=1e-5 * max(1, np.abs(raw).max()))
