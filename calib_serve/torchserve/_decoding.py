"""Payloads of requests, decoded into a model's inputs.

Payloads are untrusted: sizes are checked before memory is allocated, nothing is unpickled, and any defect
raises InputError with a reason that may be shown to the client.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Preprocessing, is_picture_shape, read_picture
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.options.base import MAX_PIXELS

Payload = Union[str, bytes, bytearray, list[Any], dict[str, Any]]
Pictures = Union[Preprocessing, Literal["unknown"]]
_NPY = b"\x93NUMPY"
_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF", b"II*\x00", b"MM\x00*")
_FLOAT32 = float(np.finfo(np.float32).max)


def decode(
    payload: Payload,
    *,
    shape: Sequence[int | None],
    dtype: str = "float32",
    pictures: Pictures = "unknown",
    max_pixels: int = MAX_PIXELS,
) -> NDArray[Any]:
    """Decode the one input in ``payload``, of ``shape`` (None where any size will do) and ``dtype``.

    ``pictures`` and ``max_pixels``: those of the archive's ``ModelOptions``.

    >>> decode([[1, 2], [3, 4]], shape=(2, 2)).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        raw = bytes(payload)
        if raw.startswith(_NPY):
            array = _npy(raw, shape)
        elif raw.startswith(_IMAGES):
            array = _picture(raw, shape, pictures, max_pixels)
        else:
            array = _nested(_json(raw))
    elif isinstance(payload, str):
        array = _nested(_json(payload.encode("utf-8", "replace")))
    else:
        array = _nested(payload)
    return _fit(array, shape, np.dtype(dtype))


def decode_lists(
    payloads: Sequence[object], *, shape: Sequence[int | None], dtype: str = "float32"
) -> NDArray[Any] | None:
    """Decode all ``payloads`` at once, (n, *shape), where each is a JSON array that ``decode`` takes.

    None where one of them is anything else: then each must be decoded separately.
    """
    if dtype != "float32" or None in shape or not all(type(payload) is list for payload in payloads):
        return None
    try:
        array = np.asarray(payloads)
    except (ValueError, OverflowError, RecursionError):
        return None
    if array.shape != (len(payloads), *shape) or array.dtype.kind not in "if":
        return None
    if not np.abs(array).max(initial=0.0) <= _FLOAT32:  # also true for NaN
        return None
    return np.ascontiguousarray(array, np.float32)


def _fit(array: NDArray[Any], shape: Sequence[int | None], dtype: np.dtype[Any]) -> NDArray[Any]:
    _check_shape(array.shape, shape)
    if array.dtype.kind not in "biuf":
        raise InputError("the input must hold numbers only")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = np.ascontiguousarray(array, dtype)
    if dtype.kind == "f":
        if not np.isfinite(cast).all():
            raise InputError("the input holds NaN or infinity, or numbers too large")
    elif not np.array_equal(cast, array):
        raise InputError(f"the input must hold whole numbers that fit {dtype.name}")
    return cast


def _check_shape(found: Sequence[int], wanted: Sequence[int | None]) -> None:
    if len(found) != len(wanted) or any(w not in (None, f) for f, w in zip(found, wanted, strict=True)):
        text = ", ".join("any" if w is None else str(w) for w in wanted)
        raise ShapeError(f"one input is of shape ({text}), got {tuple(found)[:8]}; send one item a request")


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise InputError("the body is not JSON, .npy or an image that can be read") from None


def _nested(value: Any) -> NDArray[Any]:
    if isinstance(value, dict):
        if "data" not in value:
            raise InputError('send the input as a JSON array, or as {"data": array}')
        value = value["data"]
    if not isinstance(value, list):
        raise InputError("the input must be a JSON array of numbers")
    try:
        return np.asarray(value)
    except (ValueError, OverflowError, RecursionError):
        raise ShapeError("the JSON array is ragged: rows differ in length") from None


def _npy(raw: bytes, shape: Sequence[int | None]) -> NDArray[Any]:
    stream = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        found, fortran, dtype = read[version](stream)
    except Exception:  # the header is a Python literal: parsing it may raise anything
        raise InputError("the .npy header cannot be read") from None
    found = tuple(map(int, found))  # the header may say True
    if dtype.kind not in "biuf" or min(found, default=0) < 0:
        raise InputError(f"the .npy array must hold numbers, got dtype kind {dtype.kind!r}")
    _check_shape(found, shape)
    body = raw[stream.tell() :]
    if len(body) != math.prod(found) * dtype.itemsize:
        raise InputError(f"the .npy body has {len(body)} bytes, its header says otherwise")
    flat = np.frombuffer(body, dtype)
    return flat.reshape(found[::-1]).T if fortran else flat.reshape(found)


def _picture(raw: bytes, shape: Sequence[int | None], pictures: Pictures, max_pixels: int) -> NDArray[Any]:
    if not is_picture_shape(shape):
        raise InputError("this model's input is not a picture of 1 or 3 channels; send an array")
    if pictures == "unknown":
        raise InputError(
            "this model's archive does not say how pictures are normalised: send an array, or pack it again "
            "with --pictures mean= and std=; mean=0 and std=1 say that the model takes [0, 1]"
        )
    return read_picture(io.BytesIO(raw), pictures, shape=shape, max_pixels=max_pixels)
