"""A classifier on Ray Serve."""

from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request

from calib_serve import Reporter


@serve.deployment(num_replicas=2, max_ongoing_requests=32)
class Digits:
    """Two replicas, and batches of what waits."""

    def __init__(self) -> None:
        self.weights = dict(np.load("weights.npz"))
        self.reporter = Reporter("artifact", model="digits", version="1", watch="http://127.0.0.1:9300")

    def __del__(self) -> None:
        self.reporter.close()

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.01)
    async def classify(self, rows: list[list[float]]) -> list[dict[str, Any]]:
        """One prediction a row of features."""
        logits = np.array(rows) @ self.weights["W"] + self.weights["b"]
        probs = self.reporter.artifact.of_logits(logits)
        found = zip(probs.argmax(axis=1), probs.max(axis=1), self.reporter.served(probs), strict=True)
        return [{"predicted": int(k), "confidence": float(p), "receipt": r} for k, p, r in found]

    async def __call__(self, request: Request) -> dict[str, Any]:
        """One prediction a request."""
        return await self.classify((await request.json())["x"])


app = Digits.bind()
