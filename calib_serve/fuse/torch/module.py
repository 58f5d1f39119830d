"""A calibrated model as one plain ``nn.Module``: eager or TorchScript in, the same kind out.

It scripts, traces, exports and compiles as the model did; its state dict holds tensors only.
"""

# mypy: disable-error-code="no-untyped-def"
# torch.jit.script reads the signatures: so no postponed annotations, and forward's return type is inferred.
import copy
import inspect
from collections.abc import Callable
from typing import Any, Literal, Union, get_args

import numpy as np
import torch
from torch import Tensor, nn

from calib_serve.artifact import Artifact, Head, LogitMap, Outputs
from calib_serve.errors import FuseError, InputError
from calib_serve.fuse.torch.steps import All, Everything, Log, Logits, Probabilities, Shift, layers

__all__ = ["All", "Calibrated", "Returns", "calibrated"]

Returns = Literal["probabilities", "logits", "all"]
_Tail = Union[Logits, Probabilities, Everything]
_TAILS: dict[str, Callable[..., _Tail]] = {
    "logits": Logits,
    "probabilities": Probabilities,
    "all": Everything,
}


class Calibrated(nn.Module):
    """shift -> model -> the head's further layers -> calibration of the logits."""

    def __init__(self, shift: nn.Module, model: nn.Module, head: nn.Module, tail: _Tail) -> None:
        super().__init__()
        self.shift = shift
        self.model = model
        self.head = head
        self.tail = tail
        self.training = False

    def forward(self, inputs: Tensor):
        """What ``returns`` said, for one batch of inputs."""
        return self.tail(self.head(self.model(self.shift(inputs))))


class CalibratedMany(Calibrated):
    """The same for a model of several inputs; the shift acts on the first."""

    def forward(self, inputs: Tensor, *more: Any, **named: Any):
        """What ``returns`` said, for one batch of inputs."""
        return self.tail(self.head(self.model(self.shift(inputs), *more, **named)))


def calibrated(
    model: nn.Module,
    artifact: Artifact,
    *,
    returns: Returns = "probabilities",
    outputs: Outputs | None = None,
    last_linear: str | None = None,
    fold: bool = False,
    example: Tensor | None = None,
) -> nn.Module:
    """``model`` with the artifact inside it; the model itself is not changed.

    ``returns`` is "probabilities" (n, K), "logits" (n, K), or "all" (an ``All``). ``outputs`` says what the
    model itself returns for inputs (n, ...); default: what the artifact was fitted on, else logits.
    Probabilities are calibrated through their logarithm; where logits are requested and no step acts on them,
    the model's outputs are returned unchanged. ``last_linear`` names the layer that makes the logits, for an
    artifact with a Head and for ``fold``, which multiplies the logit maps into that layer; by default it is
    found by its shape, and ``example`` inputs verify it. Tensors are shared with ``model``, but for the layer
    that changes. Returned in evaluation mode, on the model's device and dtype. Raises FuseError where the
    layer is missing, not the only one, or not the last.

    >>> halved = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> calibrated(nn.Identity(), halved, returns="logits")(torch.tensor([[2.0, 0.0]])).tolist()
    [[1.0, 0.0]]
    """
    if returns not in get_args(Returns):
        raise InputError(f"returns must be one of {', '.join(get_args(Returns))}, got {returns!r}")
    outputs = outputs or artifact.model.outputs or "logits"
    if outputs not in get_args(Outputs):
        raise InputError(f"outputs must be one of {', '.join(get_args(Outputs))}, got {outputs!r}")
    maps = tuple(m for m in artifact.logit_maps if not m.is_nothing)
    if outputs != "logits" and (fold or artifact.head is not None):
        raise FuseError(
            f"the model returns {outputs}: its last linear layer does not make what is calibrated"
        )
    if fold and any(m.on == "log_probs" for m in maps):
        raise FuseError("a map on log-probabilities cannot be folded into a layer; leave fold off")
    extra: list[nn.Module] = []
    if artifact.head is not None or (fold and maps):
        model, extra = _replace_last(model, artifact, maps if fold else (), last_linear, example)
    device, dtype = _home(model)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tail = _TAILS[returns](() if fold else maps, artifact, wide)
    if outputs == "probabilities" and (returns != "logits" or artifact.output_steps):
        extra.append(Log())
    shift = artifact.input_shift
    return (Calibrated if _takes_one_input(model) else CalibratedMany)(
        nn.Identity() if shift is None or shift.is_nothing else Shift(shift).to(device),
        _evaluating(model),
        nn.Sequential(*extra).eval(),
        tail.to(device).eval(),
    )


def _evaluating(model: nn.Module) -> nn.Module:
    """The model in evaluation mode: itself where it is already, else a copy that shares its tensors."""
    if not any(m.training for m in model.modules()):
        return model
    try:
        return _shell(model).eval()
    except NotImplementedError:  # an exported program has one mode, whatever its flag says
        return model


def _home(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32


def _takes_one_input(model: nn.Module) -> bool:
    if isinstance(model, torch.jit.ScriptModule):
        schema = model._c._get_method("forward").schema
        return sum(not a.has_default_value() for a in schema.arguments) <= 2  # self and the input
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return True
    needed = [p for p in parameters if p.default is p.empty]
    return len(needed) == 1 and needed[0].kind is not inspect.Parameter.VAR_POSITIONAL


def _replace_last(
    model: nn.Module,
    artifact: Artifact,
    folded: tuple[LogitMap, ...],
    name: str | None,
    example: Tensor | None,
) -> tuple[nn.Module, list[nn.Module]]:
    """A copy of the model with another last layer, and the layers that come after it."""
    wanted = (None if artifact.head is None else artifact.head.weights[0].shape[1], artifact.classes)
    name = _find_linear(model, wanted, name)
    old = dict(model.named_modules())[name]  # scripted modules have no get_submodule
    if example is not None:
        _prove_last(model, name, example)
    head = artifact.head or Head(
        (old.weight.detach().double().cpu().numpy(),),
        (_bias(old),),
    )
    made = layers(_folded(head, folded))
    device, dtype = _home(old)
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
    return model, [_Bias(first.bias), *made]  # type: ignore[arg-type]


def _prove_last(model: nn.Module, name: str, example: Tensor) -> None:
    """Weights times -2 must give logits times -2, unless an activation follows the layer."""
    changed = _evaluating(_shell(model))
    layer = dict(changed.named_modules())[name]
    for part in ("weight", "bias"):
        tensor = getattr(layer, part, None)
        if tensor is not None:
            setattr(layer, part, nn.Parameter(-2 * tensor.detach(), requires_grad=False))
    with torch.no_grad():
        raw, scaled = _evaluating(model)(example), changed(example)
    tolerance = 1e-3 if raw.dtype in (torch.float32, torch.float64) else 5e-2
    if not torch.allclose(scaled, -2 * raw, rtol=tolerance, atol=tolerance * float(raw.abs().max())):
        raise FuseError(
            f"{name!r} is not the model's last layer: its weights times -2 do not give logits times -2"
        )


class _Bias(nn.Module):
    """The bias for a scripted layer that has none."""

    bias: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("bias", bias.detach())

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.bias


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


def _find_linear(model: nn.Module, wanted: tuple[int | None, int], name: str | None) -> str:
    features, classes = wanted
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
    raise FuseError(f"several linear layers have {what}: {fits}; say which with last_linear=")
