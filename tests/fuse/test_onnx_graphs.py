"""Whatever scores a graph returns, wherever its logits are made and whatever calibrates them: one property.

A fused graph gives what the artifact makes, in numpy, of the raw graph's scores; labels follow; every other
output is as it was, bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from deciding import deciding
from fuse_artifacts import artifact, head, output_steps
from fuse_graphs import OPSETS, TYPES, run
from fuse_texts import graph
from numpy.typing import NDArray
from onnx import numpy_helper

from calib_serve import Artifact
from calib_serve.artifact import Examples, InputShift, LogitMap
from calib_serve.fuse import fuse_onnx
from calib_serve.scores import (
    LABELS,
    ONE_COLUMN,
    Outputs,
    from_probs,
    log_softmax,
    sigmoid,
    softmax,
    to_logits,
)

WIDTH, CLASSES = 5, 3
NEAR = {"f8": 1e-9, "f4": 1e-5, "f2": 1e-2}
NAMES = {"f8": "double", "f4": "float", "f2": "float16"}

LAYERS = {
    "gemm": "z = Gemm(f, w, b)",
    "transposed": "z = Gemm <alpha: float = 0.5, beta: float = 2.0, transB: int = 1> (f, wt, b)",
    "no bias": "z = Gemm(f, w)",
    "matmul": "z = MatMul(f, w)",
    "sum": "p0 = MatMul(f, w) z = Add(p0, row)",
    "one number": "p0 = MatMul(f, w) z = Add(half, p0)",
    "dropout": "d0 = Gemm(f, w, b) d1 = Dropout(d0) z = Identity(d1)",
    "none": "n0 = Gemm(f, w, b) z = Neg(n0)",
    "read by another": "z = Gemm(f, w, b) other = Neg(z)",
}


@dataclass(frozen=True)
class Tail:
    """How ``y`` is made of ``z``; ``kind`` must be told where ``bare``: nothing in the graph shows it."""

    body: str
    kind: Outputs
    bare: bool = False
    sizes: str = ""
    imports: tuple[str, ...] = ()


_SHARES = "e = Exp(z) t = ReduceL1 <axes: ints = [1]> (e) s = Div(e, t)"  # the same at opsets before 18
TAILS = {
    "logits": Tail("y = Identity(z)", "logits"),
    "softmax": Tail("y = Softmax <axis: int = -1> (z)", "probabilities"),
    "log softmax": Tail("s = LogSoftmax(z) y = Identity(s)", "log_probs"),
    "times one": Tail("s = Softmax(z) y = Mul(s, unit)", "probabilities"),
    "bare probabilities": Tail(_SHARES + " k = Neg(s) y = Neg(k)", "probabilities", bare=True),
    "bare log-probabilities": Tail(_SHARES + " y = Log(s)", "log_probs", bare=True),
    "one logit": Tail("y = Identity(z)", "logit"),
    "sigmoid of one": Tail("y = Sigmoid(z)", "probability"),
    "bare probability": Tail("s = Sigmoid(z) k = Neg(s) y = Neg(k)", "probability", bare=True),
    "labels": Tail("y = Sigmoid(z)", "label_probabilities"),
    "logits of labels": Tail("y = Identity(z)", "label_logits", bare=True),
    "bare labels": Tail("s = Sigmoid(z) k = Neg(s) y = Neg(k)", "label_probabilities", bare=True),
    "pooled": Tail("z4 = Reshape(z, pool) y = Identity(z4)", "logits", sizes=", 1, 1"),
    "pooled softmax": Tail(
        "z4 = Reshape(z, pool) y = Softmax <axis: int = 1> (z4)", "probabilities", sizes=", 1, 1"
    ),
    "pooled bare probabilities": Tail(
        "z4 = Reshape(z, pool) s = Softmax <axis: int = 1> (z4) k = Neg(s) y = Neg(k)",
        "probabilities",
        bare=True,
        sizes=", 1, 1",
    ),
}
KINDS = [
    "none", "temperature", "vector", "matrix", "bias", "dirichlet", "mixture", "top", "classwise", "head",
    "shift", "shift and clip", "decides",
]  # fmt: skip


def raw_model(tail: Tail, layer: str, dtype: str, opset: int, columns: int) -> onnx.ModelProto:
    """Features, a last layer, scores; beside them a label where there are classes, and outputs of others."""
    t = NAMES[dtype]
    label = (
        "" if columns == 1 or tail.kind in LABELS else "label = ArgMax <axis: int = 1, keepdims: int = 0> (y)"
    )
    shown = [f"{t}[n, {columns}{tail.sizes}] y", f"{t}[n, {WIDTH}] features"]
    shown += [f"{t}[n, {columns}] other"] if "other" in LAYERS[layer] else []
    shown += [f"int64[n{tail.sizes}] label"] if label else []
    body = f"f = Tanh(x) features = Neg(f) {LAYERS[layer]} {tail.body} {label}"
    if opset >= 18:
        body = body.replace("ReduceL1 <axes: ints = [1]> (e)", "ReduceL1(e, axis1)")
    made = graph(body, f"{t}[n, {WIDTH}] x", ", ".join(shown), f'"" : {opset}')
    rng = np.random.default_rng(columns)
    w, b = rng.normal(size=(WIDTH, columns)), rng.normal(size=columns)
    numbers = {"w": w, "wt": w.T, "b": b, "row": b[None], "half": np.array([[0.5]]), "unit": np.array(1.0)}
    whole = {"pool": np.array([-1, columns, 1, 1]), "axis1": np.array([1])}
    read = {name for node in made.graph.node for name in node.input}
    for name in read & numbers.keys():
        made.graph.initializer.append(numpy_helper.from_array(numbers[name].astype(dtype), name))
    for name in read & whole.keys():
        made.graph.initializer.append(numpy_helper.from_array(whole[name], name))
    return made


SHARES = {
    "probabilities": softmax,
    "log_probs": log_softmax,
    "probability": sigmoid,
    "label_probabilities": sigmoid,
}


def fitted_for(kind: str, tail: Tail, layer: str, columns: int) -> Artifact | None:
    """An artifact of this kind for these scores; None where there can be none."""
    rng = np.random.default_rng(len(kind))
    labels, classes = tail.kind in LABELS, 2 if tail.kind in ONE_COLUMN else columns
    if labels and kind in ("matrix", "dirichlet", "mixture", "top", "decides"):
        return None
    if kind == "head" and (tail.bare or tail.kind in ONE_COLUMN or labels or tail.sizes or layer == "none"):
        return None
    fitted_on = tail.kind
    # Behind an activation the artifact acts on what the activation reads.
    if not tail.bare and tail.kind in ("probabilities", "log_probs"):
        fitted_on = "logits"
    if not tail.bare and tail.kind in ("probability", "label_probabilities"):
        fitted_on = "label_logits" if labels else "logit"
    if tail.bare and tail.kind in ("probabilities", "log_probs"):  # either is the other's logarithm
        fitted_on = "log_probs" if tail.kind == "probabilities" else "probabilities"
    steps: tuple = ()
    if kind.startswith("shift"):
        clip = (-0.5, 0.75) if "clip" in kind else (None, None)
        steps = (InputShift(0.25 * rng.normal(size=WIDTH), *clip), LogitMap.temperature(2.0))
    elif kind == "head":
        steps = (head(WIDTH, classes, 1 + columns % 2, rng), LogitMap.temperature(1.5))
    elif kind == "decides":
        steps = (LogitMap.temperature(2.0),)
    else:
        steps = output_steps(kind, classes, rng)
    made = artifact(*steps, classes=classes, outputs=fitted_on)
    # The fit's own scores, which must be proved too.
    z = np.random.default_rng(5).normal(size=(4, columns))
    scores = z if fitted_on in ("logits", "logit", "label_logits") else SHARES[fitted_on](z)
    own = to_logits(scores, fitted_on)
    made = replace(made, examples=Examples(own, made.of_logits(own)))
    return deciding(made, "raps") if kind == "decides" else made


def logits_of(scores: NDArray, tail: Tail, fitted: Artifact) -> NDArray:
    """What the output steps act on: the graph's logits, or those of scores that nothing shows to be made."""
    if tail.bare or tail.kind in ("logit",):
        return to_logits(scores, tail.kind)
    if tail.kind == "probability":
        return np.concatenate([np.zeros_like(scores), scores], axis=1)
    return scores


