"""A classifier behind FastAPI, its labels and metrics in the same process."""

import numpy as np
from fastapi import FastAPI

from calib_serve import Artifact, Reporter, Watch, create_app

weights = dict(np.load("weights.npz"))
artifact = Artifact.load("artifact")
watch = Watch.open({("digits", "1"): artifact}, keyring="keyring.json", ledger="app-ledger.db")
reporter = Reporter(artifact, model="digits", version="1", keyring="keyring.json", watch=watch)
app = FastAPI(on_shutdown=[reporter.close, watch.close])
app.mount("/calibration", create_app(watch))


@app.post("/predict")
def predict(rows: list[list[float]]) -> dict[str, list]:
    """One prediction a row of features."""
    logits = np.array(rows) @ weights["W"] + weights["b"]
    probs = artifact.of_logits(logits)
    return {
        "predicted": probs.argmax(axis=1).tolist(),
        "confidence": probs.max(axis=1).tolist(),
        "receipt": reporter.served(probs),
    }
