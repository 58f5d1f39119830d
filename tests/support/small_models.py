"""The smallest of everything: an artifact, an ONNX graph and an archive that holds both."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calib_serve import Artifact, Bins
from calib_serve.artifact import Head, InputShift, LogitMap, ProbTable

CLASSES, WIDTH = 3, 4
RNG = np.random.default_rng(0)

SHIFT = InputShift(RNG.standard_normal((1, 4, 4)), 0.0, 1.0)
HEAD = Head((RNG.standard_normal((5, 8)), RNG.standard_normal((3, 5))), (np.zeros(5), np.ones(3)))
DIAGONAL = LogitMap(np.array([0.5, 1.0, 2.0]), np.array([0.1, 0.0, -0.1]), "log_probs")
TABLE = ProbTable(np.tile([0.25, 0.5], (3, 1)), np.tile([0.1, 0.4, 0.8], (3, 1)))


def everything() -> Artifact:
    """An artifact with nearly every kind of step and of fact."""
    return Artifact(
        (SHIFT, HEAD, LogitMap.temperature(1.7), DIAGONAL, TABLE),
        method="everything",
        classes=3,
        class_names=("cat", "dog", "Schnabeltier ✓"),
        model={"fingerprint": "ab" * 32, "input_shape": [1, 4, 4]},
        fit={"nll": np.float64(0.25), "undefined": float("nan"), "path": [1, 2.5, {"a": True}]},
        before={"ece": {"value": 0.1, "low": 0.05, "high": 0.15}},
        reference=Bins.tally([0.1, 0.9, 1.0], [0, 1, 1]),
        versions={"numpy": np.__version__},
    )


def temperature(t: float = 2.0) -> Artifact:
    """A temperature for three classes."""
    return Artifact(
        (LogitMap.temperature(t),), method="temperature", classes=CLASSES, model={"input_shape": [WIDTH]}
    )


def linear_onnx(path: Path, *, width: int = WIDTH) -> Path:
    """One Gemm, (n, width) to (n, 3)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=size).astype("f4"), name)
        for name, size in (("w", (width, CLASSES)), ("b", (CLASSES,)))
    ]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["z"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", CLASSES])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    assert onnx.checker.check_model(str(path)) is None
    return path


def archive(folder: Path, *, t: float = 2.0, name: str = "digits") -> Path:
    """``folder/name.mar``, and the ONNX file it was packed from beside it."""
    from calib_serve.torchserve import pack

    model = linear_onnx(folder / "net.onnx") if not (folder / "net.onnx").exists() else folder / "net.onnx"
    return pack(model, temperature(t), folder, name=name, unproven=True)
