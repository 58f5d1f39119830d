"""Classifiers: one protocol for every deployed model, with results cached on disk and shared by ranks.

``CachedClassifier`` keeps logits and features on disk: each input goes through the model once, even if a run
is killed. ``RankedClassifier`` shares the work among processes (``torchrun --nproc-per-node N -m calib_serve
fit ...``): every rank processes a run of whole batches and gets the whole result, so that fitters compute
the same on every rank without changes.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Head, InputShift, ModelFacts
from calib_serve.core.errors import InputError, ModelError, ShapeError
from calib_serve.core.files import make_private, private_folder
from calib_serve.models.dataset import check_input_shape
from calib_serve.scores import (
    LABELS,
    ONE_COLUMN,
    PROBABILITIES,
    Outputs,
    class_count,
    exact,
    infer_outputs,
    sigmoid,
    softmax,
    to_logits,
)

if TYPE_CHECKING:
    from torch import Tensor

GIVE_SHAPE = "input_shape=(3, 224, 224); --option input_shape=3,224,224"
_SUM_TOLERANCE = 1e-2  # of a thousand probabilities, each rounded to 16 bits

Floats = NDArray[np.floating[Any]]
Made = Literal["logits", "features"]
Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all) after every batch."""

Loss = Callable[["Tensor", slice], "Tensor"]
"""(logits (b, K), their rows) to one loss per sample, (b,)."""


