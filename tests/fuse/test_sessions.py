"""A session runs where it was asked to, or there is none; two packages of onnxruntime are told."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from fuse_graphs import Builder
from gpus import needs_gpu_of_onnxruntime, without_gpu
from onnx import TensorProto, helper

from calib_serve.core.errors import ModelError
from calib_serve.core.packages import check_onnxruntime
from calib_serve.models.sessions import open_session, providers


def model() -> bytes:
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    z = b.node("Gemm", "x", b.normal(6, 3), b.normal(3), output="z")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])
    return b.model([x], [helper.make_tensor_value_info(z, TensorProto.FLOAT, ["n", 3])]).SerializeToString()


def test_devices_by_name():
    assert providers("cpu") == [("CPUExecutionProvider", {})]
    assert providers("cuda:1", {"use_tf32": 0}) == [
        ("CUDAExecutionProvider", {"device_id": 1, "use_tf32": 0}),
        ("CPUExecutionProvider", {}),
    ]


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(model()[:50])
    with pytest.raises(ModelError, match=r"onnxruntime cannot load .*m\.onnx") as refused:
        open_session(tmp_path / "m.onnx")
    assert str(refused.value).count("m.onnx") == 1, "its path may be long, and what is shown is cut"
    with pytest.raises(ModelError, match="cannot load a model of 7 bytes"):
        open_session(b"nothing")


@without_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_that_is_not_there_is_an_error_unless_allowed(device):
    with pytest.raises(ModelError, match=r"was asked for, but.*allow_fallback=True"):
        open_session(model(), device=device)
    session = open_session(model(), device=device, allow_fallback=True)
    assert session.get_providers() == ["CPUExecutionProvider"]


@needs_gpu_of_onnxruntime
def test_cuda_gives_what_the_cpu_gives():
    x = {"x": np.random.default_rng(0).normal(size=(8, 6)).astype("f4")}
    # With TF32, onnxruntime's default, a product of six numbers moved by 1.6e-3 on an H200.
    on_gpu = open_session(model(), device="cuda:0", options={"use_tf32": 0})
    assert on_gpu.get_providers()[0] == "CUDAExecutionProvider"
    np.testing.assert_allclose(on_gpu.run(None, x)[0], open_session(model()).run(None, x)[0], atol=1e-5)


def install(site: Path, name: str, version: str) -> None:
    """What pip leaves of a package, as far as it is read here: its metadata and the one import package."""
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "onnxruntime").mkdir(exist_ok=True)
    (site / "onnxruntime" / "__init__.py").write_text(f"__version__ = {version!r}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of packages that this process sees."""
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_two_of_one_version_are_warned_of(site: Path) -> None:
    install(site, "onnxruntime", "1.31.1")
    install(site, "onnxruntime-gpu", "1.31.1")
    mend = re.escape("pip uninstall -y onnxruntime onnxruntime-gpu, then pip install 'calib-serve[onnx]'")
    with pytest.warns(RuntimeWarning, match=mend):
        check_onnxruntime()


def test_two_versions_over_one_another_are_an_error(site: Path) -> None:
    install(site, "onnxruntime", "1.32.0")
    install(site, "onnxruntime-gpu", "1.31.1")
    both = r"onnxruntime 1\.32\.0 and onnxruntime-gpu 1\.31\.1 are both installed"
    with pytest.raises(ModelError, match=both):
        open_session(b"")


@pytest.mark.parametrize("left", ["an empty folder", "nothing"])
def test_files_that_went_with_the_other_package_are_told(site: Path, left: str) -> None:
    install(site, "onnxruntime-gpu", "1.31.1")
    (site / "onnxruntime" / "__init__.py").unlink()
    if left == "nothing":
        (site / "onnxruntime").rmdir()
    mend = re.escape("pip install --force-reinstall --no-deps onnxruntime-gpu==1.31.1")
    with pytest.raises(ModelError, match=f"its files went .*{mend}"):
        open_session(b"")
