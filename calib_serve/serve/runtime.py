"""Load an archive's model as one function, from a batch of inputs to logits."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Head
from calib_serve.artifact.tensors import read_plainly
from calib_serve.errors import ModelError
from calib_serve.files import sha256
from calib_serve.fuse.mar_options import ModelOptions

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Run", "check_file", "load_runtime"]

Run = Callable[[NDArray[Any]], NDArray[Any]]
"""Inputs (n, ...) to what the model returns (n, K)."""


def load_runtime(folder: Path, options: ModelOptions, artifact: Artifact, *, device: str = "cpu") -> Run:
    """The model of an unpacked archive, with the artifact's InputShift and Head in place.

    ``device``: "cpu" or "cuda:N". Raises ModelError when a file is not the one that was packed,
    or does not load.
    """
    path = check_file(folder / options.model, options.sha256)
    if options.kind == "onnx":
        return _shifted(_onnx(path, options, device), artifact)
    network = _torch(path, options, device)
    if artifact.head is not None and options.kind == "exported":
        network = _headed_export(network, artifact.head, artifact.classes, options.last_linear)
    elif artifact.head is not None:
        from calib_serve.fuse.torch import calibrated  # noqa: PLC0415 - only heads need it

        # The InputShift stays outside: numpy and torch add floats alike.
        network = calibrated(
            network,
            artifact.only(artifact.head),
            returns="logits",
            last_linear=options.last_linear,
        )
    return _shifted(_run_torch(network, device), artifact)


def check_file(path: Path, packed: str) -> Path:
    """``path`` if its bytes are those that were packed, of that sha256."""
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
    from calib_serve.fuse.sessions import open_session  # noqa: PLC0415 - only ONNX archives need it

    session = open_session(
        path, device=device, threads=options.cores, allow_fallback=options.allow_cpu_fallback
    )
    (name,) = [entry.name for entry in session.get_inputs()]
    first = session.get_outputs()[0].name
    return lambda batch: session.run([first], {name: batch})[0]


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


def _headed_export(network: nn.Module, head: Head, classes: int, name: str | None) -> nn.Module:
    """The exported program with its last layer replaced by the head's layers.

    In an exported graph layers are calls, but their tensors keep their names.
    """
    from torch import nn  # noqa: PLC0415

    from calib_serve.fuse.torch import layers  # noqa: PLC0415

    wanted = (classes, head.weights[0].shape[1])
    fits = [
        parameter.removesuffix(".weight")
        for parameter, value in network.named_parameters()
        if parameter.endswith(".weight") and tuple(value.shape) == wanted
    ]
    if name not in fits and (name is not None or len(fits) != 1):
        raise ModelError(f"the new head fits {fits or 'no layer'}; pack with last_linear=NAME, one of these")
    tensors, path = dict(network.named_parameters()), name or fits[0]
    if f"{path}.bias" not in tensors:
        raise ModelError(f"{path} has no bias to replace; export the model with one")
    first, *rest = layers(head)
    for parameter, value in first.named_parameters():
        tensors[f"{path}.{parameter}"].data = value.detach()
    return nn.Sequential(network, *rest)


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
