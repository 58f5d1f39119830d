"""Tensors in files beside a model: checked, and brought along to another folder."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import DELTA, LAYER, K, W, X, graph
from onnx import numpy_helper
from onnx.external_data_helper import set_external_data

from calib_serve import InputShift, LogitMap
from calib_serve.errors import FuseError, ModelError
from calib_serve.files import sha256
from calib_serve.fuse.onnx.files import read, write
from calib_serve.fuse.onnx.graph import fuse_onnx

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


# --- brought along ----------------------------------------------------------------------------------


def test_new_weights_of_the_same_size_replace_the_old_ones(tmp_path: Path) -> None:
    out, step = tmp_path / "out" / "fused.onnx", artifact(InputShift(DELTA, 0.0, 1.0), classes=K)
    shifted = np.clip(X + DELTA, 0, 1)
    for one in (W, -W):  # trained again: the graph is the same to the byte
        fuse_onnx(two_layers(tmp_path / "model", one), step, out)
        np.testing.assert_allclose(run(str(out), {"x": X})["y"], shifted @ one @ W + W[0], atol=1e-5)


def test_a_copy_that_was_spoilt_is_made_again_and_a_good_one_is_left(tmp_path: Path) -> None:
    path, out = two_layers(tmp_path / "model"), tmp_path / "out" / "fused.onnx"
    step = artifact(InputShift(DELTA, 0.0, 1.0), classes=K)
    fuse_onnx(path, step, out)
    one, other = (
        out.with_name(f"fused.{sha256(path.with_name(f'{n}.bin'))[:16]}.data") for n in ("one", "other")
    )
    one.write_bytes(bytes(one.stat().st_size))
    before = other.stat()
    fuse_onnx(path, step, out)
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
    fuse_onnx(path, artifact(InputShift(DELTA, 0.0, 1.0), classes=K), out)
    path.with_name("w.bin").unlink()
    feeds = {"x": X} | ({"yes": np.array(True)} if within == "branch" else {})
    want = np.clip(X + DELTA, 0, 1) @ W * (-1 if within == "function" else 1)
    np.testing.assert_allclose(run(str(out), feeds)["y"], want, atol=1e-5)


def test_the_numbers_of_an_attribute_are_not_read_outside_of_the_folder(tmp_path: Path) -> None:
    path = constant_outside(tmp_path, "../w.bin")
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(ModelError, match=r"keeps 'w' outside of its folder, in '\.\./w\.bin'"):
        fuse_onnx(path, HALF, tmp_path / "out.onnx")


# --- checked ----------------------------------------------------------------------------------------


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
        fuse_onnx(tmp_path / "raw.onnx", HALF, tmp_path / "out.onnx")
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
        fuse_onnx(tmp_path / "raw.onnx", HALF, tmp_path / "out.onnx")
    assert f"keeps 'w' in {location!r}, which cannot be read" in str(raised.value)


def test_a_file_that_is_no_model_is_refused_and_an_archive_is_told_from_it(tmp_path: Path) -> None:
    path = tmp_path / "raw.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match="is not an ONNX model") as raised:
        fuse_onnx(path, HALF, tmp_path / "out.onnx")
    assert "torch" not in str(raised.value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", "")
    with pytest.raises(ModelError, match="a torch file takes fuse torch"):
        fuse_onnx(path, HALF, tmp_path / "out.onnx")


@pytest.mark.parametrize("sound", [True, False])
def test_a_written_model_passes_the_check_that_the_read_one_passed(sound: bool, tmp_path: Path) -> None:
    onnx.save(
        graph("y = Neg(x)", outputs="float[n, 3] y" if sound else "float[n, 4] y"), tmp_path / "raw.onnx"
    )
    model = read(tmp_path / "raw.onnx")
    assert model.meta["strict"]  # a false shape is corrected
    model.graph[0].op_type = "Not"
    with pytest.raises(FuseError, match="the fused model fails onnx's full check"):
        write(model, tmp_path / "out.onnx", source=tmp_path / "raw.onnx", out=tmp_path / "out.onnx")
