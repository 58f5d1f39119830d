"""A calibrated model as torch modules: input shift, model, further layers, the artifact's steps.

Buffers and plain tensor code that script, trace and export. Half precision is calibrated in float32.
"""

# mypy: disable-error-code="attr-defined,no-untyped-call,no-untyped-def,override"
# No postponed annotations here, nor comments on types: torch.jit.script reads them as they stand, and infers
# what they leave out.
import inspect
import math
from collections.abc import Mapping
from typing import Any, Dict, NamedTuple, Union  # noqa: UP035 - TorchScript knows this Dict

import numpy as np
import torch
from torch import Tensor, nn

from calib_serve.artifact import (
    Artifact,
    Floats,
    Head,
    InputShift,
    LogitMap,
    Mixture,
    PredictionSets,
    ProbTable,
)
from calib_serve.core.errors import FuseError, ShapeError
from calib_serve.fuse._decisions import (
    NAMES,
    abstain_least,
    act_least,
    decision_names,
    has_logits,
    inner_edges,
    lac_least,
    rank_offsets,
    rounded_down,
)
from calib_serve.fuse._kinds import Change
from calib_serve.scores import LABELS, LEAST, ONE_COLUMN, PROBABILITIES, Outputs


class ShiftInputs(nn.Module):
    """Add delta to every input, then clip when the step says so."""

    delta: Tensor

    def __init__(self, step: InputShift) -> None:
        super().__init__()
        self.register_buffer("delta", torch.tensor(step.delta))
        self.clip = step.low is not None
        self.low = 0.0 if step.low is None else step.low
        self.high = 0.0 if step.high is None else step.high

    def forward(self, inputs: Tensor) -> Tensor:
        """Shift the inputs, in the dtype they came in."""
        shifted = (inputs + self.delta).to(inputs.dtype)
        return shifted.clamp(self.low, self.high) if self.clip else shifted


def layers(head: Head) -> list[nn.Module]:
    """Make linear layers, a ReLU before each but the first."""
    made: list[nn.Module] = []
    for i, (weight, bias) in enumerate(zip(head.weights, head.biases, strict=True)):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight = nn.Parameter(torch.tensor(weight), requires_grad=False)
        linear.bias = nn.Parameter(torch.tensor(bias), requires_grad=False)
        made += [nn.ReLU(), linear] if i else [linear]
    return made


