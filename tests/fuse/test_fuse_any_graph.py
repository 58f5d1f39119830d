"""Whatever the graph: a fused file is right; those that cannot be are refused, and no other."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
from fuse_artifacts import artifacts
from fuse_graphs import CLASSES, Example, examples, run
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from sizes import sized

from calib_serve import Artifact
from calib_serve.artifact import ProbTable
from calib_serve.core.errors import FuseError
from calib_serve.fuse import fuse_onnx
from calib_serve.scores import log_softmax, softmax

TOLERANCE = {np.dtype("f8"): 1e-9, np.dtype("f4"): 2e-5, np.dtype("f2"): 2e-2}


def reference(example: Example, artifact: Artifact, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict]:
    """Probabilities and logits by the artifact in numpy, and all raw outputs, of a shifted input."""
    shifted = x if artifact.input_shift is None else artifact.input_shift(x)
    inside = example.features if artifact.head is not None else example.logits
    raw = run(example.inside(inside), {"x": shifted.astype(x.dtype)}, optimize=False)
    z = raw[inside].astype(np.float64).reshape(len(x), -1)
    if artifact.head is not None:
        z = artifact.head(z)
    probs = artifact.of_logits(z)
    for step in artifact.output_steps:
        if step.kind == "logit_map":
            z = step(z)
    return probs, z, raw


def shown(probs: np.ndarray, z: np.ndarray, example: Example, artifact: Artifact) -> np.ndarray:
    """What the drop-in output must hold."""
    if example.meaning == "probabilities":
        return probs
    if example.meaning == "sigmoid":
        return 1 / (1 + np.exp(-z))
    if any(s.kind in ("mixture", "prob_table") for s in artifact.steps):
        return np.log(np.maximum(probs, 1e-30))
    return log_softmax(z) if example.meaning == "log_probs" else z


def sure(z: np.ndarray, artifact: Artifact, near: float) -> np.ndarray:
    """Rows whose probabilities stay clear of every table edge and of a tie."""
    table = next((s for s in artifact.steps if isinstance(s, ProbTable)), None)
    if table is None:
        return np.ones(len(z), bool)
    p = softmax(z)
    ordered = np.sort(p, axis=1)
    clear = (np.abs(p[:, :, None] - table.edges.reshape(1, 1, -1)) > near).all(axis=(1, 2))
    return clear & (ordered[:, -1] - ordered[:, -2] > near)


def refusal(example: Example, artifact: Artifact) -> tuple[str, bool]:
    """What a refusal of this pair says, and whether it must be refused; nothing where it must be fused."""
    if example.meaning == "sigmoid":
        return r"made by a Sigmoid a class|all lie within|beyond \[0, 1\]", True
    weight_is_an_input = len(example.model.graph.input) > 1
    if artifact.head is not None and weight_is_an_input:
        return "the last linear layer was not found", True
    if example.meaning == "logits":
        z = run(example.inside(example.logits), {"x": example.sample(seed=7)}, optimize=False)[example.logits]
        if ((z >= 0) & (z <= 1)).mean() > 0.9:
            return "all lie within", False  # scores that may look like probabilities
    return "", False


@settings(
    max_examples=sized(ci=100, nightly=400),
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_a_fused_graph_is_right_and_no_other_is_refused(data) -> None:
    example = data.draw(examples())
    artifact = data.draw(artifacts(example.shape, CLASSES, None if example.features is None else 6))
    outputs = data.draw(st.sampled_from(["same", "same", "probabilities", "all"]))
    refused, always = refusal(example, artifact)
    with tempfile.TemporaryDirectory() as folder:
        raw, fused = Path(folder) / "raw.onnx", Path(folder) / "fused.onnx"
        onnx.save(example.model, raw)
        try:
            report = fuse_onnx(
                raw, artifact, fused, returns=outputs, output_name=example.output, unproven=True
            )
        except FuseError as error:
            said = str(error)
            event(f"refused: {said.split(':', maxsplit=1)[0][:60]}")
            if not refused or not re.search(refused, said):
                raise
            assert not fused.exists()
            assert [p.name for p in Path(folder).iterdir()] == ["raw.onnx"]
            return
        event(f"fused into {example.meaning}")
        assert not always
        onnx.checker.check_model(str(fused), full_check=True)
        check(example, artifact, outputs, str(fused), report.nodes_after)


def check(example: Example, artifact: Artifact, outputs: str, fused: str, nodes: int) -> None:
    """Compare every output with the numpy reference, at batch 1 and more."""
    assert len(onnx.load(fused).graph.node) == nodes
    x = example.sample(seed=7)
    for batch in {len(x), 1 if example.batch == "n" else len(x)}:
        feed = x[:batch]
        probs, z, raw = reference(example, artifact, feed)
        near = TOLERANCE[example.dtype] * max(1.0, np.abs(z).max())
        keep = sure(z, artifact, near)
        # onnxruntime's optimiser fuses a MatMul and a Mul with a float32 factor, also in float64.
        got = run(fused, {"x": feed}, optimize=example.dtype != np.float64)
        if outputs == "same":
            want = shown(probs, z, example, artifact)
            assert list(got) == [o.name for o in example.model.graph.output]
            assert got[example.output].dtype == example.dtype
            assert got[example.output].shape == raw[example.output].shape
            own = got[example.output].astype(np.float64).reshape(len(feed), -1)
            if (
                example.meaning in ("logits", "log_probs")
                and artifact.steps
                and artifact.steps[-1].kind
                in (
                    "mixture",
                    "prob_table",
                )
            ):
                own, want = np.exp(own), np.exp(want)
            np.testing.assert_allclose(own[keep], want[keep], atol=near, rtol=0)
        else:
            p = got["probabilities"].astype(np.float64)
            np.testing.assert_allclose(p[keep], probs[keep], atol=near, rtol=0)
        if outputs == "all":
            check_all(got)
        check_others(example, shown(probs, z, example, artifact), raw, got, near, keep)


def check_all(got: dict) -> None:
    p = got["probabilities"]
    np.testing.assert_array_equal(got["confidence"], p.max(axis=1))
    np.testing.assert_array_equal(got["predicted"], p.argmax(axis=1))
    inner = np.linspace(0, 1, 16)[1:-1]
    np.testing.assert_array_equal(got["bin"], np.searchsorted(inner, got["confidence"].astype(np.float64)))
    assert got["logits"].shape == p.shape


def check_others(
    example: Example, calibrated: np.ndarray, raw: dict, got: dict, near: float, keep: np.ndarray
) -> None:
    """Outputs made of the scores are made of calibrated ones; others, and raw logits beside scores, stay."""
    makers = {name: node for node in example.model.graph.node for name in node.output}
    for name in example.others:
        if raw[name].dtype == np.int64:
            scores = got.get(example.output, got.get("probabilities"))
            np.testing.assert_array_equal(
                np.take_along_axis(scores, got[name][:, None], 1)[:, 0], scores.max(axis=1)
            )
            continue
        maker, want = makers[name], raw[name]
        sign = makers.get(maker.input[0])
        if maker.op_type == "Tanh" and sign is not None and sign.input[0] == example.output:
            want = np.tanh(-calibrated).reshape(want.shape)
        elif maker.op_type == "Identity" and example.meaning == "logits":
            want = calibrated.reshape(want.shape)
        rows = keep if len(want) == len(keep) else slice(None)
        np.testing.assert_allclose(got[name][rows], want[rows], atol=near, rtol=0)