def clear(fitted: Artifact, logits: NDArray, near: float) -> NDArray[np.bool_]:
    """Rows that no rounding moves across an edge of a table or from one class to another."""
    if fitted.table is None:
        return np.ones(len(logits), bool)
    p = replace(fitted, steps=fitted.output_steps[:-1]).of_logits(logits)
    if fitted.is_multilabel:
        return (np.abs(p[:, :, None] - fitted.table.edges[None]) > near).all(axis=(1, 2))
    ordered = np.sort(p, axis=1)
    far = (np.abs(p[:, :, None] - fitted.table.edges.reshape(1, 1, -1)) > near).all(axis=(1, 2))
    return far & (ordered[:, -1] - ordered[:, -2] > near)


def check(
    tail: Tail, layer: str, fitted: Artifact, dtype: str, opset: int, returns: str, folder: Path
) -> None:
    columns = 1 if tail.kind in ONE_COLUMN else CLASSES
    model = raw_model(tail, layer, dtype, opset, columns)
    onnx.save(model, folder / "raw.onnx")
    told = tail.kind if tail.bare or tail.kind in LABELS or tail.kind == "logit" else None
    report = fuse_onnx(
        folder / "raw.onnx", fitted, folder / "fused.onnx", output_name="y", returns=returns, outputs=told,
        unproven=True
    )  # fmt: skip
    onnx.checker.check_model(str(folder / "fused.onnx"), full_check=True)
    check_use(onnx.load(folder / "fused.onnx").graph)
    assert report.max_abs_diff <= report.tolerance
    plain = not (tail.bare or tail.sizes) and layer not in ("none", "read by another")
    if (
        plain
        and returns == "same"
        and fitted.steps
        and all(step.kind == "logit_map" for step in fitted.steps)
    ):
        no_node = all(step.on == "logits" for step in fitted.logit_maps) and fitted.sets is None
        assert (report.nodes_after == report.nodes_before) == no_node
    x = np.random.default_rng(3).normal(size=(40, WIDTH)).astype(dtype)
    shifted = x if fitted.input_shift is None else fitted.input_shift(x).astype(dtype)
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name in ("z", "f"):
        probe.graph.output.append(onnx.helper.make_tensor_value_info(name, TYPES[np.dtype(dtype)], None))
    raw = run(probe, {"x": shifted}, optimize=False)
    got = run(str(folder / "fused.onnx"), {"x": x}, optimize=False)
    scores = raw["y"] if tail.bare else raw["z"]
    if fitted.head is not None:
        scores = fitted.head(raw["f"].astype("f8"))
    logits = logits_of(scores.astype("f8").reshape(len(x), columns), tail, fitted)
    probs, near = fitted.of_logits(logits), NEAR[dtype] * max(1.0, np.abs(logits).max())
    sure = clear(fitted, logits, near)
    assert sure.mean() > 0.25
    check_scores(got, raw, tail, fitted, logits, probs, sure, near, returns)
    exact = dtype != "f2" or fitted.input_shift is None  # onnxruntime adds float16 in float32
    np.testing.assert_allclose(got["features"], raw["features"], rtol=0, atol=0 if exact else near)
    if "other" in raw:
        check_other(got["other"], raw["other"], report, tail, fitted, logits, probs, sure, near)
    if "label" in raw:
        shown = got["y" if returns == "same" else "probabilities"].reshape(len(x), columns)
        assert got["label"].shape == raw["label"].shape
        chosen = np.take_along_axis(shown, got["label"].reshape(-1, 1), 1)[:, 0]
        np.testing.assert_array_equal(chosen[sure], shown.max(axis=1)[sure])
    if fitted.sets is not None and fitted.abstain is not None:
        far = np.abs(probs.max(axis=1) - fitted.abstain.threshold) > near
        assert got["abstain"][far].tolist() == fitted.abstain(probs)[far].tolist()
        assert (got["set"] == fitted.sets(probs)).mean() > 0.99


