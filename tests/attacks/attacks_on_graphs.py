"""ONNX graphs that lie, reach outside, or never end."""

from __future__ import annotations

from typing import Any

import numpy as np
from attack_bytes import FORGED


def graphs() -> dict[str, bytes]:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnx.external_data_helper import set_external_data
    from readers import scratch
    from small_models import linear_onnx

    with scratch() as folder:
        sound = linear_onnx(folder / "x.onnx").read_bytes()

    def info(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def made(nodes: list[Any], initial: list[Any] = (), *, x: Any = None, z: Any = None) -> bytes:
        graph = helper.make_graph(
            nodes, "g", [x or info("x", "n", 3)], [z or info("z", "n", 3)], list(initial)
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    def outside(location: str, **more: Any) -> bytes:
        model = onnx.load_from_string(sound)
        for tensor in model.graph.initializer:
            set_external_data(tensor, location, **more)
            tensor.ClearField("raw_data")
        return model.SerializeToString()

    def changed(change: Any) -> bytes:
        model = onnx.load_from_string(sound)
        change(model)
        return model.SerializeToString()

    size = numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "size")
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "inner", [], [info("y", "n", 3)])
    for _ in range(8):
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([node], "inner", [], [info("y", "n", 3)])
    return {
        "sound.onnx": sound,
        "empty.onnx": b"",
        "external in etc.onnx": outside("../../etc/passwd", offset=0, length=48),
        "external absolute.onnx": outside("/etc/passwd", offset=0, length=48),
        "external at zero device.onnx": outside("/dev/zero", offset=0, length=48),
        "external in itself.onnx": outside("raw.onnx", offset=0, length=48),
        "external with a nul.onnx": outside("a\x00b"),
        "external with a negative offset.onnx": outside("raw.onnx", offset=-8, length=48),
        "external that is a folder.onnx": outside("."),
        "cycle.onnx": made(
            [helper.make_node("Add", ["x", "z"], ["a"]), helper.make_node("Relu", ["a"], ["z"])]
        ),
        "reads itself.onnx": made([helper.make_node("Relu", ["z"], ["z"])]),
        "named twice.onnx": made(
            [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Abs", ["x"], ["z"])]
        ),
        "unknown operator.onnx": made([helper.make_node("Explode", ["x"], ["z"])]),
        "unknown domain.onnx": made([helper.make_node("Relu", ["x"], ["z"], domain="com.evil")]),
        "expands to terabytes.onnx": made(
            [
                helper.make_node("ConstantOfShape", ["size"], ["big"]),
                helper.make_node("ReduceSum", ["big"], ["sum"]),
                helper.make_node("Add", ["x", "sum"], ["z"]),
            ],
            [size],
        ),
        "input of terabytes.onnx": made(
            [helper.make_node("Identity", ["x"], ["z"])], x=info("x", 1 << 20, 1 << 20, 3), z=info("z", 1, 3)
        ),
        "initializer of huge dims.onnx": changed(
            lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 40)
        ),
        "initializer of negative dims.onnx": changed(
            lambda m: m.graph.initializer[0].dims.__setitem__(0, -4)
        ),
        "initializer of no type.onnx": changed(lambda m: setattr(m.graph.initializer[0], "data_type", 0)),
        "initializer of an unknown type.onnx": changed(
            lambda m: setattr(m.graph.initializer[0], "data_type", 99)
        ),
        "opset beyond any.onnx": changed(lambda m: setattr(m.opset_import[0], "version", 1 << 40)),
        "negative opset.onnx": changed(lambda m: setattr(m.opset_import[0], "version", -1)),
        "no opset.onnx": changed(lambda m: m.ClearField("opset_import")),
        "ir version beyond any.onnx": changed(lambda m: setattr(m, "ir_version", 1 << 40)),
        "no outputs.onnx": changed(lambda m: m.graph.ClearField("output")),
        "no inputs.onnx": changed(lambda m: m.graph.ClearField("input")),
        "no nodes.onnx": changed(lambda m: m.graph.ClearField("node")),
        "names of line breaks.onnx": changed(lambda m: setattr(m.graph.output[0], "name", FORGED)),
        "branches in branches.onnx": made(
            [
                helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
                helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner),
            ]
        ),
        "nested messages.onnx": nested(200),
        "varint that never ends.onnx": b"\x08" + b"\xff" * 30,
        "length beyond the file.onnx": b"\x3a\xff\xff\xff\xff\x07",
    }


def nested(depth: int) -> bytes:
    """A graph in an attribute of a node of a graph ..., as protobuf bytes."""

    def field(number: int, content: bytes) -> bytes:
        length, out = len(content), b""
        while length > 127:
            out, length = out + bytes([length & 127 | 128]), length >> 7
        return bytes([number << 3 | 2]) + out + bytes([length]) + content

    graph = b""
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))  # graph.node.attribute.g
    return b"\x08\x0a" + field(7, graph)


def endless() -> bytes:
    """A Loop of 2^62 turns."""
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str, kind: int, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["state", "state"], ["next"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64),
            info("go", TensorProto.BOOL),
            info("state", TensorProto.FLOAT, "n", 3),
        ],
        [
            info("on", TensorProto.BOOL),
            info("next", TensorProto.FLOAT, "n", 3),
        ],
    )
    nodes = [helper.make_node("Loop", ["times", "go0", "x"], ["z"], body=body)]
    initial = [
        numpy_helper.from_array(np.array(1 << 62), "times"),
        numpy_helper.from_array(np.array(True), "go0"),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, "n", 3)], [info("z", TensorProto.FLOAT, "n", 3)], initial
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return bytes(model.SerializeToString())
