"""What a fused graph returns: names, order, types, numbers, and what is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import LAYER, TWO, K, W, X, editor, fused, graph, operators
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from calib_serve import Artifact, Bins
from calib_serve.artifact import Examples, LogitMap, Mixture, ProbTable
from calib_serve.core.errors import FuseError, InputError
from calib_serve.core.files import sha256
from calib_serve.fuse import FuseReport, fuse_onnx
from calib_serve.fuse.onnx import _files as files
from calib_serve.scores import Outputs, softmax

EACH = ProbTable(np.full((K, 1), 0.4), np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.9]]))
"""Of a softmax's most likely class: exactly a half, 0.37, 0.57 and 0.91."""


def fused_with(
    model: onnx.ModelProto, folder: Path, fitted: Artifact, **options: Any
) -> tuple[FuseReport, onnx.ModelProto]:
    onnx.save(model, folder / "raw.onnx")
    report = fuse_onnx(folder / "raw.onnx", fitted, folder / "fused.onnx", **options, unproven=True)
    return report, onnx.load(folder / "fused.onnx")


def of(*steps: object, outputs: Outputs = "logits", classes: int = K, **facts: Any) -> Artifact:
    return artifact(*steps, classes=classes, outputs=outputs, **facts)


def counted(bins: int) -> Bins:
    return Bins(np.full(bins, 2), np.full(bins, 1.0), np.full(bins, 1))


def test_a_label_of_one_half_is_no_and_bins_are_those_of_the_reference(tmp_path: Path) -> None:
    fitted = of(outputs="label_logits", reference=counted(4))
    _, made = fused_with(graph("z = Identity(x) y = Sigmoid(z)"), tmp_path, fitted, returns="all")
    got = run(made, {"x": np.array([[0.0, 0.5, -0.5], [3.0, -3.0, 1.0]], "f4")})
    assert got["predicted"].dtype == np.int64
    assert got["predicted"].tolist() == [[0, 1, 0], [1, 0, 1]]
    assert got["bin"].tolist() == (got["confidence"][..., None] > [0.25, 0.5, 0.75]).sum(axis=-1).tolist()


def test_a_confidence_on_an_edge_is_in_the_bin_below_it(tmp_path: Path) -> None:
    ends = np.linspace(0, 1, 11)[[4, 6, 7]]
    table = ProbTable(np.array([[0.45, 0.6]]), ends[None])
    model = graph("z = Log(x) y = Softmax(z)", "double[n, 3] x", "double[n, 3] y")
    x = np.array([[0.4, 0.3, 0.3], [0.5, 0.25, 0.25], [0.9, 0.05, 0.05]])
    fitted = of(table, reference=counted(10))
    _, made = fused_with(model, tmp_path, fitted, returns="all", inputs={"x": x})
    got = run(made, {"x": x})
    assert (got["confidence"].tolist(), got["bin"].tolist()) == (ends.tolist(), [3, 5, 6])
    table = ProbTable(np.full((K, 1), 0.5), np.stack([1 - ends, [0.5, *ends[1:]]], axis=1))
    model = graph("z = Neg(x) y = Sigmoid(z)", "double[n, 3] x", "double[n, 3] y")
    fitted = of(table, reference=counted(10), outputs="label_logits")
    _, made = fused_with(model, tmp_path, fitted, returns="all")
    got = run(made, {"x": -np.ones((1, K))})
    assert (got["confidence"].tolist(), got["bin"].tolist()) == ([[0.5, *ends[1:]]], [[4, 5, 6]])


def test_the_best_class_follows_a_table_wherever_its_node_stands(tmp_path: Path) -> None:
    body = "z = Neg(x) best = ArgMax <axis: int = 1> (z) y = Softmax(z) hot = Hardmax(z) raw = Hardmax(x)"
    outputs = "float[n, 3] y, int64[n, 1] best, float[n, 3] hot, float[n, 3] raw"
    _, made = fused_with(graph(body, outputs=outputs), tmp_path, of(EACH), output_name="y")
    x = -np.array([[0.1, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 2.0]], "f4")
    got = run(made, {"x": x})
    np.testing.assert_allclose(got["y"], of(EACH).of_logits(-x), atol=1e-6)
    assert got["best"].ravel().tolist() == got["y"].argmax(axis=1).tolist() == [2, 2, 2]
    assert got["hot"].argmax(axis=1).tolist() == [2, 2, 2]
    assert got["raw"].argmax(axis=1).tolist() == x.argmax(axis=1).tolist()


SOFTMAX = "z = Neg(x) y = Softmax(z)"