class Classifier(Protocol):
    """A frozen classifier: one call streams any number of inputs through it in batches.

    ``inputs`` are (n, *input_shape), numbers, and may be memory-mapped. Logits and features come
    back as float32. A ``shift`` is added to the inputs first. Raises ShapeError for inputs of
    another shape, InputError for NaN, ModelError where the model does not support the call.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, without the batch."""
        ...

    @property
    def classes(self) -> int:
        """The number K of classes."""
        ...

    @property
    def differentiable(self) -> bool:
        """Whether ``input_gradient`` is available."""
        ...

    @property
    def outputs(self) -> Outputs:
        """The kind of scores that the model itself returns, as measured."""
        ...

    @property
    def fingerprint(self) -> str:
        """The sha256 of the model file's bytes."""
        ...

    @property
    def batch_size(self) -> int:
        """The inputs per batch."""
        ...

    @property
    def head(self) -> Head:
        """The last linear layer; ModelError where there is none to replace."""
        ...

    def facts(self) -> ModelFacts:
        """Facts about the model for an artifact's manifest."""
        ...

    def logits(
        self, inputs: Floats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Logits (n, K).

        Log-probabilities after a softmax, (0, z) of one logit z, log-odds of labels.

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        ...

    def features(
        self, inputs: Floats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer.

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        ...

    def input_gradient(
        self, inputs: Floats, loss: Loss, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The summed loss's gradient (*input_shape) by one shift shared by all inputs, and the logits (n, K).

        Args:
            inputs: (n, *input_shape).
            loss: From logits (b, K) and their rows to losses (b,).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        ...


def check_sizes(path: Path, sizes: Sequence[int | None], given: tuple[int, ...] | None) -> None:
    """Raise ModelError or ShapeError unless a file made for ``sizes`` takes inputs ``given``, in any batch.

    ``sizes`` are with the batch, and None is any size; ``given`` without it, None where nobody said.
    """
    if given is not None:
        check_input_shape(given, sizes[1:], of=str(path))
    if sizes[0] is not None:
        raise ModelError(
            f"{path} takes {sizes[0]} at once and no other number: export it with a batch dimension of any "
            'size, dynamic_shapes=({0: torch.export.Dim("n")},)'
        )


NO_SHIFT = (
    "the model takes whole numbers, as ids of words: they cannot be shifted and have no gradient; take an "
    "output method or a new head instead of Neural Clamping"
)


def batches(
    inputs: Floats, size: int, input_shape: tuple[int, ...], dtype: str = "float32"
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield batches of checked inputs of this type, with their rows."""
    if inputs.shape[1:] != input_shape:
        raise ShapeError(
            f"the model takes inputs (n, {', '.join(map(str, input_shape))}), got {inputs.shape}"
        )
    # A batch at a time: inputs may be a file that is larger than memory.
    for start in range(0, len(inputs), size):
        rows = slice(start, min(start + size, len(inputs)))
        yield rows, checked_batch(np.asarray(inputs[rows]), start, dtype)


def checked_batch(batch: Floats, start: int = 0, dtype: str = "float32") -> NDArray[Any]:
    """One batch in this type; InputError names the first bad row."""
    if batch.dtype.kind not in "fiu":
        raise InputError(f"inputs must be numbers, got {batch.dtype}")
    # A float64 too large for float32 becomes infinite, and what an integer cannot be another number.
    with np.errstate(over="ignore", invalid="ignore"):
        values = batch.astype(dtype, copy=False)
    whole = values.dtype.kind in "iu"
    good = (values == batch if whole else np.isfinite(values)).reshape(len(values), -1).all(axis=1)
    if not good.all():
        told = f"a number that {dtype} cannot hold, which the model takes" if whole else "NaN or infinity"
        raise InputError(
            f"input {start + int(np.argmin(good))} holds {told}; fix or drop such inputs before fitting"
        )
    return np.asarray(values)


def finite_logits(outputs: Floats, kind: Outputs, where: str) -> NDArray[np.float32]:
    """A model's raw outputs as logits (n, K), or ModelError where they are not finite."""
    z = to_logits(outputs, kind).astype(np.float32, copy=False)
    if not np.isfinite(z).all():
        raise ModelError(f"the model's outputs for {where} are NaN or infinite; is its file intact?")
    return z


def width(classes: int, kind: Outputs) -> int:
    """The number of scores a sample that a model returns."""
    return 1 if kind in ONE_COLUMN else classes


def measured_kind(out: Floats, told: Outputs | None = None) -> tuple[Outputs, int]:
    """The kind of a model's scores (n, K) or (n, 1), as ``told``, else by their numbers; and K.

    ModelError where numbers cannot be what was told, and for probabilities of labels that nobody told of.
    """
    # By numbers: the rows of a softmax add up to 1, and those of logits do not by chance.
    found, columns = infer_outputs(out, tolerance=_SUM_TOLERANCE), out.shape[1]
    kind = found if told is None else exact(told, columns)
    unit = found in PROBABILITIES
    wrong = kind in PROBABILITIES and not (found == kind or (unit and kind == "label_probabilities"))
    if wrong or (kind in ONE_COLUMN and columns != 1):
        raise ModelError(f"the model's outputs are {found} by their numbers, not {told}; leave out --outputs")
    if kind == "label_probabilities" and told is None:
        raise ModelError(
            "the model returns one probability a label (sigmoid, multi-label), or logits within [0, 1]; say "
            'which with --outputs label_probabilities or logits (outputs="logits")'
        )
    return kind, class_count(kind, columns)


@dataclass(frozen=True, eq=False)
class Around:
    """A classifier around another: subclasses change how logits and features are made.

    Args:
        inner: Classifier that answers whatever a subclass does not.
    """

    inner: Classifier

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.inner.input_shape

    @property
    def classes(self) -> int:
        """The number K of classes."""
        return self.inner.classes

    @property
    def differentiable(self) -> bool:
        """Whether ``input_gradient`` is available."""
        return self.inner.differentiable

    @property
    def outputs(self) -> Outputs:
        """The kind of scores that the model returns."""
        return self.inner.outputs

    @property
    def fingerprint(self) -> str:
        """The sha256 of the model file's bytes."""
        return self.inner.fingerprint

    @property
    def batch_size(self) -> int:
        """The inputs per batch."""
        return self.inner.batch_size

    @property
    def head(self) -> Head:
        """The last linear layer."""
        return self.inner.head

    def facts(self) -> ModelFacts:
        """Facts about the model for an artifact's manifest."""
        return self.inner.facts()

    def logits(
        self, inputs: Floats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Logits (n, K).

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self._run("logits", inputs, shift, progress)

    def features(
        self, inputs: Floats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer.

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self._run("features", inputs, shift, progress)

    def input_gradient(
        self, inputs: Floats, loss: Loss, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The summed loss's gradient by one shift shared by all inputs, and the logits.

        Args:
            inputs: (n, *input_shape).
            loss: From logits (b, K) and their rows to losses (b,).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self.inner.input_gradient(inputs, loss, shift=shift, progress=progress)

    def _run(
        self, what: Made, inputs: Floats, shift: InputShift | None, progress: Progress | None
    ) -> NDArray[np.float32]:
        """Results of ``inner`` for the inputs."""
        made = self.inner.logits if what == "logits" else self.inner.features
        return made(inputs, shift=shift, progress=progress)


def calibrated_probs(
    classifier: Classifier, inputs: Floats, artifact: Artifact | None, *, progress: Progress | None = None
) -> NDArray[np.float64]:
    """Return probabilities (n, K) of a model's inputs, of labels (n, L), in one pass over them.

    The InputShift is added to the inputs, the Head reads the last linear layer's features, the other
    steps follow.

    Args:
        classifier: The model.
        inputs: (n, *input_shape).
        artifact: Its calibration; None: the model's own probabilities.
        progress: Called with how many inputs are done, and of how many.

    Raises:
        InputError: Where the model returns what the artifact was not fitted on, and it matters.
    """
    if artifact is None:
        z = classifier.logits(inputs, progress=progress)
        return sigmoid(z) if classifier.outputs in LABELS else softmax(z)
    return artifact.of_logits(logits_under(classifier, inputs, artifact, progress=progress))


def logits_under(
    classifier: Classifier, inputs: Floats, artifact: Artifact, *, progress: Progress | None = None
) -> Floats:
    """Logits (n, K) as the output steps take them: under the artifact's shift and head.

    Args:
        classifier: The model.
        inputs: (n, *input_shape).
        artifact: Its calibration.
        progress: Called with how many inputs are done, and of how many.

    Raises:
        InputError: Where the model returns what the artifact was not fitted on, and it matters.
    """
    shift = artifact.input_shift
    if artifact.head is None:
        artifact.check_takes(classifier.outputs, "what the model returns")
        return classifier.logits(inputs, shift=shift, progress=progress)
    return artifact.head(classifier.features(inputs, shift=shift, progress=progress))


_BATCHES_AT_ONCE = 32  # batches between two writes to disk


@dataclass(frozen=True, eq=False)
class CachedClassifier(Around):
    """A ``Classifier`` whose results are memory-mapped from a folder.

    A file's name identifies the model, the inputs, the shift and the batch size. Gradients are not cached:
    they change with every step of a fit.

    Args:
        inner: Classifier that makes them.
        folder: Folder of the files.
    """

    folder: Path

    def _run(
        self, what: Made, inputs: Floats, shift: InputShift | None, progress: Progress | None
    ) -> NDArray[np.float32]:
        """Logits or features, memory-mapped."""
        width = self.classes if what == "logits" else self.head.weights[0].shape[1]
        done = self.folder / f"{what}-{self._key(inputs, shift)}.npy"
        if not done.exists():
            run = partial(getattr(self.inner, what), shift=shift)
            try:
                self._compute(done, run, inputs, width=width, progress=progress)
            except OSError as error:
                raise ModelError(
                    f"cannot keep {what} in {done}: {error}; fix that and run again, it resumes there"
                ) from error
        try:
            return np.load(done, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        except (ValueError, OSError, EOFError) as error:
            raise ModelError(f"cannot read {done}: {error}; delete it, and it is computed again") from error

    def _compute(
        self,
        done: Path,
        run: Callable[[Floats], NDArray[np.float32]],
        inputs: Floats,
        *,
        width: int,
        progress: Progress | None,
    ) -> None:
        private_folder(self.folder)
        growing, count = done.with_suffix(".partial"), done.with_suffix(".rows")
        make_private(growing)
        first = _rows_done(growing, count, (len(inputs), width))
        out = np.lib.format.open_memmap(growing, "r+" if first else "w+", np.float32, (len(inputs), width))
        _take_room(growing)
        # To flush after every batch would cost as much as a small model's pass.
        step = self.batch_size * _BATCHES_AT_ONCE
        for start in range(first, len(inputs), step):
            rows = slice(start, min(start + step, len(inputs)))
            out[rows] = run(inputs[rows])
            out.flush()
            count.write_text(str(rows.stop))
            if progress:
                progress(rows.stop, len(inputs))
        # Renamed when whole: a file under its final name is complete.
        growing.replace(done)
        count.unlink(missing_ok=True)

    def _key(self, inputs: Floats, shift: InputShift | None) -> str:
        # Whatever changes a result is in the name: a stale file is never read.
        digest = hashlib.sha256(f"{self.fingerprint} {self.batch_size} {self.facts()}".encode())
        digest.update(f"{inputs.dtype.str}{inputs.shape}".encode())
        for start in range(0, len(inputs), 1024):
            digest.update(np.ascontiguousarray(inputs[start : start + 1024]).data)
        if shift is not None:
            digest.update(f"{shift.low} {shift.high}".encode())
            digest.update(np.ascontiguousarray(shift.delta).data)
        return digest.hexdigest()[:32]


def _rows_done(growing: Path, count: Path, shape: tuple[int, int]) -> int:
    """Count the rows that a killed run had computed; 0 where its files are missing or damaged."""
    try:
        done = int(count.read_text())
        found = np.lib.format.open_memmap(growing, "r")
    except (OSError, ValueError, EOFError):
        return 0
    return done if 0 < done <= shape[0] and found.shape == shape and found.dtype == np.float32 else 0


def _take_room(path: Path) -> None:
    """Allocate the file's disk space: a write to a mapped file on a full disk kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


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
        self, what: Made, inputs: Floats, shift: InputShift | None, progress: Progress | None
    ) -> NDArray[np.float32]:
        """Logits or features of all inputs, on every rank."""
        mine = self._share(len(inputs))
        part = super()._run(what, inputs[mine], shift, progress)
        return self._gathered(part, mine, len(inputs))

    def input_gradient(
        self, inputs: Floats, loss: Loss, *, shift: InputShift | None = None, progress: Progress | None = None
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
