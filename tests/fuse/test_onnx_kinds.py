"""What the scores of a graph are, against what was fitted; binary and multi-label graphs of every form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from fuse_artifacts import KINDS, artifact, output_steps
from fuse_graphs import Builder, run
from onnx import TensorProto, helper

from calib_serve import Artifact, LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.graph import fuse_onnx
from calib_serve.fuse.onnx.tail import as_fitted, of_one_column
from calib_serve.metrics import log_softmax, softmax
from calib_serve.scores import Outputs, to_logits

K = 4
X = np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32)


def graph(columns: int, *tail: str) -> tuple[onnx.ModelProto, np.ndarray]:
    """A linear model of so many columns with these activations, and its logits of ``X``."""
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    z = b.node("Gemm", "x", b.normal(6, columns), b.normal(columns))
    info = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    bare = Builder.model(b, [info("x", "n", 6)], [info(z, "n", columns)])
    logits = run(bare, {"x": X})[z].astype(np.float64)
    y = z
    for op in tail:
        axis = {"axis": -1} if "oftmax" in op else {}
        y = b.node(op, y, **axis)
    b.node("Identity", y, output="y")
    return b.model([info("x", "n", 6)], [info("y", "n", columns)]), logits


def fuse(model: onnx.ModelProto, folder, fitted: Artifact, **options):
    onnx.save(model, folder / "raw.onnx")
    return fuse_onnx(folder / "raw.onnx", fitted, folder / "fused.onnx", **options), str(
        folder / "fused.onnx"
    )


FITTED_ON: tuple[Outputs, ...] = ("logits", "log_probs", "probabilities")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fitted_on", FITTED_ON)
@pytest.mark.parametrize("tail", ["", "Softmax", "LogSoftmax"])
def test_a_graph_gives_what_the_fit_would_have_given_or_is_refused(kind, fitted_on, tail, tmp_path):
    model, z = graph(K, *([tail] if tail else []))
    fitted = artifact(*output_steps(kind, K, np.random.default_rng(3)), classes=K, outputs=fitted_on)
    seen = {"logits": z, "log_probs": log_softmax(z), "probabilities": softmax(z)}[fitted_on]
    expected = fitted.probs(to_logits(seen, fitted_on))
    _, path = fuse(model, tmp_path, fitted, returns="probabilities", outputs=None if tail else "logits")
    clear = np.ones(len(z), bool)
    if fitted.table is not None:
        p = replace(fitted, steps=fitted.output_steps[:-1]).probs(to_logits(seen, fitted_on))
        clear = (np.abs(p[:, :, None] - fitted.table.edges.reshape(1, 1, -1)) > 1e-5).all(axis=(1, 2))
    assert clear.mean() > 0.5
    np.testing.assert_allclose(run(path, {"x": X})["probabilities"][clear], expected[clear], atol=1e-5)


# --- the rules by themselves ---


PER_CLASS = LogitMap(np.array([0.5, 2.0]), np.array([0.1, 0.0]))


@pytest.mark.parametrize(
    ("fitted_on", "kind", "activated", "one_column", "on"),
    [
        ("logits", "logits", False, False, "logits"), ("logits", "probabilities", True, False, "logits"),
        ("logits", "log_probs", True, False, "logits"), ("logit", "logit", False, True, "logits"),
        ("logit", "probability", True, True, "logits"), ("log_probs", "log_probs", False, False, "logits"),
        ("probabilities", "log_probs", False, False, "logits"),
        ("probability", "probability", False, True, "logits"),
        ("log_probs", "probabilities", True, False, "log_probs"),
        ("probabilities", "logits", False, False, "log_probs"),
        ("probability", "probability", True, True, "log_probs"),
        ("probability", "logit", False, True, "log_probs"),
        ("logits", "probabilities", False, False, None), ("logits", "log_probs", False, False, None),
        ("logit", "probability", False, True, None), ("logits", "logit", False, True, None),
        ("logits", "probability", True, True, None), ("logit", "logits", False, False, None),
        ("logit", "probabilities", True, False, None),
    ],
)  # fmt: skip
def test_a_scale_for_each_class_acts_on_what_it_was_fitted_on(fitted_on, kind, activated, one_column, on):
    fitted = artifact(PER_CLASS, LogitMap.temperature(2.0), classes=2, outputs=fitted_on)
    if on is not None:
        acting = as_fitted(fitted, kind, activated=activated, one_column=one_column)
        assert [step.on for step in acting.logit_maps] == [on, "logits"]
        assert [step.weight.tolist() for step in acting.logit_maps] == [[0.5, 2.0], 0.5]
        return
    held = "one logit a sample" if one_column and (activated or kind == "logit") else kind
    with pytest.raises(FuseError) as error:
        as_fitted(fitted, kind, activated=activated, one_column=one_column)
    assert str(error.value) == (
        f"the artifact was fitted on {fitted_on}, and the graph has {held}: what its scale for each class "
        f"makes of them differs; fit it on what this graph returns (calib-serve fit --outputs {kind}), or "
        f"export {fitted_on}"
    )


@pytest.mark.parametrize(
    ("maps", "weight", "bias"),
    [
        ((LogitMap.temperature(2.0),), 0.5, None),
        ((LogitMap(np.array(1.3), None, "log_probs"),), 1.3, None),
        ((LogitMap(np.array(1.25), np.array([0.5, 2.0])),), 1.25, 1.5),
        ((LogitMap(np.array([[1.0, 4.0], [2.0, 7.0]])), LogitMap.temperature(2.0)), 1.5, None),
        ((LogitMap(np.array([3.0, 4.0]), np.array([1.0, 0.0])), LogitMap.temperature(2.0)), 2.0, -0.5),
        ((LogitMap(np.array([3.0, 4.0]), None, "log_probs"),), None, None),
        ((LogitMap.temperature(2.0), LogitMap(np.array([3.0, 4.0]), None, "log_probs")), None, None),
        ((), 1.0, None),
    ],
)
def test_maps_of_two_logits_are_one_map_of_their_difference_where_they_are_linear(maps, weight, bias):
    one = of_one_column(artifact(*maps, classes=2))
    if weight is None:
        assert one is None
        return
    assert one.weight.tolist() == [weight]
    assert (one.bias if bias is None else one.bias.tolist()) == (bias if bias is None else [bias])
