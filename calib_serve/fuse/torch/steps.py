"""The steps of an artifact as torch modules: buffers and plain tensor code that script, trace and export.

Half precision logits are calibrated in float32 and come back in their own dtype.
"""

# No postponed annotations here: torch.jit.script reads them as they stand.
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from calib_serve.artifact import Artifact
from calib_serve.artifact.steps import Floats, Head, InputShift, LogitMap, Mixture, ProbTable
from calib_serve.fuse.edges import rounded_down
from calib_serve.metrics.logits import LEAST

__all__ = ["All", "Everything", "Log", "Logits", "Probabilities", "Shift", "layers"]


class All(NamedTuple):
    """All results of a batch: (n, K), (n, K), (n,), (n,), (n,)."""

    logits: Tensor
    probabilities: Tensor
    confidence: Tensor
    predicted: Tensor
    bin: Tensor


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


class Log(nn.Module):
    """Logits of a model that returns probabilities: their logarithm, finite where one is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.least = LEAST

    def forward(self, probs: Tensor) -> Tensor:
        """(n, K) to (n, K), at least float32."""
        exact = probs if probs.dtype == torch.float64 else probs.float()
        return exact.clamp_min(self.least).log()


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

    def forward(self, logits: Tensor) -> Tensor:
        z = torch.log_softmax(logits, dim=1) if self.log_probs else logits
        z = z @ self.weight.t() if self.full else z * self.weight
        return z + self.bias if self.biased else z


class _Softmax(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=1)


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
        self.register_buffer("edges", _edges(step.edges[0], dtype))
        self.register_buffer("values", torch.tensor(step.values[0], dtype=dtype))

    def forward(self, probs: Tensor) -> Tensor:
        old, top = probs.max(dim=1, keepdim=True)
        new = self.values[torch.bucketize(old, self.edges)]
        others = probs.scatter(1, top, torch.zeros_like(old))
        # Summing the others is exact where 1 - old is rounded.
        rest = others.sum(dim=1, keepdim=True)
        alike = torch.ones_like(others) / (probs.shape[1] - 1)
        shared = torch.where(rest > 0, others / torch.where(rest > 0, rest, torch.ones_like(rest)), alike)
        return (shared * (1 - new)).scatter(1, top, new)


class _ClassTable(nn.Module):
    """One row per class: each looked up on its own, then renormalised."""

    edges: Tensor
    values: Tensor

    def __init__(self, step: ProbTable, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("edges", _edges(step.edges, dtype))
        self.register_buffer("values", torch.tensor(step.values, dtype=dtype))

    def forward(self, probs: Tensor) -> Tensor:
        found = torch.searchsorted(self.edges, probs.t().contiguous())
        looked_up = self.values.gather(1, found).t()
        total = looked_up.sum(dim=1, keepdim=True)
        alike = torch.full_like(looked_up, 1.0 / probs.shape[1])
        # Uniform where every class falls into a bin of value 0.
        known = torch.where(total > 0, total, torch.ones_like(total))
        return torch.where(total > 0, looked_up / known, alike)


def _edges(edges: Floats, dtype: torch.dtype) -> Tensor:
    return torch.tensor(edges if dtype == torch.float64 else rounded_down(edges), dtype=dtype)


class _Tail(nn.Module):
    """Raw logits to calibrated ones, and on to probabilities; the base of the three outputs."""

    def __init__(self, maps: tuple[LogitMap, ...], artifact: Artifact, dtype: torch.dtype) -> None:
        super().__init__()
        mixture, table = artifact.mixture, artifact.table
        tables: list[nn.Module] = []
        if table is not None:
            tables = [_TopTable(table, dtype) if table.classes is None else _ClassTable(table, dtype)]
        self.maps = nn.Sequential(*[_Map(m, dtype) for m in maps])
        self.softmax = nn.Sequential(_Softmax() if mixture is None else _Mixture(mixture, dtype), *tables)
        # Where neither is, calibrated logits exist; else only log-probabilities.
        self.has_logits = mixture is None and table is None
        self.wide = dtype == torch.float64
        self.least = LEAST  # log-probabilities stay finite

    def _map(self, logits: Tensor) -> Tensor:
        mapped: Tensor = self.maps(logits.double() if self.wide else logits.float())
        return mapped

    def _logits(self, mapped: Tensor) -> Tensor:
        if self.has_logits:
            return mapped
        probs: Tensor = self.softmax(mapped)
        return probs.clamp_min(self.least).log()


class Logits(_Tail):
    """Calibrated logits (n, K): log-probabilities where a mixture or a table leaves no logits."""

    def forward(self, logits: Tensor) -> Tensor:
        """(n, K) to (n, K)."""
        return self._logits(self._map(logits)).to(logits.dtype)


class Probabilities(_Tail):
    """Calibrated probabilities (n, K)."""

    def forward(self, logits: Tensor) -> Tensor:
        """(n, K) to (n, K)."""
        probs: Tensor = self.softmax(self._map(logits))
        return probs.to(logits.dtype)


class Everything(_Tail):
    """Logits, probabilities, confidence, predicted class and bin."""

    inner_edges: Tensor

    def __init__(self, maps: tuple[LogitMap, ...], artifact: Artifact, dtype: torch.dtype) -> None:
        super().__init__(maps, artifact, dtype)
        bins = 15 if artifact.reference is None else len(artifact.reference)
        self.register_buffer("inner_edges", _edges(np.linspace(0, 1, bins + 1)[1:-1], dtype))

    def forward(self, logits: Tensor) -> All:
        """(n, K) to five tensors; the bin is that of the confidence as returned."""
        mapped = self._map(logits)
        probs = self.softmax(mapped)
        predicted = probs.argmax(dim=1)
        shown = probs.to(logits.dtype)
        confidence = shown.gather(1, predicted[:, None])[:, 0]
        exact = confidence.double() if self.wide else confidence.float()
        return All(
            self._logits(mapped).to(logits.dtype),
            shown,
            confidence,
            predicted,
            torch.bucketize(exact, self.inner_edges),
        )
