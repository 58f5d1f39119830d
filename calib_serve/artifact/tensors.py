"""safetensors: by its library where that is installed, else read by hand.

A worker may run without the library, and only reads; writing needs it.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import MissingDependency

__all__ = ["SafetensorError", "load", "read_plainly", "save"]

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def read_plainly(data: bytes) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file's bytes; ValueError if invalid or of false sizes.

    >>> header = b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    >>> read_plainly(struct.pack("<Q", len(header)) + header + bytes([3, 4]))["x"].tolist()
    [3, 4]
    """
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        body = memoryview(data)[8 + length :]
        tensors, ends = {}, [0]
        for name, facts in header.items():
            if name == "__metadata__":
                continue
            dtype, shape = np.dtype(_DTYPES[facts["dtype"]]), tuple(map(int, facts["shape"]))
            start, end = facts["data_offsets"]
            if not 0 <= start <= end <= len(body) or end - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{name} does not fit its place in the file")
            tensors[name] = np.frombuffer(body[start:end], dtype).reshape(shape)
            ends.append(end)
    except (struct.error, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not safetensors: {type(error).__name__}") from error
    if max(ends) != len(body):
        raise ValueError("there are bytes that belong to no tensor")
    return tensors


def _cannot_save(*_: object) -> bytes:
    raise MissingDependency("safetensors", "torchserve")


if TYPE_CHECKING:
    from safetensors import SafetensorError
    from safetensors.numpy import load, save
else:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load, save
    except ImportError:
        SafetensorError, load, save = ValueError, read_plainly, _cannot_save
