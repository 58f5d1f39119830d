"""A classifier shared by processes (``torchrun --nproc-per-node N -m calib_serve fit ...``).

Every rank processes a run of whole batches and gets the whole result, so that fitters compute the same on
every rank without changes.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from calib_serve.artifact import InputShift
from calib_serve.core.arrays import AnyFloats
from calib_serve.models.classifier import Around, Classifier, Loss, Made, Progress


def rank_device() -> str | None:
    """The GPU of this process where torchrun started it and there are GPUs, else None."""
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if rank is not None and torch.cuda.is_available() else None


def join(classifier: Classifier) -> Classifier:
    """The classifier, shared among the processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return classifier
    if not dist.is_initialized():
        # nccl moves tensors between GPUs, gloo between processes without one.
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return RankedClassifier(classifier, dist.get_rank(), dist.get_world_size())


@dataclass(frozen=True, eq=False)
class RankedClassifier(Around):
    """A ``Classifier`` shared by ranks: ``inner`` does this rank's part."""

    rank: int
    world: int

    def _run(
        self, what: Made, inputs: AnyFloats, shift: InputShift | None, progress: Progress | None
    ) -> NDArray[np.float32]:
        """Logits or features of all inputs, on every rank."""
        mine = self._share(len(inputs))
        part = super()._run(what, inputs[mine], shift, progress)
        return self._gathered(part, mine, len(inputs))

    def input_gradient(
        self,
        inputs: AnyFloats,
        loss: Loss,
        *,
        shift: InputShift | None = None,
        progress: Progress | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The gradient summed over all inputs and all logits, on every rank."""
        mine = self._share(len(inputs))

        # A rank's rows count from 0; the loss, which looks labels up by row, counts them in the whole.
        def of_all(logits: torch.Tensor, rows: slice) -> torch.Tensor:
            return loss(logits, slice(rows.start + mine.start, rows.stop + mine.start))

        gradient, logits = self.inner.input_gradient(inputs[mine], of_all, shift=shift, progress=progress)
        return self._summed(gradient), self._gathered(logits, mine, len(inputs))

    def _share(self, n: int) -> slice:
        """The whole batches of this rank, so that each has the inputs it would have in one process."""
        size = self.batch_size
        count = math.ceil(n / size)
        first, end = (count * r // self.world for r in (self.rank, self.rank + 1))
        return slice(first * size, min(end * size, n))

    def _gathered(self, part: NDArray[np.float32], mine: slice, n: int) -> NDArray[np.float32]:
        whole = np.zeros((n, part.shape[1]), np.float32)
        whole[mine] = part
        return self._summed(whole)  # the other ranks' rows are zeros here: a sum is exact

    def _summed(self, array: NDArray[Any]) -> NDArray[Any]:
        on_gpu = dist.get_backend() == "nccl"
        tensor = torch.from_numpy(array).to(torch.device("cuda") if on_gpu else "cpu")
        dist.all_reduce(tensor)
        return tensor.cpu().numpy()
