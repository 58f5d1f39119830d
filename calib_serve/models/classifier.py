"""One protocol for every deployed model: logits, features and gradients of its inputs, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Head, InputShift, ModelFacts
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError, ModelError, ShapeError
from calib_serve.models.input_shapes import check_input_shape
from calib_serve.scores import (
    LABELS,
    MADE,
    ONE_COLUMN,
    MadeBy,
    Outputs,
    class_count,
    exact,
    proved,
    refuted,
    sigmoid,
    softmax,
    to_logits,
)

if TYPE_CHECKING:
    from torch import Tensor

GIVE_SHAPE = "input_shape=(3, 224, 224); --option input_shape=3,224,224"

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all) after every batch."""

Loss = Callable[["Tensor", slice], "Tensor"]
"""(logits (b, K), their rows) to one loss per sample, (b,)."""

NO_SHIFT = (
    "the model takes whole numbers, as ids of words: they cannot be shifted and have no gradient; take an "
    "output method or a new head instead of Neural Clamping"
)


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
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
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
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer.

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        ...

    def input_gradient(
        self,
        inputs: AnyFloats,
        loss: Loss,
        *,
        shift: InputShift | None = None,
        progress: Progress | None = None,
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


def batches(
    inputs: AnyFloats, size: int, input_shape: tuple[int, ...], dtype: str = "float32"
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield batches of checked inputs of this type, with their rows."""
    if inputs.shape[1:] != input_shape:
        raise ShapeError(
            f"the model takes inputs (n, {', '.join(map(str, input_shape))}), got {inputs.shape}"
        )
    # A batch at a time: inputs may be a file that is larger than memory.
    for start in range(0, len(inputs), size):
        rows = slice(start, min(start + size, len(inputs)))
        yield rows, _checked_batch(np.asarray(inputs[rows]), start, dtype)


def _checked_batch(batch: AnyFloats, start: int = 0, dtype: str = "float32") -> NDArray[Any]:
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


def finite_logits(outputs: AnyFloats, kind: Outputs, where: str) -> NDArray[np.float32]:
    """A model's raw outputs as logits (n, K), or ModelError where they are not finite."""
    if not np.isfinite(outputs).all():
        raise ModelError(f"the model's outputs for {where} are NaN or infinite; is its file intact?")
    if len(outputs) and (wrong := refuted(outputs, kind)):
        raise ModelError(f"the model's outputs for {where} are no {kind}: {wrong}; say --outputs (outputs=)")
    return to_logits(outputs, kind).astype(np.float32, copy=False)


def width(classes: int, kind: Outputs) -> int:
    """The number of scores a sample that a model returns."""
    return 1 if kind in ONE_COLUMN else classes


def kind_of_scores(out: AnyFloats, said: Outputs | None, made_by: MadeBy) -> tuple[Outputs, int]:
    """The kind of a model's scores (n, K) or (n, 1), as ``said``, else as proved; and K.

    What makes them proves it, or rows that sum to 1. ModelError where this contradicts what was said, and
    where nothing proves a kind.
    """
    columns = out.shape[1]
    made = f"made by a {made_by}" if made_by else "made by neither a softmax nor a linear layer"
    kind = proved(out, made_by) if said is None else exact(said, columns)
    if kind is None:
        ways = "logit or probability" if columns == 1 else "logits, label_logits or label_probabilities"
        ways = "label_probabilities" if made_by == "Sigmoid" else ways
        raise ModelError(
            f"the model returns {columns} numbers a sample, {out.min():.3g} to {out.max():.3g}, {made}, and "
            f"no sums of 1 prove what they are: say --outputs {ways} (outputs=)"
        )
    if (kind in ONE_COLUMN and columns != 1) or kind not in MADE.get(made_by, (kind,)):
        raise ModelError(
            f"the model returns {columns} numbers a sample, {made}, not {said}: leave out --outputs"
        )
    if wrong := refuted(out, kind):
        raise ModelError(
            f"the model's outputs are no {kind}: {wrong}; say what they are, --outputs (outputs=)"
        )
    return kind, class_count(kind, columns)


def calibrated_probs(
    classifier: Classifier, inputs: AnyFloats, artifact: Artifact | None
) -> NDArray[np.float64]:
    """Return probabilities (n, K) of a model's inputs, of labels (n, L), in one pass over them.

    The InputShift is added to the inputs, the Head reads the last linear layer's features, the other
    steps follow.

    Args:
        classifier: The model.
        inputs: (n, *input_shape).
        artifact: Its calibration; None: the model's own probabilities.

    Raises:
        InputError: Where the model returns what the artifact was not fitted on, and it matters.
    """
    if artifact is None:
        z = classifier.logits(inputs)
        return sigmoid(z) if classifier.outputs in LABELS else softmax(z)
    return artifact.of_logits(logits_under(classifier, inputs, artifact))


def logits_under(classifier: Classifier, inputs: AnyFloats, artifact: Artifact) -> AnyFloats:
    """Logits (n, K) as the output steps take them: under the artifact's shift and head.

    Args:
        classifier: The model.
        inputs: (n, *input_shape).
        artifact: Its calibration.

    Raises:
        InputError: Where the model returns what the artifact was not fitted on, and it matters.
    """
    shift = artifact.input_shift
    if artifact.head is None:
        artifact.check_takes(classifier.outputs, "what the model returns")
        return classifier.logits(inputs, shift=shift)
    return artifact.head(classifier.features(inputs, shift=shift))
