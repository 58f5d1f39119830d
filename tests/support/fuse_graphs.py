"""Small ONNX graphs written by hand, and running them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

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
