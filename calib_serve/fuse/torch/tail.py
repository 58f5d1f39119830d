"""The end of a calibrated module: the model's scores in, calibrated ones out, in the dtype they came in.

Half precision is calibrated in float32.
"""

# mypy: disable-error-code="attr-defined,no-untyped-call"
# No postponed annotations here, nor comments on types: torch.jit.script reads them as they stand.
from typing import Dict, NamedTuple  # noqa: UP035 - TorchScript knows this one

import numpy as np
import torch
from torch import Tensor, nn

from calib_serve.artifact import Artifact
from calib_serve.artifact.steps import LogitMap
from calib_serve.errors import FuseError, ShapeError
from calib_serve.fuse.torch.kinds import Change
from calib_serve.fuse.torch.steps import abstention, acts, edges, mapped, probabilities, sets
from calib_serve.scores import LABELS, ONE_COLUMN, PROBABILITIES, Outputs
from calib_serve.scores.kinds import LEAST

__all__ = ["All", "Deciding", "Everything", "Logits", "Probabilities", "Tail", "Unchanged"]


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
    """The model's scores of a kind as logits (n, K) of the kind that the artifact was fitted on."""

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
        """``scores`` as (n, columns); ShapeError where they are not that."""
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
        """(n, K) to (n, K), or (n,), (n, 1) to (n, 2); at least float32."""
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


class Tail(nn.Module):
    """What all three share: scores to calibrated logits, and on to probabilities."""

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
        self.has_logits = artifact.mixture is None and artifact.table is None
        self.labels = artifact.is_multilabel
        self.one = outputs in ONE_COLUMN
        self.wide = dtype == torch.float64
        self.least = LEAST

    def logits(self, z: Tensor) -> Tensor:
        """Logits (n, K) of calibrated logits before a mixture or table, whose results they stand for."""
        if self.has_logits:
            return z
        probs: Tensor = self.probabilities(z)
        logs = probs.clamp_min(self.least).log()
        return logs - (1 - probs).clamp_min(self.least).log() if self.labels else logs

    def shown_logits(self, scores: Tensor, z: Tensor) -> Tensor:
        """The same in the shape and type of the model's own scores."""
        shown = self.logits(z)
        if self.one:
            shown = (shown[:, 1] - shown[:, 0]).reshape(scores.shape)
        return shown.to(scores.dtype)


class Logits(Tail):
    """Calibrated logits in the model's own shape; log-probabilities where a mixture or table leaves none."""

    def forward(self, scores: Tensor) -> Tensor:
        """(n, K) to (n, K), one column to one logit."""
        return self.shown_logits(scores, self.maps(self.read(scores)))


class Unchanged(Logits):
    """Probabilities as they are, where no step acts on them."""

    def forward(self, scores: Tensor) -> Tensor:
        """The same."""
        self.read.check(scores)
        return scores


class Probabilities(Tail):
    """Calibrated probabilities (n, K); of one column (n, 2)."""

    def forward(self, scores: Tensor) -> Tensor:
        """(n, K) to (n, K)."""
        probs: Tensor = self.probabilities(self.maps(self.read(scores)))
        return probs.to(scores.dtype)


class _Whole(Tail):
    """What makes all results of a batch."""

    inner_edges: Tensor

    def __init__(
        self,
        maps: tuple[LogitMap, ...],
        artifact: Artifact,
        dtype: torch.dtype,
        outputs: Outputs,
        change: Change,
    ) -> None:
        super().__init__(maps, artifact, dtype, outputs, change)
        bins = 15 if artifact.reference is None else len(artifact.reference)
        self.register_buffer("inner_edges", edges(np.linspace(0, 1, bins + 1)[1:-1], dtype))

    def everything(self, scores: Tensor, z: Tensor, probs: Tensor) -> All:
        """Of calibrated logits and probabilities."""
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


class Everything(_Whole):
    """Logits, probabilities, confidence, predicted class and bin."""

    def forward(self, scores: Tensor) -> All:
        """(n, K) to five tensors; the bin is that of the confidence as returned."""
        z = self.maps(self.read(scores))
        return self.everything(scores, z, self.probabilities(z))


class Deciding(_Whole):
    """A mapping by name: what ``returns`` says, and what the artifact decides: "set", "abstain", "act"."""

    def __init__(
        self,
        maps: tuple[LogitMap, ...],
        artifact: Artifact,
        dtype: torch.dtype,
        outputs: Outputs,
        change: Change,
    ) -> None:
        super().__init__(maps, artifact, dtype, outputs, change)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.sets = sets(artifact, wide)
        self.abstention = abstention(artifact, wide)
        self.has_sets = artifact.sets is not None
        self.abstains = artifact.abstain is not None
        self.acts = acts(artifact, wide)
        self.has_acts = artifact.contract is not None and artifact.contract.decides
        self.returns = "probabilities"

    def forward(self, scores: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        """(n, K) to tensors by name.

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