class Bias(nn.Module):
    """The bias for a scripted layer that has none."""

    bias: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("bias", bias.detach())

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the bias to (n, K)."""
        return inputs + self.bias


class _Map(nn.Module):
    """W z + b, on logits or log-probabilities."""

    weight: Tensor
    bias: Tensor

    def __init__(self, step: LogitMap, dtype: torch.dtype) -> None:
        super().__init__()
        bias = np.zeros(()) if step.bias is None else step.bias
        self.register_buffer("weight", torch.tensor(step.weight, dtype=dtype))
        self.register_buffer("bias", torch.tensor(bias, dtype=dtype))
        self.full = step.weight.ndim == 2
        self.biased = step.bias is not None
        self.log_probs = step.on == "log_probs"
        self.least = -math.inf if step.least is None else math.log(step.least)

    def forward(self, logits: Tensor) -> Tensor:
        z = torch.log_softmax(logits, dim=1).clamp_min(self.least) if self.log_probs else logits
        z = z @ self.weight.t() if self.full else z * self.weight
        return z + self.bias if self.biased else z


class _Mixture(nn.Module):
    scales: Tensor
    weights: Tensor

    def __init__(self, step: Mixture, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("scales", torch.tensor(step.scales, dtype=dtype))
        self.register_buffer("weights", torch.tensor(step.weights, dtype=dtype))

    def forward(self, logits: Tensor) -> Tensor:
        parts = torch.softmax(logits.unsqueeze(1) * self.scales[:, None], dim=2)
        mixed = (parts * self.weights[:-1, None]).sum(dim=1)
        return mixed + self.weights[-1] / logits.shape[1]


class _TopTable(nn.Module):
    """One row: the top-1 confidence is looked up, the others keep their proportions."""

    edges: Tensor
    values: Tensor

    def __init__(self, step: ProbTable, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("edges", edges(step.edges[0], dtype))
        self.register_buffer("values", torch.tensor(step.values[0], dtype=dtype))
        self.least = LEAST

    def forward(self, probs: Tensor) -> Tensor:
        old, top = probs.max(dim=1, keepdim=True)
        new = self.values[torch.bucketize(old, self.edges)]
        others = probs.clamp_min(self.least).scatter(1, top, torch.zeros_like(old))
        # Summing the others is exact where 1 - old is rounded.
        rest = others.sum(dim=1, keepdim=True)
        return (others * ((1 - new) / rest)).scatter(1, top, new)


class _EachTable(nn.Module):
    """One row per class or label: each looked up on its own."""

    edges: Tensor
    values: Tensor

    def __init__(self, step: ProbTable, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("edges", edges(step.edges, dtype))
        self.register_buffer("values", torch.tensor(step.values, dtype=dtype))

    def forward(self, probs: Tensor) -> Tensor:
        found = torch.searchsorted(self.edges, probs.t().contiguous())
        return self.values.gather(1, found).t()


class _Renormalised(nn.Module):
    """Rows that sum to 1."""

    def forward(self, looked_up: Tensor) -> Tensor:
        total = looked_up.sum(dim=1, keepdim=True)
        alike = torch.full_like(looked_up, 1.0 / looked_up.shape[1])
        # Uniform where every class falls into a bin of value 0.
        known = torch.where(total > 0, total, torch.ones_like(total))
        return torch.where(total > 0, looked_up / known, alike)


def edges(exact: Floats, dtype: torch.dtype) -> Tensor:
    """Round bin edges so that x > edge means in ``dtype`` what it means in float64."""
    return torch.tensor(exact if dtype == torch.float64 else rounded_down(exact), dtype=dtype)


def mapped(maps: tuple[LogitMap, ...], dtype: torch.dtype) -> nn.Sequential:
    """Make the steps from logits (n, K) to calibrated logits (n, K)."""
    return nn.Sequential(*[_Map(m, dtype) for m in maps])


def probabilities(artifact: Artifact, dtype: torch.dtype) -> nn.Sequential:
    """Make the steps from calibrated logits (n, K) to probabilities (n, K); of labels, sigmoids."""
    mixture, table = artifact.mixture, artifact.table
    if artifact.is_multilabel:
        return nn.Sequential(nn.Sigmoid(), *([] if table is None else [_EachTable(table, dtype)]))
    made: list[nn.Module] = [nn.Softmax(dim=1) if mixture is None else _Mixture(mixture, dtype)]
    if table is not None and table.classes is None:
        made.append(_TopTable(table, dtype))
    elif table is not None:
        made += [_EachTable(table, dtype), _Renormalised()]
    return nn.Sequential(*made)


class _ByProbability(nn.Module):
    """LAC: the classes of at least some probability, and the likeliest."""

    least: Tensor

    def __init__(self, step: PredictionSets, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(lac_least(step.threshold, _numpy(dtype))))

    def forward(self, probs: Tensor) -> Tensor:
        top = probs.argmax(dim=1, keepdim=True)
        inside = probs >= self.least
        return inside.scatter(1, top, torch.ones_like(top, dtype=torch.bool))


class _BySum(nn.Module):
    """APS and RAPS: sorted, summed up, and put back; of equal values the first class comes first."""

    offsets: Tensor
    most: Tensor

    def __init__(self, step: PredictionSets, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.tensor(rank_offsets(step, classes), dtype=dtype))
        self.register_buffer("most", edges(step.threshold, dtype))

    def forward(self, probs: Tensor) -> Tensor:
        ranked, order = torch.sort(probs, stable=True, dim=1, descending=True)
        scores = ranked.cumsum(dim=1) - ranked + self.offsets
        return torch.zeros_like(probs).scatter(1, order, scores) <= self.most


class _Abstention(nn.Module):
    least: Tensor

    def __init__(self, artifact: Artifact, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(abstain_least(artifact, _numpy(dtype))))

    def forward(self, probs: Tensor) -> Tensor:
        return torch.logical_not(probs.amax(dim=1) >= self.least)  # also of NaN


class _Acts(nn.Module):
    least: Tensor

    def __init__(self, artifact: Artifact, dtype: torch.dtype) -> None:
        super().__init__()
        least = np.broadcast_to(act_least(artifact, _numpy(dtype)), artifact.classes)
        self.register_buffer("least", torch.tensor(least))

    def forward(self, probs: Tensor) -> Tensor:
        top, predicted = probs.max(dim=1)
        return top.to(self.least.dtype) >= self.least[predicted]


def sets(artifact: Artifact, dtype: torch.dtype) -> nn.Module:
    """Make the step from probabilities to whether each class is in the set, both (n, K)."""
    step = artifact.sets
    assert step is not None  # "set" is decided
    return _ByProbability(step, dtype) if step.score == "lac" else _BySum(step, artifact.classes, dtype)


def _numpy(dtype: torch.dtype) -> type[np.floating]:
    return np.float64 if dtype == torch.float64 else np.float32


# --- From scores to what is returned ----------------------------------------------------------------


class All(NamedTuple):
    """All results of a batch: (n, K), (n, K), (n,), (n,), (n,); of labels each is (n, L).

    ``confidence`` is that of what is ``predicted``: of a label, 1 where p > 0.5, else 0, it is max(p, 1 - p).
    """

    logits: Tensor
    probabilities: Tensor
    confidence: Tensor
    predicted: Tensor
    bin: Tensor


class Read(nn.Module):
    """Read the model's scores as logits (n, K) of the kind that the artifact was fitted on."""

    def __init__(self, outputs: Outputs, classes: int, change: Change, dtype: torch.dtype) -> None:
        super().__init__()
        self.columns = 1 if outputs in ONE_COLUMN else classes
        self.outputs = str(outputs)
        self.one = outputs in ONE_COLUMN
        self.probs = outputs in PROBABILITIES
        self.labels = outputs in LABELS
        self.normalise = change == "normalise"
        self.difference = change == "difference"
        self.wide = dtype == torch.float64
        self.least = LEAST  # log-probabilities stay finite
        self.most = 1 + 1e-3  # rounding of half precision
        self.nan = float("nan")

    def check(self, scores: Tensor) -> Tensor:
        """``scores`` as (n, columns); ShapeError for another shape."""
        if not isinstance(scores, Tensor):
            raise FuseError("the model returns no tensor; say where its scores lie with output=")
        rows = scores.unsqueeze(1) if self.one and scores.dim() == 1 else scores
        if torch.jit.is_tracing():
            # A trace keeps no "if", but this operator, which fails on another width.
            traced: Tensor = rows.unflatten(1, [self.columns])
            return traced
        if rows.dim() != 2 or rows.shape[1] != self.columns:
            raise ShapeError(
                f"the model returns {scores.shape}, and the calibration takes {self.columns} "
                f"of {self.outputs} a sample; say what they are with outputs=, or fit on this model"
            )
        return rows

    def forward(self, scores: Tensor) -> Tensor:
        """Read (n, K) as (n, K), or (n,), (n, 1) as (n, 2); at least float32."""
        rows = self.check(scores)
        z = rows.double() if self.wide else rows.float()
        if self.one:
            z = torch.cat([1 - z if self.probs else torch.zeros_like(z), z], dim=1)
        if self.probs:
            logs = z.clamp_min(self.least).log()
            if self.labels:
                logs = logs - (1 - z).clamp_min(self.least).log()
            z = logs.masked_fill(~((z >= 0) & (z <= self.most)), self.nan)
        if self.normalise:
            z = torch.log_softmax(z, dim=1)
        if self.difference:
            z = torch.cat([torch.zeros_like(z[:, :1]), z[:, 1:] - z[:, :1]], dim=1)
        return z


