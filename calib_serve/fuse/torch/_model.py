"""A user's model: run it on inputs, and replace its last layer: eager, scripted or exported."""

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

from calib_serve.artifact import Artifact, Head, InputShift, LogitMap
from calib_serve.core.errors import FuseError, InputError, ModelError
from calib_serve.fuse._parity import read_inputs
from calib_serve.fuse.torch._modules import Bias, layers, parameters

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
    def of_shape(
        cls, model: nn.Module, artifact: Artifact, *, shape: Sequence[int] | None = None, samples: int = 8
    ) -> Example | None:
        """Make one input of this shape or the artifact's; None if unknown, or the model takes several.

        The same numbers every time: half in [0, 1], half around zero; whole numbers are 0 or 1.
        """
        sizes = _shape_of_one(artifact, shape)
        if sizes is None or len(parameters(model, needed=True)) > 1:
            return None
        device, dtype = device_and_dtype(model)
        rng = torch.Generator().manual_seed(0)
        fitted = getattr(torch, artifact.model.input_dtype or "", None)
        if isinstance(fitted, torch.dtype) and not fitted.is_floating_point:
            return cls((torch.randint(0, 2, (samples, *sizes), generator=rng).to(device, fitted),))
        # A model of pixels and one of normalised inputs both meet numbers that they know.
        half = samples // 2
        pixels = torch.rand((half, *sizes), generator=rng)
        centred = torch.randn((samples - half, *sizes), generator=rng)
        return cls((torch.cat([pixels, centred]).to(device, dtype),))

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
    def first(self) -> Any:
        """The first input, to which an InputShift is added."""
        return next(iter((*self.args, *self.named.values())), None)

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
        """Move the inputs to another device."""
        args, named = pytree.tree_map(
            lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, (self.args, dict(self.named))
        )
        return Example(args, named)

    def run(self, model: Callable[..., Any]) -> Any:
        """Run the model and return its results; ModelError where it refuses the inputs."""
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


def _shape_of_one(artifact: Artifact, told: Sequence[int] | None) -> tuple[int, ...] | None:
    """The shape of one input: as told, as recorded, or the shift's; None where unknown."""
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


# --- The last layer ---------------------------------------------------------------------------------


Exact = NDArray[np.float64]


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
        return _shell(model).eval()
    except NotImplementedError:  # an exported program has one mode, whatever its flag says
        return model


def linear_layer_name(model: nn.Module, features: int | None, classes: int, name: str | None) -> str:
    """Find the one linear layer (classes, features), or check ``name``; FuseError where there is none."""
    linear: dict[str, tuple[int, ...]] = {}
    for path, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        kind = getattr(layer, "original_name", type(layer).__name__)
        # An exported program keeps the weights and forgets what the layers were.
        is_linear = kind.endswith("Linear") or kind in ("Module", "InterpreterModule")
        if is_linear and isinstance(weight, Tensor) and weight.ndim == 2:
            linear[path] = tuple(weight.shape)
    fits = [n for n, s in linear.items() if s[0] == classes and features in (None, s[1])]
    if name is not None:
        if name not in linear:
            raise FuseError(f"{name!r} is not a linear layer of the model; it has {sorted(linear)}")
        if name not in fits:
            raise FuseError(
                f"{name!r} has weight {linear[name]}, the artifact needs ({classes}, {features or 'any'})"
            )
        return name
    if len(fits) == 1:
        return fits[0]
    what = f"weight ({classes}, {'any' if features is None else features})"
    if not fits:
        raise FuseError(f"the model has no linear layer of {what}; it has {linear or 'none'}")
    raise FuseError(f"several linear layers have {what}: {fits}; say which with --last-linear (last_linear=)")


def features_of(model: nn.Module, name: str, scores_of: Callable[[nn.Module], Tensor]) -> Exact:
    """The inputs (n, d) of the layer ``name``; FuseError where it does not make the model's scores.

    With the identity in place of its weight, the model returns the layer's inputs.
    """
    changed = evaluating(_shell(model))
    layer = dict(changed.named_modules())[name]
    weight, bias = layer.weight.detach(), _bias(layer)
    # With the identity as its weight a layer returns its input, so the features can be read off.
    eye = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    layer.weight = nn.Parameter(eye, requires_grad=False)
    if getattr(layer, "bias", None) is not None:
        layer.bias = nn.Parameter(eye.new_zeros(len(eye)), requires_grad=False)
    logits = scores_of(model)
    try:
        features: Exact = scores_of(changed).double().cpu().numpy()
        again = features @ weight.double().cpu().numpy().T + bias
    except (RuntimeError, ValueError, TypeError, AssertionError):  # what follows needs its width
        again = np.empty(0)
    expected = logits.double().cpu().numpy()
    near = 1e-3 if logits.dtype in (torch.float32, torch.float64) else 5e-2
    if again.shape != expected.shape or not np.allclose(again, expected, near, near * np.abs(expected).max()):
        raise FuseError(
            f"{name!r} is not the model's last layer: its weights times its inputs are not the model's "
            "scores; say which is with --last-linear (last_linear=)"
        )
    return features


def replace_last(
    model: nn.Module, name: str, head: Head | None, folded: tuple[LogitMap, ...]
) -> tuple[nn.Module, list[nn.Module]]:
    """Copy the model with ``head``, or with maps folded into its layer; return also the layers after it."""
    old = dict(model.named_modules())[name]  # scripted modules have no get_submodule
    own = Head((old.weight.detach().double().cpu().numpy(),), (_bias(old),))
    made = layers(_folded(head or own, folded))
    device, dtype = device_and_dtype(old)
    for module in made:
        module.to(device, dtype)
    model = _shell(model)
    first = made.pop(0)
    if not isinstance(model, torch.jit.ScriptModule):
        if not name:
            return first, made
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, first)
        return model, made
    layer = dict(model.named_modules())[name]
    layer.weight = first.weight
    if getattr(layer, "bias", None) is not None:
        layer.bias = first.bias
        return model, made
    return model, [Bias(first.bias), *made]  # type: ignore[arg-type]


def _bias(layer: nn.Module) -> Any:
    bias = getattr(layer, "bias", None)
    return np.zeros(len(layer.weight)) if bias is None else bias.detach().double().cpu().numpy()  # type: ignore[arg-type]


def _folded(head: Head, maps: tuple[LogitMap, ...]) -> Head:
    weight, bias = head.weights[-1].astype(np.float64), head.biases[-1].astype(np.float64)
    for m in maps:
        weight, bias = m.fold_into(weight, bias)
    return Head((*head.weights[:-1], weight), (*head.biases[:-1], bias))


def _shell(model: nn.Module) -> nn.Module:
    """Copy a model whose tensors stay the model's own; a scripted module is copied whole."""
    if isinstance(model, torch.jit.ScriptModule):
        return copy.deepcopy(model)
    # deepcopy takes what is in its memo as it is: modules are copied, their tensors are not.
    shared: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)
