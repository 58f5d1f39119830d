"""Rows that a model was run on, kept as hashes with its scores: by them another file of it is known."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import ShapeError

KEPT_ROWS = 32
"""Rows that are kept: more than a comparison needs, as some may be missing when it is made."""


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Hashes of inputs, and the model's own scores for these.

    Args:
        inputs: SHA-256 of each row (m, 32), as ``hash_rows`` makes them.
        logits: (m, K), before any step of the artifact.
    """

    inputs: NDArray[np.uint8]
    logits: AnyFloats

    def __post_init__(self) -> None:
        inputs, logits = np.asarray(self.inputs, np.uint8), np.asarray(self.logits, np.float64)
        if logits.ndim != 2 or inputs.shape != (len(logits), 32):
            raise ShapeError(f"kept rows must be (m, 32) and (m, K), got {inputs.shape} and {logits.shape}")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "logits", logits)

    def matching(self, inputs: NDArray[Any]) -> tuple[NDArray[Any], AnyFloats]:
        """Find kept rows among ``inputs`` (n, ...): these inputs (k, ...), and their scores (k, K).

        Args:
            inputs: Inputs as the model takes them, in any order.

        >>> rows = np.eye(3)
        >>> KeptRows(hash_rows(rows), rows).matching(rows[1:])[1].tolist()
        [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        """
        place = {row.tobytes(): k for k, row in enumerate(self.inputs)}
        found = {place.get(row.tobytes(), -1): i for i, row in enumerate(hash_rows(inputs))}
        found.pop(-1, None)
        return inputs[list(found.values())], self.logits[list(found)]


def hash_rows(inputs: NDArray[Any]) -> NDArray[np.uint8]:
    """SHA-256 of each row's numbers (n, 32); of floats as float32, whatever they are written in.

    Args:
        inputs: (n, ...).
    """
    x = np.asarray(inputs)
    x = x.astype(np.float32) if x.dtype.kind == "f" else x.astype(np.int64) if x.dtype.kind in "iub" else x
    hashes = [hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest() for row in x]
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