class CalibrateScores(nn.Module):
    """Base of all tails: from scores to calibrated logits, and on to probabilities."""

    def __init__(
        self,
        maps: tuple[LogitMap, ...],
        artifact: Artifact,
        dtype: torch.dtype,
        outputs: Outputs,
        change: Change,
    ) -> None:
        super().__init__()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.read = Read(outputs, artifact.classes, change, wide)
        self.maps = mapped(maps, wide)
        self.probabilities = probabilities(artifact, wide)
        # Where neither is, calibrated logits exist; else only log-probabilities.
        self.has_logits = has_logits(artifact)
        self.labels = artifact.is_multilabel
        self.one = outputs in ONE_COLUMN
        self.wide = dtype == torch.float64
        self.least = LEAST

    def logits(self, z: Tensor) -> Tensor:
        """The calibrated logits (n, K); behind a mixture or table, logits of its probabilities."""
        if self.has_logits:
            return z
        probs: Tensor = self.probabilities(z)
        logs = probs.clamp_min(self.least).log()
        return logs - (1 - probs).clamp_min(self.least).log() if self.labels else logs

    def shown_logits(self, scores: Tensor, z: Tensor) -> Tensor:
        """The calibrated logits in the shape and type of the model's own scores."""
        shown = self.logits(z)
        if self.one:
            shown = (shown[:, 1] - shown[:, 0]).reshape(scores.shape)
        return shown.to(scores.dtype)


class Logits(CalibrateScores):
    """Calibrated logits in the model's own shape; log-probabilities where a mixture or table leaves none."""

    def forward(self, scores: Tensor) -> Tensor:
        """Map (n, K) to (n, K), one column to one logit."""
        return self.shown_logits(scores, self.maps(self.read(scores)))


