"""Tails of graphs that public projects export: each output is right or said to be raw, or all is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact, output_steps
from fuse_graphs import run
from onnx import numpy_helper

from calib_serve.artifact import LogitMap
from calib_serve.core.errors import ModelError
from calib_serve.fuse import fuse_onnx

K, D = 4, 8
RNG = np.random.default_rng(0)
W, B = RNG.normal(size=(D, K)), RNG.normal(size=K)
X = np.random.default_rng(1).normal(size=(300, D)).astype("f4")
LAYER = "z = Gemm(f, w, b) "
SOFT = LAYER + "p = Softmax <axis: int = 1> (z) "
NUMBERS = {
    "w": W.astype("f4"), "b": B.astype("f4"), "w1": W[:, :1].astype("f4"), "b1": B[:1].astype("f4"),
    "w2": W[::-1, :2].astype("f4"), "b2": B[:2].astype("f4"),
    "one": np.array(1), "ones": np.array([1]), "zeros": np.array([0]), "two": np.array([2]),
    "three": np.array([3]), "minus": np.array(-1), "th": np.float32(0.6), "half": np.float32(0.5),
    "tiny": np.float32(1e-7), "unit": np.float32(1), "kelvin": np.float32(1.7),
    "to11k": np.array([-1, 1, 1, K]), "to1k": np.array([-1, 1, K]), "tok11": np.array([-1, K, 1, 1]),
    "to11": np.array([-1, 1, 1]), "flat": np.array([-1]), "names": np.array([7, 9, 11, 13]),
    "mean": np.full((1, D), 0.25, "f4"), "std": np.full((1, D), 2, "f4"),
    "weights": np.arange(K).astype("f4"),
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A tail from features ``f``, and what its outputs are of calibrated logits z and probabilities p."""

    body: str
    outputs: str
    right: dict[str, Callable[[Any, Any], Any]]
    raw: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    classes: int = K
    options: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    batch: str = "n"
    fitted_on: str = "logits"
    shifts: bool = True


def top(p: Any, k: int) -> Any:
    return -np.sort(-p, axis=1)[:, :k]


def order(p: Any, k: int) -> Any:
    return np.argsort(-p, axis=1, kind="stable")[:, :k]


def entropy(p: Any) -> Any:
    return -(p * np.log(np.maximum(p, 1e-7))).sum(axis=1)


P, Z = {"p": lambda p, z: p}, {"z": lambda p, z: z}
MAX = "m = ReduceMax <axes: ints = [1], keepdims: int = 0> (p) "
TOP = "values, indices = TopK <axis: int = 1> (p, three) "
PF, ZF = f"float[n, {K}] p", f"float[n, {K}] z"

