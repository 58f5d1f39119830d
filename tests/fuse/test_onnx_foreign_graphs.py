"""Graphs that nobody here wrote: onnx's own test models, bare and as the body of a classifier."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from onnx import helper, numpy_helper
from sizes import sized

from calib_serve.artifact import LogitMap
from calib_serve.core.errors import CalibServeError
from calib_serve.fuse import fuse_onnx

STEP = sized(ci=60, nightly=1)  # each so many-th model
PARTS = 4
K = 3
NUMBERS = {
    onnx.TensorProto.DataType.Value(n) for n in ("FLOAT", "DOUBLE", "FLOAT16", "BOOL", "INT32", "INT64")
}

WAYS_OUT = ("--", "fit an artifact on this model's scores", "export it again", "fails onnx's checker")
"""Flags that resolve a refusal, or what else does."""

# Random numbers and NaN have no parity; onnxruntime lacks kernels of some types, and takes no TensorProto.
UNMEASURABLE = ("parity cannot be measured", "cannot run the model", "is NaN on", "bernoulli")


@cache
def cases() -> list:
    """Every model of onnx's backend tests that comes with inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, while onnx makes their inputs
        from onnx.backend.test.case import model, node

        found = [*node.collect_testcases(None), *model.collect_testcases()]
    return [case for case in found if case.model is not None and case.data_sets][::STEP]


def part(i: int) -> list:
    return cases()[i::PARTS]


def classes_of(model: onnx.ModelProto) -> int:
    """The width of the first output that might hold scores, so that the artifact fits it."""
    for output in model.graph.output:
        sizes = [d.dim_value for d in output.type.tensor_type.shape.dim]
        if len(sizes) > 1 and 2 <= sizes[1] < 5000:
            return sizes[1]
    return K


@pytest.mark.parametrize("i", range(PARTS))
def test_whatever_the_graph_is_it_is_fused_or_refused_in_a_sentence(i, tmp_path):
    raw, out = tmp_path / "raw.onnx", tmp_path / "out.onnx"
    messages: dict[str, str] = {}
    for case in part(i):
        raw.write_bytes(case.model.SerializeToString())
        classes = classes_of(case.model)
        step = LogitMap(np.eye(classes) * 0.5, np.linspace(0, 1, classes))
        for options in ({}, {"outputs": "probabilities"}):
            try:
                fuse_onnx(raw, artifact(step, classes=classes), out, **options, unproven=True)
                out.unlink()
            except CalibServeError as error:
                messages[case.name] = str(error)
            assert not out.exists(), case.name
    assert [m for m in messages.items() if "\n" in m[1] or not any(way in m[1] for way in WAYS_OUT)] == []


def classifier(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a small classifier behind: of its first numbers' mean and maximum, or of an input."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = max(4, made.ir_version)
    graph = made.graph
    if not any(i.domain == "" for i in made.opset_import):
        made.opset_import.append(helper.make_opsetid("", 17))
    numbers = {"cs.w": [[1.0, -1, 0.5], [0.2, 0.3, -0.4]], "cs.b": [0.1, 0.2, 0.3]}
    graph.initializer.extend(numpy_helper.from_array(np.array(a, "f4"), name) for name, a in numbers.items())
    graph.initializer.append(numpy_helper.from_array(np.array([1, 1]), "cs.one"))
    tensors = [o for o in graph.output if o.type.tensor_type.elem_type in NUMBERS]
    nodes = [("Gemm", ["cs.h", "cs.w", "cs.b"], "cs.z", {}), ("Softmax", ["cs.z"], "cs.y", {"axis": 1})]
    if tensors:
        nodes = [
            ("Cast", [tensors[0].name], "cs.f", {"to": 1}),
            ("ReduceMean", ["cs.f"], "cs.m", {"keepdims": 0}),
            ("ReduceMax", ["cs.f"], "cs.x", {"keepdims": 0}),
            ("Reshape", ["cs.m", "cs.one"], "cs.m1", {}),
            ("Reshape", ["cs.x", "cs.one"], "cs.x1", {}),
            ("Concat", ["cs.m1", "cs.x1"], "cs.c", {"axis": 1}),
            ("Tanh", ["cs.c"], "cs.h", {}),
            *nodes,
        ]
    else:
        graph.input.append(helper.make_tensor_value_info("cs.h", 1, [1, 2]))
    graph.node.extend(helper.make_node(op, inputs, [output], **more) for op, inputs, output, more in nodes)
    graph.output.append(helper.make_tensor_value_info("cs.y", 1, [1, K]))
    return made


def feeds(case, model: onnx.ModelProto) -> dict:
    given = zip(case.model.graph.input, case.data_sets[0][0], strict=False)
    found = {
        value.name: numpy_helper.to_array(a) if isinstance(a, onnx.TensorProto) else a for value, a in given
    }
    alone = any(value.name == "cs.h" for value in model.graph.input)
    return {**found, "cs.h": np.ones((1, 2), "f4")} if alone else found


@pytest.mark.parametrize("i", range(PARTS))
def test_any_operator_may_be_in_the_body_of_a_classifier(i, tmp_path):
    """Loops, branches, sequences, strings, old opsets: what is not the tail passes through as it was."""
    raw, out = tmp_path / "raw.onnx", tmp_path / "out.onnx"
    step = LogitMap(np.array([0.5, 2.0, 1.0]), np.array([1.0, 0.0, -1.0]))
    fused = 0
    for case in part(i):
        if any(o.domain == "" and o.version < 6 for o in case.model.opset_import):
            continue  # an older Cast names its type by a string
        model = classifier(case.model)
        raw.write_bytes(model.SerializeToString())
        try:
            report = fuse_onnx(
                raw,
                artifact(step, classes=K),
                out,
                output_name="cs.y",
                inputs=feeds(case, model),
                unproven=True,
            )
        except CalibServeError as error:
            known = [why for why in UNMEASURABLE if why in f"{error} {case.name}"]
            if not known:
                raise
            continue
        fused += 1
        assert "logit map folded into Gemm 'cs.z'" in report.done, case.name
        assert [n.op_type for n in onnx.load(out).graph.node][-2:] == ["Gemm", "Softmax"]
        out.unlink()
    assert fused >= 0.8 * len(part(i))
