"""The steps of an artifact as torch modules: input shift, further layers, and the output steps.

Buffers and plain tensor code that script, trace and export. Half precision is calibrated in float32.
"""

# mypy: disable-error-code="attr-defined,no-untyped-call,no-untyped-def,override"
# No postponed annotations here, nor comments on types: torch.jit.script reads them as they stand, and infers
# what they leave out.
import math

import numpy as np
import torch
from torch import Tensor, nn

from calib_serve.artifact import Artifact, Head, InputShift, LogitMap, Mixture, PredictionSets, ProbTable
from calib_serve.core.arrays import AnyFloats
from calib_serve.fuse._decisions import lac_least, rank_offsets, rounded_down
from calib_serve.scores import LEAST, MASKED


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


class Map(nn.Module):
    """W z + b, on logits or log-probabilities."""

    weight: Tensor
    bias: Tensor

    def __init__(self, step: LogitMap, dtype: torch.dtype) -> None:
        super().__init__()
        bias = np.zeros(()) if step.bias is None else step.bias
        self.register_buffer("weight", torch.tensor(step.weight, dtype=dtype))
        self.register_buffer("bias", torch.tensor(bias, dtype=dtype))
        self.full, self.each = step.weight.ndim == 2, not step.is_scalar
        self.masked, self.nan = MASKED, math.nan
        self.biased = step.bias is not None
        self.log_probs = step.on == "log_probs"
        self.least = -math.inf if step.least is None else math.log(step.least)

    def forward(self, logits: Tensor) -> Tensor:
        """Map (n, K) to (n, K); a masked class stays masked, and a matrix has NaN in its row."""
        given = torch.log_softmax(logits, dim=1) if self.log_probs else logits
        masked = given <= self.masked
        z = given.clamp_min(self.least)
        z = z @ self.weight.t() if self.full else z * self.weight
        z = z + self.bias if self.biased else z
        if self.full:
            return z.masked_fill(masked.any(dim=1, keepdim=True), self.nan)
        return torch.where(masked, given, z) if self.each else z


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
        found = (others * ((1 - new) / rest)).scatter(1, top, new)
        return torch.where(probs.isnan(), probs, found)  # NaN lies in no bin


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
        return torch.where(probs.isnan(), probs, self.values.gather(1, found).t())


class _Renormalised(nn.Module):
    """Rows that sum to 1."""

    def forward(self, looked_up: Tensor) -> Tensor:
        total = looked_up.sum(dim=1, keepdim=True)
        alike = torch.full_like(looked_up, 1.0 / looked_up.shape[1])
        # Uniform where every class falls into a bin of value 0.
        known = torch.where(total == 0, torch.ones_like(total), total)
        return torch.where(total == 0, alike, looked_up / known)


class _Unmasked(nn.Module):
    """Steps to probabilities that keep masked classes at 0; the others share what they would get."""

    def __init__(self, steps: nn.Sequential, labels: bool) -> None:
        super().__init__()
        self.steps, self.labels, self.masked = steps, labels, MASKED

    def forward(self, logits: Tensor) -> Tensor:
        probs: Tensor = self.steps(logits)
        masked = (logits <= self.masked) & ~probs.isnan()
        kept = probs.masked_fill(masked, 0)
        if self.labels:
            return kept
        return torch.where(masked.any(dim=1, keepdim=True), kept / kept.sum(dim=1, keepdim=True), probs)


def edges(exact: AnyFloats, dtype: torch.dtype) -> Tensor:
    """Round bin edges so that x > edge means in ``dtype`` what it means in float64."""
    return torch.tensor(exact if dtype == torch.float64 else rounded_down(exact), dtype=dtype)


def probabilities(artifact: Artifact, dtype: torch.dtype) -> nn.Module:
    """Make the steps from calibrated logits (n, K) to probabilities (n, K); of labels, sigmoids."""
    mixture, table = artifact.mixture, artifact.table
    if artifact.is_multilabel:
        each = nn.Sequential(nn.Sigmoid(), *([] if table is None else [_EachTable(table, dtype)]))
        return each if table is None else _Unmasked(each, labels=True)
    made: list[nn.Module] = [nn.Softmax(dim=1) if mixture is None else _Mixture(mixture, dtype)]
    if table is not None and table.classes is None:
        made.append(_TopTable(table, dtype))
    elif table is not None:
        made += [_EachTable(table, dtype), _Renormalised()]
    steps = nn.Sequential(*made)
    return steps if mixture is None and table is None else _Unmasked(steps, labels=False)


class _ByProbability(nn.Module):
    """LAC: the classes of at least some probability, and the likeliest."""

    least: Tensor

    def __init__(self, step: PredictionSets, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(lac_least(step.threshold, numpy_type(dtype))))

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


def sets(step: PredictionSets, classes: int, dtype: torch.dtype) -> nn.Module:
    """Make the step from probabilities to whether each class is in the set, both (n, K)."""
    return _ByProbability(step, dtype) if step.score == "lac" else _BySum(step, classes, dtype)


def numpy_type(dtype: torch.dtype) -> type[np.floating]:
    return np.float64 if dtype == torch.float64 else np.float32
