"""Small ONNX classifiers of every shape a fuser meets, with what a test must know about each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

CLASSES = 4
TYPES = {
    np.dtype("f4"): TensorProto.FLOAT,
    np.dtype("f8"): TensorProto.DOUBLE,
    np.dtype("f2"): TensorProto.FLOAT16,
}


def _newest() -> int:
    """The newest opset that both this onnx writes and this onnxruntime reads."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    for opset in range(onnx.defs.onnx_opset_version(), 13, -1):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        try:
            ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        except Exception:
            continue
        return opset
    return 13


NEWEST = _newest()
OPSETS = sorted({*(opset for opset in (13, 15, 17, 18, 20, 21, 22) if opset <= NEWEST), NEWEST})


@dataclass
class Builder:
    """Collects nodes and initializers; every call gives the name of what it made."""

    dtype: np.dtype
    rng: np.random.Generator
    prefix: str = ""
    nodes: list = field(default_factory=list)
    initializers: list = field(default_factory=list)
    inputs: list = field(default_factory=list)
    count: int = 0

    def fresh(self, wish: str) -> str:
        self.count += 1
        return f"{self.prefix}{wish}{self.count}"

    def number(self, array, dtype=None, name: str | None = None) -> str:
        name = name or self.fresh("w")
        self.initializers.append(numpy_helper.from_array(np.asarray(array, dtype or self.dtype), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.number(self.rng.normal(0, scale, shape))

    def node(self, op: str, *inputs: str, output: str | None = None, domain: str = "", **attributes) -> str:
        output = output or self.fresh("v")
        # Node names are optional in ONNX: half of ours have none.
        name = self.fresh("n") if self.count % 2 else ""
        self.nodes.append(
            helper.make_node(op, list(inputs), [output], name=name, domain=domain, **attributes)
        )
        return output

    def model(self, inputs, outputs, *, opset: int = 17, domains: tuple = (), ir_version: int = 10):
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
        return onnx.shape_inference.infer_shapes(model)  # outputs must state their shapes


@dataclass(frozen=True)
class Example:
    """A model, its one input's shape without the batch, and the names of what lies inside."""

    model: onnx.ModelProto
    shape: tuple[int, ...]
    batch: int | str
    dtype: np.dtype
    output: str
    logits: str
    features: str | None
    meaning: str
    others: tuple[str, ...] = ()

    def sample(self, seed: int = 0) -> np.ndarray:
        n = self.batch if isinstance(self.batch, int) else 6
        return np.random.default_rng(seed).normal(size=(n, *self.shape)).astype(self.dtype)

    def inside(self, name: str) -> onnx.ModelProto:
        """The model with a tensor from inside among its outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        if name not in [o.name for o in model.graph.output]:
            model.graph.output.append(helper.make_tensor_value_info(name, TYPES[self.dtype], None))
        return model


def run(model: onnx.ModelProto | str, feeds: dict, *, optimize: bool = True) -> dict[str, np.ndarray]:
    """Every output by its name."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@st.composite
def examples(draw) -> Example:
    """Models with odd starts, odd tails, odd names, and tensors that have other uses."""
    dtype = np.dtype(draw(st.sampled_from(["f4", "f4", "f4", "f8", "f2"])))
    b = Builder(dtype, np.random.default_rng(draw(st.integers(0, 99))), draw(st.sampled_from(ODD_NAMES)))
    image = dtype != np.float64 and draw(st.booleans())  # onnxruntime has no Conv on float64
    shape = (2, 5, 5) if image else (6,)
    batch = draw(st.sampled_from(["n", "n", 1, 3]))
    x = _start(draw, b, "x", shape)
    features = _body_of_images(draw, b, x) if image else _body_of_rows(draw, b, x)
    weight = None
    logits, tail_features = features, None
    pooled = image and draw(st.integers(0, 5)) == 0  # fully convolutional: scores (n, K, 1, 1)
    if pooled:
        conv = b.node("Conv", x, b.normal(CLASSES, 2, 1, 1), b.normal(CLASSES))
        logits = b.node("GlobalAveragePool", b.node("Tanh", conv))
    elif draw(st.integers(0, 9)):
        logits, weight = _last_layer(draw, b, features, width=6)
        tail_features = features
    else:
        logits = b.node("Slice", features, *(b.number([v], "i8") for v in (0, CLASSES, 1)))
    wish = draw(st.sampled_from([None, "probabilities", "logits", "calib_serve.Mul", "output 1/ü"]))
    meaning, activation = draw(st.sampled_from(TAILS))
    output = logits
    if activation:
        axis = {} if activation == "Sigmoid" else {"axis": 1 if pooled else draw(st.sampled_from([1, -1]))}
        output = b.node(activation, logits, **axis)
    if wish or draw(st.booleans()):
        output = b.node("Identity", output, output=wish)
    outputs, others = [_info(output, dtype)], []
    if draw(st.booleans()):
        others += _other_uses(draw, b, logits, output, weight)
    outputs += [helper.make_tensor_value_info(n, t, None) for n, t in others]
    opset = draw(st.sampled_from(OPSETS))
    inputs = [helper.make_tensor_value_info("x", TYPES[dtype], [batch, *shape]), *b.inputs]
    model = b.model(inputs, outputs, opset=opset)
    return Example(
        model, shape, batch, dtype, output, logits, tail_features, meaning, tuple(n for n, _ in others)
    )


ODD_NAMES = ["", "calib_serve.", "a b/", "módel::", "logits"]
TAILS = [
    ("logits", None),
    ("logits", None),
    ("probabilities", "Softmax"),
    ("log_probs", "LogSoftmax"),
    ("sigmoid", "Sigmoid"),
]


def _info(name: str, dtype: np.dtype):
    return helper.make_tensor_value_info(name, TYPES[dtype], None)


def _start(draw, b: Builder, x: str, shape: tuple[int, ...]) -> str:
    """A normalisation, or none, or one whose input has another use too."""
    kind = draw(st.sampled_from(["none", "sub div", "mul add", "batch norm", "twice", "both sides"]))
    channel = (1, shape[0], *(1,) * (len(shape) - 1))
    if kind == "sub div":
        return b.node("Div", b.node("Sub", x, b.normal(*channel)), b.number(np.full(channel, 0.5)))
    if kind == "mul add":
        return b.node("Add", b.number(np.full(channel[1:], 0.25)), b.node("Mul", x, b.number(0.5)))
    if kind == "batch norm":
        ones = np.ones(shape[0])
        numbers = [b.number(n) for n in (ones * 0.7, ones * 0.1, ones * 0.2, ones * 1.5)]
        return b.node("BatchNormalization", x, *numbers)
    if kind == "twice":
        return b.node("Add", b.node("Sub", x, b.number(0.5)), b.node("Relu", x))
    if kind == "both sides":
        return b.node("Mul", x, x)
    return x


def _body_of_images(draw, b: Builder, x: str) -> str:
    kind = draw(st.sampled_from(["conv", "padded", "full", "flatten"]))
    if kind == "flatten":
        return _dense(b, b.node("Flatten", x), 50, 6)
    size, pad = (5, 0) if kind == "full" else (3, int(kind == "padded"))
    y = b.node("Conv", x, b.normal(6, 2, size, size, scale=0.3), kernel_shape=[size] * 2, pads=[pad] * 4)
    if draw(st.booleans()):
        ones = np.ones(6)
        y = b.node("BatchNormalization", y, *(b.number(n) for n in (ones, ones * 0.1, ones * 0.2, ones * 2)))
    return b.node("Flatten", b.node("GlobalAveragePool", b.node("Relu", y)))


def _body_of_rows(draw, b: Builder, x: str) -> str:
    return _dense(b, x, 6, 6) if draw(st.booleans()) else b.node("Tanh", x)


def _dense(b: Builder, x: str, width: int, out: int) -> str:
    return b.node("Tanh", b.node("Gemm", x, b.normal(width, out, scale=0.4), b.normal(out)))


def _last_layer(draw, b: Builder, features: str, *, width: int) -> tuple[str, str]:
    kind = draw(st.sampled_from(["gemm", "gemm transposed", "gemm scaled", "matmul", "add", "add swapped"]))
    if kind.startswith("gemm"):
        transposed = kind == "gemm transposed"
        weight = b.normal(CLASSES, width) if transposed else b.normal(width, CLASSES)
        more = {"alpha": 0.5, "beta": 2.0} if kind == "gemm scaled" else {}
        bias = [b.normal(1, CLASSES)] if draw(st.booleans()) else []
        return b.node("Gemm", features, weight, *bias, transB=int(transposed), **more), weight
    weight = b.normal(width, CLASSES)
    if draw(st.integers(0, 5)) == 0:  # a weight the caller may replace at run time is no constant
        b.inputs.append(helper.make_tensor_value_info(weight, TYPES[b.dtype], [width, CLASSES]))
    product = b.node("MatMul", features, weight)
    if kind == "matmul":
        return product, weight
    bias = b.normal(CLASSES)
    return b.node("Add", *((product, bias) if kind == "add" else (bias, product))), weight


def _other_uses(draw, b: Builder, logits: str, output: str, weight: str | None) -> list[tuple[str, int]]:
    """More outputs, from tensors the calibration touches."""
    own = TYPES[b.dtype]
    kind = draw(st.sampled_from(["logits", "arg max", "scores", "weight"]))
    if kind == "logits" and logits != output:
        return [(b.node("Identity", logits), own)]
    if kind == "arg max":
        return [
            (b.node("ArgMax", draw(st.sampled_from([logits, output])), axis=1, keepdims=0), TensorProto.INT64)
        ]
    if kind == "scores":
        return [(b.node("Tanh", b.node("Neg", output)), own)]
    if weight is not None:
        return [(b.node("Tanh", weight), own)]
    return []
