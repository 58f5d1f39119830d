"""A classifier behind FastAPI."""

import numpy as np
from fastapi import FastAPI

from calib_serve import Reporter

weights = dict(np.load("weights.npz"))
reporter = Reporter("artifact", model="digits", version="1", watch="http://127.0.0.1:9300")
app = FastAPI(on_shutdown=[reporter.close])


@app.post("/predict")
def predict(rows: list[list[float]]) -> dict[str, list]:
    """One prediction a row of features."""
    logits = np.array(rows) @ weights["W"] + weights["b"]
    probs = reporter.artifact.of_logits(logits)
    return {
        "predicted": probs.argmax(axis=1).tolist(),
        "confidence": probs.max(axis=1).tolist(),
        "receipt": reporter.served(probs),
    }


@app.post("/labels")
def labels(items: list[dict]) -> list[dict]:
    return [outcome.as_dict() for outcome in reporter.labels(items)]
