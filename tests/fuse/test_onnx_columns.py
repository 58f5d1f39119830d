"""Scores of other shapes than (n, K): sizes of 1 behind the classes, one column of a binary model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import K, X, fused, graph, operators

from calib_serve import LogitMap, Mixture, ProbTable
from calib_serve.fuse.onnx.graph import FuseReport, fuse_onnx
from calib_serve.metrics import sigmoid, softmax
from calib_serve.scores import Outputs

DIAGONAL = LogitMap(np.array([1.0, 0.5, 2.0]), np.array([0.5, 0.0, -1.0]))
FLATTENED = "scores of more than two dimensions flattened (Flatten, Unsqueeze added)"
WIDENED = "one score a sample made two, as the calibration acts on both classes"


def said(model: onnx.ModelProto) -> dict[str, tuple[int, list[int | str]]]:
    """The type and shape that the model tells of each output."""
    kinds = {one.name: one.type.tensor_type for one in model.graph.output}
    return {
        name: (kind.elem_type, [d.dim_param or d.dim_value for d in kind.shape.dim])
        for name, kind in kinds.items()
    }


# --- sizes of 1 behind the classes ------------------------------------------------------------------


@pytest.mark.parametrize("ones", [1, 2])
@pytest.mark.parametrize(
    ("body", "nodes"),
    [
        ("y = Neg(x)", ["Neg", "Flatten", "*", "Unsqueeze"]),
        ("z = Neg(x) y = Identity(z)", ["Neg", "Flatten", "*", "Unsqueeze", "Identity"]),
        ("z = Neg(x) y = Softmax <axis: int = 1> (z)", ["Neg", "Flatten", "*", "Softmax", "Unsqueeze"]),
        ("z = Neg(x) p = Softmax <axis: int = 1> (z) y = Identity(p)",
         ["Neg", "Flatten", "*", "Softmax", "Unsqueeze", "Identity"]),
    ],
)  # fmt: skip
def test_scores_keep_their_sizes_of_1(body: str, nodes: list[str], ones: int, tmp_path: Path) -> None:
    sizes = ", ".join(["n", str(K), *["1"] * ones])
    report, made = fused(graph(body, f"float[{sizes}] x", f"float[{sizes}] y"), tmp_path, DIAGONAL)
    onnx.checker.check_model(made, full_check=True)
    assert report.done[0] == FLATTENED
    assert operators(made) == ["BatchNormalization" if op == "*" else op for op in nodes]
    assert said(made) == {"y": (1, ["n", K, *[1] * ones])}
    z = DIAGONAL(-X)
    want = softmax(z) if "Softmax" in body else z
    x = X.reshape(len(X), K, *[1] * ones)
    np.testing.assert_allclose(run(made, {"x": x})["y"].reshape(len(X), K), want, atol=1e-5)


WIDE = f"float[n, {K}, 1, 1]"


@pytest.mark.parametrize(
    ("body", "raw"),
    [
        ("y = Neg(x) other = Neg(y)", X), ("z = Neg(x) y = Identity(z) other = Neg(z)", X),
        ("z = Neg(x) p = Softmax <axis: int = 1> (z) y = Identity(p) other = Neg(p)", -softmax(-X)),
        ("z = Neg(x) y = Softmax <axis: int = 1> (z) other = Neg(z)", X),
    ],
)  # fmt: skip
def test_who_reads_such_scores_but_decides_nothing_sees_the_raw_ones(
    body: str, raw: np.ndarray, tmp_path: Path
) -> None:
    model = graph(body, f"{WIDE} x", f"{WIDE} y, {WIDE} other")
    _, made = fused(model, tmp_path, DIAGONAL, output_name="y")
    got = run(made, {"x": X[..., None, None]})
    np.testing.assert_allclose(got["other"][..., 0, 0], raw, atol=1e-6)
    assert np.abs(got["y"][..., 0, 0] + raw).max() > 0.1


@pytest.mark.parametrize(
    "body",
    [
        "y = Neg(x) label = ArgMax <axis: int = 1> (y)",
        "z = Neg(x) y = Identity(z) label = ArgMax <axis: int = 1> (z)",
        "z = Neg(x) y = Softmax <axis: int = 1> (z) label = ArgMax <axis: int = 1> (y)",
    ],
)
def test_who_decides_by_such_scores_decides_by_the_calibrated_ones(body: str, tmp_path: Path) -> None:
    model = graph(body, f"{WIDE} x", f"{WIDE} y, int64[n, 1, 1, 1] label")
    report, made = fused(model, tmp_path, DIAGONAL, output_name="y")
    got = run(made, {"x": X[..., None, None]})
    np.testing.assert_array_equal(got["label"], got["y"].argmax(axis=1)[:, None])
    assert (got["label"].ravel() != (-X).argmax(axis=1)).any()
    assert not any("warning" in what for what in report.done)


# --- one column of a binary model -------------------------------------------------------------------

Z = np.linspace(-4, 4, 33)
BETA = LogitMap(np.array([0.6, 1.3]), np.array([0.0, 0.2]), "log_probs")
MIXTURE = Mixture([0.5], [0.9, 0.1])
TABLE = ProbTable([[0.3, 0.6], [0.4, 0.7]], [[0.1, 0.4, 0.9], [0.2, 0.5, 0.7]])


def by_beta(z: np.ndarray) -> np.ndarray:
    """The calibrated probability of class 1, of the logits ``z``."""
    rest, p = np.log(sigmoid(-z)), np.log(sigmoid(z))
    return sigmoid((1.3 * p + 0.2) - 0.6 * rest)


def by_mixture(z: np.ndarray) -> np.ndarray:
    return 0.9 * sigmoid(0.5 * z) + 0.1 / 2


def by_table(z: np.ndarray) -> np.ndarray:
    rest = np.array([0.1, 0.4, 0.9])[(sigmoid(-z)[:, None] > [0.3, 0.6]).sum(axis=1)]
    p = np.array([0.2, 0.5, 0.7])[(sigmoid(z)[:, None] > [0.4, 0.7]).sum(axis=1)]
    return p / (p + rest)


def binary(
    body: str, step: object, folder: Path, *, kind: str = "float", **options: object
) -> tuple[FuseReport, onnx.ModelProto]:
    onnx.save(graph(body, f"{kind}[n, 1] x", f"{kind}[n, 1] y"), folder / "raw.onnx")
    logit = "Sigmoid" not in body
    fitted = artifact(step, classes=2, outputs="logit" if logit else "probability")
    report = fuse_onnx(folder / "raw.onnx", fitted, folder / "out.onnx", **options)  # type: ignore[arg-type]
    made = onnx.load(folder / "out.onnx")
    onnx.checker.check_model(made, full_check=True)
    return report, made


LOGIT, PROBABILITY = "y = Neg(x)", "z = Neg(x) y = Sigmoid(z)"
BEHIND = "z = Neg(x) p = Sigmoid(z) y = Identity(p)"
HIDDEN = "z = Neg(x) p = Sigmoid(z) q = Neg(p) y = Neg(q)"


@pytest.mark.parametrize(
    ("step", "want"),
    [(BETA, by_beta), (MIXTURE, by_mixture), (TABLE, by_table)],
    ids=["beta", "mix", "table"],
)
@pytest.mark.parametrize(
    ("body", "told"),
    [(LOGIT, None), (PROBABILITY, None), (BEHIND, None), (HIDDEN, "probability")],
    ids=["logit", "Sigmoid", "behind", "hidden"],
)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_one_column_is_calibrated_as_two_and_stays_one(
    kind: str, body: str, told: Outputs | None, step: object, want: Callable, tmp_path: Path
) -> None:
    report, made = binary(body, step, tmp_path, kind=kind, outputs=told)
    assert report.done[0] == WIDENED
    assert said(made) == {"y": ({"float": 1, "double": 11}[kind], ["n", 1])}
    assert (operators(made).count("Sigmoid") == 1) == (body is HIDDEN), "the old one is gone"
    got = run(made, {"x": -Z[:, None].astype("f4" if kind == "float" else "f8")})["y"]
    p = want(Z)
    near = {"rtol": 1e-4, "atol": 1e-5} if kind == "float" else {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(got[:, 0], np.log(p / (1 - p)) if body is LOGIT else p, **near)
