"""The tail of a calibrated model as torch modules: from the model's scores to what is returned."""

# mypy: disable-error-code="attr-defined,no-untyped-call,no-untyped-def,override"
# No postponed annotations here, nor comments on types: torch.jit.script reads them as they stand, and infers
# what they leave out.
from typing import Any, Dict  # noqa: UP035 - TorchScript knows this Dict

import numpy as np
import torch
from torch import Tensor, nn

from calib_serve.artifact import Abstain, Artifact, Choice, Contract, LogitMap
from calib_serve.core.errors import FuseError, ShapeError
from calib_serve.fuse._decisions import (
    NAMES,
    abstain_least,
    act_least,
    choice_least,
    decision_names,
    has_logits,
    inner_edges,
)
from calib_serve.fuse._kinds import Change
from calib_serve.fuse.torch._modules import (
    Map,
    edges,
    numpy_type,
    probabilities,
    sets,
)
from calib_serve.scores import LABELS, LEAST, ONE_COLUMN, PROBABILITIES, Outputs


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
    """Base of all tails: from scores to calibrated logits, and on to probabilities, in float32 or float64."""

    def __init__(
        self,
        maps: tuple[LogitMap, ...],
        artifact: Artifact,
        dtype: torch.dtype,
        outputs: Outputs,
        change: Change,
    ) -> None:
        super().__init__()
        self.read = Read(outputs, artifact.classes, change, dtype)
        self.maps = nn.Sequential(*[Map(m, dtype) for m in maps])
        self.probabilities = probabilities(artifact, dtype)
        # Where neither is, calibrated logits exist; else only log-probabilities.
        self.has_logits = has_logits(artifact)
        self.labels = artifact.is_multilabel
        self.one = outputs in ONE_COLUMN
        self.least = LEAST

    def logits(self, z: Tensor) -> Tensor:
        """The calibrated logits (n, K); behind a mixture or table, logits of its probabilities."""
        if self.has_logits:
            return z
        probs: Tensor = self.probabilities(z)
        logs = probs.clamp_min(self.least).log()
        return logs - (1 - probs).clamp_min(self.least).log() if self.labels else logs


class Logits(CalibrateScores):
    """Calibrated logits in the model's own shape; log-probabilities where a mixture or table leaves none."""

    def forward(self, scores: Tensor) -> Tensor:
        """Map (n, K) to (n, K), one column to one logit; at least in float32."""
        shown = self.logits(self.maps(self.read(scores)))
        return (shown[:, 1] - shown[:, 0]).reshape(scores.shape) if self.one else shown


class Unchanged(Logits):
    """Probabilities as they are, where no step acts on them."""

    def forward(self, scores: Tensor) -> Tensor:
        """The scores as they are."""
        self.read.check(scores)
        return scores


class Probabilities(CalibrateScores):
    """Calibrated probabilities (n, K); of one column (n, 2)."""

    def forward(self, scores: Tensor) -> Tensor:
        """Map (n, K) to (n, K), at least in float32: a type of 16 bits holds no calibrated probability."""
        probs: Tensor = self.probabilities(self.maps(self.read(scores)))
        return probs


class Everything(CalibrateScores):
    """A mapping by name: "logits", "probabilities" (n, K), "confidence", "predicted", "bin" (n,), decisions.

    Of labels each is (n, L), and the confidence is that of what is predicted: max(p, 1 - p).
    """

    inner_edges: Tensor

    def __init__(
        self, maps: tuple[LogitMap, ...], artifact: Artifact, dtype: torch.dtype, *kind: Any
    ) -> None:
        super().__init__(maps, artifact, dtype, *kind)
        self.register_buffer("inner_edges", edges(inner_edges(artifact), dtype))
        # Attributes that are constants: TorchScript then leaves out the branches that are not taken.
        self.has_sets, self.abstains, self.has_acts, self.chooses = (
            name in decision_names(artifact) for name in NAMES
        )
        classes, contract = artifact.classes, artifact.contract if self.has_acts else None
        self.sets = nn.Identity() if artifact.sets is None else sets(artifact.sets, classes, dtype)
        self.abstention = nn.Identity() if artifact.abstain is None else _Abstention(artifact.abstain, dtype)
        self.acts = nn.Identity() if contract is None else _Acts(contract, classes, dtype)
        self.choice = nn.Identity() if artifact.choice is None else _Choice(artifact.choice, dtype)

    def forward(self, scores: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        """Map (n, K) to tensors by name."""
        z = self.maps(self.read(scores))
        probs = self.probabilities(z)
        if self.labels:
            predicted = (probs > 0.5).long()
            confidence = torch.maximum(probs, 1 - probs)
        else:
            confidence, predicted = probs.max(dim=1)
        found: Dict[str, Tensor] = {}  # noqa: UP006
        found["logits"] = self.logits(z)
        found["probabilities"] = probs
        found["confidence"] = confidence
        found["predicted"] = predicted
        found["bin"] = torch.bucketize(confidence.contiguous(), self.inner_edges)
        if self.has_sets:
            found["set"] = self.sets(probs)
        if self.abstains:
            found["abstain"] = self.abstention(probs)
        if self.has_acts:
            found["act"] = self.acts(probs)
        if self.chooses:
            found["decision"] = self.choice(probs)
        return found


class _Abstention(nn.Module):
    least: Tensor

    def __init__(self, rule: Abstain, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(abstain_least(rule, numpy_type(dtype))))

    def forward(self, probs: Tensor) -> Tensor:
        return torch.logical_not(probs.amax(dim=1) >= self.least)  # also of NaN


class _Acts(nn.Module):
    least: Tensor

    def __init__(self, contract: Contract, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        least = np.broadcast_to(act_least(contract, classes, numpy_type(dtype)), classes)
        self.register_buffer("least", torch.tensor(least))

    def forward(self, probs: Tensor) -> Tensor:
        top, predicted = probs.max(dim=1)
        return top.to(self.least.dtype) >= self.least[predicted]


class _Choice(nn.Module):
    costs: Tensor
    least: Tensor

    def __init__(self, choice: Choice, dtype: torch.dtype) -> None:
        super().__init__()
        self.by_cost = choice.threshold is None
        self.register_buffer("costs", torch.tensor(choice.regrets, dtype=dtype))
        self.register_buffer("least", torch.tensor(choice_least(choice, numpy_type(dtype))))

    def forward(self, probs: Tensor) -> Tensor:
        p = probs.to(self.costs.dtype)
        best = (p @ self.costs).argmin(dim=1) if self.by_cost else (p[:, 1] >= self.least).long()
        return best.masked_fill(p.isnan().any(dim=1), -1)
