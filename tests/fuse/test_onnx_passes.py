"""Types and opsets of graphs, and passes that are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact, output_steps
from fuse_graphs import run
from fuse_texts import LAYER, TWO, K, X, editor, fused, graph
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from calib_serve.artifact import InputShift
from calib_serve.core.errors import FuseError
from calib_serve.core.options.fuse import OnnxOptions
from calib_serve.fuse.onnx._graph import Editor
from calib_serve.fuse.onnx._plan import carry_out, make_plan
from calib_serve.fuse.onnx._tail import Tail


def test_bfloat16_is_fused_and_measured_by_the_reference_evaluator(tmp_path: Path) -> None:
    model = graph("y = MatMul(x, w)", "bfloat16[n, 3] x", "bfloat16[n, 3] y")
    w = np.random.default_rng(0).normal(size=(K, K)).astype(ml_dtypes.bfloat16)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    report, made = fused(model, tmp_path, TWO)
    assert report.engine == "onnx.reference"
    assert report.nodes_after == 1
    assert made.graph.initializer[0].data_type == TensorProto.BFLOAT16


def test_half_precision_inside_of_a_float_graph_is_allowed_a_thousandth(tmp_path: Path) -> None:
    body = "s = Sub(x, mean) d = Div(s, std) h = Cast <to: int = 10> (d) g = Gemm(h, w, b) "
    model = graph(
        body + "z = Cast <to: int = 1> (g) y = Softmax(z)", constants="float mean = {0.3}, float std = {0.7}"
    )
    for name, size in (("w", (K, K)), ("b", (K,))):
        numbers = np.random.default_rng(0).normal(size=size).astype("f2")
        model.graph.initializer.append(numpy_helper.from_array(numbers, name))
    delta = np.random.default_rng(1).normal(size=K)
    report, _ = fused(model, tmp_path, InputShift(delta), TWO, inputs={"x": X})
    assert report.max_abs_diff <= report.tolerance
    assert report.tolerance == 1e-3


def stray(editor: Editor, tail: Tail) -> Tail:
    """Make a node that nothing reads."""
    half = editor.number(0.5, ir.DataType.FLOAT, "scale")
    return replace(tail, logits=editor.node("Mul", [tail.logits, half]))


def other_output(editor: Editor, tail: Tail) -> Tail:
    return replace(tail, output=tail.logits)


def hidden_output(editor: Editor, tail: Tail) -> Tail:
    editor.graph.outputs.clear()
    return tail


def other_activation(editor: Editor, tail: Tail) -> Tail:
    return replace(tail, activation=tail.logits.producer())


@pytest.mark.parametrize(
    ("breaking", "wrong"),
    [
        (stray, "the way out is broken"),
        (other_output, "the output is another"),
        (hidden_output, "the output is another"),
        (other_activation, "the activation is another"),
    ],
)
def test_a_pass_that_breaks_the_path_to_the_output_is_caught_after_it(
    breaking: Callable[[Editor, Tail], Tail], wrong: str
) -> None:
    made = editor("z = Neg(x) y = Softmax(z)")
    plan = make_plan(made, artifact(TWO, classes=K), OnnxOptions())
    with pytest.raises(FuseError, match=f"went wrong: {wrong}"):
        carry_out(made, replace(plan, passes=(lambda *given: (breaking(*given), "broken"),)))


@pytest.mark.parametrize("opset", range(13, onnx.defs.onnx_opset_version() + 1))
def test_every_opset_from_13_on_is_written_as_it_was_read(opset: int, tmp_path: Path) -> None:
    model = graph(LAYER + "y = MatMul(x, w)", imports=f'"" : {opset}')
    model.ir_version = 10
    steps = output_steps("classwise", K, np.random.default_rng(0))
    report, made = fused(model, tmp_path, InputShift(np.ones(K)), *steps, returns="all")
    onnx.checker.check_model(made, full_check=True)
    assert [(o.domain, o.version) for o in made.opset_import] == [("", opset)]
    if report.engine == "onnxruntime":
        got = run(made, {"x": X[:5]})["bin"]
    else:  # newer than this onnxruntime
        got = ReferenceEvaluator(made).run(["bin"], {"x": X[:5]})[0]
    assert got.shape == (5,)
