"""A classifier of MLflow, logged and registered; `mlflow models serve -m models:/digits/1` serves it."""

from typing import Any

import mlflow
import numpy as np

import calib_serve.integrations.mlflow


class Digits(mlflow.pyfunc.PythonModel):
    """Scores, (n, K) logits, of rows of features."""

    def load_context(self, context: Any) -> None:
        """The weights that were logged with it."""
        self.weights = dict(np.load(context.artifacts["weights"]))

    def predict(self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None) -> Any:
        """One row of scores a row of features."""
        return np.asarray(model_input, float) @ self.weights["W"] + self.weights["b"]


with mlflow.start_run():
    weights = {"weights": "weights.npz"}
    scores = mlflow.pyfunc.log_model(name="model", python_model=Digits(), artifacts=weights)
    # Predictions are counted at CALIB_SERVE_WATCH, such as http://127.0.0.1:9300.
    served = {"model": "digits", "version": "1", "registered_model_name": "digits"}
    calib_serve.integrations.mlflow.log_calibrated(scores.model_uri, "artifact", outputs="logits", **served)
