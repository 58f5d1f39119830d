"""The command line of fusion, as a user types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import invoke
from fuse_artifacts import artifact
from fuse_graphs import Builder, run
from onnx import TensorProto, helper

from calib_serve.artifact import InputShift, LogitMap

K = 3


@pytest.fixture
def folder(tmp_path) -> Path:
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    z = b.node("Gemm", b.node("Flatten", "x"), b.normal(12, K), b.normal(K), output="z")
    model = b.model(
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 2, 2])],
        [helper.make_tensor_value_info(z, TensorProto.FLOAT, ["n", K])],
    )
    onnx.save(model, tmp_path / "raw.onnx")
    step = artifact(InputShift(np.full((3, 2, 2), 0.1)), LogitMap.temperature(2.0), classes=K)
    step.save(tmp_path / "artifact")
    return tmp_path


def call(folder: Path, kind: str, *options: str, out: str = "out.onnx"):
    arguments = [
        "fuse",
        kind,
        str(folder / "raw.onnx"),
        str(folder / "artifact"),
        "-o",
        str(folder / out),
        "--unproven",
    ]
    return invoke([*arguments, *options])


@pytest.mark.server
def test_an_error_is_one_line_and_exit_code_3(folder):
    call(folder, "onnx")
    again = [sys.executable, "-c", "from calib_serve.app import main; main()", "fuse", "onnx"]
    again += [str(folder / "out.onnx"), str(folder / "artifact"), "-o", str(folder / "twice.onnx")]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("calib-serve: ")
    assert done.stderr.count("\n") == 1
    assert "calibrated already" in done.stderr


def test_what_an_artifact_made_by_hand_was_fitted_on_is_asked_for(folder):
    artifact(LogitMap(np.array([0.5, 1.0, 1.5])), classes=K, outputs=None).save(folder / "artifact")
    assert "artifact.model.outputs" in call(folder, "onnx").stderr


def test_a_file_of_probabilities_fits_a_matrix_for_the_graph_that_returned_them(folder):
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    z = b.node("Gemm", b.node("Flatten", "x"), b.normal(12, K), b.normal(K))
    b.node("Softmax", z, axis=-1, output="p")
    info = helper.make_tensor_value_info
    shapes = [info("x", TensorProto.FLOAT, ["n", 3, 2, 2])], [info("p", TensorProto.FLOAT, ["n", K])]
    onnx.save(b.model(*shapes), folder / "raw.onnx")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3, 2, 2)).astype("f4")
    p = run(str(folder / "raw.onnx"), {"x": x})["p"]
    y = np.array([rng.choice(K, p=row / row.sum()) for row in p.astype("f8") ** 0.3 + 0.1])
    np.savez(folder / "p.npz", probs=p, labels=y)
    fit = ["fit", str(folder / "p.npz"), "--method", "matrix", "-o", str(folder / "artifact")]
    assert invoke([*fit, "--force"]).exit_code == 0
    shown = call(folder, "onnx").output
    assert "on 8 inputs" in " ".join(shown.split())
    given, made = (str(folder / name) for name in ("p.npz", "c.npz"))
    assert invoke(["export", "probabilities", str(folder / "artifact"), given, "-o", made]).exit_code == 0
    fused = run(str(folder / "out.onnx"), {"x": x})["p"]
    np.testing.assert_allclose(fused, np.load(made)["probs"], atol=1e-5)
