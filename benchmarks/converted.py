"""Claim: what LiteRT, ncnn and MNN make of a fused graph is its confidence, or is named here.

    python3.12 benchmarks/converted.py

None of them reads ONNX: onnx2tf (which asks for Python 3.12), pnnx and mnnconvert write files of theirs.
Logits of three classes go in, and each kind of calibration is fused behind them: how far is a confidence
from onnxruntime's, on rows of common size, on rows of one sure class, at ties, and where a logit is NaN?
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import peers  # noqa: E402

if __name__ == "__main__":
    peers.rerun_in("requirements-converted.txt")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from calib_serve.artifact import Artifact, LogitMap, ProbTable, Step  # noqa: E402
from calib_serve.fuse import fuse_onnx, open_session  # noqa: E402
from calib_serve.scores import softmax  # noqa: E402

Arrays = dict[str, NDArray[Any]]
EACH = (np.array([1.2, 0.8, 1.5]), np.array([0.1, -0.2, 0.3]))
TABLE = ProbTable(np.array([[0.5, 0.75]]), np.array([[0.4, 0.7, 0.9]]))
STEPS: dict[str, tuple[str, Step]] = {
    "logits, temperature": ("logits", LogitMap.temperature(2.0)),
    "logits, scale and bias": ("logits", LogitMap(*EACH)),
    "logits, scale and bias of log-probabilities": ("logits", LogitMap(*EACH, on="log_probs")),
    "probabilities, temperature": ("probabilities", LogitMap.temperature(2.0)),
    "probabilities, scale and bias": ("probabilities", LogitMap(*EACH, on="log_probs")),
    "probabilities, table": ("probabilities", TABLE),
}
ROWS: dict[str, NDArray[Any]] = {
    "common": 2 * np.random.default_rng(0).normal(size=(60, 3)).astype("f4"),
    "sure": np.array([[300, 0, 0], [0, -300, 300], [0, 120, 0]], "f4"),
    "ties": np.array([[1, 1, 0], [0, 1, 1], [2, 2, 2]], "f4"),
    "NaN": np.array([[np.nan, 1, 0], [1, 0, np.nan]], "f4"),
}


def net(kind: str) -> onnx.ModelProto:
    """A layer of weights 1, and a Softmax where its scores are probabilities."""
    layer = "y = Softmax <axis = 1> (z)" if kind == "probabilities" else "y = Identity(z)"
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3] x) => (float[n, 3] y)'
    weights = "<float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}, float[3] b = {0, 0, 0}>"
    return onnx.parser.parse_model(f"{head} {weights} {{ z = Gemm(x, w, b) {layer} }}")


def ran(*command: object, folder: Path) -> None:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(peers.last_line(done.stderr or done.stdout))


def litert(path: Path, rows: NDArray[Any], wanted: str = "float32") -> Arrays:
    from ai_edge_litert.interpreter import Interpreter

    tool, file = (
        Path(sys.executable).parent / "onnx2tf",
        path.parent / "lite" / f"{path.stem}_{wanted}.tflite",
    )
    if not file.exists():  # it writes both
        ran(tool, "-i", path, "-o", "lite", "-tb", "flatbuffer_direct", "-n", folder=path.parent)
    interpreter = Interpreter(str(file), num_threads=1)
    (given,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(given["index"], rows.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], rows)
    interpreter.invoke()
    return {one["name"]: interpreter.get_tensor(one["index"]) for one in interpreter.get_output_details()}


def ncnn(path: Path, rows: NDArray[Any]) -> Arrays:
    import ncnn as library

    tool = Path(library.__file__).parents[1] / "pnnx" / "pnnx"
    tool.chmod(0o755)
    ran(tool, path.name, "inputshape=[1,3]", "fp16=0", folder=path.parent)
    (param,) = path.parent.glob("*.ncnn.param")
    loaded = library.Net()
    for name in ("use_fp16_storage", "use_fp16_arithmetic", "use_fp16_packed", "use_bf16_storage"):
        setattr(loaded.opt, name, False)
    if loaded.load_param(str(param)) or loaded.load_model(str(param.with_suffix(".bin"))):
        raise RuntimeError("ncnn has not all of its operators")
    names = [one.name for one in onnx.load(path).graph.output]
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for row in rows:
        run = loaded.create_extractor()
        run.input(loaded.input_names()[0], library.Mat(row.copy()))
        for name, own in zip(names, loaded.output_names(), strict=True):
            found[name].append(np.array(run.extract(own)[1]).ravel())
    return {name: np.array(one) for name, one in found.items()}


def mnn(path: Path, rows: NDArray[Any]) -> Arrays:
    tool, made = Path(sys.executable).parent / "mnnconvert", path.with_suffix(".mnn")
    ran(tool, "-f", "ONNX", "--modelFile", path, "--MNNModel", made, "--bizCode", "b", folder=path.parent)
    import MNN.expr
    import MNN.nn

    names = [one.name for one in onnx.load(path).graph.output]
    module = MNN.nn.load_module_from_file(str(made), ["x"], names)
    given = MNN.expr.const(rows.ravel().tolist(), list(rows.shape), MNN.expr.NCHW)
    return {name: np.array(one.read()) for name, one in zip(names, module.forward([given]), strict=True)}


RUNTIMES: dict[str, Callable[[Path, NDArray[Any]], Arrays]] = {
    "LiteRT": litert,
    "LiteRT, float16": lambda path, rows: litert(path, rows, "float16"),
    "ncnn": ncnn,
    "MNN": mnn,
}


def top(found: Mapping[str, NDArray[Any]], kind: str, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The confidence (n,) and the class (n,) that a file gives."""
    if "confidence" in found:
        return found["confidence"].reshape(n), found["predicted"].reshape(n)
    scores = np.asarray(found["y"], np.float64).reshape(n, -1)
    probs = softmax(scores) if kind == "logits" else scores
    return probs.max(axis=1), probs.argmax(axis=1)


def cell(run: Callable[[Path, NDArray[Any]], Arrays], path: Path, kind: str) -> str:
    rows = np.concatenate(list(ROWS.values()))
    session = open_session(path, threads=1)
    names = [one.name for one in session.get_outputs()]
    own = top(dict(zip(names, session.run(names, {"x": rows}), strict=True)), kind, len(rows))
    try:
        other = top(run(path, rows), kind, len(rows))
    except Exception as error:  # converters and runtimes raise what they like
        return f"cannot: {' '.join(str(error).split())[:110]}"
    said, at = [], 0
    for what, some in ROWS.items():
        part, at = slice(at, at + len(some)), at + len(some)
        turned = int((own[1][part] != other[1][part]).sum())
        apart = np.abs(own[0][part] - other[0][part]).max()
        told = f"{apart:.0e}" + f", {turned} classes turned" * bool(turned)
        said.append(f"{what} {np.round(other[0][part], 3).tolist() if what == 'NaN' else told}")
    return "; ".join(said)


def main() -> None:
    for name, (kind, step) in STEPS.items():
        for returns in ("same", "all"):
            with tempfile.TemporaryDirectory() as folder:
                raw, path = Path(folder, "raw.onnx"), Path(folder, "fused.onnx")
                onnx.save(net(kind), raw)
                artifact = Artifact((step,), method="by hand", classes=3, model={"outputs": kind})
                given: Any = {"unproven": True, "inputs": {"x": ROWS["common"]}, "returns": returns}
                fuse_onnx(raw, artifact, path, **given)
                cells = [f"{runtime}: {cell(run, path, kind)}" for runtime, run in RUNTIMES.items()]
            print(f"{name}, --returns {returns} | " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    with np.errstate(invalid="ignore"):
        main()
