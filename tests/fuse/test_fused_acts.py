"""What may be acted on, by a contract, as an output of fused graphs and modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from deciding import ACTS, IN_SEGMENTS, acts_by_hand
from fuse_artifacts import artifact
from fuse_graphs import Builder
from onnx import TensorProto, helper
from onnx_runtimes import RUNTIMES, CannotRun, by_onnxruntime
from torch import nn

from calib_serve import Artifact, LogitMap
from calib_serve.artifact import Clause, Contract
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx import fuse_onnx
from calib_serve.fuse.torch import calibrated

K = 3
FLOATS = {"f2": TensorProto.FLOAT16, "f4": TensorProto.FLOAT, "f8": TensorProto.DOUBLE}
ONE = Contract((Clause("act", 0.9, above=0.55),))


def fitted(contract: Contract = ACTS) -> Artifact:
    return replace(artifact(LogitMap.temperature(2.0), classes=K), contract=contract)


def graph(folder: Path, dtype: str = "f4") -> Path:
    b = Builder(np.dtype(dtype), np.random.default_rng(0))
    info = helper.make_tensor_value_info
    y = b.node("Softmax", b.node("Neg", b.node("Neg", "x")), output="scores", axis=-1)
    path = folder / "raw.onnx"
    shown = [info(y, FLOATS[dtype], ["n", K])]
    onnx.save(b.model([info("x", FLOATS[dtype], ["n", K])], shown, opset=17), path)
    return path


def rows(dtype: str = "f4", n: int = 400) -> np.ndarray:
    return (3 * np.random.default_rng(1).normal(size=(n, K))).astype(dtype)


def fused(folder: Path, one: Artifact, dtype: str = "f4", **options) -> Path:
    out = folder / "fused.onnx"
    fuse_onnx(graph(folder, dtype), one, out, **options)
    onnx.checker.check_model(str(out), full_check=True)
    return out


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("contract", [ACTS, ONE], ids=["of classes", "of all"])
def test_every_runtime_acts_as_the_contract_says(contract, runtime, tmp_path):
    out = fused(tmp_path, fitted(contract), returns="all")
    try:
        got = RUNTIMES[runtime](out, {"x": rows()})
    except CannotRun as error:
        pytest.skip(str(error))
    assert got["act"].dtype == bool
    shown = got["probabilities"].astype("f8")
    by_hand = acts_by_hand(shown) if contract is ACTS else (shown.max(axis=1) >= 0.55).tolist()
    assert got["act"].tolist() == by_hand
    assert 0.2 < got["act"].mean() < 0.95


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("returns", ["probabilities", "all"])
def test_a_module_acts_by_the_confidence_that_it_returns(dtype, returns):
    x = torch.from_numpy(rows("f8")).to(dtype)
    got = calibrated(nn.Identity(), fitted(), decisions=True, returns=returns, example=x[:50])(x)
    shown = got["probabilities"].double().numpy()
    sure = np.sort(shown, axis=1)[:, -1] > np.sort(shown, axis=1)[:, -2]
    assert got["act"].numpy()[sure].tolist() == np.array(acts_by_hand(shown))[sure].tolist()
    assert [*got][-1] == "act"


def test_segments_which_a_model_does_not_know_are_refused_and_left_out_when_told(tmp_path):
    one, x = fitted(IN_SEGMENTS), torch.from_numpy(rows())
    with pytest.raises(FuseError, match="thresholds of its own for nord"):
        fused(tmp_path, one)
    with pytest.raises(FuseError, match="thresholds of its own for nord"):
        calibrated(nn.Identity(), one, decisions=True, example=x)
    shown = by_onnxruntime(fused(tmp_path, one, decisions=False), {"x": rows()})
    assert [*shown] == ["scores"]
    assert isinstance(calibrated(nn.Identity(), one, example=x)(x), torch.Tensor)
    silent = fitted(Contract((Clause("calibration", 0.1), Clause("coverage", 0.5, 0.9, segment="de"))))
    assert [*by_onnxruntime(fused(tmp_path, silent), {"x": rows()})] == ["scores"]


def test_a_module_that_acts_otherwise_is_refused(monkeypatch):
    from calib_serve.fuse.torch import module

    right = module._deciding

    def wrong(returns, maps, one, *rest):
        return right(returns, maps, replace(one, contract=ONE), *rest)

    monkeypatch.setattr(module, "_deciding", wrong)
    with pytest.raises(FuseError, match="entries of 'act' differ"):
        calibrated(nn.Identity(), fitted(), decisions=True, example=torch.from_numpy(rows()))
