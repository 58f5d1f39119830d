"""Graphs, artifacts and options that cannot be fused are refused in a sentence, and nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from deciding import IN_SEGMENTS, deciding
from fuse_artifacts import artifact
from fuse_texts import DELTA, TWO, K, graph

from calib_serve import Artifact
from calib_serve.artifact import Examples, Head, InputShift, LogitMap
from calib_serve.core.errors import CalibServeError
from calib_serve.fuse import fuse_onnx

BY_TWO = artifact(TWO, classes=K)
HEAD = artifact(Head((np.ones((K, K)),), (np.zeros(K),)), classes=K)
EACH = LogitMap(np.array([0.5, 1.0, 2.0]))
SHIFTED = artifact(InputShift(DELTA), TWO, classes=K)
OF_LABELS = artifact(TWO, classes=K, outputs="label_logits")
SOFTMAX = "z = Neg(x) y = Softmax(z)"
HIDDEN = "z = Neg(x) p = Softmax(z) n = Neg(p) y = Neg(n)"
FUNCTION = "z = of.ours.Body(x) "


@dataclass(frozen=True)
class Refused:
    """A graph as text, what it cannot take, and a word of what is said."""

    word: str
    body: str = SOFTMAX
    fitted: Artifact = BY_TWO
    inputs: str = "float[n, 3] x"
    outputs: str = "float[n, 3] y"
    options: dict[str, Any] = field(default_factory=dict)


REFUSED = [
    # Which output, and what it holds.
    Refused("no tensor 'w'", options={"output_name": "w"}),
    Refused("several outputs", "y = Neg(x) z = Neg(x)", outputs="float[n, 3] y, float[n, 3] z"),
    Refused("several outputs", "y = Neg(x) z = Flatten(x)", inputs="float[n, 3, 1, 1] x",
            outputs="float[n, 3, 1, 1] y, float[n, 3] z"),
    Refused("no output is declared as scores", "y = Neg(x)", inputs="float[n, 4] x", outputs="float[n, 4] y"),
    Refused("for 3 classes, .* has 4", "y = Neg(x)", inputs="float[n, 4] x", outputs="float[n, 4] y",
            options={"output_name": "y"}),
    Refused("not floating", "y = Cast <to: int = 7> (x)", outputs="int64[n, 3] y",
            options={"output_name": "y"}),
    Refused(r"not \(n, K\)", "y = Neg(x)", inputs="float[n, 3, 2] x", outputs="float[n, 3, 2] y",
            options={"output_name": "y"}),
    Refused(r"have shape \[n\], not \(n, K\)", "y = Neg(x)", inputs="float[n] x", outputs="float[n] y",
            options={"output_name": "y"}),
    Refused("axis 0", "z = Neg(x) y = Softmax <axis: int = 0> (z)"),
    Refused("axis -1 of 4", SOFTMAX, inputs="float[n, 3, 1, 1] x", outputs="float[n, 3, 1, 1] y"),
    Refused("by a Softmax", options={"outputs": "logits"}),
    Refused("by a Softmax", options={"outputs": "log_probs"}),
    Refused("sums to 1, as of probabilities", HIDDEN),
    Refused(r"all lie within \[0, 1\]", "z = Sigmoid(x) n = Neg(z) y = Neg(n)"),
    Refused(r"all lie within .*--outputs", "z = Sigmoid(x) n = Neg(z) y = Neg(n)", inputs="float[n, 1] x",
            outputs="float[n, 1] y", fitted=artifact(TWO, classes=2, outputs=None)),
    Refused("all lie within|sums to 1", "s = Constant <value = float {0.01}> () "
            "o = Constant <value = uint8 {0}> () "
            "q = QuantizeLinear(x, s, o) p = com.microsoft.QLinearSoftmax <axis: int = 1, opset: int = 13> "
            "(q, s, o, s, o) y = DequantizeLinear(p, s, o)"),
    Refused("all lie within|sums to 1", "s = Constant <value = float {0.01}> () "
            "o = Constant <value = uint8 {0}> () "
            "q = QuantizeLinear(x, s, o) p = com.microsoft.QLinearSigmoid(q, s, o, s, o) "
            "y = DequantizeLinear(p, s, o)"),
    # What the artifact was fitted on.
    Refused("Sigmoid a class", "z = Neg(x) y = Sigmoid(z)"),
    Refused("^the output 'y' holds probabilities, scores of classes, and", fitted=OF_LABELS),
    Refused("^the output 'y' holds label_logits, scores of labels, and", "y = Neg(x)",
            options={"outputs": "label_logits"}),
    Refused("fitted on logits, and the graph has probabilities", HIDDEN, artifact(EACH, classes=K),
            options={"outputs": "probabilities"}),
    Refused("artifact.model.outputs", "y = Neg(x)", artifact(EACH, classes=K, outputs=None)),
    Refused("fitted on logit,", "y = Neg(x)", artifact(EACH.__class__(np.array([0.6, 1.3])), classes=2,
            outputs="logit"), inputs="float[n, 2] x", outputs="float[n, 2] y"),
    Refused("own scores", fitted=replace(BY_TWO, examples=Examples(np.eye(K), np.full((K, K), 1 / K)))),
    Refused("thresholds of its own", fitted=replace(BY_TWO, contract=IN_SEGMENTS)),
    Refused("called 'set'", "z = Neg(x) y = Softmax(z) set = Neg(z)", deciding(BY_TWO),
            outputs="float[n, 3] y, float[n, 3] set", options={"output_name": "y"}),
    # Heads.
    Refused("last linear layer was not found", fitted=HEAD),
    Refused("no Softmax makes", HIDDEN, HEAD, options={"outputs": "probabilities"}),
    Refused(r"reads features \(n, 3\), but 'x' is FLOAT \[n,2\]; the artifact is of another model",
            "w = Constant <value = float[2, 3] {1, 2, 0, 0, 1, -1}> () z = MatMul(x, w) y = Softmax(z)", HEAD,
            inputs="float[n, 2] x"),
    # Input shifts.
    Refused("no floating-point input", fitted=artifact(InputShift(np.ones(4)), classes=K)),
    Refused("no floating-point input", "c = Cast <to: int = 1> (x) y = Softmax(c)", SHIFTED, "int64[n, 3] x"),
    Refused("several inputs", "z = Sub(a, b) y = Softmax(z)", SHIFTED, "float[n, 3] a, float[n, 3] b"),
    # Names, types and options.
    Refused("called 'bin'", "z = Neg(bin) y = Softmax(z)", inputs="float[n, 3] bin",
            options={"returns": "all"}),
    Refused("beyond the range of FLOAT16", fitted=artifact(LogitMap.temperature(1e-6), classes=K),
            inputs="float16[n, 3] x", outputs="float16[n, 3] y"),
    Refused("returns must be one of", options={"returns": "everything"}),
    Refused("--outputs .* must be one of logits, ", options={"outputs": "log_probabilities"}),
    Refused("cuda was asked for|CUDA", options={"runtime": ("cuda",)}),
    # What nobody can run.
    Refused("unknown type|cannot", FUNCTION + "y = Softmax(z)"),
    Refused(r"^parity cannot be measured: onnxruntime cannot load .* of\.ours:.*; onnx\.reference cannot "
            r"load .*; name the library of its own operators: --custom-ops", FUNCTION + "y = Softmax(x)",
            outputs="float[n, 3] y, float[n, 3] z", options={"output_name": "y"}),
    Refused("cannot run|perm|axes", "t = Transpose <perm: ints = [0, 2, 1]> (x) y = Neg(t)",
            SHIFTED),
    Refused("inputs", options={"inputs": {"w": np.ones((2, 3), "f4")}}),
    Refused(r"'z' gives no rows .*, \(0, 3\)", options={"inputs": {"x": np.ones((0, 3), "f4")}}),
    # What the file says of its output is not what it gives: a single number.
    Refused(r"'y' gives no rows .*, \(\)", "y = Reshape(x, s)", inputs="float[n] x, int64[k] s",
            options={"inputs": {"x": np.ones(1, "f4"), "s": np.ones(0, "i8")}}),
]  # fmt: skip


@pytest.mark.parametrize("one", REFUSED, ids=lambda one: one.word)
def test_what_cannot_be_fused_is_refused_in_a_sentence_and_nothing_is_written(
    one: Refused, tmp_path: Path
) -> None:
    onnx.save(graph(one.body, one.inputs, one.outputs), tmp_path / "raw.onnx")
    with pytest.raises(CalibServeError, match=one.word) as refused:
        fuse_onnx(tmp_path / "raw.onnx", one.fitted, tmp_path / "fused.onnx", **one.options, unproven=True)
    assert "\n" not in str(refused.value)
    assert "went wrong" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["raw.onnx"]
