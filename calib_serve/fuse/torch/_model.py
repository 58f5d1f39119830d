"""A user's model, eager, scripted or exported: run it on inputs, and see its dtype, device and features."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from calib_serve.artifact import Artifact, InputShift
from calib_serve.core.errors import FuseError, InputError, ModelError
from calib_serve.fuse._parity import read_inputs
from calib_serve.fuse.torch._whole import parameters
from calib_serve.models import is_scripted, made_up_inputs

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Example:
    """A call of the model: inputs by position and by name, with n samples."""

    args: tuple[Any, ...]
    named: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> Example:
        """Take one tensor, a tuple of inputs, or a mapping of inputs by name."""
        if isinstance(given, Mapping):
            return cls((), dict(given))
        return cls(tuple(given) if isinstance(given, (tuple, list)) else (given,))

    @classmethod
    def of_shape(cls, model: nn.Module, artifact: Artifact) -> Example | None:
        """Make inputs of the artifact's shape; None if that is unknown, or the model takes several."""
        sizes = _shape_of_one(artifact)
        if sizes is None or len(parameters(model, needed=True)) > 1:
            return None
        device, dtype = device_and_dtype(model)
        made = made_up_inputs(sizes, artifact.model.input_dtype or "float32").to(device)
        return cls((made.to(dtype) if made.is_floating_point() else made,))

    @classmethod
    def read(cls, inputs: Mapping[str, NDArray[Any]] | str | Path, model: nn.Module) -> Example:
        """Read arrays by the names of the model's inputs; a single array may have any name."""
        device, dtype = device_and_dtype(model)
        held = {name: _tensor(name, array, device, dtype) for name, array in read_inputs(inputs).items()}
        names = parameters(model)
        if len(held) == 1 and not set(held) & set(names):
            return cls(tuple(held.values()))
        if not held or not set(held) <= set(names):
            raise InputError(f"the inputs are {sorted(held)}, and the model takes {names}; name them so")
        ordered = [name for name in names if name in held]
        first = [name for name, own in zip(ordered, names, strict=False) if name == own]
        return cls(tuple(held.pop(name) for name in first), held)

    @property
    def samples(self) -> int:
        """The number n of samples; InputError where no input is a tensor with a batch."""
        for leaf in pytree.tree_leaves((self.args, dict(self.named))):
            if isinstance(leaf, Tensor) and leaf.ndim:
                return len(leaf)
        raise InputError("the example inputs hold no tensor (n, ...)")

    def shifted(self, shift: InputShift | None) -> Example:
        """Add the step to the first input, in numpy."""
        if shift is None:
            return self
        x = next(iter((*self.args, *self.named.values())), None)
        if not isinstance(x, Tensor) or x.dtype not in _FLOATS:
            what = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
            raise FuseError(f"the artifact shifts the first input, which is {what} and no floats")
        wide = x.detach().cpu().float() if x.dtype == torch.bfloat16 else x.detach().cpu()
        moved = torch.from_numpy(np.asarray(shift(wide.numpy()))).to(x)
        if self.args:
            return Example((moved, *self.args[1:]), self.named)
        return Example((), {**self.named, next(iter(self.named)): moved})

    def run(self, model: Callable[..., Any]) -> Any:
        """Run the model and return its results; ModelError where it refuses the inputs."""
        try:
            with torch.no_grad():
                return model(*self.args, **self.named)
        except Exception as error:  # a model may raise anything
            leaves = pytree.tree_leaves((self.args, dict(self.named)))
            shapes = [str(tuple(leaf.shape)) for leaf in leaves if hasattr(leaf, "shape")]
            raise ModelError(
                f"the model refuses the inputs {', '.join(shapes)}: {_last_line(error)}; "
                "give inputs that it takes with --inputs FILE.npz (inputs= or example=)"
            ) from error


def _shape_of_one(artifact: Artifact) -> tuple[int, ...] | None:
    """The shape of one input: as recorded, or the shift's; None where unknown."""
    known: Sequence[int | None] | None = artifact.model.input_shape
    if known is None and artifact.input_shift is not None:
        known = artifact.input_shift.delta.shape
    if known is None:
        return None
    sizes = [size for size in known if size is not None and size > 0]
    return tuple(sizes) if len(sizes) == len(known) else None


def _tensor(name: str, array: NDArray[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    if array.dtype.kind not in "fiub" or not array.ndim:
        raise InputError(f"the input {name!r} must be numbers (n, ...), got {array.dtype} {array.shape}")
    made = torch.from_numpy(np.array(array))
    return made.to(device, dtype) if made.is_floating_point() else made.to(device)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300]}" if lines else type(error).__name__


def device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device of a model's tensors, and its floating dtype."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32


def evaluating(model: nn.Module) -> nn.Module:
    """Put the model into evaluation mode: itself where it is, else a copy that shares its tensors."""
    if not any(m.training for m in model.modules()):
        return model
    try:
        return shell(model).eval()
    except NotImplementedError:  # an exported program has one mode, whatever its flag says
        return model


def shell(model: nn.Module) -> nn.Module:
    """Copy a model whose tensors stay the model's own; a scripted module is copied whole."""
    if is_scripted(model):
        return copy.deepcopy(model)
    # deepcopy takes what is in its memo as it is: modules are copied, their tensors are not.
    shared: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)
