"""Tensors of the Open Inference Protocol: their datatypes, and the bytes of the binary data extension."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError, ShapeError

__all__ = ["SCORES", "Tensor", "of_list", "of_raw", "raw_of"]

Array = NDArray[Any]

SCORES = ("FP16", "BF16", "FP32", "FP64")
"""Datatypes that scores may have."""

_NUMPY = {"FP16": "<f2", "BF16": "<u2", "FP32": "<f4", "FP64": "<f8", "BOOL": "?"}
_MOST = 1 << 28  # numbers of one tensor


@dataclass(frozen=True, eq=False)
class Tensor:
    """``values`` of the shape that it has on the wire; of BYTES, an array of objects of type bytes."""

    name: str
    datatype: str
    values: Array

    @property
    def shape(self) -> list[int]:
        """For the wire."""
        return list(self.values.shape)


def of_raw(datatype: str, shape: list[int], raw: bytes | memoryview) -> Array:
    r"""Scores of the binary form, as floats; InputError where the bytes are no such tensor.

    >>> of_raw("BF16", [1], b"\x80\x3f").tolist()
    [1.0]
    """
    size = _size(datatype, shape)
    kind = np.dtype(_NUMPY[datatype])
    if len(raw) != size * kind.itemsize:
        raise InputError(f"{len(raw)} bytes are no {datatype} of shape {shape}")
    values = np.frombuffer(raw, kind).reshape(shape)
    if datatype == "BF16":
        return (values.astype("<u4") << 16).view("<f4")
    return values


def of_list(datatype: str, shape: list[int], data: Any) -> Array:
    """Scores of the JSON form, flat or nested, as floats; InputError where they are no such tensor."""
    size = _size(datatype, shape)
    try:
        values = np.asarray(data)
    except ValueError as error:
        raise InputError("the data of the output are ragged") from error
    if values.dtype.kind not in "fiu":  # a null is no number, nor is a text of digits
        raise InputError("the data of the output are no numbers")
    if values.size != size:
        raise InputError(f"{values.size} numbers are no tensor of shape {shape}")
    return values.reshape(shape).astype("<f4" if datatype == "BF16" else _NUMPY[datatype])


def raw_of(tensor: Tensor) -> bytes:
    r"""Its binary form.

    >>> raw_of(Tensor("receipt", "BYTES", np.array([b"ab"], object)))
    b'\x02\x00\x00\x00ab'
    """
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(one)) + one for one in tensor.values.ravel().tolist())
    if tensor.datatype == "BF16":
        return _upper_halves(tensor.values).tobytes()
    return tensor.values.astype(_NUMPY[tensor.datatype]).tobytes()


def _upper_halves(values: Array) -> Array:
    """Float32 rounded to its upper 16 bits, half to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    up = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), up).astype("<u2")


def _size(datatype: str, shape: list[int]) -> int:
    if datatype not in SCORES:
        raise InputError(f"scores are {', '.join(SCORES)}, got {str(datatype)[:20]!r}")
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ShapeError(f"a shape is a list of sizes, got {str(shape)[:80]}")
    size = math.prod(shape)
    if size > _MOST:
        raise ShapeError(f"an output has at most {_MOST} numbers, got shape {shape}")
    return size
