"""What the scores of a graph are, against what was fitted; binary and multi-label graphs of every form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from fuse_artifacts import KINDS, artifact, output_steps
from fuse_graphs import Builder, run
from onnx import TensorProto, helper

from calib_serve import Artifact, LogitMap, calibrate
from calib_serve.artifact import Examples
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.graph import fuse_onnx
from calib_serve.fuse.onnx.tail import as_fitted, kind_of, of_one_column
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


def hidden(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same numbers, with the activation behind two nodes that no reader looks through."""
    (node,) = (n for n in model.graph.node if n.op_type in ("Softmax", "Sigmoid", "LogSoftmax"))
    made, at = node.output[0], list(model.graph.node).index(node) + 1
    node.output[0] = "inner"
    model.graph.node.insert(at, helper.make_node("Neg", ["inner"], ["negative"]))
    model.graph.node.insert(at + 1, helper.make_node("Neg", ["negative"], [made]))
    return model


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


@pytest.mark.parametrize("tail", ["Softmax", "LogSoftmax"])
def test_logits_cannot_be_had_from_probabilities_that_hide_their_softmax(tail, tmp_path):
    model = hidden(graph(K, tail)[0])
    vector = artifact(LogitMap(np.array([0.5, 1.0, 1.5, 0.7])), classes=K, outputs="logits")
    kind = "probabilities" if tail == "Softmax" else "log_probs"
    with pytest.raises(FuseError, match=f"fitted on logits, and the graph has {kind}"):
        fuse(model, tmp_path, vector, outputs=kind)
    fuse(model, tmp_path, artifact(LogitMap.temperature(2.0), classes=K), outputs=kind)


def test_the_fit_s_own_scores_must_come_out_as_the_fit_s_own_probabilities(tmp_path):
    model, z = graph(K, "Softmax")
    fitted = calibrate(z, np.arange(len(z)) % K, "vector", cross_validate=False)
    report, _ = fuse(model, tmp_path, fitted)
    assert report.own_scores == 8
    examples = fitted.examples
    assert examples is not None
    wrong = replace(fitted, examples=Examples(examples.logits, np.roll(examples.probs, 1, axis=1)))
    with pytest.raises(FuseError, match="the fit's own scores"):
        fuse(model, tmp_path, wrong)


# --- the rules by themselves ---


@pytest.mark.parametrize(
    ("activation", "columns", "fitted_on", "kind"),
    [
        (None, 3, "log_probs", "log_probs"), (None, 3, "probabilities", "probabilities"),
        (None, None, "probabilities", "probabilities"), (None, 3, None, "logits"),
        (None, 2, "logit", "logits"), (None, 2, "probability", "probabilities"),
        (None, 1, "logits", "logit"), (None, 1, "probabilities", "probability"),
        (None, 3, "label_logits", "label_logits"), (None, 1, "label_logits", "label_logits"),
        (None, None, "label_probabilities", "label_probabilities"),
        ("Sigmoid", None, "label_logits", "label_probabilities"), ("Sigmoid", None, "logit", "probability"),
        ("Sigmoid", 3, "label_logits", "label_probabilities"), ("Sigmoid", 1, "logits", "probability"),
        ("LogSoftmax", 3, "logits", "log_probs"),
    ],
)  # fmt: skip
def test_scores_are_what_was_fitted_where_the_graph_shows_nothing_else(activation, columns, fitted_on, kind):
    fitted = artifact(LogitMap.temperature(2.0), classes=2 if columns != 3 else 3, outputs=fitted_on)
    assert kind_of(activation, columns, fitted, None, "y") == kind


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
