"""The bytes that attacks are made of: arrays, zips, tensors, manifests and graphs that lie."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from typing import Any

import numpy as np

FORGED = "\n[METRICS]calib_predictions_total.Count:9|#model:m,version:1,bin:3|#type:COUNTER|#hostname:h,1\n"


class Owned:
    """Unpickled, it makes a folder: a test looks for it."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.mkdir, ("/tmp/calib-serve-was-owned",)


def npy(array: Any, *, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()


def npy_saying(header: str, body: bytes = b"") -> bytes:
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def zipped(entries: dict[str, bytes], *, packed: bool = True) -> bytes:
    stream = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", how) as archive:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # no clock in the bytes
            archive.writestr(entry, content, how)
    return stream.getvalue()


def safetensors(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def signed(facts: dict[str, Any]) -> bytes:
    """A manifest whose own hash is right: what a clever attacker writes."""
    import yaml

    digest = json.dumps(facts, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    whole = {**facts, "sha256": hashlib.sha256(digest).hexdigest()}
    return yaml.safe_dump(whole, allow_unicode=True).encode()


def endless() -> bytes:
    """An ONNX graph with a Loop of 2^62 turns."""
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str, kind: int, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    number, flag, scores = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
    turn = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["s", "s"], ["next"])]
    before = [info("i", number), info("go", flag), info("s", scores, "n", 3)]
    body = helper.make_graph(turn, "body", before, [info("on", flag), info("next", scores, "n", 3)])
    loop = helper.make_node("Loop", ["times", "go0", "x"], ["z"], body=body)
    initial = [("times", np.array(1 << 62)), ("go0", np.array(True))]
    graph = helper.make_graph(
        [loop],
        "g",
        [info("x", scores, "n", 3)],
        [info("z", scores, "n", 3)],
        [numpy_helper.from_array(value, name) for name, value in initial],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return bytes(model.SerializeToString())


def external(location: str, *, offset: int = 0, length: int = 48) -> bytes:
    """An ONNX graph, (n, 4) to (n, 3), whose weights lie in another file."""
    from onnx import TensorProto, helper

    def info(name: str, width: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", width))

    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(4, 3), data_location=1)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        weights.external_data.add(key=key, value=value)
    node = helper.make_node("MatMul", ["x", "w"], ["z"])
    graph = helper.make_graph([node], "g", [info("x", 4)], [info("z", 3)], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return bytes(model.SerializeToString())