def check_use(fused: onnx.GraphProto) -> None:
    """Every node and every constant is read, or shown: nothing is computed for nobody."""
    read = {name for node in fused.node for name in node.input} | {value.name for value in fused.output}
    unused = [node.name for node in fused.node if read.isdisjoint(node.output)]
    assert not unused + [one.name for one in fused.initializer if one.name not in read]


def check_other(other, raw, report, tail, fitted, logits, probs, sure, near) -> None:
    """What reads the logits reads calibrated ones where there are any, and else is said to be raw."""
    ((status, reason),) = ((one.status, one.reason) for one in report.statuses if one.name == "other")
    behind = "table" if fitted.table is not None else "mixture" if fitted.mixture is not None else ""
    before = tail.sizes or (tail.bare and tail.kind != "label_logits")  # z is what the scores are made of
    raw_alone = before or (behind and "oftmax" in tail.body)
    assert status == ("left raw" if raw_alone else "follows")
    if raw_alone:
        assert any("warning: the output 'other' is left raw: it is made of" in what for what in report.done)
        assert before or f"behind a {behind} there are no calibrated ones" in reason
        np.testing.assert_allclose(other, raw, rtol=0, atol=near if fitted.input_shift else 0)
        return
    for step in fitted.logit_maps:
        logits = step(logits)
    if fitted.table is not None:
        assert fitted.is_multilabel
        logits = np.log(probs) - np.log1p(-probs)
    wide = logits[:, 1:] - logits[:, :1] if raw.shape[1] == 1 else logits
    np.testing.assert_allclose(other[sure], -wide[sure], atol=near, rtol=near)


