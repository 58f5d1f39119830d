"""An archive's model as one function of a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import rows_at_once
from calib_serve.core.errors import ModelError
from calib_serve.core.files import sha256
from calib_serve.torchserve.mar_options import ModelOptions

if TYPE_CHECKING:
    from torch import nn

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
    network, (least, most) = _torch(path, options, device)
    if artifact.head is not None:
        from calib_serve.fuse import calibrated  # noqa: PLC0415 - only heads need it

        # The InputShift stays outside: numpy and torch add floats alike.
        head = artifact.only(artifact.head)
        network = calibrated(network, head, returns="logits", last_linear=options.last_linear)
    one = _run_torch(network, device)

    def run(batch: NDArray[Any]) -> NDArray[Any]:
        size = min(max(len(batch), least), most)
        return one(batch) if size == len(batch) else rows_at_once(one, batch, size)

    return _shifted(run, artifact)


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

    session = open_session(path, device=device, threads=options.cores)
    (entry,) = session.get_inputs()
    first = session.get_outputs()[0].name

    def run(batch: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(session.run([first], {entry.name: batch})[0])

    return lambda batch: rows_at_once(run, batch, entry.shape[0])


def _torch(path: Path, options: ModelOptions, device: str) -> tuple[nn.Module, tuple[int, int]]:
    """The network, and how many inputs it takes at once, at least and at most."""
    import torch  # noqa: PLC0415 - ONNX archives run without it

    from calib_serve.models import batch_range, load_exported, load_torchscript, module_on  # noqa: PLC0415

    torch.set_num_threads(options.cores)
    try:
        if options.kind == "torchscript":
            return load_torchscript(path, device).eval(), (1, sys.maxsize)
        program = load_exported(path)
        return module_on(program, device), batch_range(program)
    except Exception as error:  # loaders raise errors of many types
        raise ModelError(f"the model {path.name} does not load: {type(error).__name__}: {error}") from error


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
