"""Scores inside of local functions: which are written out, and which stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_graphs import run
from fuse_texts import TWO, X, fused, operators

from calib_serve.fuse.onnx.repair import repaired

HALF = "h = Constant <value = float {0.5}> () zero = Constant <value = uint8 {0}> () "


def local(
    body: str, *functions: str, outputs: str = "float[n, 3] y", opset: int = 17, inside: int = 17
) -> onnx.ModelProto:
    """A model with local functions, each "Name (x) => (y) { body }"."""
    imports = f'"" : {opset}, "ai.onnx.ml" : 3, "local" : 1, "other" : 1, "of.ours" : 1'
    head = f"<ir_version: 8, opset_import: [{imports}]> g (float[n, 3] x) => ({outputs}) {{ {body} }}"
    parts = [f'<domain: "local", opset_import: ["" : {inside}, "local" : 1]> {one}' for one in functions]
    return onnx.parser.parse_model("\n".join([head, *parts]))


NET = "Net (x) => (y) { y = Neg(x) }"
WRITTEN_OUT = "local functions that hold the scores written out: "


@pytest.mark.parametrize(
    "behind",
    [
        "y = Identity(z)", "y = Cast <to: int = 1> (z)", "y = Softmax(z)", "y = LogSoftmax(z)",
        "y = Sigmoid(z)", "y = Dropout(z)", "y = Flatten(z)", "p = Softmax(z) y = Identity(p)",
        "y = QuantizeLinear(z, h, zero)", "q = QuantizeLinear(z, h, zero) y = DequantizeLinear(q, h, zero)",
        "y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [7, 8, 9]> (z)",
    ],
)  # fmt: skip
def test_a_function_before_what_makes_scores_of_its_numbers_is_written_out(behind: str) -> None:
    made, done = repaired(local(HALF + "z = local.Net(x) " + behind, NET, outputs="y"))
    assert done == [WRITTEN_OUT + "Net"]
    assert "Neg" in operators(made)
    assert not made.functions


@pytest.mark.parametrize(
    "body",
    [
        "z = local.Net(x) y = Neg(z)", "s = local.Net(x) y = Dropout(x, s)", "y = other.Net(x)",
        "unread = local.Net(x) y = Neg(x)", "p = of.ours.Identity() unread = local.Net(p) y = Identity(p)",
    ],
)  # fmt: skip
def test_a_function_elsewhere_stays(body: str) -> None:
    model = local(body, NET)
    made, done = repaired(model)
    assert not [one for one in done if one.startswith(WRITTEN_OUT)]
    assert [one.name for one in made.functions] == ["Net"]


def test_functions_of_another_opset_than_the_graph_stay_and_their_scores_are_calibrated(
    tmp_path: Path,
) -> None:
    model = local("z = local.Net(x) y = Identity(z)", NET, inside=13)
    report, made = fused(model, tmp_path, TWO)
    assert report.done[0] == "warning: onnx cannot write out local functions, they stay: Net"
    assert len(report.done) == 2
    np.testing.assert_array_equal(run(made, {"x": X})["y"], -X / 2)