@pytest.mark.parametrize(
    ("sizes", "axis"),
    [("n, 1, 3", 2), ("n, 1, 3", -1), ("n, 1, 1, 3", 3), ("n, 3, 1", 1), ("n, 1, 3, 1", -2)],
)
def test_classes_are_along_any_axis_that_is_the_only_wide_one(sizes: str, axis: int, tmp_path: Path) -> None:
    step = LogitMap(np.ones(K), np.array([1.0, 0.0, -1.0]))
    body = f"z = Neg(x) y = Softmax <axis: int = {axis}> (z) o = Neg(y) e = Exp(z)"
    outputs = ", ".join(f"float[{sizes}] {name}" for name in "yoe")
    model = graph(body, f"float[{sizes}] x", outputs)
    report, made = fused(model, tmp_path, step, output_name="y")
    assert [one.status for one in report.statuses] == ["calibrated", "follows", "follows"]
    x = X.reshape([len(X), *(int(n) for n in sizes.split(", ")[1:])])
    got = run(made, {"x": x})
    for name, want in (
        ("y", softmax(step.bias - X)),
        ("o", -softmax(step.bias - X)),
        ("e", np.exp(step.bias - X)),
    ):
        np.testing.assert_allclose(got[name], want.reshape(x.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
def test_outputs_are_written_with_their_types_and_shapes(opset: int, tmp_path: Path) -> None:
    model = graph("z = Neg(x) y = Softmax(z)", imports=f'"" : {opset}')
    steps = Mixture([1.0, 0.5], [0.5, 0.3, 0.2]), ProbTable(np.array([[0.5]]), np.array([[0.4, 0.9]]))
    _, made = fused(model, tmp_path, TWO, *steps, returns="all")
    kinds = {
        v.name: (
            v.type.tensor_type.elem_type,
            [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim],
        )
        for v in made.graph.output
    }
    assert kinds == {
        "logits": (TensorProto.FLOAT, ["n", 3]),
        "probabilities": (TensorProto.FLOAT, ["n", 3]),
        "confidence": (TensorProto.FLOAT, ["n"]),
        "predicted": (TensorProto.INT64, ["n"]),
        "bin": (TensorProto.INT64, ["n"]),
    }


def test_outputs_take_the_place_of_the_one_they_are_made_of(tmp_path: Path) -> None:
    model = graph(
        "a = Neg(x) y = Softmax(x) b = Abs(x)", outputs="float[n, 3] a, float[n, 3] y, float[n, 3] b"
    )
    _, made = fused(model, tmp_path, TWO, returns="all", output_name="y")
    names = ["a", "logits", "probabilities", "confidence", "predicted", "bin", "b"]
    assert [v.name for v in made.graph.output] == names
    assert "Identity" not in operators(made)


MAPS = "p = Softmax(x) y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (p)"
SEQ = "seq(map(int64, float)) y"


def stated(made: onnx.ModelProto) -> list[tuple[str, onnx.TypeProto]]:
    return [(value.name, value.type) for value in (*made.graph.input, *made.graph.output)]


@pytest.mark.parametrize(
    ("body", "inputs", "outputs", "feeds"),
    [
        ("z = Neg(x) y = Softmax(z)", "float[batch, 3] x", "float[rows, 3] y", {"x": X}),
        ("z = Neg(x) y = Softmax(z)", "float[batch, 3] x", "float[?, 3] y", {"x": X}),
        (MAPS, "float[n, 3] x", SEQ, {"x": X}),
        ("v = ai.onnx.ml.DictVectorizer <int64_vocabulary: ints = [0, 1, 2]> (x) y = Softmax(v)",
         "map(int64, float) x", "float[n, 3] y", {"x": {0: 0.5, 1: 1.0, 2: -1.0}}),
    ],
)  # fmt: skip
def test_types_of_inputs_and_outputs_stay_as_the_file_states_them(
    body: str, inputs: str, outputs: str, feeds: dict[str, Any], tmp_path: Path
) -> None:
    model = graph(body, inputs, outputs)
    _, made = fused(model, tmp_path, TWO, inputs=feeds)
    assert stated(made) == stated(model)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_report_is_of_the_files_and_of_both_graphs(tmp_path: Path) -> None:
    near = ProbTable(np.array([[0.5]]), np.array([[0.35, 0.9]]))
    plain = of(TWO, near)
    z = X[:4].astype("f8")
    fitted = replace(plain, examples=Examples(z, plain.of_logits(z)))
    given = np.array([[0.0, 0.0, -400.0], [1.0, 2.0, 0.0]], "f4")
    report, made = fused_with(graph("z = Identity(x) y = Softmax(z)"), tmp_path, fitted, inputs={"x": given})
    assert report.done[0].startswith("logit map put in as one Mul")
    assert (report.nodes_before, report.nodes_after) == (2, len(made.graph.node))
    assert (report.samples, report.near_edge, report.near_threshold) == (2, 1, 0)
    assert (report.engine, report.device, report.outputs) == ("onnxruntime", "cpu", ("y",))
    assert report.tolerance == pytest.approx(1e-5)  # no logit is above 1 that a probability shows
    assert (report.model, report.artifact) == (sha256(tmp_path / "raw.onnx"), fitted.fingerprint)
    assert {p.key: p.value for p in made.metadata_props} == {
        "calib_serve.fingerprint": fitted.fingerprint,
        "calib_serve.method": fitted.method,
        "calib_serve.model": report.model,
        "calib_serve.outputs": '["y"]',
        "calib_serve.proof": report.proof,
    }


def test_inputs_are_taken_as_arrays_or_from_a_file_of_them(tmp_path: Path) -> None:
    model = graph("z = Mul(x, scale) y = Softmax(z)", "float[n, 3] x, float scale")
    arrays: dict[str, Any] = {"x": X, "scale": np.float32(0.5)}  # which is no array
    np.savez(tmp_path / "inputs.npz", **arrays)
    for inputs in (arrays, tmp_path / "inputs.npz", str(tmp_path / "inputs.npz")):
        report, _ = fused_with(model, tmp_path, of(TWO), inputs=inputs)
        assert report.samples == len(X)
    (tmp_path / "inputs.npz").write_text("no archive")
    with pytest.raises(InputError, match=r"inputs\.npz is not an npz of inputs by name, as --inputs"):
        fused_with(model, tmp_path, of(TWO), inputs=tmp_path / "inputs.npz")


LEARNED = LAYER + "z = com.microsoft.FusedMatMul(x, w) y = Softmax(z)"


def test_a_run_that_tells_shapes_is_of_the_inputs_that_are_given(tmp_path: Path) -> None:
    model = graph(LEARNED, inputs="float[n, features] x")
    with pytest.raises(FuseError, match=r"(?s)'z' .*--inputs|--output-name"):
        fused_with(model, tmp_path, of(TWO))  # generated ones are 8 wide
    _, made = fused_with(model, tmp_path, of(TWO), inputs={"x": X})
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(X @ W / 2), atol=1e-5)


def test_a_repair_is_told_and_one_that_changes_what_the_file_gives_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renewed(factor: float) -> Any:
        body = f"z = Neg(x) c = Constant <value = float {{{factor}}}> () k = Mul(z, c) y = Softmax(k)"
        return lambda _: (graph(body), ["brought up to date"])

    monkeypatch.setattr(files, "repaired", renewed(1.0))
    report, made = fused_with(graph(SOFTMAX), tmp_path, of(LogitMap.temperature(4.0)))
    assert report.done[0] == "brought up to date"
    assert "Mul" in operators(made)
    (tmp_path / "fused.onnx").unlink()
    monkeypatch.setattr(files, "repaired", renewed(1.25))
    with pytest.raises(FuseError, match="operators cannot be brought up to date: then 'y' differs"):
        fused_with(graph(SOFTMAX), tmp_path, of(TWO))
    assert names(tmp_path) == ["raw.onnx"]


def test_a_label_never_contradicts_the_predicted_class_beside_it(tmp_path: Path) -> None:
    body = (
        "label, s = ai.onnx.ml.LinearClassifier <classlabels_ints: ints = [0, 1, 2], intercepts: floats = "
        "[0.0, 0.0, 0.0], coefficients: floats = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]> (x) "
        "y = Softmax(s)"
    )
    model = graph(body, outputs="int64[n] label, float[n, 3] y")
    step = LogitMap(np.array([1.0, 1.0, 2.0]))
    _, made = fused(model, tmp_path, step, output_name="y", returns="all")
    tied = np.array([[0.0, 1e-9, -5.0]], "f4")  # apart as logits, and the same as probabilities
    got = run(made, {"x": np.concatenate([tied, X])})
    assert got["probabilities"][0, 0] == got["probabilities"][0, 1]
    assert got["logits"][0, 0] < got["logits"][0, 1]
    assert got["label"].tolist() == got["predicted"].tolist()


def test_a_table_of_a_half_precision_model_is_looked_up_in_single_precision(tmp_path: Path) -> None:
    model = graph("z = Neg(x) y = Softmax(z)", "float16[n, 3] x", "float16[n, 3] y")
    table = ProbTable(np.array([[0.50005]]), np.array([[0.25, 0.75]]))
    _, made = fused(model, tmp_path, table)
    x = np.array([[-0.0004, 0.0, 20.0], [0.0, 0.0, 20.0]], "f2")
    top = softmax(-x.astype("f8")).max(axis=1)
    assert top[0] > 0.50005 > float(np.float16(top[0]))
    # Onnxruntime computes in single precision on most CPUs, whatever the graph says; onnx itself does not.
    by_onnx: Any = ReferenceEvaluator(made).run(["y"], {"x": x})
    for got in (run(made, {"x": x})["y"], by_onnx[0]):
        assert got[:, 0].tolist() == [0.75, 0.25]


def test_no_name_is_given_twice_whatever_has_it() -> None:
    body = (
        "[first] z = Mul(x, w) [turns] y = Loop <body = turn (int64 i, bool go, float[n, 3] state) => "
        "(bool on, float[n, 3] next) <float step = {2}> { on = Identity(go) next = Add(state, step) }> "
        "(m, c, z)"
    )
    made = editor(body, "float[n, 3] x, int64 m, bool c", constants="float[3] w = {1, 2, 3}")
    for name in ("x", "w", "z", "y", "first", "turns", "i", "state", "next", "step"):
        assert made.name(name) == f"{name}_1", name
        assert made.name(name) == f"{name}_2", name
    assert made.name("calib_serve.Mul") == "calib_serve.Mul"
    assert made.name("calib_serve.Mul") == "calib_serve.Mul_1"
