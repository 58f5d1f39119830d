"""A classifier behind BentoML."""

from typing import Any

import bentoml
import numpy as np


@bentoml.service(workers=2)
class Digits:
    """Two worker processes, and batches of what waits."""

    def __init__(self) -> None:
        self.weights = dict(np.load("weights.npz"))

    @bentoml.api(batchable=True)
    def classify(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """One prediction a row of features."""
        logits = rows @ self.weights["W"] + self.weights["b"]
        return [{"predicted": int(k)} for k in logits.argmax(axis=1)]