def check_scores(got, raw, tail, fitted, logits, probs, sure, near, returns) -> None:
    """The chosen output, or those that were asked for, against numpy."""
    if returns == "same":
        assert (got["y"].dtype, got["y"].shape) == (raw["y"].dtype, raw["y"].shape)
        shown = got["y"].astype("f8").reshape(len(probs), -1)
        want = from_probs(probs, raw["y"].astype("f8").reshape(shown.shape), tail.kind)
        if tail.kind == "logits":
            plain = fitted.mixture is None and fitted.table is None
            want = logits
            for step in fitted.logit_maps:
                want = step(want)
            shown, want = (shown, want) if plain else (softmax(shown), probs)
        np.testing.assert_allclose(shown[sure], want[sure], rtol=near, atol=near)
        return
    shown = got["probabilities"]
    np.testing.assert_allclose(shown[sure], probs[sure], rtol=near, atol=near)
    if returns != "all":
        return
    inner = (np.arange(1, 15) / 15).astype("f8")
    confidence = np.maximum(shown, 1 - shown) if fitted.is_multilabel else shown.max(axis=1)
    np.testing.assert_array_equal(got["confidence"], confidence)
    predicted = shown > 0.5 if fitted.is_multilabel else shown.argmax(axis=1)
    np.testing.assert_array_equal(got["predicted"], predicted)
    np.testing.assert_array_equal(got["bin"], (confidence[..., None].astype("f8") > inner).sum(axis=-1))
    assert got["logits"].shape == shown.shape


def graphs() -> Iterator[object]:
    """Every tail with every artifact; layers, types, opsets and what is returned take turns."""
    turns = itertools.cycle(itertools.product(LAYERS, ["f4", "f8", "f4", "f2"]))
    for n, (tail, kind) in enumerate(itertools.product(TAILS, KINDS)):
        layer, dtype = next(turns)
        if dtype == "f2" and kind in ("top", "classwise"):
            dtype = "f4"  # half of all rows would be near an edge
        returns = ("same", "all", "same", "probabilities")[n % 4]
        name = f"{tail}, {layer}, {kind}, {dtype}"
        yield pytest.param(tail, layer, kind, dtype, OPSETS[n % len(OPSETS)], returns, id=name)


@pytest.mark.parametrize(("tail", "layer", "kind", "dtype", "opset", "returns"), [*graphs()])
def test_a_fused_graph_gives_what_the_artifact_makes_of_the_raw_one_s_scores(
    tail: str, layer: str, kind: str, dtype: str, opset: int, returns: str, tmp_path: Path
) -> None:
    columns = 1 if TAILS[tail].kind in ONE_COLUMN else CLASSES
    fitted = fitted_for(kind, TAILS[tail], layer, columns)
    if fitted is not None:
        check(TAILS[tail], layer, fitted, dtype, opset, returns, tmp_path)
