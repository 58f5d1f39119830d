"""Where each step goes in a graph: what it costs in nodes, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact, output_steps
from fuse_graphs import Builder, run
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from calib_serve import InputShift, LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.files import read
from calib_serve.fuse.onnx.graph import fuse_onnx
from calib_serve.fuse.onnx.logit_map import MapLogits
from calib_serve.fuse.onnx.outputs import OpenScores
from calib_serve.fuse.onnx.plan import Request, carry_out, make_plan

K = 3
F4 = np.dtype("f4")


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def builder() -> Builder:
    return Builder(F4, np.random.default_rng(0))


def linear(b: Builder, x: str = "x", width: int = 6) -> str:
    return b.node("Gemm", x, b.normal(width, K), b.normal(K))


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "raw.onnx"
    onnx.save(model, path)
    return path


def fused(model: onnx.ModelProto, folder: Path, *steps, classes: int = K, **options):
    """The report and the fused model, checked in full."""
    out = folder / "fused.onnx"
    report = fuse_onnx(saved(model, folder), artifact(*steps, classes=classes), out, **options)
    onnx.checker.check_model(str(out), full_check=True)
    return report, onnx.load(out)


def rows(n: int = 5, width: int = 6) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, width)).astype("f4")


def test_bfloat16_is_fused_and_measured_by_the_reference_evaluator(tmp_path):
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.normal(size=(6, K)).astype(ml_dtypes.bfloat16), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    bf16 = TensorProto.BFLOAT16
    graph = helper.make_graph(
        [node], "g", [info("x", "n", 6, kind=bf16)], [info("y", "n", K, kind=bf16)], [w]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    report, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0))
    assert report.engine == "onnx.reference"
    assert report.nodes_after == 1
    assert calibrated.graph.initializer[0].data_type == bf16


def test_half_precision_inside_of_a_float_graph_is_allowed_its_own_rounding(tmp_path):
    b = builder()
    half = {"to": TensorProto.FLOAT16}
    x = b.node("Cast", b.node("Div", b.node("Sub", "x", b.number(0.3)), b.number(0.7)), **half)
    w, bias = (b.number(np.random.default_rng(0).normal(size=s), "f2") for s in ((6, K), (K,)))
    z = b.node("Cast", b.node("Gemm", x, w, bias), to=TensorProto.FLOAT)
    model = b.model([info("x", "n", 6)], [info(b.node("Softmax", z, axis=1), "n", K)])
    delta = np.random.default_rng(1).normal(size=6)
    report, _ = fused(model, tmp_path, InputShift(delta), LogitMap.temperature(2.0), samples=200)
    assert report.max_abs_diff <= report.tolerance
    assert report.tolerance >= 1e-2


def test_a_pass_that_breaks_its_word_is_caught_by_its_own_check(tmp_path):
    """Each pass says what it needs and what it leaves, and both are checked while it runs."""

    class Forgetful(MapLogits):
        def call(self, editor, tail):
            stray = editor.node("Mul", [tail.logits, editor.number(0.5, ir.DataType.FLOAT, "scale")])
            return replace(tail, logits=stray), "a node that nothing reads"

    b = builder()
    z = linear(b)
    model = b.model([info("x", "n", 6)], [info(b.node("Softmax", z), "n", K)])
    editor = Editor(read(saved(model, tmp_path)))
    step = LogitMap.temperature(2.0)
    plan = make_plan(editor, artifact(step, classes=K), Request())
    with pytest.raises(FuseError, match="went wrong: the way out is broken"):
        carry_out(editor, replace(plan, passes=(Forgetful(step),)))
    with pytest.raises(FuseError, match="went wrong: probabilities were to get an activation"):
        carry_out(editor, replace(plan, passes=(OpenScores(),)))


@pytest.mark.parametrize("opset", range(13, onnx.defs.onnx_opset_version() + 1))
def test_every_opset_from_13_on_is_written_as_it_was_read(opset, tmp_path):
    b = builder()
    model = b.model([info("x", "n", 6)], [info(linear(b), "n", K)], opset=opset)
    steps = output_steps("classwise", K, np.random.default_rng(0))
    report, calibrated = fused(model, tmp_path, InputShift(np.ones(6)), *steps, returns="all")
    assert [(o.domain, o.version) for o in calibrated.opset_import] == [("", opset)]
    if report.engine == "onnxruntime":
        got = run(calibrated, {"x": rows()})["bin"]
    else:  # newer than this onnxruntime
        got = ReferenceEvaluator(calibrated).run(["bin"], {"x": rows()})[0]
    assert got.shape == (5,)
