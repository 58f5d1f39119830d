"""Put a new last layer into a model, eager, scripted or exported, and prove that it is the last one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Head, LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.torch.steps import Bias, layers

__all__ = ["evaluating", "features_of", "find_linear", "home", "replace_last"]

Exact = NDArray[np.float64]


def home(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where a model's tensors lie, and its floating dtype."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32


def evaluating(model: nn.Module) -> nn.Module:
    """The model in evaluation mode: itself where it is already, else a copy that shares its tensors."""
    if not any(m.training for m in model.modules()):
        return model
    try:
        return _shell(model).eval()
    except NotImplementedError:  # an exported program has one mode, whatever its flag says
        return model


def find_linear(model: nn.Module, features: int | None, classes: int, name: str | None) -> str:
    """The one linear layer (classes, features), or ``name`` if it is such; FuseError where there is none."""
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
    """The inputs (n, d) of the layer ``name``; FuseError where its product is not what the model returns.

    With the identity in place of its weight, the model returns the layer's inputs.
    """
    changed = evaluating(_shell(model))
    layer = dict(changed.named_modules())[name]
    weight, bias = layer.weight.detach(), _bias(layer)
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
    """A copy of the model with ``head``, or with maps folded into its layer, and the layers to come after."""
    old = dict(model.named_modules())[name]  # scripted modules have no get_submodule
    own = Head((old.weight.detach().double().cpu().numpy(),), (_bias(old),))
    made = layers(_folded(head or own, folded))
    device, dtype = home(old)
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
    """A copy whose tensors are the model's own; a scripted module is copied whole."""
    if isinstance(model, torch.jit.ScriptModule):
        return copy.deepcopy(model)
    shared: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)
