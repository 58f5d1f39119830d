"""The tail of a graph: where its logits are, what leads from them to the output, and who else reads them."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact

from calib_serve import LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.tail import Tail, find_tail

THREE = artifact(LogitMap.temperature(2.0), classes=3, outputs=None)
HEAD = '<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 3]>'


def editor(body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, 3] y") -> Editor:
    text = f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}"
    return Editor(ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))))


def tail_of(
    body: str, *, outputs: str = "float[n, 3] y", inputs: str = "float[n, 3] x", **more: object
) -> Tail:
    options = {"output": "y", "outputs": None, "artifact": THREE} | more
    return find_tail(editor(body, inputs, outputs), **options)  # type: ignore[arg-type]


def operators(tail: Tail) -> list[str]:
    return [node.op_type for node in tail.path]


@pytest.mark.parametrize(
    ("body", "logits", "path"),
    [
        ("y = Identity(x)", "x", ["Identity"]),
        ("z = Neg(x) y = Identity(z)", "z", ["Identity"]),
        ("y = Neg(x)", "y", []),
        ("z = Neg(x) y = Softmax(z)", "z", ["Softmax"]),
        ("z = Neg(x) p = Softmax(z) y = Identity(p)", "z", ["Softmax", "Identity"]),
        ("z = Neg(x) p = Softmax(z) c = Cast <to: int = 11> (p) y = Cast <to: int = 1> (c)", "z",
         ["Softmax", "Cast", "Cast"]),
        ("z = Neg(x) one = Constant <value = float {1.0}> () p = Softmax(z) y = Mul(p, one)", "z",
         ["Softmax", "Mul"]),
        ("z = Neg(x) two = Constant <value = float {2.0}> () p = Softmax(z) y = Mul(p, two)", "y", []),
        ("z = Neg(x) ones = Constant <value = float[3] {1.0, 1.0, 1.0}> () p = Softmax(z) y = Mul(p, ones)",
         "y", []),
        ("z = Softmax(x) y = Mul(z, z)", "y", []),
        ("y = Constant <value = float[2, 3] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> ()", "y", []),
        ("z = Neg(x) y = LogSoftmax <axis: int = 1> (z)", "z", ["LogSoftmax"]),
    ],
)  # fmt: skip
def test_the_logits_are_behind_what_passes_scores_on(body: str, logits: str, path: list[str]) -> None:
    found = tail_of(body)
    assert (found.logits.name, found.output.name, operators(found)) == (logits, "y", path)
    assert found.normalised == any("Softmax" in op for op in path)
    assert (found.activation in found.path) == found.normalised
    found.check()


@pytest.mark.parametrize(
    ("op", "axis", "shape", "right"),
    [
        ("Softmax", -1, "[n, 3]", True), ("Softmax", 1, "[n, 3]", True), ("Softmax", 0, "[n, 3]", False),
        ("LogSoftmax", -1, "[n, 3]", True), ("Softmax", -1, "[n, 3, 1, 1]", False),
        ("Softmax", 1, "[n, 3, 1, 1]", True), ("Softmax", -2, "[n, 3]", False),
    ],
)  # fmt: skip
def test_an_activation_is_over_the_classes(op: str, axis: int, shape: str, right: bool) -> None:
    def find() -> Tail:
        body = f"z = Neg(x) y = {op} <axis: int = {axis}> (z)"
        made = editor(body, f"float{shape} x", f"float{shape} y")
        return find_tail(made, output="y", outputs=None, artifact=THREE)

    if right:
        assert operators(find()) == [op]
        return
    with pytest.raises(FuseError, match=rf"{op} .*works on axis {axis} of \d, not over the classes"):
        find()


@pytest.mark.parametrize(
    ("outputs", "chosen"),
    [
        ("float[n, 3] y, float[n, 4] z", "y"), ("int64[n, 3] y, float[n, 3] z", "z"),
        ("float[n, 3] y, float[n] z", "y"), ("float[n, 3, 1] y, float[n, 5] z", "y"),
        ("float[n, 3] y, float[n, 3] z", "several outputs may hold the scores"),
        ("float[n, k] y, float[n, 3] z", "several outputs may hold the scores"),
        ("float[n, 4] y, float[n, 1] z", r"no output of the graph can hold scores of 3 classes, \(n, 3\)"),
    ],
)  # fmt: skip
def test_the_one_output_that_may_hold_scores_is_chosen(outputs: str, chosen: str) -> None:
    made = editor("y = Neg(x) z = Neg(x)", outputs=outputs)
    if len(chosen) == 1:
        assert find_tail(made, output=None, outputs=None, artifact=THREE).output.name == chosen
    else:
        with pytest.raises(FuseError, match=chosen):
            find_tail(made, output=None, outputs=None, artifact=THREE)
    with pytest.raises(FuseError, match=r"no output 'w'; .* is one of \['y', 'z'\]"):
        find_tail(made, output="w", outputs=None, artifact=THREE)
