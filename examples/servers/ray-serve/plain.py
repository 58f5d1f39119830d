"""A classifier on Ray Serve."""

from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=2, max_ongoing_requests=32)
class Digits:
    """Two replicas, and batches of what waits."""

    def __init__(self) -> None:
        self.weights = dict(np.load("weights.npz"))

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.01)
    async def classify(self, rows: list[list[float]]) -> list[dict[str, Any]]:
        """One prediction a row of features."""
        logits = np.array(rows) @ self.weights["W"] + self.weights["b"]
        return [{"predicted": int(k)} for k in logits.argmax(axis=1)]

    async def __call__(self, request: Request) -> dict[str, Any]:
        """One prediction a request."""
        return await self.classify((await request.json())["x"])


app = Digits.bind()
