"""Quantised scores: calibrated ones keep their precision."""

from __future__ import annotations

from dataclasses import replace

from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._graph import FLOATS, Editor, constant, describe
from calib_serve.fuse.onnx._tail import Tail


def keep_precision(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Take QuantizeLinear and DequantizeLinear off the path behind the activation.

    Their steps were chosen for the uncalibrated scores. Other readers of the dequantised scores keep them.
    Raises FuseError where the output itself is quantised.
    """
    if tail.output.dtype not in FLOATS:
        raise FuseError(
            f"the output {tail.output.name!r} is {tail.output.dtype}, quantised scores; name another "
            "output: --output-name (output_name=), or export this one behind a DequantizeLinear"
        )
    ops = ("QuantizeLinear", "DequantizeLinear")
    steps = zip(tail.path, tail.path[1:], strict=False)
    pairs = [(a, b) for a, b in steps if (a.op_type, b.op_type) == ops]
    width = constant(pairs[0][0].inputs[1])
    step = "" if width is None or width.size != 1 else f" of {float(width.item()):.2g}"
    for quantize, dequantize in pairs:
        old, new = dequantize.outputs[0], quantize.inputs[0]
        assert new is not None
        tail = tail.replace_scores(editor, old, new)
        tail = replace(tail, path=tuple(n for n in tail.path if n not in (quantize, dequantize)))
        editor.remove_unused(old)
    assert tail.activation is not None
    made = describe(tail.activation)  # it may have the output's name now
    return tail, (
        f"QuantizeLinear and DequantizeLinear behind {made} removed: calibrated scores are not rounded "
        f"to its old steps{step}"
    )
