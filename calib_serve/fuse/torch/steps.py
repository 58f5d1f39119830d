"""The steps of an artifact as torch modules: buffers and plain tensor code that script, trace and export."""

# mypy: disable-error-code="no-untyped-call"
# No postponed annotations here: torch.jit.script reads them as they stand.
import math

import numpy as np
import torch
from torch import Tensor, nn

from calib_serve.artifact import Abstain, Artifact, PredictionSets
from calib_serve.artifact.steps import Floats, Head, InputShift, LogitMap, Mixture, ProbTable
from calib_serve.fuse.checks import rounded_down
from calib_serve.fuse.decisions import act_least, decided, lac_least, rank_offsets, rounded_up
from calib_serve.scores.kinds import LEAST

__all__ = ["Bias", "Shift", "abstention", "acts", "edges", "layers", "mapped", "probabilities", "sets"]


class Shift(nn.Module):
    """Add delta to every input, then clip when the step says so."""

    delta: Tensor

    def __init__(self, step: InputShift) -> None:
        super().__init__()
        self.register_buffer("delta", torch.tensor(step.delta))
        self.clip = step.low is not None
        self.low = 0.0 if step.low is None else step.low
        self.high = 0.0 if step.high is None else step.high

    def forward(self, inputs: Tensor) -> Tensor:
        """Shifted inputs, in the dtype they came in."""
        shifted = (inputs + self.delta).to(inputs.dtype)
        return shifted.clamp(self.low, self.high) if self.clip else shifted


def layers(head: Head) -> list[nn.Module]:
    """Linear layers, a ReLU before each but the first."""
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
        """(n, K) to (n, K)."""
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


class _Softmax(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=1)


class _Sigmoid(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)


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
    """Bin edges such that x > edge means in ``dtype`` what it means in float64."""
    return torch.tensor(exact if dtype == torch.float64 else rounded_down(exact), dtype=dtype)


def mapped(maps: tuple[LogitMap, ...], dtype: torch.dtype) -> nn.Sequential:
    """Logits (n, K) to calibrated logits (n, K)."""
    return nn.Sequential(*[_Map(m, dtype) for m in maps])


def probabilities(artifact: Artifact, dtype: torch.dtype) -> nn.Sequential:
    """Calibrated logits (n, K) to probabilities (n, K): a softmax or mixture, of labels sigmoids; a table."""
    mixture, table = artifact.mixture, artifact.table
    if artifact.is_multilabel:
        return nn.Sequential(_Sigmoid(), *([] if table is None else [_EachTable(table, dtype)]))
    made: list[nn.Module] = [_Softmax() if mixture is None else _Mixture(mixture, dtype)]
    if table is not None and table.classes is None:
        made.append(_TopTable(table, dtype))
    elif table is not None:
        made += [_EachTable(table, dtype), _Renormalised()]
    return nn.Sequential(*made)


# mypy: disable-error-code="no-untyped-call"
# No postponed annotations here: torch.jit.script reads them as they stand.


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

    def __init__(self, step: Abstain, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(rounded_up(np.array(step.threshold), _numpy(dtype))))

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
    """Probabilities (n, K) to whether each class is in the set (n, K); nothing where there are no sets."""
    step = artifact.sets
    if step is None:
        return nn.Identity()
    return _ByProbability(step, dtype) if step.score == "lac" else _BySum(step, artifact.classes, dtype)


def abstention(artifact: Artifact, dtype: torch.dtype) -> nn.Module:
    """Probabilities (n, K) to whether there is no answer (n,); nothing where the artifact always answers."""
    return nn.Identity() if artifact.abstain is None else _Abstention(artifact.abstain, dtype)


def acts(artifact: Artifact, dtype: torch.dtype) -> nn.Module:
    """Probabilities (n, K), as they are returned, to whether a prediction may be acted on (n,)."""
    return _Acts(artifact, dtype) if "act" in decided(artifact) else nn.Identity()


def _numpy(dtype: torch.dtype) -> type[np.floating]:
    return np.float64 if dtype == torch.float64 else np.float32
