"""A calibrated model as one torch module: its parts in one forward, scripted where the model is."""

# mypy: disable-error-code="attr-defined,no-untyped-call,no-untyped-def,override"
# No postponed annotations here, nor comments on types: torch.jit.script reads them as they stand, and infers
# what they leave out.
import inspect
from collections.abc import Mapping
from typing import Any, Union

from torch import Tensor, nn

from calib_serve.core.errors import FuseError
from calib_serve.models import is_scripted, scripted_around, scripted_inputs

Where = tuple[Union[str, int], ...]
"""Where the scores lie in what a model returns: keys, attributes and positions."""


class _Parts(nn.Module):
    """The parts, without a forward, which may be written for the model's own signature."""

    def __init__(self, shift: nn.Module, model: nn.Module, head: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.shift = shift
        self.model = model
        self.head = head
        self.tail = tail
        self.training = False


# TorchScript knows no *inputs: the common model of one input and one tensor gets a forward of its own.
class CalibratedModule(_Parts):
    """shift -> model -> the head's further layers -> calibration of the scores."""

    def forward(self, inputs: Tensor):
        """The results that ``returns`` names, for one batch of inputs."""
        return self.tail(self.head(self.model(self.shift(inputs))))


class CalibratedMany(CalibratedModule):
    """A calibrated model of any inputs and any returned structure; the shift acts on the first input."""

    path: Where = ()

    def forward(self, *inputs: Any, **named: Any):
        """The results that ``returns`` names, for one batch of inputs."""
        if inputs:
            inputs = (self.shift(inputs[0]), *inputs[1:])
        elif named:
            first = next(iter(named))
            named[first] = self.shift(named[first])
        return self.tail(self.head(lookup(self.model(*inputs, **named), self.path)))


def parameters(model: nn.Module, *, needed: bool = False) -> list[str]:
    """List the names of a model's inputs; those ``needed`` alone, where that is known."""
    if is_scripted(model):
        return scripted_inputs(model, needed=needed)
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    fixed = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [p.name for p in fixed if not (needed and p.default is not p.empty)]


def lookup(returned: Any, path: Where) -> Any:
    """The value at ``path``; FuseError where there is none."""
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


def assemble(shift: nn.Module, model: nn.Module, head: nn.Module, tail: nn.Module, path: Where) -> nn.Module:
    """Assemble the parts to one module, TorchScript if the model is and needs it."""
    if not path and len(parameters(model, needed=True)) == 1:
        return CalibratedModule(shift, model, head, tail)
    if is_scripted(model):
        parts = _Parts(shift, model, head, tail)
        return scripted_around(parts, path, shifts=not isinstance(shift, nn.Identity))
    whole = CalibratedMany(shift, model, head, tail)
    whole.path = path
    return whole
