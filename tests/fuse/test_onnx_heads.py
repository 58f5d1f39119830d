"""A new head in the place of the last linear layer: which features it reads, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact, head
from fuse_graphs import run
from fuse_texts import LAYER, TWO, K, X, fused, graph, operators

from calib_serve import Head
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.head import ReplaceHead, find_features
from calib_serve.fuse.onnx.tail import Tail, find_tail
from calib_serve.metrics import softmax

ONE = head(3, K, 1, np.random.default_rng(0))
DEEP = head(3, K, 2, np.random.default_rng(0))
LINEAR = LAYER + "z = Gemm(f, w) "


def tail_of(body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, 3] y") -> tuple[Editor, Tail]:
    made = Editor(ir.from_proto(onnx.shape_inference.infer_shapes(graph(body, inputs, outputs))))
    return made, find_tail(made, output="y", outputs=None, artifact=artifact(TWO, classes=K))


def by_hand(step: Head, features: np.ndarray) -> np.ndarray:
    """Its logits, in float64."""
    hidden = features.astype("f8") @ step.weights[0].T.astype("f8") + step.biases[0]
    for w, b in zip(step.weights[1:], step.biases[1:], strict=True):
        hidden = np.maximum(hidden, 0) @ w.T.astype("f8") + b
    return hidden


# --- which features ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "ops"), [(ONE, ["Gemm"]), (DEEP, ["Gemm", "Relu", "Gemm"])])
@pytest.mark.parametrize("name", ["x", "early"])
def test_a_head_reads_the_named_tensor_and_what_is_unused_then_goes(
    name: str, step: Head, ops: list[str], tmp_path: Path
) -> None:
    model = graph("early = Sin(x) f = Tanh(early) " + LINEAR + "y = Softmax(z)")
    report, made = fused(model, tmp_path, step, features=name)
    assert report.done == (f"head of {len(step.weights)} layers reads {name!r}",)
    assert operators(made) == [*(["Sin"] if name == "early" else []), *ops, "Softmax"]
    features = np.sin(X) if name == "early" else X
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(by_hand(step, features)), atol=1e-6)


def test_one_layer_takes_the_place_of_the_last_ones_numbers(tmp_path: Path) -> None:
    model = graph("f = Tanh(x) " + LINEAR + "y = Softmax(z)")
    for features in (None, "f"):
        report, made = fused(model, tmp_path, ONE, features=features)
        assert report.done == ("head put into Gemm 'z'",)
        assert operators(made) == ["Tanh", "Gemm", "Softmax"]
        want = softmax(by_hand(ONE, np.tanh(X)))
        np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-6)


def test_a_head_takes_the_place_of_a_last_layer_of_any_kind(tmp_path: Path) -> None:
    model = graph("f = Tanh(x) z = Sin(f) y = Softmax(z)")
    report, made = fused(model, tmp_path, ONE, features="f")
    assert report.done == ("head of 1 layers reads 'f'",)
    assert operators(made) == ["Tanh", "Gemm", "Softmax"]
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(by_hand(ONE, np.tanh(X))), atol=1e-6)


def test_two_layers_read_what_the_last_layer_read(tmp_path: Path) -> None:
    model = graph("f = Tanh(x) " + LINEAR + "y = Softmax(z)")
    report, made = fused(model, tmp_path, DEEP)
    assert report.done == ("head of 2 layers reads 'f'",)
    assert operators(made) == ["Tanh", "Gemm", "Relu", "Gemm", "Softmax"]
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(by_hand(DEEP, np.tanh(X))), atol=1e-6)


def test_old_logits_that_others_read_are_still_the_old_layers(tmp_path: Path) -> None:
    model = graph("f = Tanh(x) " + LINEAR + "y = Softmax(z)", outputs="float[n, 3] y, float[n, 3] z")
    report, made = fused(model, tmp_path, ONE, output_name="y")
    assert report.done == ("head of 1 layers reads 'f'",)
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["z"], run(model, {"x": X})["z"])
    np.testing.assert_allclose(got["y"], softmax(by_hand(ONE, np.tanh(X))), atol=1e-6)


@pytest.mark.parametrize("step", [ONE, DEEP])
@pytest.mark.parametrize("end", ["z = Gemm(g, w) y = Softmax(z)", "y = Gemm(g, w)"])
def test_features_of_another_type_are_read_in_the_type_of_the_logits(
    end: str, step: Head, tmp_path: Path
) -> None:
    model = graph(LAYER + "f = Cast <to: int = 10> (x) g = Cast <to: int = 1> (f) " + end)
    _, made = fused(model, tmp_path, step, features="f")
    assert made.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    logits = by_hand(step, X.astype("f2"))
    want = softmax(logits) if "Softmax" in end else logits
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)


@pytest.mark.parametrize(
    ("end", "name"),
    [
        ("y = Softmax(z)", "y"),
        ("p = Softmax(z) y = Identity(p)", "p"),
        ("y = Softmax(z) d = ArgMax <axis: int = 1> (z) c = Cast <to: int = 1> (d) "
         "e = Concat <axis: int = 1> (c, c, c)", "e"),
    ],
)  # fmt: skip
def test_features_made_of_the_logits_are_refused(end: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(FuseError) as refused:
        fused(graph("f = Tanh(x) " + LINEAR + end), tmp_path, ONE, features=name)
    assert str(refused.value) == (
        f"{name!r} is made of the logits 'z', which the head is to replace: name a tensor before them: "
        "--features (features=)"
    )


def test_a_stranger_s_product_of_the_old_logits_may_be_read(tmp_path: Path) -> None:
    model = graph("f = Tanh(x) " + LINEAR + "y = Softmax(z) other = Sin(z)")
    _, made = fused(model, tmp_path, ONE, features="other")
    others = graph("f = Tanh(x) " + LINEAR + "y = Sin(z)")
    want = softmax(by_hand(ONE, run(others, {"x": X})["y"]))
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "name", "said"),
    [
        (
            "y = Neg(x)", None,
            "the last linear layer was not found: the logits come from Neg 'y', not from a Gemm or MatMul; "
            "name its input: --features (features=)",
        ),
        ("y = Neg(x)", "w", "the graph has no tensor 'w' to take as --features (features=)"),
        (
            "y = Neg(x)", "wide",
            "the head reads features (n, 3), but 'wide' is FLOAT [n,4]; the artifact is of another model, or "
            "another tensor holds them: --features (features=)",
        ),
        (
            "y = Neg(x)", "deep",
            "the head reads features (n, 3), but 'deep' is FLOAT [n,3,1]; the artifact is of another model, "
            "or another tensor holds them: --features (features=)",
        ),
        (
            "c = Cast <to: int = 7> (x) y = Neg(x)", "c",
            "the head reads features (n, 3), but 'c' is INT64 [n,3]; the artifact is of another model, or "
            "another tensor holds them: --features (features=)",
        ),
        (
            "c = of.ours.Body(x) y = Neg(x)", "c",
            "the head reads features (n, 3), but 'c' is None None; the artifact is of another model, or "
            "another tensor holds them: --features (features=)",
        ),
    ],
)  # fmt: skip
def test_what_no_head_can_read_is_refused_by_its_name(body: str, name: str | None, said: str) -> None:
    made, found = tail_of(body, "float[n, 3] x, float[n, 4] wide, float[n, 3, 1] deep")
    with pytest.raises(FuseError) as refused:
        find_features(made, found, ONE, name)
    assert str(refused.value) == said


def test_features_of_unknown_shape_are_not_taken() -> None:
    made, found = tail_of("y = Neg(x)")
    made.graph.inputs[0].shape = None
    with pytest.raises(FuseError, match="but 'x' is FLOAT None; the artifact is of another model"):
        find_features(made, found, ONE, "x")


def test_features_whose_number_is_free_may_be_the_heads() -> None:
    made, found = tail_of("y = Neg(x)", "float[n, 3] x, float[n, m] free")
    assert find_features(made, found, ONE, "free").name == "free"
    assert find_features(made, found, ONE, "x") is made.graph.inputs[0]


# --- what is checked --------------------------------------------------------------------------------


def test_a_head_that_cannot_read_its_features_is_not_put_in() -> None:
    made, found = tail_of("y = Neg(x)", "float[n, 3] x, float[n, 4] wide")
    ReplaceHead(ONE, made.graph.inputs[0]).requires(found)
    with pytest.raises(FuseError, match="fusing went wrong: the head cannot read 'wide'; please report"):
        ReplaceHead(ONE, made.graph.inputs[1]).requires(found)


def test_logits_that_are_no_heads_are_not_let_through() -> None:
    made, found = tail_of("f = Tanh(x) " + LINEAR + "y = Softmax(z)")
    ReplaceHead(ONE, made.graph.inputs[0]).ensures(found)
    _, other = tail_of("z = Neg(x) y = Softmax(z)")
    more = Head((np.ones((4, 3)),), (np.ones(4),))
    for step, tail, said in (
        (ONE, other, "the head is not in place"),
        (more, found, "the head is not in place"),
        (ONE, replace(found, path=()), "the output is another"),
    ):
        with pytest.raises(FuseError, match=f"fusing went wrong: {said}; please report this graph"):
            ReplaceHead(step, made.graph.inputs[0]).ensures(tail)