KINDS = {
    "softmax wrapper": Kind(SOFT, PF, P),
    "bare logits": Kind(LAYER, ZF, Z),
    "logits and probabilities": Kind(SOFT, f"{ZF}, {PF}", P, raw=("z",), options={"output_name": "p"}),
    "logits chosen, with probabilities": Kind(SOFT, f"{ZF}, {PF}", P | Z, options={"output_name": "z"}),
    "logits and embedding": Kind(
        LAYER + "e = Tanh(f)", f"{ZF}, float[n, {D}] e", Z, apart=("e",), options={"output_name": "z"}
    ),
    "confidence": Kind(SOFT + MAX, f"{PF}, float[n] m", P | {"m": lambda p, z: p.max(axis=1)}),
    "confidence and class alone": Kind(
        SOFT + MAX + "c = ArgMax <axis: int = 1, keepdims: int = 0> (p)", "float[n] m, int64[n] c",
        {"m": lambda p, z: p.max(axis=1), "c": lambda p, z: p.argmax(axis=1)}, options={"output_name": "p"},
    ),
    "entropy": Kind(
        SOFT + "q = Max(p, tiny) l = Log(q) t = Mul(p, l) s = ReduceSum <keepdims: int = 0> (t, ones) h "
        "= Neg(s)",
        f"{PF}, float[n] h", P | {"h": lambda p, z: entropy(p)},
    ),
    "margin": Kind(
        SOFT + "v, i = TopK <axis: int = 1> (p, two) a = Gather <axis: int = 1> (v, zeros) "
        "c = Gather <axis: int = 1> (v, ones) m = Sub(a, c)",
        f"{PF}, float[n, 1] m", P | {"m": lambda p, z: top(p, 1) - top(p, 2)[:, 1:]},
    ),
    "energy": Kind(
        SOFT + "e = ReduceLogSumExp <axes: ints = [1], keepdims: int = 0> (z)", f"{PF}, float[n] e",
        P | {"e": lambda p, z: np.log(np.exp(z).sum(axis=1))},
    ),
    "expected value": Kind(
        SOFT + "v = MatMul(p, weights)", f"{PF}, float[n] v", P | {"v": lambda p, z: p @ np.arange(K)}
    ),
    "top k": Kind(
        SOFT + TOP, "float[n, 3] values, int64[n, 3] indices",
        {"values": lambda p, z: top(p, 3), "indices": lambda p, z: order(p, 3)}, options={"output_name": "p"},
    ),
    "top k of logits beside": Kind(
        LAYER + "values, indices = TopK <axis: int = 1> (z, three)", f"{ZF}, float[n, 3] values, "
        f"int64[n, 3] indices",
        Z | {"values": lambda p, z: top(z, 3), "indices": lambda p, z: order(z, 3)},
        options={"output_name": "z"},
    ),
    "reject below a threshold": Kind(
        SOFT + MAX + "r = Less(m, th) a = ArgMax <axis: int = 1, keepdims: int = 0> (p) c = Where(r, "
        "minus, a)",
        f"{PF}, int64[n] c", P | {"c": lambda p, z: np.where(p.max(axis=1) < 0.6, -1, p.argmax(axis=1))},
    ),
    "alarm of one class": Kind(
        SOFT + "q = Gather <axis: int = 1> (p, two) c = Greater(q, half)", f"{PF}, bool[n, 1] c",
        P | {"c": lambda p, z: p[:, 2:3] > 0.5},
    ),
    "flag by a slice": Kind(
        SOFT + "q = Slice(p, ones, three, ones) s = ReduceSum <keepdims: int = 0> (q, ones) c = "
        "Greater(s, half)",
        f"{PF}, bool[n] c", P | {"c": lambda p, z: p[:, 1:3].sum(axis=1) > 0.5},
    ),
    "class names": Kind(
        SOFT + "a = ArgMax <axis: int = 1, keepdims: int = 0> (z) c = Gather(names, a)", f"{PF}, int64[n] c",
        P | {"c": lambda p, z: np.array([7, 9, 11, 13])[p.argmax(axis=1)]},
    ),
    "a branch on the confidence": Kind(
        SOFT + MAX + "t = ReduceMax <keepdims: int = 0> (m) u = Greater(t, th) c = If (u) <then_branch = "
        "g1 () => (float[n] o1) { o1 = Identity(m) }, else_branch = g2 () => (float[n] o2) { o2 = Neg(m) }>",
        f"{PF}, float[n] c", P | {"c": lambda p, z: p.max(axis=1) * np.where(p.max() > 0.6, 1, -1)},
    ),
    "log softmax": Kind(
        LAYER + "l = LogSoftmax <axis: int = 1> (z)", f"float[n, {K}] l", {"l": lambda p, z: np.log(p)}
    ),
    "both softmaxes": Kind(
        SOFT + "l = LogSoftmax <axis: int = 1> (z)", f"{PF}, float[n, {K}] l",
        P | {"l": lambda p, z: np.log(p)}, options={"output_name": "p"},
    ),
    "fixed temperature": Kind(
        LAYER + "s = Div(z, kelvin) p = Softmax <axis: int = 1> (s) c = ArgMax <axis: int = 1, "
        "keepdims: int = 0> (z)",
        f"{PF}, int64[n] c", {},
    ),
    "normalised inside": Kind("i = Sub(f, mean) h = Div(i, std) z = Gemm(h, w, b) p = Softmax(z)", PF, {}),
    "NHWC of Keras": Kind(
        LAYER + "r = Reshape(z, to11k) p = Softmax <axis: int = -1> (r)", f"float[n, 1, 1, {K}] p",
        {"p": lambda p, z: p[:, None, None]},
    ),
    "sequence of one": Kind(
        LAYER + "r = Reshape(z, to1k) p = Softmax <axis: int = 2> (r)", f"float[n, 1, {K}] p",
        {"p": lambda p, z: p[:, None]},
    ),
    "shaped after the softmax": Kind(
        SOFT + "r = Reshape(p, to1k)", f"float[n, 1, {K}] r", {"r": lambda p, z: p[:, None]}
    ),
    "fully convolutional": Kind(
        LAYER + "r = Reshape(z, tok11) p = Softmax <axis: int = 1> (r) c = ArgMax <axis: int = 1> (r)",
        f"float[n, {K}, 1, 1] p, int64[n, 1, 1, 1] c",
        {"p": lambda p, z: p[:, :, None, None], "c": lambda p, z: p.argmax(axis=1)[:, None, None, None]},
    ),
    "one row without its axis": Kind(
        SOFT + "r = Squeeze(p, zeros)", f"float[{K}] r", {"r": lambda p, z: p[0]}, batch="1",
        options={"output_name": "r"},
    ),
    "voice activity": Kind(
        "z = Gemm(f, w1, b1) p = Sigmoid(z)", "float[n, 1] p", {"p": lambda p, z: p[:, 1:]}, classes=2
    ),
    "end of turn, squeezed": Kind(
        "z = Gemm(f, w1, b1) s = Squeeze(z, ones) p = Sigmoid(s) c = Greater(p, half)",
        "float[n] p, bool[n] c", {"p": lambda p, z: p[:, 1], "c": lambda p, z: p[:, 1] > 0.5}, classes=2,
    ),
    "wake word, shaped": Kind(
        "z = Gemm(f, w1, b1) s = Sigmoid(z) p = Reshape(s, to11)", "float[n, 1, 1] p",
        {"p": lambda p, z: p[:, 1:, None]}, classes=2,
    ),
    "both sides of a sigmoid": Kind(
        "z = Gemm(f, w1, b1) s = Sigmoid(z) r = Sub(unit, s) q = Concat <axis: int = 1> (r, s)",
        "float[n, 1] s, float[n, 2] q",
        {"s": lambda p, z: p[:, 1:], "q": lambda p, z: p}, classes=2, options={"output_name": "s"},
    ),
    "second column of two": Kind(
        "z = Gemm(f, w2, b2) s = Softmax <axis: int = 1> (z) p = Gather <axis: int = 1> (s, one)",
        "float[n] p",
        {"p": lambda p, z: p[:, 1]}, classes=2, options={"output_name": "s"},
    ),
    "two heads": Kind(
        SOFT + "y = Gemm(f, w2, b2) g = Softmax(y) d = ArgMax <axis: int = 1> (g)",
        f"{PF}, float[n, 2] g, int64[n, 1] d", P, apart=("g", "d"),
    ),
    "mean of an ensemble": Kind(
        SOFT + "y = Gemm(o, w, b) q = Softmax(y) m = Mean(p, q) c = ArgMax <axis: int = 1, keepdims: "
        "int = 0> (m)",
        f"float[n, {K}] m, {PF}, int64[n] c", {}, raw=("p",), fitted_on="probabilities",
        options={"output_name": "m"},
    ),
    "softmax in parts": Kind(
        LAYER + "h = ReduceMax <axes: ints = [1]> (z) i = Sub(z, h) e = Exp(i) s = ReduceSum(e, ones) p "
        "= Div(e, s) "
        "c = ArgMax <axis: int = 1, keepdims: int = 0> (z)",
        f"{PF}, int64[n] c", {}, fitted_on="probabilities",
    ),
    "clipped": Kind(SOFT + "q = Clip(p, tiny, unit)", f"float[n, {K}] q", {}, fitted_on="probabilities"),
    "scores of each frame": Kind(
        LAYER + "r = Unsqueeze(z, ones) t = Concat <axis: int = 1> (r, r) p = Softmax <axis: int = 2> (t)",
        f"float[n, 2, {K}] p", {}, refused="no output is declared as scores",
    ),
    "class alone, of logits": Kind(
        LAYER + "c = ArgMax <axis: int = 1, keepdims: int = 0> (z)", "int64[n] c", {},
        refused=r"no output is declared as scores \(n, 4\)",
    ),
    "class alone, of a named tensor": Kind(
        LAYER + "c = ArgMax <axis: int = 1, keepdims: int = 0> (z)", "int64[n] c",
        {"c": lambda p, z: z.argmax(axis=1)}, options={"output_name": "z"},
    ),
}  # fmt: skip


