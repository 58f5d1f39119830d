"""TorchScript in tests, which torch has deprecated: made here alone, and our warning expected here."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from calib_serve.core.errors import Deprecated


def told(of_torchscript: bool = True) -> AbstractContextManager[Any]:
    """Expect what a user is told of TorchScript that was given; of another model nothing."""
    match = r"is TorchScript, which torch has deprecated and calib-serve .* takes no more"
    return pytest.warns(Deprecated, match=match) if of_torchscript else nullcontext()


def _quietly(make: Callable[..., Any]) -> Callable[..., Any]:
    """Without torch's own warnings, of another category in each version, nor a tracer's."""

    @functools.wraps(make)
    def made(*args: Any, **more: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`torch\.jit\.")
            return make(*args, **more)

    return made


script = _quietly(torch.jit.script)
trace = _quietly(torch.jit.trace)
freeze = _quietly(torch.jit.freeze)
load = _quietly(torch.jit.load)
save = _quietly(torch.jit.save)


def scripted(path: Path, net: torch.nn.Module) -> Path:
    """``net`` as a TorchScript file."""
    save(script(net), str(path))
    return path


def traced(path: Path, net: torch.nn.Module, *inputs: torch.Tensor) -> Path:
    """The same by tracing it on inputs."""
    save(trace(net, inputs), str(path))
    return path
