"""An archive's model as one function of a batch, and payloads decoded into its inputs.

Payloads are untrusted: sizes are checked before memory is allocated, nothing is unpickled, and any defect
raises InputError with a reason that may be shown to the client.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Preprocessing, is_picture_shape, load, read_picture, read_plainly
from calib_serve.core.arrays import rows_at_once
from calib_serve.core.errors import InputError, ModelError, ShapeError
from calib_serve.core.files import sha256
from calib_serve.core.options.base import MAX_PIXELS
from calib_serve.torchserve.mar_options import ModelOptions

if TYPE_CHECKING:
    from torch import nn

Payload = Union[str, bytes, bytearray, list[Any], dict[str, Any]]
Pictures = Union[Preprocessing, Literal["unknown"]]

_NPY = b"\x93NUMPY"
_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF", b"II*\x00", b"MM\x00*")
_FLOAT32 = float(np.finfo(np.float32).max)
_SAFETENSORS_HEADER = 1 << 16  # bytes; the header of one tensor takes about a hundred


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
        elif len(raw) > 9 and raw[8:9] == b"{":
            array = _safetensors(raw, shape)
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
        raise InputError("the body is not JSON, .npy, safetensors or an image that can be read") from None


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
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        found, fortran, dtype = read(stream)
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


def _safetensors(raw: bytes, shape: Sequence[int | None]) -> NDArray[Any]:
    # Before the parser: a header may claim gigabytes.
    (length,) = struct.unpack("<Q", raw[:8])
    if length > _SAFETENSORS_HEADER:
        raise InputError(f"the safetensors header claims {length} bytes; one tensor needs far fewer")
    try:
        tensors = load(raw)
    except Exception:  # SafetensorError and whatever a dtype numpy does not know raises
        raise InputError("the safetensors body cannot be read") from None
    if len(tensors) != 1:
        raise InputError(f"send one tensor a request, got {len(tensors)}")
    (array,) = tensors.values()
    _check_shape(array.shape, shape)
    return array


def _picture(raw: bytes, shape: Sequence[int | None], pictures: Pictures, max_pixels: int) -> NDArray[Any]:
    if not is_picture_shape(shape):
        raise InputError("this model's input is not a picture of 1 or 3 channels; send an array")
    if pictures == "unknown":
        raise InputError(
            "this model's archive does not say how pictures are normalised: send an array, or pack it again "
            "with --pictures mean= and std=, or transforms=; mean=0 and std=1 say that the model takes [0, 1]"
        )
    return read_picture(io.BytesIO(raw), pictures, shape=shape, max_pixels=max_pixels)


# --- The model --------------------------------------------------------------------------------------


Run = Callable[[NDArray[Any]], NDArray[Any]]
"""Inputs (n, ...) to what the model returns (n, K)."""


def load_runtime(folder: Path, options: ModelOptions, artifact: Artifact, *, device: str = "cpu") -> Run:
    """Load the model of an unpacked archive, with the artifact's InputShift and Head in place.

    ``device``: "cpu" or "cuda:N". Raises ModelError when a file is not the one that was packed,
    or does not load.
    """
    # An artifact on another model's scores would be wrong, and nothing would show it.
    path = check_file(folder / options.model, options.sha256)
    if options.kind == "onnx":
        return _shifted(_onnx(path, options, device), artifact)
    network = _torch(path, options, device)
    if artifact.head is not None:
        from calib_serve.fuse import calibrated  # noqa: PLC0415 - only heads need it

        # The InputShift stays outside: numpy and torch add floats alike.
        head = artifact.only(artifact.head)
        network = calibrated(network, head, returns="logits", last_linear=options.last_linear)
    return _shifted(_run_torch(network, device), artifact)


def check_file(path: Path, packed: str) -> Path:
    """``path``, after a check that its bytes have the sha256 in ``packed``."""
    try:
        found = sha256(path)
    except OSError as error:
        raise ModelError(f"cannot read the model file {path}: {error}; pack the archive again") from error
    if found != packed:
        raise ModelError(f"{path.name} is not the file that was packed; pack the archive again")
    return path


def _shifted(run: Run, artifact: Artifact) -> Run:
    shift = artifact.input_shift
    return run if shift is None else lambda batch: run(shift(batch))


def _onnx(path: Path, options: ModelOptions, device: str) -> Run:
    from calib_serve.fuse import open_session  # noqa: PLC0415 - only ONNX archives need it

    session = open_session(
        path, device=device, threads=options.cores, allow_fallback=options.allow_cpu_fallback
    )
    (entry,) = session.get_inputs()
    first = session.get_outputs()[0].name

    def run(batch: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(session.run([first], {entry.name: batch})[0])

    return lambda batch: rows_at_once(run, batch, entry.shape[0])


def _torch(path: Path, options: ModelOptions, device: str) -> nn.Module:
    import torch  # noqa: PLC0415 - ONNX archives run without it

    torch.set_num_threads(options.cores)
    try:
        if options.kind == "torchscript":
            with warnings.catch_warnings():  # torch deprecates TorchScript
                warnings.simplefilter("ignore", DeprecationWarning)
                loaded: nn.Module = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
                return loaded.eval()
        if options.kind == "exported":
            return torch.export.load(str(path)).module().to(device)
        return _eager(path, options).to(device).eval()
    except Exception as error:  # loaders raise errors of many types
        raise ModelError(f"the model {path.name} does not load: {type(error).__name__}: {error}") from error


def _eager(path: Path, options: ModelOptions) -> nn.Module:
    module, _, name = (options.factory or "").partition(":")
    network: nn.Module = getattr(importlib.import_module(module), name)()
    network.load_state_dict(_weights(path))
    return network


def _weights(path: Path) -> dict[str, Any]:
    try:
        from safetensors.torch import load_file  # noqa: PLC0415 - knows bfloat16, which numpy does not
    except ImportError:
        import torch  # noqa: PLC0415

        return {name: torch.tensor(array) for name, array in read_plainly(path.read_bytes()).items()}
    return load_file(path)


def _run_torch(network: nn.Module, device: str) -> Run:
    import torch  # noqa: PLC0415

    on_cpu = device == "cpu"

    def run(batch: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            outputs = network(torch.from_numpy(batch) if on_cpu else torch.from_numpy(batch).to(device))
        if outputs.dtype != torch.float32 or not on_cpu:
            outputs = outputs.float().cpu()
        return outputs.numpy()  # type: ignore[no-any-return]

    return run
