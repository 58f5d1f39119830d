"""A classifier that keeps its last logits and features, as several methods ask for those of one array."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import InputShift
from calib_serve.core.arrays import AnyFloats
from calib_serve.models.classifier import Classifier, Progress


class CachedClassifier:
    """A ``Classifier`` that keeps the last logits and features in memory, and is its inner one in all else.

    Args:
        inner: Classifier that makes them.
    """

    def __init__(self, inner: Classifier) -> None:
        self.inner = inner
        self._last: dict[str, tuple[Any, NDArray[np.float32]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

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
