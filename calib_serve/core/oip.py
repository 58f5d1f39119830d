"""Tensors of the Open Inference Protocol (KServe v2): JSON, typed contents of gRPC, and the binary form.

What comes from a client or a server is untrusted: InputError says what is wrong with it.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, ShapeError

Array = NDArray[Any]

_NUMPY = {
    "BOOL": "?",
    **{f"INT{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{"FP16": "<f2", "BF16": "<f4", "FP32": "<f4", "FP64": "<f8"},
}
FLOATS = ("FP16", "BF16", "FP32", "FP64")
DATATYPES = (*_NUMPY, "BYTES")
_MOST_ELEMENTS = 1 << 28  # of one tensor
_WRITTEN_AS = {"BOOL": "b", **dict.fromkeys(FLOATS, "iuf")}  # kinds of numpy's; of whole numbers "iuf" too


@dataclass(frozen=True, eq=False)
class Tensor:
    """``values`` in the shape that they have on the wire; of BYTES, an array of objects: bytes or text."""

    name: str
    datatype: str
    values: Array

    @property
    def shape(self) -> list[int]:
        """The shape for the wire."""
        return list(self.values.shape)


def read_tensor(entry: Any, raw: bytes | memoryview | None = None, *, from_java: bool = False) -> Tensor:
    """Read one entry of "inputs" or "outputs", whose binary form is ``raw`` if it has one.

    ``from_java``: as TorchServe writes a ModelInfer down: BYTES in base64, large unsigned numbers negative.
    """
    fields = entry if isinstance(entry, Mapping) else {}
    name, datatype, shape, data = (fields.get(key) for key in ("name", "datatype", "shape", "data"))
    if not isinstance(name, str) or datatype not in DATATYPES:
        raise InputError(
            "a tensor has name, shape, datatype and data, and its datatype is one of " + ", ".join(DATATYPES)
        )
    try:
        if raw is not None:
            return Tensor(name, datatype, of_raw(datatype, shape, raw))
        return Tensor(name, datatype, of_list(datatype, shape, data, from_java=from_java))
    except InputError as error:
        raise type(error)(f"the tensor {name[:40]!r}: {error}") from None


def of_raw(datatype: str, shape: Any, raw: bytes | memoryview) -> Array:
    r"""Read the binary form of a tensor; BF16 becomes float32.

    >>> of_raw("BF16", [1], b"\x80\x3f").tolist()
    [1.0]
    """
    size = _size(datatype, shape)
    if datatype == "BYTES":
        raise InputError("BYTES are read in the JSON form alone")
    kind = np.dtype("<u2" if datatype == "BF16" else _NUMPY[datatype])
    if len(raw) != size * kind.itemsize:
        raise InputError(f"{len(raw)} bytes are no {datatype} of shape {shape}")
    values = np.frombuffer(raw, kind).reshape(shape)
    return (values.astype("<u4") << 16).view("<f4") if datatype == "BF16" else values


def of_list(datatype: str, shape: Any, data: Any, *, from_java: bool = False) -> Array:
    """Read the data of a tensor, flat or nested, such as those of JSON.

    >>> of_list("INT64", [2, 1], [3, 4]).tolist()
    [[3], [4]]
    """
    size = _size(datatype, shape)
    if datatype == "BYTES":
        values = _texts(data, in_base64=from_java)
    else:
        values = _numbers(datatype, data, wrapped=from_java)
    if values.size != size:
        raise InputError(f"it holds {values.size} values, its shape {shape} says otherwise")
    return values.reshape(shape)


def raw_of(tensor: Tensor) -> bytes:
    r"""The binary form of a tensor.

    >>> raw_of(Tensor("receipt", "BYTES", np.array([b"ab"], object)))
    b'\x02\x00\x00\x00ab'
    """
    if tensor.datatype == "BYTES":
        texts = (one.encode() if isinstance(one, str) else one for one in tensor.values.ravel().tolist())
        return b"".join(struct.pack("<I", len(one)) + one for one in texts)
    if tensor.datatype == "BF16":
        return _upper_halves(tensor.values).tobytes()
    return tensor.values.astype(_NUMPY[tensor.datatype]).tobytes()


def as_entry(tensor: Tensor) -> dict[str, Any]:
    """A tensor as an entry of "inputs" or "outputs"; its data are flat, as gRPC needs them."""
    data = tensor.values.ravel().tolist()
    if tensor.datatype == "BYTES":
        data = [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in data]
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "data": data}


def _size(datatype: str, shape: Any) -> int:
    if datatype not in DATATYPES:
        raise InputError(f"a datatype is one of {', '.join(DATATYPES)}, got {str(datatype)[:20]!r}")
    try:
        sizes = list(shape)
    except TypeError:
        sizes = [None]
    if len(sizes) > 16 or not all(type(size) is int and size >= 0 for size in sizes):
        raise ShapeError(f"a shape is a list of sizes, such as [1, 16], got {str(shape)[:80]}")
    size: int = math.prod(sizes)
    if size > _MOST_ELEMENTS:
        raise ShapeError(f"a tensor has at most {_MOST_ELEMENTS} values, got shape {sizes}")
    return size


def _numbers(datatype: str, data: Any, *, wrapped: bool) -> Array:
    try:
        found = np.asarray(data)
    except (ValueError, OverflowError, RecursionError):
        raise InputError("its data are ragged: rows differ in length") from None
    kind = np.dtype(_NUMPY[datatype])
    if found.size and found.dtype.kind not in _WRITTEN_AS.get(datatype, "iuf"):
        # A null is no number, nor is a text of digits.
        raise InputError(f"its data must be numbers, as {datatype} says")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = found.astype(kind)
    is_wrapped = wrapped and kind.kind == "u" and found.dtype.kind == "i"  # Java has no unsigned numbers
    if kind.kind in "iu" and not is_wrapped and not np.array_equal(cast, found):
        raise InputError(f"its data must be whole numbers that fit {datatype}")
    return cast


def _texts(data: Any, *, in_base64: bool) -> Array:
    values: list[Any] = list(_flat(data)) if isinstance(data, list) else [None]
    try:
        if not all(isinstance(value, (str, bytes)) for value in values):
            raise ValueError
        texts = [base64.b64decode(value) for value in values] if in_base64 else values
    except ValueError:
        raise InputError("its data must be texts, as BYTES says") from None
    found = np.empty(len(texts), object)
    found[:] = texts
    return found


def _flat(data: list[Any]) -> Iterator[Any]:
    """Yield the elements of a nested list, row by row, however deep it is."""
    stack = [iter(data)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, list):
                stack.append(iter(value))
                break
            yield value
        else:
            stack.pop()


def _upper_halves(values: Array) -> Array:
    """Round float32 to its upper 16 bits, half to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    up = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), up).astype("<u2")