def build(kind: Kind, folder: Path) -> onnx.ModelProto:
    n = kind.batch
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> graph (float[{n}, {D}] x) => ({kind.outputs}) '
        f"{{ f = Identity(x) o = Neg(x) {kind.body} }}"
    )
    model = onnx.parser.parse_model(text)
    read = {name for node in model.graph.node for name in node.input}
    constants = [numpy_helper.from_array(np.asarray(v), k) for k, v in NUMBERS.items() if k in read]
    model.graph.initializer.extend(constants)
    onnx.save(model, folder / "raw.onnx")
    return model


def logits(kind: Kind, model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """What the artifact acts on, by the raw graph: logits, (0, z) of one, the logarithm of probabilities."""
    name = "p" if kind.fitted_on == "probabilities" else "z"
    if kind.fitted_on == "probabilities" and "q" in kind.outputs:
        name = "q"
    name = "m" if "output_name" in kind.options and kind.options["output_name"] == "m" else name
    if "s = Div(z, kelvin)" in kind.body:
        name = "s"
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    if name not in [o.name for o in probe.graph.output]:
        probe.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    raw = run(probe, {"x": x}, optimize=False)[name].astype("f8")
    if kind.fitted_on == "probabilities":
        return np.log(raw)
    raw = raw.reshape(len(x), -1)
    return np.concatenate([0 * raw, raw], axis=1) if raw.shape[1] == 1 else raw


STEPS = {
    "temperature": lambda k: (LogitMap.temperature(2.0),),
    "bias": lambda k: (LogitMap(np.ones(k), np.linspace(1, -1, k)),),
    "table": lambda k: output_steps("classwise", k, np.random.default_rng(0)),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", KINDS)
def test_an_export_of_a_public_project_is_right_or_says_what_is_raw(
    name: str, step: str, tmp_path: Path
) -> None:
    kind = KINDS[name]
    model = build(kind, tmp_path)
    outputs = kind.fitted_on
    if kind.classes == 2:
        outputs = "logits" if "w2" in kind.body else "logit"
    fitted = artifact(*STEPS[step](kind.classes), classes=kind.classes, outputs=outputs)
    out = tmp_path / "fused.onnx"
    if kind.refused:
        with pytest.raises(ModelError, match=kind.refused):
            fuse_onnx(tmp_path / "raw.onnx", fitted, out, **kind.options, unproven=True)
        assert not out.exists()
        return
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, out, **kind.options, unproven=True)
    x = X[:1] if kind.batch == "1" else X
    raw, got = run(model, {"x": x}, optimize=False), run(str(out), {"x": x}, optimize=False)
    assert list(got) == list(raw)
    assert [(v.dtype, v.shape) for v in got.values()] == [(v.dtype, v.shape) for v in raw.values()]
    statuses = {one.name: one for one in report.statuses}
    assert list(statuses) == list(raw)
    z = logits(kind, model, x)
    p = fitted.of_logits(z)
    for one in fitted.logit_maps:
        z = one(z)
    z = z if fitted.table is None else np.log(p)  # as returned behind a table
    clear = unturned(p) if step == "table" else np.ones(len(p), bool)
    defaults = {"c": lambda p, z: p.argmax(axis=1), "m": P["p"], "p": P["p"], "q": P["p"]}
    for output, one in statuses.items():
        if one.status in ("left raw", "independent"):
            np.testing.assert_array_equal(got[output], raw[output])
            said = any(f"the output {output!r} is left raw" in what for what in report.done)
            assert said == (one.status == "left raw")
            continue
        want = (kind.right | (defaults if not kind.right else {}))[output](p, z)
        check(got[output], want, clear)
    left = {k for k, one in statuses.items() if one.status == "left raw"}
    assert {k for k, one in statuses.items() if one.status == "independent"} == set(kind.apart)
    if step != "table":
        assert left == set(kind.raw)


def unturned(p: np.ndarray) -> np.ndarray:
    """Rows without ties, which rounding may turn."""
    ranked = -np.sort(-p, axis=1)
    return (ranked[:, :-1] - ranked[:, 1:] > 1e-5).all(axis=1)


def check(got: np.ndarray, want: Any, clear: np.ndarray) -> None:
    """Equal, but for rounding; labels and flags exactly, where rounding cannot turn them."""
    want = np.asarray(want)
    assert got.shape == want.shape
    rows = clear if len(want) == len(clear) else np.ones(len(want), bool)
    if got.dtype.kind in "ib":
        assert (got[rows] == want[rows]).mean() > 0.995
        return
    near = np.abs(got.astype("f8") - want) <= 2e-4 + 2e-4 * np.abs(want)
    assert near[rows].mean() > 0.99, np.abs(got - want).max()
