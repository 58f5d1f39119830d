"""The interface of every deployed classifier, independent of its file format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Head, InputShift, ModelFacts
from calib_serve.data import check_input_shape
from calib_serve.errors import InputError, ModelError, ShapeError
from calib_serve.metrics import sigmoid, softmax
from calib_serve.scores import (
    LABELS,
    ONE_COLUMN,
    PROBABILITIES,
    Outputs,
    class_count,
    exact,
    measured,
    to_logits,
)

if TYPE_CHECKING:
    from torch import Tensor


_SUM_TOLERANCE = 1e-4  # of probabilities in float32 over a thousand classes

Floats = NDArray[np.floating[Any]]
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
        """K."""
        ...

    @property
    def differentiable(self) -> bool:
        """Whether ``input_gradient`` is available."""
        ...

    @property
    def outputs(self) -> Outputs:
        """What the model itself returns, as measured."""
        ...

    @property
    def fingerprint(self) -> str:
        """The sha256 of the model file's bytes."""
        ...

    @property
    def batch_size(self) -> int:
        """Inputs per batch."""
        ...

    @property
    def head(self) -> Head:
        """The last linear layer; raises ModelError where there is none to replace."""
        ...

    def facts(self) -> ModelFacts:
        """Facts about the model for an artifact's manifest."""
        ...

    def logits(
        self, inputs: Floats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Logits (n, K); log-probabilities after a softmax, (0, z) of one logit z, log-odds of labels."""
        ...

    def features(
        self, inputs: Floats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer."""
        ...

    def input_gradient(
        self, inputs: Floats, loss: Loss, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The summed loss's gradient with respect to one shift shared by all inputs, and the logits."""
        ...


def check_sizes(path: Path, sizes: Sequence[int | None], given: tuple[int, ...] | None) -> None:
    """ModelError or ShapeError unless a file made for ``sizes`` takes inputs ``given``, in any batch.

    ``sizes`` are with the batch, and None is any size; ``given`` without it, None where nobody said.
    """
    if given is not None:
        check_input_shape(given, sizes[1:], of=str(path))
    if sizes[0] is not None:
        raise ModelError(
            f"{path} takes {sizes[0]} at once and no other number: export it with a batch dimension of any "
            'size, dynamic_shapes=({0: torch.export.Dim("n")},)'
        )


def batches(inputs: Floats, size: int, input_shape: tuple[int, ...]) -> Iterator[tuple[slice, Floats]]:
    """Batches of checked inputs, with their rows."""
    if inputs.shape[1:] != input_shape:
        raise ShapeError(
            f"the model takes inputs (n, {', '.join(map(str, input_shape))}), got {inputs.shape}"
        )
    for start in range(0, len(inputs), size):
        rows = slice(start, min(start + size, len(inputs)))
        yield rows, checked_batch(np.asarray(inputs[rows]), start)


def checked_batch(batch: Floats, start: int = 0) -> Floats:
    """One batch as float32, or InputError naming the first bad row."""
    if batch.dtype.kind not in "fiu":
        raise InputError(f"inputs must be numbers, got {batch.dtype}")
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinite, and is refused
        values = batch.astype(np.float32, copy=False)
    finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if not finite.all():
        raise InputError(
            f"input {start + int(np.argmin(finite))} holds NaN or infinity; "
            "fix or drop such inputs before fitting"
        )
    return values


def finite_logits(outputs: Floats, kind: Outputs, where: str) -> NDArray[np.float32]:
    """A model's raw outputs as logits (n, K), or ModelError where they are not finite."""
    z = to_logits(outputs, kind).astype(np.float32, copy=False)
    if not np.isfinite(z).all():
        raise ModelError(f"the model's outputs for {where} are NaN or infinite; is its file intact?")
    return z


def width(classes: int, kind: Outputs) -> int:
    """How many numbers a sample a model returns."""
    return 1 if kind in ONE_COLUMN else classes


def measured_kind(out: Floats, told: Outputs | None = None) -> tuple[Outputs, int]:
    """What a model returned for a few inputs, (n, K) or (n, 1): as ``told``, else by numbers; and K.

    ModelError where numbers cannot be what was told, and for probabilities of labels that nobody told of.
    """
    found, columns = measured(out, tolerance=_SUM_TOLERANCE), out.shape[1]
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
    """Forwards the metadata of ``inner``; subclasses compute logits, features and gradients."""

    inner: Classifier

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.inner.input_shape

    @property
    def classes(self) -> int:
        """K."""
        return self.inner.classes

    @property
    def differentiable(self) -> bool:
        """Whether ``input_gradient`` is available."""
        return self.inner.differentiable

    @property
    def outputs(self) -> Outputs:
        """What the model returns."""
        return self.inner.outputs

    @property
    def fingerprint(self) -> str:
        """The sha256 of the model file's bytes."""
        return self.inner.fingerprint

    @property
    def batch_size(self) -> int:
        """Inputs per batch."""
        return self.inner.batch_size

    @property
    def head(self) -> Head:
        """The last linear layer."""
        return self.inner.head

    def facts(self) -> ModelFacts:
        """Facts about the model for an artifact's manifest."""
        return self.inner.facts()


def calibrated_probs(
    classifier: Classifier, inputs: Floats, artifact: Artifact | None, *, progress: Progress | None = None
) -> NDArray[np.float64]:
    """Probabilities (n, K) of inputs (n, *input_shape), of labels (n, L); with None the model's own.

    The InputShift is added to the inputs, the Head reads the last linear layer's features, the other
    steps follow. One pass over the inputs. InputError where the model returns what the artifact was not
    fitted on, and it matters.
    """
    if artifact is None:
        z = classifier.logits(inputs, progress=progress)
        return sigmoid(z) if classifier.outputs in LABELS else softmax(z)
    return artifact.of_logits(logits_under(classifier, inputs, artifact, progress=progress))


def logits_under(
    classifier: Classifier, inputs: Floats, artifact: Artifact, *, progress: Progress | None = None
) -> Floats:
    """Logits (n, K) of inputs (n, *input_shape) as the output steps take them: under its shift and head."""
    shift = artifact.input_shift
    if artifact.head is None:
        artifact.check_takes(classifier.outputs, "what the model returns")
        return classifier.logits(inputs, shift=shift, progress=progress)
    return artifact.head(classifier.features(inputs, shift=shift, progress=progress))
