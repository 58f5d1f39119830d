"""Classes that a graph masks: what is before the mask is calibrated, and the graph masks it then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from deciding import deciding
from fuse_artifacts import artifact, output_steps
from fuse_graphs import run
from fuse_texts import graph

from calib_serve.artifact import LogitMap
from calib_serve.core.errors import FuseError
from calib_serve.fuse import calibrated, fuse_onnx
from calib_serve.fuse.onnx._parity import _allowed

K = 4
RNG = np.random.default_rng(0)
X = (2 * RNG.normal(size=(200, K))).astype("f4")
M = RNG.random((200, K)) > 0.4
M[np.arange(200), RNG.integers(0, K, 200)] = True
LAYER = (
    "w = Constant <value = float[4, 4] {1, 0.5, 0, 0, 0, 1, 0, -0.5, 0.25, 0, 1, 0, 0, 0, 0, 2}> () "
    "z = MatMul(x, w) "
)
WEIGHT = np.array([[1, 0.5, 0, 0], [0, 1, 0, -0.5], [0.25, 0, 1, 0], [0, 0, 0, 2]])
NUMBERS = "one = Constant <value = float {1}> () big = Constant <value = float {-1e9}> () "
BOOL, FLOAT = "bool[n, 4] m", "float[n, 4] m"

MASKS = {
    "where": (BOOL, "a = Constant <value = float {-1e9}> () v = Where(m, z, a)"),
    "masked fill": (BOOL, "a = Constant <value = float {-inf}> () b = Not(m) v = Where(b, a, z)"),
    "half's least": (BOOL, "a = Constant <value = float {-65504}> () v = Where(m, z, a)"),
    "float's least": (
        FLOAT, "a = Constant <value = float {-3e38}> () b = Cast <to = 9> (m) v = Where(b, z, a)",
    ),
    "added": (FLOAT, NUMBERS + "b = Sub(one, m) c = Mul(b, big) v = Add(z, c)"),
    "taken away": (FLOAT, NUMBERS + "b = Sub(one, m) a = Neg(big) c = Mul(a, b) v = Sub(z, c)"),
    "added first": (BOOL, NUMBERS + "o = Constant <value = float {0}> () c = Where(m, o, big) v = Add(c, z)"),
    "of a bounded one": (
        FLOAT, NUMBERS + "a = Clip(m, , one) b = Sub(one, a) c = Mul(b, big) v = Add(z, c)",
    ),
    "logarithm": (
        FLOAT, "a = Constant <value = float {-3.4e38}> () b = Log(m) c = Max(b, a) v = Add(z, c)",
    ),
    "logarithm of 0": (FLOAT, "b = Log(m) v = Add(z, b)"),
    "multiplied": (
        FLOAT, NUMBERS + "p = Mul(z, m) b = Sub(one, m) c = Mul(b, big) v = Add(p, c)",
    ),
    "expanded": (
        BOOL, "a = Constant <value = float {-1e9}> () s = Shape(z) b = Expand(a, s) v = Where(m, z, b)",
    ),
    "of a row": (
        BOOL, "a = Constant <value = float[4] {-1e9, -1e9, -1e9, -1e9}> () "
        "i = Constant <value = int64[1] {0}> () u = Unsqueeze(a, i) v = Where(m, z, u)",
    ),
    "twice": (BOOL, "a = Constant <value = float {-1e9}> () u = Where(m, z, a) v = Where(m, u, a)"),
}  # fmt: skip
KINDS = ["temperature", "vector", "matrix", "dirichlet", "mixture", "top", "classwise"]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def masked(probs: np.ndarray) -> np.ndarray:
    kept = np.where(M, probs, 0)
    return kept / kept.sum(axis=1, keepdims=True)


def feeds(inputs: str) -> dict:
    return {"x": X, "m": M if inputs == BOOL else M.astype("f4")}


def fused(
    mask: str, folder: Path, fitted, *, end: str = "y = Softmax(v)", outputs="float[n, 4] y", **options
):
    inputs, body = MASKS[mask]
    model = graph(f"{LAYER} {body} {end}", f"float[n, 4] x, {inputs}", outputs)
    onnx.save(model, folder / "raw.onnx")
    report = fuse_onnx(folder / "raw.onnx", fitted, folder / "out.onnx", unproven=True, **options)
    return report, run(str(folder / "out.onnx"), feeds(inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_what_is_before_a_mask_is_calibrated_and_masked_then(mask: str, kind: str, tmp_path: Path) -> None:
    fitted = artifact(*output_steps(kind, K, np.random.default_rng(0)), classes=K)
    report, got = fused(mask, tmp_path, fitted)
    want = masked(fitted.of_logits(X.astype("f8") @ WEIGHT))
    np.testing.assert_allclose(got["y"], want, atol=1e-5)
    assert (got["y"][~M] == 0).all()
    assert report.tolerance <= 1e-3


@pytest.mark.parametrize("kind", ["temperature", "matrix"])
def test_a_floor_within_reach_is_no_mask_and_what_is_behind_it_is_calibrated(
    kind: str, tmp_path: Path
) -> None:
    floor = "a = Constant <value = float {-2}> () b = Greater(z, a) v = Where(b, z, a) y = Softmax(v)"
    onnx.save(graph(LAYER + floor, "float[n, 4] x", "float[n, 4] y"), tmp_path / "raw.onnx")
    fitted = artifact(*output_steps(kind, K, np.random.default_rng(0)), classes=K)
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", unproven=True)
    want = fitted.of_logits(np.maximum(X.astype("f8") @ WEIGHT, -2))
    np.testing.assert_allclose(run(str(tmp_path / "out.onnx"), {"x": X})["y"], want, atol=1e-5)


@pytest.mark.parametrize("kind", ["matrix", "top"])
@pytest.mark.parametrize("returns", ["probabilities", "all"])
def test_every_result_and_every_decision_is_of_the_classes_that_are_left(
    returns: str, kind: str, tmp_path: Path
) -> None:
    steps = output_steps(kind, K, np.random.default_rng(0))
    fitted = deciding(artifact(*steps, classes=K), "lac")
    _, got = fused("where", tmp_path, fitted, returns=returns)
    want = masked(fitted.of_logits(X.astype("f8") @ WEIGHT))
    np.testing.assert_allclose(got["probabilities"], want, atol=1e-5)
    assert (got["set"] == fitted.sets(got["probabilities"])).all()
    assert not (got["set"] & ~M).any()
    if returns == "all":
        np.testing.assert_array_equal(got["predicted"], got["probabilities"].argmax(axis=1))
        np.testing.assert_allclose(softmax(got["logits"]), got["probabilities"], atol=1e-6)


@pytest.mark.parametrize("kind", ["temperature", "matrix"])
def test_masked_logits_and_labels_that_are_shown_are_right(kind: str, tmp_path: Path) -> None:
    fitted = artifact(*output_steps(kind, K, np.random.default_rng(0)), classes=K)
    ends = "y = Identity(v) k = ArgMax <axis = 1, keepdims = 0> (v)"
    _, got = fused("added", tmp_path, fitted, end=ends, outputs="float[n, 4] y, int64[n] k", output_name="y")
    want = masked(fitted.of_logits(X.astype("f8") @ WEIGHT))
    np.testing.assert_allclose(softmax(got["y"].astype("f8")), want, atol=1e-5)
    np.testing.assert_array_equal(got["k"], want.argmax(axis=1))


@pytest.mark.parametrize("mask", ["where", "added"])
def test_labels_are_masked_one_by_one(mask: str, tmp_path: Path) -> None:
    step = LogitMap(np.array([0.5, 1.5, 1.0, 2.0]), np.array([0.1, -1.0, 0.0, 0.5]))
    fitted = artifact(step, classes=K, outputs="label_logits")
    _, got = fused(mask, tmp_path, fitted, end="y = Sigmoid(v)")
    want = np.where(M, fitted.of_logits(X.astype("f8") @ WEIGHT), 0)
    np.testing.assert_allclose(got["y"], want, atol=1e-5)


def test_what_is_added_and_no_mask_on_typical_inputs_is_refused(tmp_path: Path) -> None:
    nearly = np.full((200, K), 1 - 1.2e-7, "f4")
    with pytest.raises(FuseError, match=r"looks like a mask and is none.*--inputs.*--output-name"):
        fused("added", tmp_path, artifact(LogitMap.temperature(2.0), classes=K), inputs={"x": X, "m": nearly})


def test_a_mask_leaves_a_logit_to_the_last_bit_or_puts_it_out_of_reach() -> None:
    before = np.array([[1.0, -3.0, 2.0]])
    behind = np.array([[1.0, -np.inf, -1e9]])
    assert _allowed(before, behind).tolist() == [[True, False, False]]
    for other in (before + 1e-7, np.array([[1.0, -900.0, 2.0]]), np.array([[np.nan, -3.0, 2.0]])):
        with pytest.raises(FuseError, match="looks like a mask"):
            _allowed(before, other)


def test_a_mask_that_cannot_be_told_from_the_scores_is_named_unless_a_temperature_alone_acts(
    tmp_path: Path,
) -> None:
    ends = "t = Constant <value = float {2}> () u = Div(v, t) y = Softmax(u)"
    halved = artifact(LogitMap.temperature(2.0), classes=K)
    _, got = fused("where", tmp_path, halved, end=ends)
    want = masked(halved.of_logits(X.astype("f8") @ WEIGHT / 2))
    np.testing.assert_allclose(got["y"], want, atol=1e-5)
    fitted = artifact(*output_steps("matrix", K, np.random.default_rng(0)), classes=K)
    with pytest.raises(FuseError, match=r"masks classes.*'u'.*--output-name"):
        fused("where", tmp_path, fitted, end=ends)


def test_a_torch_model_that_masks_its_scores_gets_no_number_where_a_matrix_needs_all_of_them() -> None:
    fitted = artifact(*output_steps("matrix", K, np.random.default_rng(0)), classes=K)
    module = calibrated(torch.nn.Identity(), fitted, outputs="logits", example=torch.tensor(X))
    for low in (-1e9, -np.inf):
        z = torch.tensor(np.where(M, X, low))
        got = module(z).numpy()
        assert np.isnan(got[~M.all(axis=1)]).all()
        np.testing.assert_allclose(got[M.all(axis=1)], fitted.of_logits(X[M.all(axis=1)]), atol=1e-5)
        assert np.isnan(fitted.of_logits(np.where(M, X, low))[~M.all(axis=1)]).all()


@pytest.mark.parametrize(
    "mask", ["p = Mul(s, m)", "o = Constant <value = float {0}> () b = Cast <to = 9> (m) p = Where(b, s, o)"]
)
@pytest.mark.parametrize("kind", ["temperature", "dirichlet", "top"])
def test_probabilities_that_are_masked_are_named_and_what_follows_them_is_right(
    mask: str, kind: str, tmp_path: Path
) -> None:
    ends = "a = Constant <value = int64[1] {1}> () t = ReduceSum(p, a) y = Div(p, t)"
    body = f"{LAYER} s = Softmax(z) {mask} {ends}"
    onnx.save(graph(body, f"float[n, 4] x, {FLOAT}", "float[n, 4] y"), tmp_path / "raw.onnx")
    fitted = artifact(*output_steps(kind, K, np.random.default_rng(0)), classes=K, outputs="probabilities")
    with pytest.raises(FuseError, match=r"masks probabilities, 's'.*--output-name s"):
        fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", unproven=True)
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", output_name="s", unproven=True)
    got = run(str(tmp_path / "out.onnx"), feeds(FLOAT))["y"]
    np.testing.assert_allclose(got, masked(fitted.probs(softmax(X.astype("f8") @ WEIGHT))), atol=1e-5)


@pytest.mark.parametrize("kind", ["temperature", "matrix", "top"])
def test_log_probabilities_are_those_of_the_classes_that_are_left(kind: str, tmp_path: Path) -> None:
    fitted = artifact(*output_steps(kind, K, np.random.default_rng(0)), classes=K)
    _, got = fused("where", tmp_path, fitted, end="y = LogSoftmax(v)")
    want = masked(fitted.of_logits(X.astype("f8") @ WEIGHT))
    np.testing.assert_allclose(np.exp(got["y"].astype("f8")), want, atol=1e-5)
