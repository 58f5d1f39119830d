"""The last layer of a user's model: find it, and replace it, eager, scripted or exported."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from calib_serve.artifact import Head
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FuseError
from calib_serve.fuse.torch._model import device_and_dtype, shell
from calib_serve.fuse.torch._modules import Bias, layers
from calib_serve.models import is_scripted, layer_inputs


def linear_layer_name(model: nn.Module, head: Head, name: str | None) -> str:
    """Find the one linear layer whose place ``head`` takes, or check ``name``; FuseError if there is none."""
    classes, features = len(head.weights[-1]), head.weights[0].shape[1]
    linear: dict[str, tuple[int, ...]] = {}
    for path, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        kind = getattr(layer, "original_name", type(layer).__name__)
        # An exported program keeps the weights and forgets what the layers were.
        is_linear = kind.endswith("Linear") or kind in ("Module", "InterpreterModule")
        if is_linear and isinstance(weight, Tensor) and weight.ndim == 2:
            linear[path] = tuple(weight.shape)
    fits = [n for n, shape in linear.items() if shape == (classes, features)]
    if name is not None:
        if name not in linear:
            raise FuseError(f"{name!r} is not a linear layer of the model; it has {sorted(linear)}")
        if name not in fits:
            raise FuseError(f"{name!r} has weight {linear[name]}, the artifact needs ({classes}, {features})")
        return name
    if len(fits) == 1:
        return fits[0]
    what = f"weight ({classes}, {features})"
    if not fits:
        raise FuseError(f"the model has no linear layer of {what}; it has {linear or 'none'}")
    raise FuseError(f"several linear layers have {what}: {fits}; say which with last_linear=")


def features_of(model: nn.Module, name: str, scores_of: Callable[[nn.Module], Tensor]) -> Floats:
    """The inputs (n, d) of the layer ``name``; FuseError where it does not make the model's scores."""
    found = layer_inputs(model, name, scores_of)
    if found is None:
        raise FuseError(
            f"{name!r} is not the model's last layer: its weights times its inputs are not the model's "
            "scores; say which is with last_linear="
        )
    return found[2].double().cpu().numpy()


def replace_last(model: nn.Module, name: str, head: Head) -> tuple[nn.Module, list[nn.Module]]:
    """Copy the model with the first layer of ``head`` in place of its own; also return those after it."""
    made = layers(head)
    old = dict(model.named_modules())[name]  # scripted modules have no get_submodule
    device, dtype = device_and_dtype(old)
    for module in made:
        module.to(device, dtype)
    model = shell(model)
    first = made.pop(0)
    if not is_scripted(model):
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
