"""The calibration set of a multi-label model, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.errors import InputError
from calib_serve.fit.samples import ClassWeight, Samples, sample_weights
from calib_serve.metrics.scores import truths
from calib_serve.scores import LABELS, Outputs, check_outputs, to_logits

__all__ = ["LabelSamples"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LabelSamples(Samples):
    """Log-odds (n, L) of each label, whether each is true (n, L), and weights (n,) of samples or None."""

    @classmethod
    def of(
        cls,
        logits: ArrayLike | Samples,
        labels: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        class_weight: ClassWeight = None,
        outputs: Outputs | None = None,
    ) -> LabelSamples:
        """Check a caller's arrays: scores (n, L) of the kind ``outputs`` and labels (n, L), each 0 or 1.

        Raises ShapeError, or InputError for scores that are not finite or not of labels, other labels and
        bad weights.
        """
        if isinstance(logits, Samples):
            raise InputError("give the scores of labels as an array (n, L)")
        check_outputs(outputs)
        if outputs not in LABELS:
            raise InputError(f"scores of labels are {' or '.join(LABELS)} (outputs=), got {outputs}")
        if class_weight is not None:
            raise InputError("class_weight is for one class a sample; give each sample a weight instead")
        z = to_logits(logits, outputs)
        if not len(z):
            raise InputError("there is no sample to fit on")
        y = truths(labels, z.shape)
        finite = np.isfinite(z).all(axis=1)
        if not finite.all():
            bad = int(np.argmin(finite))
            raise InputError(
                f"scores of labels must be finite, and probabilities in [0, 1]: row {bad} is not; fix or "
                "drop such samples"
            )
        weight = None if sample_weight is None else sample_weights(y[:, 0], 2, sample_weight, None)
        return cls(z, y, weight, outputs=outputs)

    def label(self, k: int) -> tuple[Floats, NDArray[np.intp], Floats]:
        """Log-odds, truths and weights of one label, each (n,)."""
        rows = slice(None) if self.rows is None else self.rows
        z = np.asarray(self.logits[rows, k], np.float64)
        return z, self.labels[:, k], np.ones(len(self)) if self.weight is None else self.weight

    def pooled(self) -> Samples:
        """Every label of every sample as a sample of two classes."""
        z: NDArray[Any] = self.read(slice(0, len(self))).reshape(-1, 1)
        weight = None if self.weight is None else np.repeat(self.weight, self.classes)
        return Samples(np.concatenate([np.zeros_like(z), z], axis=1), self.labels.reshape(-1), weight)
