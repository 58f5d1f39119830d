"""A repaired graph must give what the file gives, of whatever kind its outputs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_texts import TWO, graph
from test_onnx_parity import X, planned

from calib_serve import InputShift
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx import parity
from calib_serve.fuse.onnx.parity import check_repairs

K = 3


def compared(old: str, new: str, folder: Path, outputs: str = "float[n, 3] y", **facts: Any) -> None:
    """Check a repaired graph against the file's, both given as text."""
    for name, body in (("old.onnx", old), ("new.onnx", new)):
        onnx.save(graph(body, outputs=outputs), folder / name)
    check_repairs(folder / "old.onnx", folder / "new.onnx", planned(**facts), {"x": X})


TIMES = "c = Constant <value = float {{{}}}> () m = Mul(x, c) "
MAPS = TIMES + "y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [7, 8, 9]> (m)"


@pytest.mark.parametrize(
    ("body", "outputs"),
    [(TIMES + "y = Identity(m)", "float[n, 3] y"), (MAPS, "seq(map(int64, float)) y")],
)
def test_a_repair_may_change_numbers_by_a_share_of_what_the_file_gives(
    body: str, outputs: str, tmp_path: Path
) -> None:
    half: Any = {"outputs": outputs, "dtype": ir.DataType.FLOAT16}  # a hundredth is allowed
    old, new = body.format("1e4"), body.format("9.9e3")
    compared(old, new, tmp_path, **half)
    with pytest.raises(FuseError) as error:
        compared(new, old, tmp_path, **half)
    assert str(error.value) == (
        "the model's operators cannot be brought up to date: then 'y' differs; export it again with a newer "
        "opset (opset_version=, target_opset=)"
    )


def test_small_numbers_may_be_off_by_the_rounding_of_the_type(tmp_path: Path) -> None:
    offset = "o = Constant <value = float {{{}}}> () h = Sub(x, x) y = Add(h, o)"
    compared(offset.format(0), offset.format("9e-6"), tmp_path)
    with pytest.raises(FuseError, match="'y' differs"):
        compared(offset.format(0), offset.format("2e-5"), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1.0, np.nan]), np.array([np.nan, 1.0]), False),
        (np.ones((2, 1)), np.ones((2, 3)), False),
        (np.array(["a", "b"], object), np.array(["a", "b"], object), True),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), False),
        (np.array(["a", "b"]), np.array(["a", "b"]), True),
        (np.array(["a", "b"]), np.array(["a", "c"]), False),
        (np.array([b"a"]), np.array([b"a"]), True),
        (np.array([True, False]), np.array([True, False]), True),
        (np.array([True, False]), np.array([True, True]), False),
        (["a", "b"], ["a", "b"], True),
        ([], [], True),
        ([np.ones(2)], [np.ones(2), np.ones(2)], False),
        ([np.ones(2), np.ones(2)], [np.ones(2), np.zeros(2)], False),
        ((1.0, 2.0), [1.0, 2.0], True),
        ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}, True),
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}, False),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, False),
    ],
)
def test_outputs_of_every_kind_are_compared_with_the_file_s(old: Any, new: Any, same: bool) -> None:
    assert parity._equal(old, new, 1e-5) is same


def test_a_repair_is_checked_on_inputs_as_the_graph_gets_them(tmp_path: Path) -> None:
    old, new = "y = Identity(x)", "y = Relu(x)"
    plan: Any = {"fitted": artifact(InputShift(np.full(K, 30.0)), TWO, classes=K), "shifted": "x"}
    compared(old, new, tmp_path, **plan)
    with pytest.raises(FuseError, match="'y' differs"):
        compared(old, new, tmp_path)
