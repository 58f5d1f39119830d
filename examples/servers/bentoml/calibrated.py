"""A classifier behind BentoML."""

from typing import Any

import bentoml
import numpy as np

from calib_serve import Reporter


@bentoml.service(workers=2)
class Digits:
    """Two worker processes, and batches of what waits."""

    def __init__(self) -> None:
        self.weights = dict(np.load("weights.npz"))
        self.reporter = Reporter("artifact", model="digits", version="1", watch="http://127.0.0.1:9300")

    @bentoml.on_shutdown
    def close(self) -> None:
        """Called in each worker that ends."""
        self.reporter.close()

    @bentoml.api(batchable=True)
    def classify(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """One prediction a row of features."""
        logits = rows @ self.weights["W"] + self.weights["b"]
        probs = self.reporter.artifact.of_logits(logits)
        found = zip(probs.argmax(axis=1), probs.max(axis=1), self.reporter.served(probs), strict=True)
        return [{"predicted": int(k), "confidence": float(p), "receipt": r} for k, p, r in found]
