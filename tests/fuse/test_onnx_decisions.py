"""Prediction sets, abstention and acts in fused graphs and modules: all decide as the artifact does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from deciding import ACTS, IN_SEGMENTS, SCORES, acts_by_hand, deciding
from fuse_artifacts import KINDS, artifact, output_steps
from fuse_graphs import Builder
from onnx import TensorProto, helper
from onnx_runtimes import RUNTIMES, by_onnxruntime, run_or_skip
from sizes import sized
from torch import nn

from calib_serve import Artifact
from calib_serve.artifact import Abstain, Choice, Clause, Contract, LogitMap, PredictionSets
from calib_serve.core.errors import FuseError
from calib_serve.fuse import calibrated, fuse_onnx
from calib_serve.fuse._decision_parity import check_decisions
from calib_serve.fuse.onnx import _outputs as outputs
from calib_serve.fuse.onnx._decisions import _first_of_equals
from calib_serve.fuse.onnx._graph import Editor
from calib_serve.fuse.torch import _fuse as torch_fuse

K = 5
FLOATS = {"f2": TensorProto.FLOAT16, "f4": TensorProto.FLOAT, "f8": TensorProto.DOUBLE}
EVEN = np.random.default_rng(1).integers(0, 3, (400, K)) * 2  # full of ties


def graph(folder: Path, tail: str = "", dtype: str = "f4", classes: int = K) -> Path:
    """Scores that are the input, perhaps through an activation."""
    b = Builder(np.dtype(dtype), np.random.default_rng(0))
    z = b.node("Neg", b.node("Neg", "x"))
    y = b.node(tail or "Identity", z, output="scores", **({"axis": -1} if tail else {}))
    x, shown = (helper.make_tensor_value_info(name, FLOATS[dtype], ["n", classes]) for name in ("x", y))
    onnx.save(b.model([x], [shown]), folder / "raw.onnx")
    return folder / "raw.onnx"


def fused(path: Path, fitted: Artifact, **options) -> Path:
    out = path.with_name("fused.onnx")
    fuse_onnx(path, fitted, out, **options, unproven=True)
    onnx.checker.check_model(str(out), full_check=True)
    return out


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("score", SCORES)
def test_every_runtime_decides_as_the_artifact_does_also_where_classes_tie(score, runtime, tmp_path):
    fitted = deciding(artifact(LogitMap.temperature(2.0), classes=K), score)
    out = fused(graph(tmp_path, "Softmax"), fitted, returns="all")
    got = run_or_skip(runtime, out, {"x": EVEN.astype("f4")})
    assert got["set"].dtype == got["abstain"].dtype == bool
    np.testing.assert_array_equal(got["set"], fitted.sets(got["probabilities"]))
    np.testing.assert_array_equal(got["abstain"], fitted.abstain(got["probabilities"]))
    assert 1 < got["set"].sum(axis=1).mean() < K
    assert 0 < got["abstain"].mean() < 1


@pytest.mark.parametrize("returns", ["same", "probabilities", "all"])
@pytest.mark.parametrize("tail", ["", "Softmax", "LogSoftmax"])
@pytest.mark.parametrize("kind", sized(["matrix", "mixture", "top", "classwise"], KINDS))
def test_decisions_are_by_the_calibrated_probabilities_of_any_step(kind, tail, returns, tmp_path):
    means = {"": "logits", "Softmax": "probabilities", "LogSoftmax": "log_probs"}[tail]
    steps = output_steps(kind, K, np.random.default_rng(0))
    fitted = deciding(artifact(*steps, classes=K, outputs=means), SCORES[len(kind) % 6])
    path = graph(tmp_path, tail)
    plain = by_onnxruntime(fused(path, fitted, returns=returns, decisions=False), {"x": rows()})
    got = by_onnxruntime(fused(path, fitted, returns=returns), {"x": rows()})
    assert [*got] == [*plain, "set", "abstain"]
    for name, values in plain.items():
        np.testing.assert_array_equal(got[name], values)
    probs = fitted.of_logits(np.log(raw_probs(rows())) if means != "logits" else rows())
    agree(got, fitted, probs, 1e-5)


def rows(n: int = 40, classes: int = K) -> np.ndarray:
    return (2 * np.random.default_rng(1).normal(size=(n, classes))).astype("f4")


def raw_probs(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def agree(got, fitted: Artifact, probs: np.ndarray, tolerance: float) -> None:
    everyone = np.ones(len(probs), bool)
    close = check_decisions(fitted, probs, got, tolerance=tolerance, rows=everyone, report="")
    assert close < 0.2 * got["set"].size


@pytest.mark.parametrize("score", ["lac", "raps a class"])
@pytest.mark.parametrize("returns", ["same", "all"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_half_and_double_models_decide_in_full_precision(dtype, returns, score, tmp_path):
    fitted = deciding(artifact(LogitMap.temperature(2.0), classes=K), score)
    x = rows().astype(dtype)
    out = fused(graph(tmp_path, "Softmax", dtype), fitted, returns=returns)
    agree(by_onnxruntime(out, {"x": x}), fitted, fitted.of_logits(x), 2e-3 if dtype == "f2" else 1e-5)
    if dtype == "f2":  # by probabilities of half precision, the set would be another
        least = float(np.float16(fitted.of_logits(x[:1]).max())) - 1e-5
        fine = replace(fitted, sets=None, abstain=Abstain(least, risk=0.1))
        shown = by_onnxruntime(fused(graph(tmp_path, "Softmax", dtype), fine), {"x": x})
        assert shown["abstain"][0] == (fine.of_logits(x[:1]).max() < least)


def test_the_first_of_equal_classes_is_first_however_a_runtime_sorted_them(tmp_path):
    values = np.array([[5, 5, 3, 3, 3], [9, 7, 7, 7, 1], [2, 2, 2, 2, 2], [5, 4, 3, 2, 1]], "f4")
    orders = np.array([[4, 2, 3, 0, 1], [0, 4, 2, 3, 1], [4, 3, 2, 1, 0], [3, 1, 4, 0, 2]])
    info = helper.make_tensor_value_info
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    y = b.node("Identity", "ranked", output="y")
    inputs = [info("ranked", 1, ["n", K]), info("order", TensorProto.INT64, ["n", K])]
    editor = Editor(ir.from_proto(b.model(inputs, [info(y, 1, ["n", K])])))
    size, axis = (editor.number(n, ir.DataType.INT64, "number") for n in ([K], 1))
    first = _first_of_equals(editor, *editor.graph.inputs, size=size, axis=axis, classes=K)
    editor.add_output(first, "first")
    path = tmp_path / "first.onnx"
    onnx.save(ir.to_proto(editor.model), path)
    got = by_onnxruntime(path, {"ranked": values, "order": orders})["first"]
    assert got.tolist() == [[2, 4, 0, 1, 3], [0, 2, 3, 4, 1], [0, 1, 2, 3, 4], [3, 1, 4, 0, 2]]


THREE = 3
ONE = Contract((Clause(0.9, above=0.55),))


def acting(contract: Contract = ACTS) -> Artifact:
    return replace(artifact(LogitMap.temperature(2.0), classes=THREE), contract=contract)


OF_THREE = 1.5 * rows(400, THREE)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("contract", [ACTS, ONE], ids=["of classes", "of all"])
def test_every_runtime_acts_as_the_contract_says(contract, runtime, tmp_path):
    out = fused(graph(tmp_path, "Softmax", classes=THREE), acting(contract), returns="all")
    got = run_or_skip(runtime, out, {"x": OF_THREE})
    assert got["act"].dtype == bool
    shown = got["probabilities"].astype("f8")
    by_hand = acts_by_hand(shown) if contract is ACTS else (shown.max(axis=1) >= 0.55).tolist()
    assert got["act"].tolist() == by_hand
    assert 0.2 < got["act"].mean() < 0.95


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_module_acts_by_the_confidence_that_it_returns(dtype):
    x = torch.from_numpy(OF_THREE).to(dtype)
    got = calibrated(nn.Identity(), acting(), returns="all", example=x[:50])(x)
    shown = got["probabilities"].double().numpy()
    sure = np.sort(shown, axis=1)[:, -1] > np.sort(shown, axis=1)[:, -2]
    assert got["act"].numpy()[sure].tolist() == np.array(acts_by_hand(shown))[sure].tolist()
    assert [*got][-1] == "act"


def test_segments_which_a_model_does_not_know_are_refused_and_left_out_when_told(tmp_path):
    path = graph(tmp_path, "Softmax", classes=THREE)
    one, x = acting(IN_SEGMENTS), torch.from_numpy(OF_THREE)
    with pytest.raises(FuseError, match="thresholds of its own for nord"):
        fused(path, one)
    with pytest.raises(FuseError, match="thresholds of its own for nord"):
        calibrated(nn.Identity(), one, returns="all", example=x)
    shown = by_onnxruntime(fused(path, one, decisions=False), {"x": OF_THREE})
    assert [*shown] == ["scores"]
    assert isinstance(calibrated(nn.Identity(), one, example=x)(x), torch.Tensor)


OF_FIVE = deciding(artifact(LogitMap.temperature(2.0), classes=K))
LEAST, MORE = (Choice(("no", "yes"), "recall", 0.9, threshold=least) for least in (0.3, 0.6))


@pytest.mark.parametrize(
    ("name", "fitted", "other"),
    [
        ("set", OF_FIVE, {"sets": PredictionSets(np.array(0.3), 0.9)}),
        ("abstain", OF_FIVE, {"abstain": Abstain(0.9, 0.1)}),
        ("act", acting(), {"contract": ONE}),
        ("decision", replace(artifact(LogitMap.temperature(2.0), classes=2), choice=LEAST), {"choice": MORE}),
    ],
)
def test_a_graph_or_module_that_decides_otherwise_is_refused(name, fitted, other, tmp_path, monkeypatch):
    x, show, whole = rows(64, fitted.classes), outputs.show_decisions, torch_fuse._TAILS["all"]
    monkeypatch.setattr(outputs, "show_decisions", lambda e, p, a, *r: show(e, p, replace(a, **other), *r))
    with pytest.raises(FuseError, match=f"entries of '{name}' differ; nothing was written"):
        fused(graph(tmp_path, classes=fitted.classes), fitted, inputs={"x": x})
    assert not (tmp_path / "fused.onnx").exists()
    monkeypatch.setitem(torch_fuse._TAILS, "all", lambda maps, a, *r: whole(maps, replace(a, **other), *r))
    with pytest.raises(FuseError, match=f"entries of '{name}' differ"):
        calibrated(nn.Identity(), fitted, returns="all", example=torch.tensor(x))


def greater_where_nan(path: Path) -> None:
    """Write comparisons as runtimes compute them that take NaN for greater, and for less."""
    model = onnx.load(path)
    nodes = list(model.graph.node)
    for node in nodes:
        if node.op_type in ("GreaterOrEqual", "LessOrEqual"):
            node.op_type = {"GreaterOrEqual": "Less", "LessOrEqual": "Greater"}[node.op_type]
            (name,) = node.output
            node.output[0] = f"{name}.not"
            nodes.insert(nodes.index(node) + 1, helper.make_node("Not", [f"{name}.not"], [name]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)


@pytest.mark.parametrize("kind", ["temperature", "top", "classwise", "mixture"])
def test_nothing_is_acted_on_or_answered_where_a_score_is_nan_whatever_the_runtime_compares(kind, tmp_path):
    steps = output_steps(kind, K, np.random.default_rng(0))
    fitted = replace(artifact(*steps, classes=K), abstain=Abstain(0.1, risk=0.1), contract=ACTS)
    out = fused(graph(tmp_path, "Softmax"), fitted, returns="all")
    broken = rows(6)
    broken[:2, 1], broken[2] = np.nan, np.nan
    greater_where_nan(out)
    got = by_onnxruntime(out, {"x": broken})
    assert np.isnan(got["probabilities"][:3]).all()
    assert got["abstain"][:3].all()
    assert not got["act"][:3].any()
    assert not np.isnan(got["probabilities"][3:]).any()
    module = calibrated(nn.Identity(), fitted, outputs="logits", returns="all")
    found = module(torch.tensor(broken))
    assert found["abstain"][:3].all()
    assert not found["act"][:3].any()
    assert np.isnan(fitted.of_logits(broken)[:3]).all()
