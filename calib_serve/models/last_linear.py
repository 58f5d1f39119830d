"""The last linear layer of a torch module, found by measurement.

Forward hooks do not fire inside a loaded TorchScript file, and names are not reliable. But in every kind of
torch module a weight can be replaced: with an identity matrix in place of a candidate's weight and zeros in
place of its bias, the model returns that layer's input. It is the last linear layer if those features, times
the old weight plus the old bias, are the model's outputs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Head
from calib_serve.core.errors import ModelError
from calib_serve.scores import LABELS, ONE_COLUMN, SAME_LOGITS, Outputs


@dataclass(frozen=True, eq=False)
class LastLinear:
    """``name`` of the layer, its weight and bias, and ``body``: the model that stops before it."""

    name: str
    head: Head
    body: nn.Module


def frozen_copy(network: nn.Module) -> nn.Module:
    """A copy whose weights do not require gradients, so that only inputs do."""
    # Without no_grad the copy of a script module's weights would be part of a graph; and copying
    # an exported program warns of torch's own internals.
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        copied = copy.deepcopy(network)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
    return copied


def find_last_linear(
    network: nn.Module, probe: Tensor, outputs: Outputs, *, name: str | None = None
) -> LastLinear:
    """The layer whose product is the model's logits; ``name`` restricts the search to one layer.

    Raises ModelError, which lists what was tried.
    """
    if outputs in (*ONE_COLUMN, *LABELS):
        raise ModelError(f"the model returns {outputs}, and a new head makes a logit for each class")
    if outputs != "logits":
        raise ModelError(
            f"the model returns {outputs}: a softmax follows its last linear layer; "
            "export it without the softmax to reach its features"
        )
    with torch.no_grad():
        logits = network(probe)
        tried = _candidates(network, int(logits.shape[1]), name)
        for candidate in reversed(tried):
            if found := layer_inputs(network, candidate, lambda model: model(probe)):
                return LastLinear(candidate, found[1], found[0])
    if name is not None and not tried:
        raise ModelError(f"{name!r} is not a linear layer with {logits.shape[1]} outputs; {_named(network)}")
    raise ModelError(
        f"no linear layer makes the model's {logits.shape[1]} logits (tried: {', '.join(tried) or 'none'}); "
        "its output must be the last linear layer's product, with nothing after it, "
        f"and its weights must be in the file (not frozen); {_named(network)}"
    )


def _candidates(network: nn.Module, classes: int, name: str | None) -> list[str]:
    names = [
        parameter.removesuffix("weight").removesuffix(".")
        for parameter, value in network.named_parameters()
        if parameter.rpartition(".")[2] == "weight" and value.ndim == 2 and value.shape[0] == classes
    ]
    wanted = None if name is None else name.removesuffix(".weight")
    return [n for n in names if wanted in (None, n)]


def _named(network: nn.Module) -> str:
    layers = [n.removesuffix(".weight") for n, p in network.named_parameters() if p.ndim == 2]
    return f"its matrices are: {', '.join(layers) or 'none'}"


def layer_inputs(
    network: nn.Module, name: str, run: Callable[[nn.Module], Tensor]
) -> tuple[nn.Module, Head, Tensor] | None:
    """The model that stops before a layer, that layer, and its inputs (n, d); None unless it is the last.

    Args:
        network: The model.
        name: Name of the layer.
        run: Scores (n, K) of a model, on the same inputs each time.
    """
    logits, body = run(network), frozen_copy(network)
    parameters = dict(body.named_parameters())
    dot = f"{name}." if name else ""
    weight, bias = parameters[f"{dot}weight"], parameters.get(f"{dot}bias")
    old_weight = weight.detach().clone()
    old_bias = old_weight.new_zeros(len(old_weight)) if bias is None else bias.detach().clone()
    # With I for W and 0 for b the layer hands on its input.
    weight.data = torch.eye(old_weight.shape[1], dtype=weight.dtype, device=weight.device)
    if bias is not None:
        bias.data = bias.new_zeros(old_weight.shape[1])
    try:
        features = run(body)
        again = features.double() @ old_weight.double().T + old_bias.double()
    except (RuntimeError, ValueError, TypeError, AssertionError):
        return None  # the widened output does not fit what follows: not the last layer
    near = SAME_LOGITS if logits.dtype in (torch.float32, torch.float64) else 5e-2  # of 16 bits
    if again.shape != logits.shape or not _apart(again, logits) <= near * (1 + float(logits.abs().max())):
        return None
    return body, Head((_array(old_weight),), (_array(old_bias),)), features


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other.double()).abs().max())


def _array(numbers: Tensor) -> NDArray[Any]:
    return (numbers.float() if numbers.dtype == torch.bfloat16 else numbers).cpu().numpy()
