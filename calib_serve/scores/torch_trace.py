"""What makes a torch model's scores: the operators of one run, whatever its kind of file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calib_serve.scores.kinds import MadeBy

if TYPE_CHECKING:
    from torch import Tensor

_PASS = frozenset(
    {"view", "_unsafe_view", "reshape", "clone", "detach", "alias", "_to_copy", "to", "squeeze", "unsqueeze"}
    | {"flatten", "slice", "select", "expand", "permute", "transpose", "t", "lift_fresh", "dequantize"}
)
"""Operators whose first argument is handed on, score by score."""
_ACTIVATIONS: dict[str, MadeBy] = {
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), "Softmax"),
    **dict.fromkeys(("log_softmax", "_log_softmax"), "LogSoftmax"),
    **dict.fromkeys(("sigmoid", "sigmoid_"), "Sigmoid"),
}
_LAYERS = frozenset({"addmm", "addmv", "mm", "mv", "bmm", "baddbmm", "matmul", "_scaled_mm"})
_LINEAR = frozenset(
    {"add", "add_", "sub", "rsub", "mul", "mul_", "div", "div_", "neg", "mean", "avg_pool2d", "where"}
    | {"_adaptive_avg_pool2d", "native_batch_norm", "_native_batch_norm_legit_no_training", "masked_fill"}
)


def traced(network: Any, args: Any, named: Mapping[str, Any] | None = None) -> tuple[Any, Trace]:
    """Run a model on inputs; return its results, and what made them.

    Args:
        network: The model.
        args: Its inputs by position.
        named: Its inputs by name.
    """
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415  # torch is a choice

    held = dict(named or {})
    trace = Trace((args, held))

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Else torch imports its compiler at the first operator: 4.3 seconds."""
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            trace.record(func.overloadpacket.__name__, (args, kwargs or {}), made)
            return made

    with Recorder():  # type: ignore[no-untyped-call]
        return network(*args, **held), trace


class Trace:
    """The operators of a run, by the tensors that they made of the inputs.

    Args:
        inputs: Tensors that the run begins with: others are constants.
    """

    def __init__(self, inputs: Any) -> None:
        # By numbers, as a tensor that is gone leaves its id to another.
        self._steps: list[tuple[str, list[int]]] = [("input", [])]
        self._number = {id(one): 0 for one in _tensors(inputs)}

    def record(self, name: str, given: Any, made: Any) -> None:
        """Note an operator; one of constants alone is none.

        Args:
            name: Its name in torch.
            given: Its arguments.
            made: Its results.
        """
        before = [self._number[id(one)] for one in _tensors(given) if id(one) in self._number]
        for one in _tensors(made):
            self._number.pop(id(one), None)
            if before:
                self._number[id(one)] = len(self._steps)
        if before:
            self._steps.append((name, before))

    def made_by(self, scores: Tensor) -> MadeBy:
        """What makes these scores: an activation, a linear layer, or neither.

        Args:
            scores: One of the run's results.
        """
        ends, seen, todo = set[MadeBy](), set[int](), [self._number.get(id(scores), 0)]
        while todo:
            name, before = self._steps[number := todo.pop()]
            if number in seen:
                continue
            seen.add(number)
            if name in _PASS:
                todo.append(before[0])
            elif name in _LINEAR:
                todo += before
            elif name in _LAYERS or "linear" in name or "conv" in name:
                ends.add("layer")
            else:
                ends.add(_ACTIVATIONS.get(name, ""))
        # A sum of probabilities is none of them, and its rows say so.
        alone = all(self._steps[number][0] not in _LINEAR for number in seen)
        return ends.pop() if len(ends) == 1 and (alone or ends == {"layer"}) else ""


def _tensors(held: Any) -> list[Any]:
    """The tensors among arguments or results."""
    if isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, (list, tuple)):
        return [one for part in held for one in _tensors(part)]
    return [held] if hasattr(held, "untyped_storage") else []
