"""A classifier that keeps its last logits and features, as several methods ask for those of one array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Head, InputShift, ModelFacts
from calib_serve.core.arrays import AnyFloats
from calib_serve.models.classifier import Classifier, Loss, Progress
from calib_serve.scores import Outputs


@dataclass(frozen=True, eq=False)
class CachedClassifier:
    """A ``Classifier`` that keeps the last logits and features in memory.

    Gradients are not kept: they change with every step of a fit.

    Args:
        inner: Classifier that makes them.
    """

    inner: Classifier
    _last: dict[str, tuple[Any, NDArray[np.float32]]] = field(default_factory=dict, init=False, repr=False)

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
    def class_names(self) -> tuple[str, ...]:
        """The classes' names by the model itself; () where it has none."""
        return getattr(self.inner, "class_names", ())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences for the user on what was taken of the model's file."""
        return getattr(self.inner, "remarks", ())

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
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Logits (n, K).

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self._kept("logits", inputs, shift, progress)

    def features(
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer.

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self._kept("features", inputs, shift, progress)

    def input_gradient(
        self,
        inputs: AnyFloats,
        loss: Loss,
        *,
        shift: InputShift | None = None,
        progress: Progress | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The summed loss's gradient by one shift shared by all inputs, and the logits.

        Args:
            inputs: (n, *input_shape).
            loss: From logits (b, K) and their rows to losses (b,).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self.inner.input_gradient(inputs, loss, shift=shift, progress=progress)

    def _kept(
        self,
        what: Literal["logits", "features"],
        inputs: AnyFloats,
        shift: InputShift | None,
        progress: Progress | None,
    ) -> NDArray[np.float32]:
        held, found = self._last.get(what, (None, None))
        if shift is not None or held is not inputs or found is None:
            found = getattr(self.inner, what)(inputs, shift=shift, progress=progress)
        if shift is None:
            self._last[what] = (inputs, found)  # held, so that no other array can be taken for it
        return found
