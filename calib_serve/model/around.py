"""The base class of classifiers that wrap another one."""

from __future__ import annotations

from dataclasses import dataclass

from calib_serve.artifact import Head, ModelFacts
from calib_serve.model.face import Classifier
from calib_serve.scores import Outputs

__all__ = ["Around"]


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
