"""The calibrated model as one module: input shift, the model, a head's further layers, calibration."""

# mypy: disable-error-code="no-untyped-def"
# torch.jit.script reads the signatures: so no postponed annotations, and forward's return type is inferred.
from collections.abc import Mapping
from typing import Any, Union

import torch
from torch import Tensor, nn

from calib_serve.errors import FuseError
from calib_serve.fuse.torch.example import parameters

__all__ = ["Calibrated", "CalibratedMany", "Path", "assemble", "lookup"]

Path = tuple[Union[str, int], ...]
"""Where the scores lie in what a model returns: keys, attributes and positions."""


class _Parts(nn.Module):
    """The parts without a forward, which may be written for the model's own signature."""

    def __init__(self, shift: nn.Module, model: nn.Module, head: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.shift = shift
        self.model = model
        self.head = head
        self.tail = tail
        self.training = False


class Calibrated(_Parts):
    """shift -> model -> the head's further layers -> calibration of the scores."""

    def forward(self, inputs: Tensor):
        """What ``returns`` said, for one batch of inputs."""
        return self.tail(self.head(self.model(self.shift(inputs))))


class CalibratedMany(Calibrated):
    """The same for any inputs and any returned structure; the shift acts on the first input."""

    path: Path = ()

    def forward(self, *inputs: Any, **named: Any):
        """What ``returns`` said, for one batch of inputs."""
        if inputs:
            inputs = (self.shift(inputs[0]), *inputs[1:])
        elif named:
            first = next(iter(named))
            named[first] = self.shift(named[first])
        return self.tail(self.head(lookup(self.model(*inputs, **named), self.path)))


def lookup(returned: Any, path: Path) -> Any:
    """What lies at ``path``; FuseError where nothing does."""
    for step in path:
        try:
            by_key = isinstance(step, int) or isinstance(returned, Mapping)
            returned = returned[step] if by_key else getattr(returned, str(step))
        except (LookupError, AttributeError, TypeError):
            where = ".".join(map(str, path))
            raise FuseError(
                f"the model returns {type(returned).__name__}, in which there is no {where}; "
                "say where its scores lie with --output (output=)"
            ) from None
    return returned


def assemble(shift: nn.Module, model: nn.Module, head: nn.Module, tail: nn.Module, path: Path) -> nn.Module:
    """The parts as one module, TorchScript if the model is and needs it."""
    needed = parameters(model, needed=True)
    if not path and len(needed) == 1:
        return Calibrated(shift, model, head, tail)
    if isinstance(model, torch.jit.ScriptModule):
        return _scripted(_Parts(shift, model, head, tail), path)
    whole = CalibratedMany(shift, model, head, tail)
    whole.path = path
    return whole


def _scripted(parts: _Parts, path: Path) -> nn.Module:
    """TorchScript has no ``*inputs``: a forward with the signature of the model's."""
    arguments = parts.model._c._get_method("forward").schema.arguments[1:]  # type: ignore[union-attr,operator]
    signature = ", ".join(
        f"{a.name}: {a.type.annotation_str}" + (f" = {a.default_value!r}" if a.has_default_value() else "")
        for a in arguments
    )
    first, *more = (a.name for a in arguments)
    call = ", ".join(
        (f"self.shift({first})", *more) if not isinstance(parts.shift, nn.Identity) else (first, *more)
    )
    steps = "".join(f"[{step!r}]" for step in path)
    whole = torch.jit.script(parts)
    whole.define(
        f"def forward(self, {signature}):\n    return self.tail(self.head(self.model({call}){steps}))\n"
    )
    return whole
