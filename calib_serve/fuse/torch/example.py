"""Inputs to run a model on: given by the caller, read from an npz, or made from a shape."""

from __future__ import annotations

import inspect
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
from calib_serve.errors import FuseError, InputError, ModelError
from calib_serve.files import read_npz
from calib_serve.fuse.torch.last_layer import home

__all__ = ["Example", "parameters"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Example:
    """A call of the model: what is passed by position and by name, with n samples."""

    args: tuple[Any, ...]
    named: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> Example:
        """Of one tensor, a tuple of inputs, or a mapping of inputs by name."""
        if isinstance(given, Mapping):
            return cls((), dict(given))
        return cls(tuple(given) if isinstance(given, (tuple, list)) else (given,))

    @classmethod
    def of_shape(
        cls, model: nn.Module, artifact: Artifact, *, shape: Sequence[int] | None = None, samples: int = 8
    ) -> Example | None:
        """One input of this shape or the artifact's; None where it is not known, or the model takes several.

        The same numbers every time: half in [0, 1], half around zero; whole numbers are 0 or 1.
        """
        sizes = _shape_of_one(artifact, shape)
        if sizes is None or len(parameters(model, needed=True)) > 1:
            return None
        device, dtype = home(model)
        rng = torch.Generator().manual_seed(0)
        fitted = getattr(torch, artifact.model.input_dtype or "", None)
        if isinstance(fitted, torch.dtype) and not fitted.is_floating_point:
            return cls((torch.randint(0, 2, (samples, *sizes), generator=rng).to(device, fitted),))
        half = samples // 2
        pixels = torch.rand((half, *sizes), generator=rng)
        centred = torch.randn((samples - half, *sizes), generator=rng)
        return cls((torch.cat([pixels, centred]).to(device, dtype),))

    @classmethod
    def read(cls, inputs: Mapping[str, NDArray[Any]] | str | Path, model: nn.Module) -> Example:
        """Arrays by the names of the model's inputs; a single one may have any name. Floats get its dtype."""
        if not isinstance(inputs, Mapping):
            try:
                inputs = read_npz(Path(inputs))[0]
            except ValueError as error:
                raise InputError(f"{inputs} is not an npz of inputs by name: {error}") from error
        device, dtype = home(model)
        held = {name: _tensor(name, array, device, dtype) for name, array in inputs.items()}
        names = parameters(model)
        if len(held) == 1 and not set(held) & set(names):
            return cls(tuple(held.values()))
        if not held or not set(held) <= set(names):
            raise InputError(f"the inputs are {sorted(held)}, and the model takes {names}; name them so")
        ordered = [name for name in names if name in held]
        first = [name for name, own in zip(ordered, names, strict=False) if name == own]
        return cls(tuple(held.pop(name) for name in first), held)

    @property
    def first(self) -> Any:
        """The first input, which an InputShift is added to."""
        return next(iter((*self.args, *self.named.values())), None)

    @property
    def samples(self) -> int:
        """n; InputError where no input is a tensor with a batch."""
        for leaf in pytree.tree_leaves((self.args, dict(self.named))):
            if isinstance(leaf, Tensor) and leaf.ndim:
                return len(leaf)
        raise InputError("the example inputs hold no tensor (n, ...)")

    def shifted(self, shift: InputShift | None) -> Example:
        """With the step added to the first input, in numpy."""
        if shift is None:
            return self
        x = self.first
        if not isinstance(x, Tensor) or x.dtype not in _FLOATS:
            what = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
            raise FuseError(f"the artifact shifts the first input, which is {what} and no floats")
        wide = x.detach().cpu().float() if x.dtype == torch.bfloat16 else x.detach().cpu()
        moved = torch.from_numpy(np.asarray(shift(wide.numpy()))).to(x)
        if self.args:
            return Example((moved, *self.args[1:]), self.named)
        return Example((), {**self.named, next(iter(self.named)): moved})

    def to(self, device: torch.device) -> Example:
        """On another device."""
        args, named = pytree.tree_map(
            lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, (self.args, dict(self.named))
        )
        return Example(args, named)

    def run(self, model: Callable[..., Any]) -> Any:
        """What the model returns for it; ModelError where it refuses."""
        try:
            with torch.no_grad():
                return model(*self.args, **self.named)
        except Exception as error:  # a model may raise anything
            raise ModelError(
                f"the model refuses the inputs {self._described()}: {_last_line(error)}; "
                "give inputs that it takes with --inputs FILE.npz (inputs= or example=) or --input-shape"
            ) from error

    def _described(self) -> str:
        shapes = [
            tuple(x.shape) for x in pytree.tree_leaves((self.args, dict(self.named))) if hasattr(x, "shape")
        ]
        return ", ".join(map(str, shapes))


def parameters(model: nn.Module, *, needed: bool = False) -> list[str]:
    """The names of a model's inputs; those ``needed`` alone, where that is known."""
    if isinstance(model, torch.jit.ScriptModule):
        schema = model._c._get_method("forward").schema.arguments[1:]
        return [a.name for a in schema if not (needed and a.has_default_value())]
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    fixed = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [p.name for p in fixed if not (needed and p.default is not p.empty)]


def _shape_of_one(artifact: Artifact, told: Sequence[int] | None) -> tuple[int, ...] | None:
    """The shape of one input: as told, as recorded, or that of the shift; None where unknown."""
    known: Sequence[int | None] | None = told or artifact.model.input_shape
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
