"""Graph edits that all passes share: read constants, make nodes, move users of a value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.shape_inference
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.core.errors import FuseError, ModelError

FLOATS = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Narrowest first."""

_LAYERS = {"Gemm", "MatMul", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN", "If", "Loop", "Scan"}
_LAYERS |= {"MatMulInteger", "QLinearMatMul", "QLinearConv", "ConvInteger"}


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """The numbers of a constant value, or None.

    An initializer that is also a graph input may be overridden, so it is no constant.
    """
    if value is None or value.is_graph_input():
        return None
    node = value.producer()
    # Exporters share one weight among layers by an Identity of it.
    if node is not None and node.op_type == "Identity" and node.domain == "":
        return constant(node.inputs[0])
    try:
        tensor = ir.convenience.get_const_tensor(value)
    except ValueError:
        return None
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    try:
        return tensor.numpy()
    except Exception as error:  # onnx-ir raises unrelated types
        raise ModelError(
            f"the numbers of {value.name!r} are not as their type and shape say: {error}"
        ) from error


def is_layer(node: ir.Node) -> bool:
    """Whether a node makes scores of features, as far as its operator tells."""
    quantizes = node.op_type in ("Normalizer", "QuantizeLinear", "DequantizeLinear", "ZipMap")
    return node.op_type in _LAYERS or (node.domain != "" and not quantizes)


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """An attribute's value, or its default."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def users(value: ir.Value) -> list[ir.Node]:
    """List the nodes that read a value, each once."""
    return list(dict.fromkeys(use.node for use in value.uses()))


def is_private(value: ir.Value) -> bool:
    """Whether a value has one reader, and is no output of the graph."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def describe(node: ir.Node) -> str:
    """Name a node as errors do: "Gemm 'fc/Gemm'"."""
    return f"{node.op_type} {(node.name or node.outputs[0].name)!r}"


def dtype_of(value: ir.Value) -> ir.DataType:
    """The type of a value whose type is known, as for scores and all values computed from them."""
    assert value.dtype is not None
    return value.dtype


def require(holds: bool, wrong: str) -> None:
    """Check a pass's pre- or postcondition; FuseError where it fails, and nothing is written."""
    if not holds:
        raise FuseError(f"fusing went wrong: {wrong}; please report this graph")


class Editor:
    """Makes nodes and constants with unique names in one graph, and records which nodes it made."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.opset = model.graph.opset_imports[""]
        self.made: set[ir.Node] = set()
        self._names = _names(model.graph)

    def name(self, wish: str) -> str:
        """``wish``, with a number appended where the name is taken."""
        name, i = wish, 1
        while name in self._names:
            name, i = f"{wish}_{i}", i + 1
        self._names.add(name)
        return name

    def number(self, array: Any, dtype: ir.DataType, wish: str) -> ir.Value:
        """Add an initializer; floats are rounded to ``dtype``, once."""
        with np.errstate(over="ignore"):  # refused by its name below
            numbers = np.asarray(array).astype(dtype.numpy())
        if not np.isfinite(numbers.astype(np.float64)).all():
            raise FuseError(f"{wish} is beyond the range of {dtype.name}; export the model in float32")
        return self._initializer(ir.Tensor(numbers, name=self.name(f"calib_serve.{wish}")))

    def put(self, node: ir.Node, place: int, array: Any, wish: str) -> None:
        """Replace a constant input of ``node`` by one of its type; the old one stays for other readers.

        A bias that is not there has the type of the weight.
        """
        old = node.inputs[place] if place < len(node.inputs) else None
        like = old or node.inputs[1]
        assert like is not None
        node.resize_inputs(max(place + 1, len(node.inputs)))
        node.replace_input_with(place, self.number(array, dtype_of(like), wish))
        if old is not None:
            self.remove_unused(old)

    def names(self, names: Sequence[int | str], wish: str) -> ir.Value:
        """Add an initializer of class names, integers or strings."""
        if all(isinstance(name, int) for name in names):
            return self.number(names, ir.DataType.INT64, wish)
        texts = [str(name).encode() for name in names]
        tensor = ir.StringTensor(texts, shape=ir.Shape([len(texts)]), name=self.name(f"calib_serve.{wish}"))
        return self._initializer(tensor)

    def _initializer(self, tensor: ir.Tensor[Any] | ir.StringTensor) -> ir.Value:
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=tensor.name, type=kind, shape=shape, const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def node(
        self, op: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any] | None = None
    ) -> ir.Value:
        """Add a node of the standard operators as early as its inputs allow; return its output."""
        (value,) = self.nodes(op, inputs, attributes, 1)
        return value

    def nodes(
        self, op: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any] | None, count: int
    ) -> list[ir.Value]:
        """Add one node; return its ``count`` outputs, see ``node``."""
        values = [ir.Value(name=self.name(f"calib_serve.{op}")) for _ in range(count)]
        made = ir.node(op, list(inputs), attributes, outputs=values)
        self._infer(made, inputs)
        self.place(made)
        return values

    def _infer(self, made: ir.Node, inputs: Sequence[ir.Value]) -> None:
        """Give the outputs the types and shapes that onnx infers, from the inputs' and from constant axes."""
        # Reductions and slices have their axes in constants, without which no shape follows.
        axes = [t for v in inputs if (t := v.const_value) is not None and t.dtype == ir.DataType.INT64]
        opset = max(self.opset, 16)  # before, LessOrEqual infers no shape
        inferred = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(made.op_type, opset, ""),
            ir.to_proto(made),
            {str(v.name): ir.to_proto(v).type for v in inputs},
            {str(t.name): ir.to_proto(t) for t in axes},
            opset_imports=[onnx.helper.make_opsetid("", opset)],
        )
        for value in made.outputs:
            known = onnx.ValueInfoProto(type=inferred[str(value.name)])
            ir.serde.deserialize_value_info_proto(known, value)

    def place(self, made: ir.Node) -> None:
        """Put a node as early as its inputs allow."""
        made.name = made.outputs[0].name
        self.made.add(made)
        # Early, so that it comes before every node that may be moved to read it.
        producers = [p for v in made.inputs if v is not None and (p := v.producer()) is not None]
        if len(producers) > 1:
            order = {node: i for i, node in enumerate(self.graph)}
            producers = [max(producers, key=order.__getitem__)]
        if producers:
            self.graph.insert_after(producers[0], made)
        elif len(self.graph):
            self.graph.insert_before(self.graph[0], made)
        else:
            self.graph.append(made)

    def move(self, old: ir.Value, new: ir.Value, nodes: Collection[ir.Node]) -> None:
        """Make ``nodes`` read ``new`` instead of ``old``."""
        for use in list(old.uses()):
            if use.node in nodes:
                use.node.replace_input_with(use.idx, new)

    def replace_output(self, old: ir.Value, new: Sequence[ir.Value], names: Sequence[str]) -> list[ir.Value]:
        """Replace the graph output ``old`` by the ``new`` values, named ``names``; returns them."""
        shown = [v for v in self.graph.outputs if v is not old]
        place = self.graph.outputs.index(old)
        # A value has one name: a graph input, or a value of another output, is copied by an Identity.
        own = [self.node("Identity", [v]) if v in shown or v.is_graph_input() else v for v in new]
        self.graph.outputs[place : place + 1] = own
        for value, name in zip(own, names, strict=True):
            self._rename(value, name)
        return own

    def add_output(self, value: ir.Value, name: str) -> None:
        """Show ``value`` as one more output of the graph, the last."""
        self.graph.outputs.append(value)
        self.replace_output(value, [value], [name])

    def _rename(self, value: ir.Value, name: str) -> None:
        taken = next((v for v in _values(self.graph) if v.name == name and v is not value), None)
        if taken is not None:
            # A value inside gives way; inputs and outputs have names that somebody calls them by.
            if taken.is_graph_input() or taken.is_graph_output():
                raise FuseError(
                    f"the graph has another input or output called {name!r}, as one that is added: rename it "
                    "in the model, or, where that is an option, keep the outputs as they are: --returns same "
                    "(returns=), --no-decisions"
                )
            taken.name = self.name(f"calib_serve.raw.{name}")
        value.name = name

    def remove_unused(self, value: ir.Value) -> None:
        """Remove the nodes that make ``value``, unless something else needs them."""
        node = value.producer()
        made = [value] if node is None else node.outputs
        # One of several results that is read keeps the node, and with it all that it reads.
        if any(v.uses() or v.is_graph_input() or v.is_graph_output() for v in made):
            return
        if node is None:
            self.graph.initializers.pop(str(value.name), None)
            return
        if node.graph is None:
            return  # gone with another of its readers
        inputs = [v for v in node.inputs if v is not None]
        self.graph.remove(node, safe=True)
        for v in inputs:
            self.remove_unused(v)


def work_type(dtype: ir.DataType) -> ir.DataType:
    """The type to compute probabilities in: float32 where the model's own is narrower."""
    return ir.DataType.FLOAT if dtype in FLOATS[:2] else dtype


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs


def _names(graph: ir.Graph) -> set[str | None]:
    nested = (v for g in graph.subgraphs() for v in (*g.inputs, *g.initializers.values()))
    return {v.name for v in (*_values(graph), *nested)} | {node.name for node in graph}