class Unchanged(Logits):
    """Probabilities as they are, where no step acts on them."""

    def forward(self, scores: Tensor) -> Tensor:
        """The scores as they are."""
        self.read.check(scores)
        return scores


class Probabilities(CalibrateScores):
    """Calibrated probabilities (n, K); of one column (n, 2)."""

    def forward(self, scores: Tensor) -> Tensor:
        """Map (n, K) to (n, K)."""
        probs: Tensor = self.probabilities(self.maps(self.read(scores)))
        return probs.to(scores.dtype)


class Everything(CalibrateScores):
    """Logits, probabilities, confidence, predicted class and bin."""

    inner_edges: Tensor

    def __init__(
        self, maps: tuple[LogitMap, ...], artifact: Artifact, dtype: torch.dtype, *kind: Any
    ) -> None:
        super().__init__(maps, artifact, dtype, *kind)
        self.register_buffer("inner_edges", edges(inner_edges(artifact), dtype))

    def everything(self, scores: Tensor, z: Tensor, probs: Tensor) -> All:
        """Make all results of calibrated logits and probabilities."""
        shown = probs.to(scores.dtype)
        if self.labels:
            predicted = (shown > 0.5).long()
            confidence = torch.maximum(shown, 1 - shown)
        else:
            predicted = probs.argmax(dim=1)
            confidence = shown.gather(1, predicted[:, None])[:, 0]
        exact = confidence.double() if self.wide else confidence.float()
        return All(
            self.logits(z).to(scores.dtype),
            shown,
            confidence,
            predicted,
            torch.bucketize(exact.contiguous(), self.inner_edges),
        )

    def forward(self, scores: Tensor) -> All:
        """Map (n, K) to five tensors; the bin is that of the confidence as returned."""
        z = self.maps(self.read(scores))
        return self.everything(scores, z, self.probabilities(z))


class WithDecisions(Everything):
    """A mapping by name: results as ``returns`` says, and decisions "set", "abstain" and "act"."""

    def __init__(
        self, returns: str, maps: tuple[LogitMap, ...], artifact: Artifact, dtype: torch.dtype, *kind: Any
    ) -> None:
        super().__init__(maps, artifact, dtype, *kind)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.returns = returns
        # Attributes that are constants: TorchScript then leaves out the branches that are not taken.
        self.has_sets, self.abstains, self.has_acts = (name in decision_names(artifact) for name in NAMES)
        self.sets = sets(artifact, wide) if self.has_sets else nn.Identity()
        self.abstention = _Abstention(artifact, wide) if self.abstains else nn.Identity()
        self.acts = _Acts(artifact, wide) if self.has_acts else nn.Identity()

    def forward(self, scores: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        """Map (n, K) to tensors by name.

        Decisions are by the probabilities before these are rounded; acts by the confidence as it is returned,
        which is what receipts carry.
        """
        z = self.maps(self.read(scores))
        probs = self.probabilities(z)
        found: Dict[str, Tensor] = {}  # noqa: UP006
        if self.returns == "all":
            every = self.everything(scores, z, probs)
            found["logits"] = every.logits
            found["probabilities"] = every.probabilities
            found["confidence"] = every.confidence
            found["predicted"] = every.predicted
            found["bin"] = every.bin
        elif self.returns == "logits":
            found["logits"] = self.shown_logits(scores, z)
        else:
            found["probabilities"] = probs.to(scores.dtype)
        if self.has_sets:
            found["set"] = self.sets(probs)
        if self.abstains:
            found["abstain"] = self.abstention(probs)
        if self.has_acts:
            found["act"] = self.acts(probs.to(scores.dtype))
        return found


# --- The whole model --------------------------------------------------------------------------------


# torch.jit.script reads the signatures: so no postponed annotations, and forward's return type is inferred.


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
    if isinstance(model, torch.jit.ScriptModule):
        schema = model._c._get_method("forward").schema.arguments[1:]
        return [a.name for a in schema if not (needed and a.has_default_value())]
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
    needed = parameters(model, needed=True)
    if not path and len(needed) == 1:
        return CalibratedModule(shift, model, head, tail)
    if isinstance(model, torch.jit.ScriptModule):
        return _scripted(_Parts(shift, model, head, tail), path)
    whole = CalibratedMany(shift, model, head, tail)
    whole.path = path
    return whole


def _scripted(parts: _Parts, path: Where) -> nn.Module:
    """Write a forward with the signature of the model's, as TorchScript has no ``*inputs``."""
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
