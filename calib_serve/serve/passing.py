"""What passes a wrapped handler's seam is calibrated; each row's probabilities are kept for its receipts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.scores import Outputs, from_probs, to_logits
from calib_serve.seam import Form

__all__ = ["Passing", "Row"]


class Row(NamedTuple):
    """One row's calibrated probabilities (K,), and the logits (K,) that they are of."""

    probs: NDArray[np.float64]
    logits: NDArray[np.float64]


class Passing:
    """Called around each inference; keeps the rows of the batch since ``begin``.

    A failure of the calibration changes nothing: what was returned goes on as it is, and ``failed`` says why.
    ``order``: the place of a call in the batch, where a handler makes several in threads of its own.
    """

    def __init__(
        self,
        artifact: Artifact,
        form: Form,
        kind: Outputs,
        *,
        order: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._artifact, self._form, self._kind, self._order = artifact, form, kind, order
        self.begin()

    def begin(self) -> None:
        """A new batch."""
        self._calls: list[tuple[int | None, list[Row | None]]] = []
        self.failed: Exception | None = None

    def __call__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of ``call``, calibrated."""
        returned = call(*args, **kwargs)
        try:
            rows, result = self._calibrated(returned)
        except Exception as error:  # fails open, and is counted
            self.failed = error
            return returned
        place = self._order()
        if place is None and threading.current_thread() is threading.main_thread():
            place = len(self._calls)
        self._calls.append((place, rows))
        return result

    def rows(self) -> list[Row | None]:
        """The batch's rows in order, None for one that is not finite; empty where their order is unknown."""
        if len(self._calls) > 1 and any(place is None for place, _ in self._calls):
            return []
        return [row for _, rows in sorted(self._calls, key=lambda call: call[0] or 0) for row in rows]

    @property
    def reached(self) -> bool:
        """Whether anything passed since ``begin``."""
        return bool(self._calls) or self.failed is not None

    def _calibrated(self, returned: Any) -> tuple[list[Row | None], Any]:
        found = self._form.scores(returned, self._artifact.classes)
        logits = to_logits(found.values, self._kind)
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        probs = self._artifact.probs(logits if finite.all() else np.where(finite[:, None], logits, 0.0))
        rows = [Row(p, z) if ok else None for p, z, ok in zip(probs, logits, finite.tolist(), strict=True)]
        made = from_probs(probs, found.values, self._kind)
        return rows, self._form.put(returned, made, found.shape)
