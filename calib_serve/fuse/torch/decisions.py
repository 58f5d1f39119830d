"""Prediction sets, abstention and acts as torch modules, by calibrated probabilities (n, K)."""

# mypy: disable-error-code="no-untyped-call"
# No postponed annotations here: torch.jit.script reads them as they stand.
import numpy as np
import torch
from torch import Tensor, nn

from calib_serve.artifact import Abstain, Artifact, PredictionSets
from calib_serve.fuse.decisions import act_least, decided, lac_least, rank_offsets, rounded_up
from calib_serve.fuse.torch.steps import edges

__all__ = ["abstention", "acts", "sets"]


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
        scores = ranked.cumsum(dim=1) + self.offsets
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
